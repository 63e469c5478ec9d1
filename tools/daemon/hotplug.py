"""Cards that come and go while the daemon runs: what the PCI bus shows, told to the daemon."""

from __future__ import annotations

import fnmatch
import logging
import threading
from collections.abc import Callable, Sequence

from hcq import threads
from hcq.transport.hotplug import Watcher
from hcq.transport.pci_function import DEVICES
from hcq.transport.system import System

log = logging.getLogger(__name__)

LOOK_S = 0.5  # the longest wait for a change; `close` takes as long
# Classes that GPUs have: display controllers, processing accelerators. Source: PCI Code and ID
# Assignment Specification, base classes.
_GPU_CLASSES = ("0x03", "0x12")


class Plugs:
    """Watches the bus in a thread, from `start` to `close`. adopt: patterns of names ("pci:*") of
    GPUs that the daemon takes though its file does not name them. arrived, departed: called with
    the name that `hcq.open` takes."""

    def __init__(
        self,
        adopt: Sequence[str],
        arrived: Callable[[str], None],
        departed: Callable[[str], None],
        system: System | None = None,
    ) -> None:
        self._adopt = adopt
        self._arrived = arrived
        self._departed = departed
        self._system = system if system is not None else System()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ugpud bus", daemon=True)

    def start(self) -> None:
        """Watch from now on. A machine without a PCI bus is left alone."""
        try:
            self._watcher = Watcher(self._system)
        except OSError as error:
            log.warning("cards that come and go are not noticed: %s", error)
            return
        threads.start(self._thread)

    def close(self) -> None:
        """End the thread; idempotent."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def present(self, name: str) -> bool:
        """Whether a device is there now, as far as the PCI bus tells."""
        return (
            not name.startswith("pci:")
            or self._system.path(f"{DEVICES}/{name.removeprefix('pci:')}").exists()
        )

    def fits(self, name: str) -> bool:
        """Whether a card's name matches the patterns."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self._adopt)

    def adopts(self, name: str) -> bool:
        """Whether a card that the file does not name is to be taken."""
        if not self.fits(name):
            return False
        try:
            path = self._system.path(f"{DEVICES}/{name.removeprefix('pci:')}/class")
            return path.read_text("ascii").startswith(_GPU_CLASSES)
        except OSError:
            return False  # it departs just now

    def _run(self) -> None:
        with self._watcher as watcher:
            while not self._stopped.is_set():
                try:
                    changes = watcher.changes(LOOK_S)
                except OSError as error:
                    log.error("cards that come and go are not noticed any more: %s", error)
                    return
                for change in changes:
                    log.info("%s", change)
                    (self._arrived if change.arrived else self._departed)(change.name)
