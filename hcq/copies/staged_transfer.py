"""Synchronous copies between host memory and device buffers, through a transport's StagedMemory.

For each chunk in turn, the host writes the staged memory and the device copies it, or the other way
round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.transport.bulk import StagedMemory
from ugpu.hcq.work.command import Copy
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.hcq.work.queue import QueueKind

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.graph import GraphState


class StagedTransfer(Transfer):
    """See Transfer. memory: the memory of `staged`, as the device's work sees it."""

    def __init__(self, core: GraphState, staged: StagedMemory, memory: Buffer) -> None:
        super().__init__(core, staged.size)
        self._staged = staged
        self._memory = memory

    def send(self, destination: Buffer, data: memoryview) -> None:
        """Copy `data` (bytes) to the start of `destination`."""
        with self._lock:
            for start in range(0, len(data), self.staging_size):
                part = data[start : start + self.staging_size]
                self._staged.fill(part)
                self._copy(Symbol.of(destination, start), Symbol.of(self._memory), len(part))

    def receive(self, source: Buffer, out: memoryview) -> None:
        """Copy the start of `source` to `out` (bytes, writable)."""
        with self._lock:
            for start in range(0, len(out), self._staged.readable):
                size = min(self._staged.readable, len(out) - start)
                self._copy(Symbol.of(self._memory), Symbol.of(source, start), size)
                out[start : start + size] = self._staged.read(size)

    def _copy(self, destination: Symbol, source: Symbol, size: int) -> None:
        hardware = self.core.driver.hardware_queues(QueueKind.COPY)[0]
        self._run(hardware, Copy(destination, source, size))
