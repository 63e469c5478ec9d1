"""The host data path, which buffers CPU writes to VRAM until they are flushed.

Facts: Linux 6.12 hdp_v6_0.c, nbio_v4_3.c (remapped flush register, GPU_HDP_FLUSH_REQ/DONE).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ugpu.virtual.amd.block import Block, Reset

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

# Capacity in bytes; beyond it the oldest writes drain without a flush. A board holds a few KB, for
# an unknown time.
_CAPACITY = 16 << 20


class Hdp(Block):
    """The write buffer behind BAR0. `flush` makes written data visible to the engines."""

    def __init__(self, chip: Board) -> None:
        super().__init__(chip, "hdp")
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self.flushes = 0

    def write(self, address: int, data: bytes) -> None:
        """Buffer a CPU write to VRAM."""
        if self.chip.is_protected(address, len(data)):
            self.chip.fault(f"CPU write to {address:#x} inside the TMR")
            return
        self._waiting.append((address, data))
        self._size += len(data)
        while self._size > _CAPACITY:
            self._drain_one()

    def read(self, address: int, size: int) -> bytes:
        """Answer a CPU read of VRAM; earlier writes are drained first."""
        self.drain()
        if self.chip.is_protected(address, size):
            self.chip.fault(f"CPU read at {address:#x} inside the TMR")
            return b"\xde" * size
        return self.chip.vram.read(address, size)

    def flush(self) -> None:
        """Make all CPU writes visible."""
        self.flushes += 1
        self.drain()

    @property
    def waits(self) -> bool:
        """Whether a write has not reached VRAM yet."""
        return bool(self._waiting)

    def drain(self) -> None:
        """Write all pending writes to VRAM."""
        while self._waiting:
            self._drain_one()

    def _drain_one(self) -> None:
        address, data = self._waiting.popleft()
        self._size -= len(data)
        self.chip.vram.write(address, data)

    def reset(self, scope: Reset) -> None:
        """Discard pending writes."""
        self._waiting.clear()
        self._size = 0
