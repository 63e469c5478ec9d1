"""Synchronous copies between host memory and device buffers, through staging buffers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from hcq.memory import Placement
from hcq.queue import QueueKind

if TYPE_CHECKING:
    from hcq.buffer import Buffer
    from hcq.device import Device
    from hcq.queue import Queue

STAGING_SIZE = 4 << 20  # bytes of each of the two staging buffers


class Transfer:
    """Two HOST staging buffers, so that the device copies one while the host fills the other.

    Both directions wait for all work submitted before, and return when the data has arrived. Where
    there are several copy queues, the two staging buffers use different ones. Thread-safe: one
    transfer at a time; the device's lock is not held while waiting.
    """

    def __init__(
        self,
        device: Device,
        staging_size: int = STAGING_SIZE,
        allocate: Callable[[int], Buffer] | None = None,
    ) -> None:
        """allocate: makes a staging buffer of a size, for a device whose HOST memory is no good
        for that."""
        self.device = device
        self.staging_size = staging_size
        self._allocate = allocate or self._allocate_host
        # See Capture's; also, the handler of a signal may close the device.
        self._lock = threading.RLock()
        self._staging: list[Buffer] = []

    def upload(self, destination: Buffer, data: memoryview) -> None:
        """Copy `data` (bytes) to the start of `destination`."""
        self.device.synchronize()
        view = destination.view
        if view is not None:
            self.device.check_usable()
            view[: len(data)] = data
            return
        with self._lock:
            self.device.check_usable()
            staging, queues = self._lanes()
            pending = [0] * len(staging)
            for number, start in enumerate(range(0, len(data), self.staging_size)):
                lane = number % len(staging)
                chunk = data[start : start + self.staging_size]
                queues[lane].timeline.wait(pending[lane])
                access = staging[lane].access
                assert access is not None
                access[: len(chunk)] = chunk
                part = destination[start : start + len(chunk)]
                pending[lane] = queues[lane].copy(part, staging[lane], len(chunk)).submit()
            for queue, value in zip(queues, pending, strict=True):
                queue.timeline.wait(value)

    def download(self, source: Buffer, out: memoryview) -> None:
        """Copy the start of `source` to `out` (bytes, writable)."""
        self.device.synchronize()
        view = source.view
        if view is not None:
            self.device.check_usable()
            out[:] = view[: len(out)]
            return
        with self._lock:
            self.device.check_usable()
            staging, queues = self._lanes()
            starts = range(0, len(out), self.staging_size)
            pending = [0] * len(starts)
            for number in range(-1, len(starts)):
                ahead = number + 1
                if ahead < len(starts):
                    lane = ahead % len(staging)
                    piece = source[starts[ahead] : min(starts[ahead] + self.staging_size, len(out))]
                    pending[ahead] = queues[lane].copy(staging[lane], piece).submit()
                if number < 0:
                    continue
                lane = number % len(staging)
                queues[lane].timeline.wait(pending[number])
                chunk = out[starts[number] : starts[number] + self.staging_size]
                access = staging[lane].access
                assert access is not None
                part = access[: len(chunk)]
                chunk[:] = part if isinstance(part, memoryview) else bytes(part)

    def close(self) -> None:
        """Free the staging buffers; they come back at the next transfer."""
        with self._lock:
            for buffer in self._staging:
                buffer.close()
            self._staging = []

    def _allocate_host(self, size: int) -> Buffer:
        return self.device.alloc(size, placement=Placement.HOST)

    def stop(self) -> None:
        """Wait until no transfer is under way; the device, which closes, lets none begin."""
        with self._lock:
            return

    def _lanes(self) -> tuple[list[Buffer], list[Queue]]:
        while len(self._staging) < 2:
            self._staging.append(self._allocate(self.staging_size))
        count = len(self.device.hardware_queues(QueueKind.COPY))
        return self._staging, [self.device.queue(QueueKind.COPY, lane % count) for lane in range(2)]
