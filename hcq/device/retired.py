"""Memory that was released while work may still access it.

Dropping the last reference to a buffer, program or graph, without `close`, must not free memory
that a kernel in flight uses. Nor may `close`, if a kernel hangs. Both retire the memory: it is
freed once every queue has passed all work submitted before, or after a reset.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ugpu.hcq.errors import UgpuError

if TYPE_CHECKING:
    from ugpu.hcq.device.state import CoreState
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.timeline import Timeline

log = logging.getLogger(__name__)


class Retired:
    """A device's retired memory. `drop` takes no lock; all other methods need the device's lock."""

    def __init__(self, core: CoreState) -> None:
        self._core = core
        self._dropped: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[list[tuple[Timeline, int]], Callable[[], None]]] = deque()
        self.closing: list[Buffer] = []  # being closed, or interrupted in that; see `finish`

    def __len__(self) -> int:
        return len(self._dropped) + len(self._waiting)

    def drop(self, release: Callable[[], None]) -> None:
        """Register `release` for a later `collect`, once all work submitted before has ended.
        Finalizers may call this method: they run in any thread, at any point, whatever locks it
        holds."""
        self._dropped.append(release)

    def release(self, release: Callable[[], None]) -> None:
        """Call `release`, which frees memory whose work was waited for. If the device has failed
        and may still run that work, call it after the reset that ends it."""
        if self._core.failure is None or self._core.idle:
            release()
        else:
            self.drop(release)

    def collect(self) -> None:
        """Free memory that no work can access any more: memory of submissions that have ended, and
        dropped memory; errors of the latter are logged. Does nothing while the device has failed or
        a submission is interrupted, since it is then unknown what work has begun."""
        core = self._core
        if core.failure is not None or core.cut_off:
            return
        queues = core.driver.all_queues()
        for queue in queues:
            queue.reclaim()
        points = [(queue.timeline, queue.timeline.last) for queue in queues]
        while self._dropped:
            self._waiting.append((points, self._dropped[0]))
            self._dropped.popleft()
        while self._waiting:  # values only rise: the first is the first to be reached
            points, release = self._waiting[0]
            if any(timeline.value < value for timeline, value in points):
                return
            try:
                release()
            except UgpuError as error:
                log.warning("%s: releasing dropped memory: %s", core.name, str(error))
            self._waiting.popleft()  # after the release, which can be repeated
        if self.closing and core.idle:
            for buffer in self.closing[:]:
                self.finish(buffer)

    def finish(self, buffer: Buffer) -> None:
        """Free a buffer of `closing`, whose work has ended."""
        core = self._core
        buffer.closed = True
        for graph in core.graphs:
            graph.forget(buffer)
        self.release(lambda: core.driver.free_memory(buffer))
        self.closing.remove(buffer)

    def reach(self) -> list[object]:
        """Return all objects that keep the memory."""
        return [*self._dropped, *(release for _, release in self._waiting), *self.closing]

    def forget(self) -> None:
        """Drop everything: the device has shut down, and has released all memory."""
        self._dropped.clear()
        self._waiting.clear()
        self.closing.clear()
