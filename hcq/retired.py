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
    from hcq.buffer import Buffer
    from hcq.core import Core
    from hcq.timeline import Timeline

log = logging.getLogger(__name__)


class Retired:
    """A device's retired memory. `drop` takes no lock; all else needs the device's."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._dropped: deque[Callable[[], None]] = deque()
        self._waiting: deque[tuple[list[tuple[Timeline, int]], Callable[[], None]]] = deque()
        self.closing: list[Buffer] = []  # being closed; what an exception cut off, see `finish`

    def __len__(self) -> int:
        return len(self._dropped) + len(self._waiting)

    def drop(self, release: Callable[[], None]) -> None:
        """Have a later `collect` call `release`, once all that was submitted before it has ended.
        Finalizers may call it: these run in any thread, at any point, whatever locks it holds."""
        self._dropped.append(release)

    def release(self, release: Callable[[], None]) -> None:
        """Call `release`, which frees memory whose work was waited for; where the device has failed
        and may still be at that work, after the reset that ends it."""
        if self._core.failure is None or self._core.idle:
            release()
        else:
            self.drop(release)

    def collect(self) -> None:
        """Free what no work can reach any more: of submissions that have ended, and what was
        dropped; errors of the latter are logged. Nothing while the device has failed, or a
        submission is cut off: what has begun is not known then."""
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
            self._waiting.popleft()  # after it: releases can be repeated
        if self.closing and core.idle:
            for buffer in self.closing[:]:
                self.finish(buffer)

    def finish(self, buffer: Buffer) -> None:
        """Free a buffer of `closing`, whose work has ended."""
        core = self._core
        buffer.closed = True
        for graph in list(core.graphs):
            graph.forget(buffer)
        self.release(lambda: core.driver.free_memory(buffer))
        self.closing.remove(buffer)

    def reach(self) -> list[object]:
        """All that keeps the memory."""
        return [*self._dropped, *(release for _, release in self._waiting), *self.closing]

    def forget(self) -> None:
        """The device has shut down, and released everything."""
        self._dropped.clear()
        self._waiting.clear()
        self.closing.clear()
