"""Memory that was let go of while work may still reach it.

Dropping the last reference to a buffer, program or graph, without `close`, must not free memory
that a kernel in flight uses. Nor may `close`, where a kernel hangs. Both retire the memory: it is
released once every queue has passed all that had been submitted by then, or after a reset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from hcq.errors import UgpuError

if TYPE_CHECKING:
    from hcq.device import Device
    from hcq.timeline import Timeline

log = logging.getLogger(__name__)


class Retired:
    """A device's retired memory. `drop` takes no lock; all else needs the device's."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._dropped: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[list[tuple[Timeline, int]], Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._dropped) + len(self._waiting)

    def drop(self, release: Callable[[], None]) -> None:
        """Have a later `collect` call `release`, once all that was submitted before it has ended.
        Finalizers may call it: these run in any thread, at any point, whatever locks it holds."""
        self._dropped.append(release)

    def collect(self) -> None:
        """Release what no work can reach any more; errors are logged. Nothing while the device has
        failed, or a submission is cut off: what it has begun is not known then."""
        if self._device.failure is not None or self._device.cut_off:
            return
        while self._dropped:
            self._waiting.append((self._device.submitted(), self._dropped.popleft()))
        while self._waiting:  # values only rise: the first is the first to be reached
            points, release = self._waiting[0]
            if any(timeline.value < value for timeline, value in points):
                return
            self._waiting.popleft()
            try:
                release()
            except UgpuError as error:
                log.warning("%s: releasing dropped memory: %s", self._device.name, str(error))

    def reach(self) -> list[object]:
        """All that keeps the memory."""
        return [*self._dropped, *(release for _, release in self._waiting)]

    def forget(self) -> None:
        """The device has shut down, and released everything."""
        self._dropped.clear()
        self._waiting.clear()
