"""Rungs of the ladder (hcq.state.ladder) outside of the chip: secondary bus reset, D3cold, remove
and rescan. Each has a precondition, an action and a proof; none is begun on a device in use by
others.

A rung is for a card that no process has open: its configuration space, its power and its place on
the bus are restored, and its driver boots it again.

Source: PCI Express Base Specification 6.0 (6.6.1: conventional reset; 5.3: power management), Linux
Documentation/power/pci.rst, Documentation/ABI/testing/sysfs-bus-pci (d3cold_allowed, power_state,
reset_subordinate, remove, rescan), drivers/pci/pci.c.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ugpu.hcq.errors import (
    AccessDenied,
    BarUnassigned,
    DeviceBusy,
    DeviceLost,
    NotSupported,
    UnitTimeout,
)
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.transport.base import PciIdentity
from ugpu.hcq.transport.pci import preflight
from ugpu.hcq.transport.pci.binding import check_idle, check_rights, write
from ugpu.hcq.transport.pci.checks import VFIO_DRIVER
from ugpu.hcq.transport.pci.config import ConfigFile, SavedConfig, answers
from ugpu.hcq.transport.pci.eject import eject, ejectable, members, rescan_below
from ugpu.hcq.transport.pci.function import BRIDGE, PciFunction
from ugpu.hcq.transport.pci.path import below, slot_port
from ugpu.hcq.uapi import constants

# PCI Express Base Specification 6.0, 6.6.1: reset held for 1 ms at least, then no access for 100
# ms; a function may request more time until 1 s has passed.
RESET_HOLD_S, RESET_QUIET_S, RESET_LIMIT_S = 0.002, 0.1, 1.0
# TIMEOUT: of the platform's power switch and the kernel's bus scan; our choice
_POWER_LIMIT_S, _SCAN_LIMIT_S = 5.0, 5.0
_AUTOPROBE = "sys/bus/pci/drivers_autoprobe"


# ---- function-level reset ----------------------------------------------------------------------


class FunctionReset:
    """Have the kernel reset the function alone, if it has a function-level reset."""

    name = "function-level reset"
    level = Level.FLR
    cost = "the function loses its state; memory of the card may survive"

    def __init__(self, function: PciFunction, clock: Clock | None = None) -> None:
        self._function = function
        self._before = function.identity()

    def check(self) -> None:
        """See Rung."""
        ways = (self._function.attribute("reset_method") or "").split()
        if "flr" not in ways:
            raise NotSupported(
                f"{self._function.address} has no function-level reset",
                ways=", ".join(ways) or "none",
            )
        _check_free(self._function, "a function-level reset")
        check_rights(self._function.folder / "reset")

    def act(self) -> None:
        """See Rung. The reset method is chosen for this reset only."""
        system, folder = self._function.system, self._function.folder
        former = self._function.attribute("reset_method") or "default"
        try:
            write(system, folder / "reset_method", "flr")
            write(system, folder / "reset", "1")
        finally:
            write(system, folder / "reset_method", former)

    def prove(self) -> dict[str, object]:
        """See Rung."""
        return _proof(self._function, self._before)


# ---- secondary bus reset -----------------------------------------------------------------------


class BusReset:
    """Reset everything below the port that the card is plugged into. For a card with its own switch
    that is the port above the switch, as a reset inside the switch does not reach its firmware."""

    name = "bus reset"
    level = Level.BUS
    cost = "everything below the port loses its state; memory of the card may survive"

    def __init__(self, function: PciFunction, clock: Clock | None = None) -> None:
        self._function = function
        self._clock = clock if clock is not None else Clock()
        self._before = function.identity()

    def check(self) -> None:
        port = _port_of(self._function)
        for member in below(port):
            _check_free(member, f"a bus reset below {port.address}")
        check_rights(port.folder / "config")

    def act(self) -> None:
        port = _port_of(self._function)
        if (port.folder / "reset_subordinate").exists():  # since Linux 6.14
            write(port.system, port.folder / "reset_subordinate", "1")
            return
        reset_below(port, below(port), self._clock)

    def prove(self) -> dict[str, object]:
        return {"port": _port_of(self._function).address, **_proof(self._function, self._before)}


def reset_below(port: PciFunction, hit: list[PciFunction], clock: Clock) -> None:
    """Pulse a port's secondary bus reset. Configuration space of `hit`, listed from the port down,
    is saved before and restored after, whatever happens in between."""
    with contextlib.ExitStack() as stack:
        bridge = stack.enter_context(_config(port))
        opened = [stack.enter_context(_config(member)) for member in hit]
        saved = [
            SavedConfig(config.read, bridge=member.base_class == BRIDGE)
            for member, config in zip(hit, opened, strict=True)
        ]
        try:
            _pulse(bridge, clock)
            clock.sleep(RESET_QUIET_S)
        finally:
            # ORDER: from the port down: each bridge must route before functions below it respond.
            for config, kept in zip(opened, saved, strict=True):
                _await(port, config, clock)
                with contextlib.suppress(DeviceLost):  # the proof reports that it does not respond
                    kept.restore(config.write)


def _await(port: PciFunction, config: ConfigFile, clock: Clock) -> None:
    with contextlib.suppress(UnitTimeout):
        clock.wait_until(
            lambda: answers(config.read),
            unit=f"pci:{port.address}",
            waiting_for="configuration space after a bus reset",
            limit_s=RESET_LIMIT_S,
        )


def _pulse(bridge: ConfigFile, clock: Clock) -> None:
    """Hold the secondary bus in reset; it is released whatever happens in between."""
    regs = constants("pci_regs")
    control = bridge.read(regs.PCI_BRIDGE_CONTROL, 2)
    try:
        bridge.write(regs.PCI_BRIDGE_CONTROL, control | regs.PCI_BRIDGE_CTL_BUS_RESET, 2)
        clock.sleep(RESET_HOLD_S)
    finally:
        bridge.write(regs.PCI_BRIDGE_CONTROL, control & ~regs.PCI_BRIDGE_CTL_BUS_RESET, 2)


# ---- D3cold ------------------------------------------------------------------------------------


class ColdCycle:
    """Have the platform switch the power of the card's port off and on, by runtime power
    management: every function of the card and the port are allowed to sleep, then woken."""

    name = "D3cold cycle"
    level = Level.D3COLD
    cost = "the card loses all of its state and memory"

    def __init__(self, function: PciFunction, clock: Clock | None = None) -> None:
        self._function = function
        self._clock = clock if clock is not None else Clock()
        self._before = function.identity()
        self._reached = ""

    def _chain(self) -> list[PciFunction]:
        """Return the functions and the port, in the order in which they fall asleep."""
        port = _port_of(self._function)
        return [*reversed(below(port)), port]

    def check(self) -> None:
        port = _port_of(self._function)
        for part in below(port):
            _check_free(part, f"a power cycle of {port.address}")
        for part in self._chain():
            if part.attribute("power/control") is None:
                raise NotSupported(f"{part.address} has no runtime power management")
            if part.attribute("d3cold_allowed") == "0":
                raise NotSupported(
                    f"{part.address} is not allowed to enter D3cold",
                    remedy=f"echo 1 | sudo tee {part.folder}/d3cold_allowed",
                )
            check_rights(part.folder / "power/control")

    def act(self) -> None:
        chain = self._chain()
        port = chain[-1]
        former = [part.attribute("power/control") or "on" for part in chain]
        try:
            for part in chain:
                write(part.system, part.folder / "power/control", "auto")
            with contextlib.suppress(UnitTimeout):
                self._clock.wait_until(
                    lambda: port.power_state == "D3cold",
                    unit=f"pci:{port.address}",
                    waiting_for="D3cold",
                    limit_s=_POWER_LIMIT_S,
                )
            self._reached = port.power_state
        finally:
            with contextlib.ExitStack() as stack:  # all of them, even if one raises
                for part, control in zip(chain, former, strict=True):
                    path = part.folder / "power/control"
                    stack.callback(write, part.system, path, control)
                    # ORDER: these run first and from the port down; a sleeping port hides the rest.
                for part in chain:
                    stack.callback(write, part.system, part.folder / "power/control", "on")
        if self._reached != "D3cold":
            raise NotSupported(
                f"the platform does not switch off the power of {port.address}: expected "
                f"D3cold, got {self._reached}",
                port=port.address,
            )

    def prove(self) -> dict[str, object]:
        return {"reached": self._reached, **_proof(self._function, self._before)}


# ---- remove and rescan -------------------------------------------------------------------------


class RemoveRescan:
    """Remove the card from the bus and have the kernel find it again: new addresses, new
    windows."""

    name = "remove and rescan"
    level = Level.RESCAN
    cost = "the kernel's knowledge of the card; the chip itself is not reset"

    def __init__(self, function: PciFunction, clock: Clock | None = None) -> None:
        self._function = function
        self._clock = clock if clock is not None else Clock()
        self._before = function.identity()

    def check(self) -> None:
        port = _port_of(self._function)
        ejectable(self._function)
        check_rights(port.folder / "rescan")

    def act(self) -> None:
        port = _port_of(self._function)
        held = [(member, member.driver) for member in members(self._function) if member.driver]
        with _no_driver_probes(self._function):
            eject(self._function, clock=self._clock)
            try:
                self._while_gone()
            finally:
                self._bring_back(port, held)

    def _bring_back(self, port: PciFunction, held: list[tuple[PciFunction, str]]) -> None:
        """Have the kernel find the card, and give its functions back to their former drivers."""
        rescan_below(port)
        self._clock.wait_until(
            lambda: all(member.folder.is_dir() for member in (self._function, *dict(held))),
            unit=f"pci:{self._function.address}",
            waiting_for="the card on the bus",
            limit_s=_SCAN_LIMIT_S,
        )
        for member, driver in held:
            write(member.system, member.folder / "driver_override", driver)
            write(member.system, member.system.path("sys/bus/pci/drivers_probe"), member.address)

    def _while_gone(self) -> None:
        """Run the steps between removal and rescan."""

    def prove(self) -> dict[str, object]:
        for bar in self._function.bars():
            if bar.size and bar.memory and not bar.assigned:
                raise BarUnassigned(
                    f"BAR {bar.index} of {self._function.address} has no address", bar=bar.index
                )
        return _proof(self._function, self._before)


@contextmanager
def _no_driver_probes(function: PciFunction) -> Iterator[None]:
    """Keep the vendor's driver from taking a card at the moment when it is found."""
    system = function.system
    former = system.read_text(_AUTOPROBE) or "1"
    write(system, system.path(_AUTOPROBE), "0")
    try:
        yield
    finally:
        write(system, system.path(_AUTOPROBE), former)


