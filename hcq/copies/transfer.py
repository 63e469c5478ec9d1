"""Synchronous copies between host memory and device buffers, through staging buffers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.view import HostView
from ugpu.hcq.work.queue import Queue, QueueKind

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.queue import QueueState

STAGING_SIZE = 4 << 20  # bytes of each of the two staging buffers


class Transfer:
    """Two HOST staging buffers, so that the device copies one while the host fills the other.

    The core has waited for all work submitted before; both directions return when the data has
    arrived. If there are several copy queues, the two staging buffers use different ones.
    Thread-safe: one transfer at a time; the device's lock is not held while waiting.
    """

    def __init__(self, core: QueueState, staging_size: int = STAGING_SIZE) -> None:
        self.core = core
        self.staging_size = staging_size
        # See Capture's lock; also, a signal handler may close the device.
        self._lock = threading.RLock()
        self._staging: list[Buffer] = []

    def upload(self, destination: Buffer, data: memoryview) -> None:
        """Copy `data` (bytes) to the start of `destination`."""
        with self._lock:
            self.core.check_usable()
            view = destination.access
            if view is not None:
                view[: len(data)] = data
                return
            staging, queues = self._lanes()
            pending = [0] * len(staging)
            for number, start in enumerate(range(0, len(data), self.staging_size)):
                lane = number % len(staging)
                chunk = data[start : start + self.staging_size]
                queues[lane].timeline.wait(pending[lane])
                view = staging[lane].access
                assert view is not None
                view[: len(chunk)] = chunk
                part = destination[start : start + len(chunk)]
                pending[lane] = queues[lane].copy(part, staging[lane], len(chunk)).submit()
            for queue, value in zip(queues, pending, strict=True):
                queue.timeline.wait(value)

    def download(self, source: Buffer, out: memoryview) -> None:
        """Copy the start of `source` to `out` (bytes, writable)."""
        with self._lock:
            self.core.check_usable()
            view = source.access
            if view is not None:
                out[:] = _bytes_of(view[: len(out)])
                return
            staging, queues = self._lanes()
            starts = range(0, len(out), self.staging_size)
            pending = [0] * len(starts)
            for number in range(-1, len(starts)):
                ahead = number + 1
                if ahead < len(starts):
                    lane = ahead % len(staging)
                    part = source[starts[ahead] : min(starts[ahead] + self.staging_size, len(out))]
                    pending[ahead] = queues[lane].copy(staging[lane], part).submit()
                if number < 0:
                    continue
                lane = number % len(staging)
                queues[lane].timeline.wait(pending[number])
                chunk = out[starts[number] : starts[number] + self.staging_size]
                view = staging[lane].access
                assert view is not None
                chunk[:] = _bytes_of(view[: len(chunk)])

    def close(self) -> None:
        """Free the staging buffers; the next transfer allocates them again."""
        with self._lock:
            for buffer in self._staging:
                buffer.close()
            self._staging = []

    def stop(self) -> None:
        """Wait until no transfer is running; the device is closing, so no new transfer begins."""
        with self._lock:
            return

    def _lanes(self) -> tuple[list[Buffer], list[Queue]]:
        while len(self._staging) < 2:
            staging = self.core.alloc(self.staging_size, placement=Placement.HOST)
            self._staging.append(staging)
        queues = self.core.driver.hardware_queues(QueueKind.COPY)
        return self._staging, [Queue(queues[lane % len(queues)]) for lane in range(2)]


def _bytes_of(view: HostView) -> memoryview | bytes:
    return view if isinstance(view, memoryview) else bytes(view)
