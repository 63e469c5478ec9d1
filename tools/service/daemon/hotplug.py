"""Hot plugging: report to the daemon which cards appear on the buses (PCI, and USB for cards behind
bridges) and which disappear."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import threading
from collections.abc import Callable, Sequence

from ugpu.hcq.errors import DeviceNotFound
from ugpu.hcq.state import threads
from ugpu.hcq.transport.pci.function import DEVICES
from ugpu.hcq.transport.pci.hotplug import Watcher
from ugpu.hcq.transport.system import System
from ugpu.usbgpu.bridge import discovery as found
from ugpu.usbgpu.link.usb import UsbIdentity

log = logging.getLogger(__name__)

LOOK_S = 0.5  # the longest wait for a change and for `close`; bridges are searched for as often
USB = "sys/bus/usb/devices"
# Classes that GPUs have: display controllers, processing accelerators. Source: PCI Code and ID
# Assignment Specification, base classes.
_GPU_CLASSES = ("0x03", "0x12")


class Bridges:
    """USB bridges that are plugged in, by the names that `hcq.open` takes. names: the daemon's
    bridges. Any other bridge is named by its serial number or its port."""

    def __init__(self, system: System, names: Callable[[], Sequence[str]]) -> None:
        self._folder = system.path(USB)
        self._names = names
        self._known: dict[str, UsbIdentity] = {}
        self._known = self._look()

    def identity(self, name: str) -> UsbIdentity | None:
        """Return the bridge of a name, None if it is not plugged in."""
        try:
            return found.choose(name.removeprefix("usb:"), self._folder)
        except DeviceNotFound:
            return None

    def usable(self, name: str) -> bool:
        """Return whether the device is a bridge with known firmware and has no other name."""
        facts = dict(found.listed(self._folder)).get(name)
        if facts is None or not facts["usable"]:
            return False
        others = (self.identity(other) for other in self._names() if other.startswith("usb:"))
        return all(other is None or other.port != facts["port"] for other in others)

    def changes(self) -> list[tuple[str, bool]]:
        """Return names of bridges that left (False) or came (True) since the last call, departures
        first. A bridge that was replugged between two calls is in both groups."""
        before, self._known = self._known, self._look()
        gone = [name for name, identity in before.items() if self._known.get(name) != identity]
        came = [name for name, identity in self._known.items() if before.get(name) != identity]
        return [*((name, False) for name in gone), *((name, True) for name in came)]

    def _look(self) -> dict[str, UsbIdentity]:
        """Find the bridges. The system gives a bridge a new address each time it is plugged in."""
        names = [name for name, _ in found.listed(self._folder)]
        names += [name for name in self._names() if name.startswith("usb:")]
        looked = {name: self.identity(name) for name in names}
        return {name: identity for name, identity in looked.items() if identity is not None}


class Plugs:
    """Watch the buses in a thread, from `start` to `close`. adopt: patterns of names ("pci:*",
    "usb:*") of GPUs that the daemon takes although its file does not name them. arrived, departed:
    called with the name that `hcq.open` takes. names: of the daemon's cards."""

    def __init__(
        self,
        adopt: Sequence[str],
        arrived: Callable[[str], None],
        departed: Callable[[str], None],
        names: Callable[[], Sequence[str]],
        system: System | None = None,
    ) -> None:
        self._adopt = adopt
        self._arrived = arrived
        self._departed = departed
        self._system = system if system is not None else System()
        self._bridges = Bridges(self._system, names)
        self._watcher: Watcher | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ugpud bus", daemon=True)

    def start(self) -> None:
        """Start watching. On a machine without a PCI bus, watch bridges only."""
        try:
            self._watcher = Watcher(self._system)
        except OSError as error:
            log.warning("PCI hot-plug is not monitored: %s", error)
        threads.start(self._thread)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def present(self, name: str) -> bool:
        """Return whether a device is present now, as reported by the buses."""
        if name.startswith("usb:"):
            return self._bridges.identity(name) is not None
        return (
            not name.startswith("pci:")
            or self._system.path(f"{DEVICES}/{name.removeprefix('pci:')}").exists()
        )

    def fits(self, name: str) -> bool:
        """Return whether a card's name matches the patterns."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._adopt)

    def adopts(self, name: str) -> bool:
        """Return whether to use a card that the configuration file does not name."""
        if not self.fits(name):
            return False
        if name.startswith("usb:"):
            return self._bridges.usable(name)
        try:
            path = self._system.path(f"{DEVICES}/{name.removeprefix('pci:')}/class")
            return path.read_text("ascii").startswith(_GPU_CLASSES)
        except OSError:
            return False  # it is leaving now

    def _run(self) -> None:
        watcher = self._watcher
        with contextlib.ExitStack() as stack:
            if watcher is not None:
                stack.enter_context(watcher)
            while not self._stopped.is_set():
                for name, arrived in (*self._functions(), *self._bridges.changes()):
                    log.info("%s %s", name, "arrived" if arrived else "departed")
                    (self._arrived if arrived else self._departed)(name)

    def _functions(self) -> list[tuple[str, bool]]:
        """Wait for a change on the PCI bus, up to LOOK_S."""
        if self._watcher is None:
            self._stopped.wait(LOOK_S)
            return []
        try:
            return [(change.name, change.arrived) for change in self._watcher.changes(LOOK_S)]
        except OSError as error:
            log.error("PCI hot-plug is no longer monitored: %s", error)
            self._watcher.close()
            self._watcher = None
            return []
