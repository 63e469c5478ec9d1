"""Arrival and departure of functions on the PCI bus, and waiting for a device to arrive.

The list of functions in sysfs is authoritative. Changes are differences between two scans, so a
lost event loses no change, and a function that left and came back between two scans counts as two
changes. Events only end the wait for the next scan: udev's events through pyudev if that is
installed (extra "hotplug"); otherwise the scan is repeated 20 times a second.

Source: Linux Documentation/ABI/testing/sysfs-bus-pci; pyudev's guide, "Monitoring devices".
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from ugpu.hcq.errors import AccessDenied, DeviceBusy, DeviceNotFound, UgpuError
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.transport.pci.function import DEVICES, arriving
from ugpu.hcq.transport.system import System

log = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_S = 0.05
# For changes without an event: a permission that changes, an owner that ends. Our choice.
_LONGEST_PAUSE_S = 0.5
_UDEV_CONTROL = "run/udev/control"


class Wake(Protocol):
    """A source of events that ends a wait early. `close` is idempotent."""

    def wait(self, limit_s: float) -> None:
        """Block until something may have changed, or for `limit_s`; may return without a reason."""
        ...

    def close(self) -> None: ...


class Pauses:
    """Short pauses, used where no source of events is available."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait(self, limit_s: float) -> None:
        self._clock.sleep(min(limit_s, _PAUSE_S))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class UdevEvents:
    """udev's events of the PCI, VFIO and Thunderbolt subsystems, after udev's rules have run; the
    kernel's own events if udev is not running."""

    def __init__(self, pyudev: Any, system: System) -> None:  # Any: a module without types
        running = system.path(_UDEV_CONTROL).exists()
        source = "udev" if running else "kernel"
        self._monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source=source)
        for subsystem in ("pci", "vfio", "vfio-dev", "thunderbolt"):
            self._monitor.filter_by(subsystem)
        self._monitor.start()

    def wait(self, limit_s: float) -> None:
        limit_s = min(limit_s, _LONGEST_PAUSE_S)
        while self._monitor.poll(timeout=limit_s) is not None:
            limit_s = 0  # take all events that have arrived: one scan covers them

    def close(self) -> None:
        self._monitor = None  # dropping the last reference closes its socket


def best_wake(system: System, clock: Clock) -> Wake:
    """Return events if pyudev is installed and the root is this machine's, else pauses."""
    if str(system.root) == "/":
        try:
            # An optional dependency: imported where it is used.
            import pyudev

            return UdevEvents(pyudev, system)
        except (ImportError, OSError) as error:
            log.info("no events from udev (%s): polling %d times a second", error, 1 / _PAUSE_S)
    return Pauses(clock)


@dataclass(frozen=True)
class Change:
    """A function that arrived or departed.

    Attributes:
        name: for `hcq.open`.
        arrived: otherwise departed.
    """

    name: str
    arrived: bool

    def __str__(self) -> str:
        return f"{self.name} {'arrived' if self.arrived else 'departed'}"


class Watcher:
    """Reports functions that arrive on and depart from the bus; a context manager.

    Used by one thread. Reports changes since its creation.
    """

    def __init__(
        self, system: System | None = None, *, wake: Wake | None = None, clock: Clock | None = None
    ) -> None:
        self._system = system if system is not None else System()
        self._clock = clock if clock is not None else Clock()
        # ORDER: events are received before the first scan, so that none is missed.
        self._wake = wake if wake is not None else best_wake(self._system, self._clock)
        self._incomplete = False  # whether the last scan found a function that is still arriving
        self._known: dict[str, int] = {}
        self._known = self._look()

    def _look(self) -> dict[str, int]:
        """Return each function's address and the number of its folder, which is never reused. A
        function that the kernel is still adding is left out: it cannot be used yet."""
        numbers = {}
        self._incomplete = False
        with os.scandir(self._system.path(DEVICES)) as entries:
            for entry in entries:
                try:
                    number = os.stat(entry.path).st_ino
                except OSError:
                    continue  # it is just being removed
                if self._known.get(entry.name) != number and arriving(self._system, entry.name):
                    self._incomplete = True
                    continue
                numbers[entry.name] = number
        return numbers

    def changes(self, limit_s: float) -> list[Change]:
        """Return the changes since the last call, removals first; waits up to `limit_s` for a
        change, and returns an empty list without one."""
        end = self._clock.now() + limit_s
        while True:
            before, self._known = self._known, self._look()
            gone = [name for name, number in before.items() if self._known.get(name) != number]
            came = [name for name, number in self._known.items() if before.get(name) != number]
            if gone or came:
                return [
                    *(Change(f"pci:{name}", False) for name in sorted(gone)),
                    *(Change(f"pci:{name}", True) for name in sorted(came)),
                ]
            left = end - self._clock.now()
            if left <= 0:
                return []
            # An event means that the kernel begins to add a function, not that it has finished.
            self._wake.wait(min(left, _PAUSE_S) if self._incomplete else left)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self._wake.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def keep_trying(
    attempt: Callable[[], T],
    wait_s: float,
    *,
    system: System | None = None,
    wake: Wake | None = None,
    clock: Clock | None = None,
) -> T:
    """Return the result of `attempt`. It is repeated for `wait_s` while the device is not present,
    is held by others, or may not be opened yet: udev's rules and drivers take time after an
    arrival. Then its last error is raised. Other errors are raised immediately, as is
    DeviceNotFound with the fact `present`: a device is present but is the wrong one."""
    system = system if system is not None else System()
    clock = clock if clock is not None else Clock()
    end = clock.now() + wait_s
    said = ""
    wake = wake if wake is not None else best_wake(system, clock)
    try:
        while True:
            try:
                return attempt()
            except (DeviceNotFound, DeviceBusy, AccessDenied) as error:
                left = end - clock.now()
                if left <= 0 or error.facts.get("present"):
                    raise
                if said != error.message:
                    said = error.message
                    log.info("waiting up to %.1f s: %s", left, _reason(error))
            wake.wait(left)
    finally:
        wake.close()


def _reason(error: UgpuError) -> str:
    return f"{type(error).__name__}: {error.message}"
