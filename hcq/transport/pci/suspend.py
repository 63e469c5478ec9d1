"""Detection of a suspend of the host while a device was open: the device was without power and has
lost its state, although it responds.

Source: Linux Documentation/ABI/testing/sysfs-power (suspend_stats/success). UNSURE: hibernation is
not counted there; a machine that hibernates with a card open would settle what is.
"""

from __future__ import annotations

from ugpu.hcq.transport.system import System

COUNT = "sys/power/suspend_stats/success"
REASON = "the host was suspended and its power was off; close it and open it again"


class Suspends:
    """Counts suspends since its creation. On a host without that counter it reports none."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._before = self._read()

    def _read(self) -> str | None:
        return self._system.read_text(COUNT)

    @property
    def happened(self) -> bool:
        """Return whether the host was suspended and has resumed."""
        return self._before is not None and self._read() != self._before

    def forget(self) -> bool:
        """Count from now on; return what `happened` was."""
        happened = self.happened
        self._before = self._read()
        return happened
