"""Devices to lend to tests, one borrower at a time on this machine.

The loan of a device is a lock on a file of its name. The system releases it with the process that
holds it, so a lock is never stale. A sick device has a quarantine file with the reason, which is
valid for the rest of the run, in all its processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.disk import own_folder as ownfolder
from ugpu.hcq.errors import DeviceBusy, DeviceNotFound, UgpuError
from ugpu.hcq.state.clock import Clock
from ugpu.tools.ci.demand import Demand, Facts
from ugpu.tools.ci.health import Health, check

Opener = Callable[[str], Device]
PAUSE_S = 0.05
LENT = "lent to another test, or open in another process"


def lock_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of locks that all pools of this user share."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "ugpu-ci"
    return Path(tempfile.gettempdir()) / f"ugpu-ci-{os.geteuid()}"


class Refused(DeviceNotFound):
    """Too few devices fit. sick: devices that are excluded from the run, and might have fitted."""

    def __init__(self, message: str, sick: Sequence[str]) -> None:
        super().__init__(message)
        self.sick = tuple(sick)


@dataclass(frozen=True)
class Available:
    """A device of a pool. state: "free", "lent" or "quarantined". detail: the holder, or the
    reason."""

    name: str
    state: str
    detail: str = ""


@dataclass(frozen=True)
class Work:
    """Numbers of kernels launched and of submissions."""

    kernels: int
    submissions: int

    def since(self, before: Work) -> Work:
        return Work(self.kernels - before.kernels, self.submissions - before.submissions)


@dataclass
class Loan:
    """Open devices by the pool's names, locked until `release` (idempotent). planted: names with
    the faults that devices have during this loan (tools.ci.plants)."""

    lent: dict[str, Device] = field(default_factory=dict)
    planted: dict[str, str] = field(default_factory=dict)
    locks: list[int] = field(default_factory=list)

    @property
    def devices(self) -> list[Device]:
        return [*self.lent.values()]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.lent)

    def opened_as(self, name: str) -> str:
        """Return the name that opens a device of this loan, with its planted faults."""
        return self.planted.get(name, name)

    def work(self) -> Work:
        """Return what the devices have received since they were opened."""
        works = [_work(device) for device in self.lent.values()]
        return Work(sum(work.kernels for work in works), sum(work.submissions for work in works))

    def close(self) -> None:
        """Close the devices and keep their locks, so that another process can open them. Errors
        that a device reports on closing are ignored."""
        for device in self.lent.values():
            with contextlib.suppress(UgpuError):
                device.close()

    def release(self) -> None:
        """Close the devices, then release their locks."""
        self.close()
        while self.locks:
            os.close(self.locks.pop())


class Pool:
    """names: devices by the names that `hcq.open` takes, in order of preference. folder: for locks
    and quarantine files, private to this user. run: an id that all processes of a run share."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        run: str,
        *,
        opener: Opener = hcq.open,
        clock: Clock | None = None,
        check: Callable[[Device], Health] = check,
    ) -> None:
        self.names = tuple(names)
        self.folder = folder
        self.run = run
        self._opener = opener
        self._clock = clock if clock is not None else Clock()
        self._check = check
        self._facts: dict[str, Facts] = {}
        self._tested: set[str] = set()
        self._excluded: dict[str, str] = {}

    def take(self, demand: Demand, *, avoid: Collection[str] = (), limit_s: float = 600.0) -> Loan:
        """Borrow healthy devices that fit. Devices in `avoid` are taken only if no others fit.
        Refused if too few fit; DeviceBusy if they are in use by others for `limit_s`."""
        end = self._clock.now() + limit_s
        ordered = sorted(self.names, key=lambda name: name in avoid)
        while True:
            loan, refused = Loan(), {}
            try:
                for name in ordered:
                    reason = self._borrow(name, demand, loan)
                    if reason:
                        refused[name] = reason
                    if len(loan.lent) == demand.count:
                        return loan
            except BaseException:
                loan.release()
                raise
            loan.release()
            free = [name for name in ordered if refused.get(name) in (None, LENT)]
            if len(free) < demand.count:
                why = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
                sick = [name for name in ordered if self.quarantined(name)]
                raise Refused(f"expected {demand}, got {len(free)} ({why or 'no devices'})", sick)
            if self._clock.now() >= end:
                raise DeviceBusy(f"{demand}: all were in use by other tests for {limit_s:g} s")
            self._clock.sleep(PAUSE_S)

    def _borrow(self, name: str, demand: Demand, loan: Loan) -> str:
        """Add a device to a loan, or return the reason if that fails: LENT if another process has
        it."""
        if reason := self.quarantined(name):
            return reason
        facts = self._facts.get(name)
        if facts is not None and not demand.fits(facts):
            return f"{facts.arch}, {facts.memory >> 20} MiB"
        lock = self._lock(name)
        if lock is None:
            return LENT
        try:
            device, reason = self._open(name, demand)
        except BaseException:
            os.close(lock)
            raise
        if device is None:
            os.close(lock)
            return reason
        loan.locks.append(lock)
        loan.lent[name] = device
        return ""

    def _open(self, name: str, demand: Demand) -> tuple[Device | None, str]:
        """Open a locked device. Return the device if it fits and is healthy, else the reason."""
        try:
            device = self._opener(name)
        except DeviceBusy:
            return None, LENT
        except UgpuError as error:
            return None, self._sick(name, f"{type(error).__name__}: {error.message}")
        try:
            facts = self._facts[name] = Facts.of(device)
            if not demand.fits(facts):
                device.close()
                return None, f"{facts.arch}, {facts.memory >> 20} MiB"
            if name not in self._tested:
                health = self._check(device)
                if not health:
                    device.close()
                    return None, self._sick(name, health.trouble)
                self._tested.add(name)
            if demand.reset:
                device.reset()
            return device, ""
        except UgpuError as error:
            device.close()
            return None, self._sick(name, f"{type(error).__name__}: {error.message}")
        except BaseException:
            device.close()
            raise

    def _sick(self, name: str, reason: str) -> str:
        self.quarantine(name, reason)
        self._excluded[name] = reason
        return reason

    def excluded(self) -> dict[str, str]:
        """Return the devices that `take` has excluded since the last call, with the reasons: they
        failed before a test had them."""
        excluded, self._excluded = self._excluded, {}
        return excluded

    def available(self) -> list[Available]:
        """Return which devices are free now, without opening one."""
        devices = []
        for name in self.names:
            if reason := self.quarantined(name):
                devices.append(Available(name, "quarantined", reason))
                continue
            lock = self._lock(name)
            if lock is None:
                holder = self.folder / self._file(name, "lock")
                devices.append(Available(name, "lent", holder.read_text("utf-8", "replace")))
            else:
                os.close(lock)
                devices.append(Available(name, "free"))
        return devices

    def examine(self, loan: Loan) -> str:
        """Test the devices of a loan after a failure; return the fault of the first sick one. A
        sick device is quarantined. Closed devices are opened again, even those that the test has
        closed. A device that is still held by a process left behind is not sick, but is tested
        before the next loan."""
        first_trouble = ""
        for name in loan.names:
            self._tested.discard(name)  # tested before the next loan
            try:
                if loan.lent[name].closed:
                    loan.lent[name] = self._opener(loan.opened_as(name))
                trouble = self._check(loan.lent[name]).trouble
            except DeviceBusy:
                continue
            except UgpuError as error:
                trouble = f"{type(error).__name__}: {error.message}"
            if trouble:
                self.quarantine(name, trouble)
                first_trouble = first_trouble or f"{name}: {trouble}"
        return first_trouble

    def quarantine(self, name: str, reason: str) -> None:
        """Keep a device out of this run."""
        self._tested.discard(name)
        with ownfolder.opened(self.folder, make=True) as folder:
            handle = os.open(
                self._file(name, f"{self.run}.sick"),
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=folder,
            )  # fmt: skip
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(reason)

    def quarantined(self, name: str) -> str:
        """Return why a device is kept out of this run; empty if it is not."""
        try:
            return (self.folder / self._file(name, f"{self.run}.sick")).read_text("utf-8")
        except FileNotFoundError:
            return ""

    def end(self) -> None:
        """Remove the run's quarantine files."""
        for name in self.names:
            (self.folder / self._file(name, f"{self.run}.sick")).unlink(missing_ok=True)

    def _lock(self, name: str) -> int | None:
        with ownfolder.opened(self.folder, make=True) as folder:
            handle = os.open(
                self._file(name, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600,
                dir_fd=folder,
            )  # fmt: skip
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}".encode(), 0)  # for people; the lock is the flock
        return handle

    @staticmethod
    def _file(name: str, suffix: str) -> str:
        return f"{quote(name, safe=':')}.{suffix}"


def _work(device: Device) -> Work:
    core = device.driver.core
    queues = [] if core.closed else core.driver.all_queues()
    return Work(core.launches, sum(queue.timeline.last for queue in queues))
