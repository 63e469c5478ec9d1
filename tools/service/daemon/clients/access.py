"""The daemon's own access to a device under a lease: copies, and the holder's counters."""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.device.core import Core
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import HardwareQueue
from ugpu.hcq.work.timeline import Timeline


class Spot(Timeline):
    """A counter in memory of the lease. Its value is for drivers whose queues wait on the host
    (Adreno); they have only memory that the host can access."""

    def __init__(self, core: Core, memory: Buffer) -> None:
        self.core = core
        self.memory = memory
        self.address = int(memory.address)
        self.name = f"timeline at {self.address:#x}"
        self.last = self._seen = 0
        if memory.access is not None:
            self._view = memory.access


class Lane(Transfer):
    """Copies through a queue of the daemon's own, if the device has one to spare: the client's
    queues may wait for something that only a later message brings."""

    def __init__(self, core: Core, queue: HardwareQueue) -> None:
        super().__init__(core)
        self._queue = queue

    def _lanes(self) -> tuple[list[Buffer], Sequence[HardwareQueue]]:
        staging, queues = super()._lanes()
        return staging, [self._queue for _ in queues]
