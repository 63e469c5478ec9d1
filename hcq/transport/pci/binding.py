"""Bind functions to vfio-pci, and back to their former driver.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci (driver_override, bind, unbind,
drivers_probe). A plan is made and checked first. If a step fails or the user interrupts, the
earlier steps are undone, so that no function is left without its driver.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ugpu.hcq.errors import AccessDenied, DeviceBusy, HostError, TransportError
from ugpu.hcq.transport.late import await_closed
from ugpu.hcq.transport.pci.checks import (
    VFIO_DRIVER,
    check_iommu,
    check_kind,
    check_link,
    check_module,
    check_power,
)
from ugpu.hcq.transport.pci.function import BRIDGE, DRIVERS, NETWORK, STORAGE, PciFunction, holders
from ugpu.hcq.transport.system import System

log = logging.getLogger(__name__)

PROBE = "sys/bus/pci/drivers_probe"
_KINDS = {STORAGE: "storage", NETWORK: "network"}


@dataclass(frozen=True)
class Step:
    """One function to bind.

    Attributes:
        function: to bind.
        former: its driver before, which is restored later.
        override: its driver_override before, which is restored later.
    """

    function: PciFunction
    former: str | None
    override: str | None

    def __str__(self) -> str:
        return f"{self.function.address}: {self.former or 'no driver'} -> {VFIO_DRIVER}"


def plan(
    function: PciFunction,
    *,
    with_group: bool = True,
    rights: bool = True,
    no_iommu: bool = False,
) -> list[Step]:
    """Return the steps of binding, after all checks, and change nothing. rights: check permissions,
    too. no_iommu: accept a function that no IOMMU translates for.

    Functions that share the IOMMU group are included (such as a GPU's audio function). Refused with
    a reason: no IOMMU, no vfio-pci, a bridge, a group with storage or network that a kernel driver
    holds, a function that a process has open, missing permissions.
    """
    check_kind(function)
    check_link(function)
    if not no_iommu:
        check_iommu(function)
    check_module(function)
    check_power(function, runtime_managed=True)
    members = function.group_members() if with_group else [function]
    taken = [
        member
        for member in members
        if member.base_class != BRIDGE and member.driver not in (VFIO_DRIVER, "pci-stub")
    ]
    for member in taken:
        _check_expendable(function, member)
    for member in taken:
        check_idle(member)
    for member in taken if rights else ():
        check_rights(member.folder / "driver_override")
    return [Step(member, member.driver, member.override) for member in taken]


class Binding:
    """Functions bound to vfio-pci. `restore` binds them to their former drivers; idempotent."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps
        self._done: list[Step] = []

    @classmethod
    def bind(cls, function: PciFunction, *, no_iommu: bool = False) -> Self:
        """Bind the function and its group; none of them if one cannot be bound."""
        return cls._carry_out(plan(function, no_iommu=no_iommu))

    @classmethod
    def bind_alone(cls, function: PciFunction) -> Self:
        """Bind the function without its group; VFIO opens it once the others are bound too."""
        return cls._carry_out(plan(function, with_group=False))

    @classmethod
    def _carry_out(cls, steps: list[Step]) -> Self:
        binding = cls(steps)
        try:
            for step in binding._steps:
                # ORDER: recorded before it begins, so that an interrupted step is undone too.
                binding._done.append(step)
                _take(step)
        except BaseException:
            binding.restore()
            raise
        return binding

    @property
    def steps(self) -> list[Step]:
        return list(self._done)

    def restore(self) -> None:
        """Give every function back, last one first. A failure, and Ctrl-C too, is raised after all
        were tried: a step that has begun is finished first."""
        failures = []
        interrupt: KeyboardInterrupt | None = None
        while self._done:
            step = self._done[-1]
            try:
                give_back(step)
            except KeyboardInterrupt as error:
                interrupt = error
                continue  # giving back continues where it was interrupted
            except (OSError, HostError, TransportError) as error:
                if _leaves(step.function, error):
                    log.info(
                        "%s leaves the bus and is not returned to its driver", step.function.address
                    )
                    self._done.pop()
                    continue
                failures.append(f"{step.function.address}: {error}")
                log.error("%s could not be returned to %s", step.function.address, step.former)
            self._done.pop()
        if interrupt is not None:
            raise interrupt
        if failures:
            raise TransportError("some functions did not return to their driver", failures=failures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()


def release(function: PciFunction, *, rights: bool = True) -> list[Step]:
    """Return the steps that unbind the function and its group; DeviceBusy while VFIO has users."""
    await_closed(f"pci:{function.address}")
    users = holders(function.system, function.device_nodes())
    if users:
        raise DeviceBusy(
            f"{function.address} is in use through VFIO",
            holder=", ".join(users),
            remedy="end that process, or close the device in it",
        )
    members = [
        function_of_group
        for function_of_group in function.group_members()
        if function_of_group.driver == VFIO_DRIVER
    ]
    for member in members if rights else ():
        check_rights(member.folder / "driver_override")
    return [Step(member, None, None) for member in members]


def give_back(step: Step) -> None:
    """Take one function from vfio-pci, and bind its former driver, or let the kernel choose a
    driver if the former one is unknown."""
    function, system = step.function, step.function.system
    if not function.folder.is_dir():
        log.info("%s has left the bus and need not be returned to its driver", function.address)
        return
    if function.override != step.override:
        _override(function, step.override)
    if function.driver == VFIO_DRIVER and step.former != VFIO_DRIVER:
        write(system, function.folder / "driver/unbind", function.address)
    if function.driver is not None:
        return
    if step.former is not None:
        path = system.path(f"{DRIVERS}/{step.former}/bind")
        write(system, path, function.address)
        if function.driver != step.former:
            raise TransportError(
                f"{function.address} did not return to {step.former}", driver=function.driver
            )


def _leaves(function: PciFunction, error: BaseException) -> bool:
    """Return whether a function is just being removed from the bus: its files disappear before its
    folder does."""
    cause = error if isinstance(error, OSError) else error.__cause__
    gone = isinstance(cause, OSError) and cause.errno in (errno.ENOENT, errno.ENODEV)
    return gone and not (function.folder / "driver_override").exists()


def probe(function: PciFunction) -> str | None:
    """Let the kernel bind a driver to an unbound function; return its name or None."""
    try:
        write(function.system, function.system.path(PROBE), function.address)
    except TransportError:
        log.info("no kernel driver claims %s", function.address)
    return function.driver


def _take(step: Step) -> None:
    function, system = step.function, step.function.system
    _override(function, VFIO_DRIVER)
    if function.driver is not None:
        write(system, function.folder / "driver/unbind", function.address)
    write(system, system.path(PROBE), function.address)
    if function.driver != VFIO_DRIVER:
        raise TransportError(
            f"vfio-pci could not bind {function.address}",
            driver=function.driver or "none",
            remedy="see dmesg | tail for the reason",
        )


def _override(function: PciFunction, driver: str | None) -> None:
    # An empty line clears it (Linux driver_set_override).
    write(function.system, function.folder / "driver_override", (driver or "") + "\n")


def write(system: System, path: Path, text: str) -> None:
    """Write an attribute file; AccessDenied, or TransportError if the kernel refuses."""
    try:
        system.write_text(path, text)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise _denied(path) from error
        raise TransportError(
            f"the kernel rejected a write to {path}",
            wrote=text.strip(),
            reason=error.strerror or error.errno,
        ) from error


def _denied(path: Path) -> AccessDenied:
    return AccessDenied(
        f"no permission to write {path}",
        remedy="run the same command with sudo: drivers are root's",
    )


def check_rights(path: Path) -> None:
    """Raise AccessDenied unless this user may write the file."""
    if not os.access(path, os.W_OK):
        raise _denied(path)


def _check_expendable(requested: PciFunction, member: PciFunction) -> None:
    """Refuse to take a storage or network function from the kernel."""
    kind = _KINDS.get(member.base_class)
    if kind is None or member.driver is None:
        return
    uses = _uses(member)
    where = "" if member.address == requested.address else " shares its IOMMU group and"
    raise DeviceBusy(
        f"{member.address}{where} is a {kind} controller that the kernel uses",
        holder=", ".join([member.driver, *uses]),
        remedy="put the device into another slot, or unbind the controller yourself first",
    )


def check_idle(member: PciFunction) -> None:
    """Raise DeviceBusy, with the process, while a process uses the function. Descriptors that this
    process has closed, and that the kernel has not released yet, are waited for."""
    await_closed(f"pci:{member.address}")
    users = holders(member.system, member.device_nodes())
    if users:
        raise DeviceBusy(
            f"{member.address} is in use",
            holder=", ".join(users),
            driver=member.driver,
            remedy="end those processes (for a display server, switch to a text console)",
        )


def _uses(member: PciFunction) -> list[str]:
    """Return the uses of a storage or network function: mounts and interfaces."""
    names = [path.name for path in member.folder.glob("net/*")]
    disks = {
        path.name
        for pattern in ("**/block/*", "**/block/*/*")
        for path in member.folder.glob(pattern)
        if (path / "dev").exists()
    }
    for line in (member.system.read_text("proc/mounts") or "").splitlines():
        source, target, *_ = line.split(" ")
        if source.removeprefix("/dev/") in disks:
            names.append(f"{source} mounted on {target}")
    return names