# ---- shared functions --------------------------------------------------------------------------


def _port_of(function: PciFunction) -> PciFunction:
    port = slot_port(function)
    if port is None:
        raise NotSupported(f"{function.address} is on a root bus: no port above it can reset it")
    return port


def _check_free(function: PciFunction, what: str) -> None:
    """Raise DeviceBusy for a function that a kernel driver holds or a process uses."""
    if function.base_class == BRIDGE:
        return
    if function.driver not in (None, VFIO_DRIVER, "pci-stub"):
        raise DeviceBusy(
            f"{what} would also reset {function.address}, which is bound to a kernel driver",
            holder=function.driver,
            remedy=f"sudo ugpu bind pci:{function.address}",
        )
    check_idle(function)


def _proof(function: PciFunction, before: PciIdentity) -> dict[str, object]:
    """Prove that the path to the card is open, and that it is the same card."""
    preflight.before(function, narrow_link=True)
    after = function.identity()
    if after != before:
        raise DeviceLost(
            f"another device answers at {function.address}", before=str(before), after=str(after)
        )
    return {"identity": str(after), "power_state": function.power_state}


@contextmanager
def _config(function: PciFunction) -> Iterator[ConfigFile]:
    path = function.folder / "config"
    try:
        descriptor = function.system.open(path, os.O_RDWR)
    except PermissionError as error:
        raise AccessDenied(f"no permission to open {path}", remedy="run as root") from error
    except OSError as error:
        raise DeviceLost(f"cannot open {path}: {error.strerror}") from error
    try:
        yield ConfigFile(function.system, descriptor)
    finally:
        function.system.close(descriptor)
