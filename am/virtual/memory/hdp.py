"""The host data path: CPU writes to VRAM wait in it until they are flushed.

Facts: Linux 6.12 hdp_v6_0.c, nbio_v4_3.c (remapped flush register, GPU_HDP_FLUSH_REQ/DONE).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from am.virtual.block import Block, Reset

if TYPE_CHECKING:
    from am.virtual.board import Board

# Bytes that may wait; older writes drain by themselves. A board holds a few KB, who knows how long.
_CAPACITY = 16 << 20


class Hdp(Block):
    """The write buffer behind BAR0. `flush` makes what was written visible to the engines."""

    def __init__(self, chip: Board) -> None:
        super().__init__(chip, "hdp")
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self.flushes = 0

    def write(self, address: int, data: bytes) -> None:
        """Take a CPU write to VRAM."""
        if self.chip.is_protected(address, len(data)):
            self.chip.fault(f"CPU write to {address:#x} inside the TMR")
            return
        self._waiting.append((address, data))
        self._size += len(data)
        while self._size > _CAPACITY:
            self._drain_one()

    def read(self, address: int, size: int) -> bytes:
        """Answer a CPU read of VRAM; it pushes the writes before it."""
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
        """Some write has not reached VRAM."""
        return bool(self._waiting)

    def drain(self) -> None:
        """Let what waits reach VRAM."""
        while self._waiting:
            self._drain_one()

    def _drain_one(self) -> None:
        address, data = self._waiting.popleft()
        self._size -= len(data)
        self.chip.vram.write(address, data)

    def reset(self, scope: Reset) -> None:
        """Lose what waits."""
        self._waiting.clear()
        self._size = 0
