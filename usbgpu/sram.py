"""The bridge's SRAM as DMA memory: all the memory outside the card that the card reaches.

A transfer begins at a slot, so that each allocation has slots of its own: what the card writes into
one is never sent back by a host that writes into another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hcq.allocator import RangeAllocator
from hcq.memory import BusAddr
from hcq.transport.base import DmaSegment
from hcq.transport.dma import rounded
from hcq.transport.view import RemoteView
from usbgpu.bridge import SECTOR, SLOT, SRAM_BUS_ADDRESS, SRAM_SIZE, Bridge


class SramMemory:
    """DMA memory in the SRAM. See hcq.transport.base.DmaMemory. A write from within a slot on
    rewrites the slot up to there, and the rest of its last sector: the card must not write there
    meanwhile. Accesses to an unplugged bridge raise DeviceLost."""

    def __init__(
        self, bridge: Bridge, offset: int, size: int, release: Callable[[SramMemory], None]
    ) -> None:
        self.offset = offset
        self.size = size
        self.view = RemoteView(self._read, self._write, size)
        self.segments: Sequence[DmaSegment] = (
            DmaSegment(BusAddr(SRAM_BUS_ADDRESS + offset), size),
        )
        self._bridge = bridge
        self._release = release
        self._closed = False
        self._lock = threading.RLock()  # a write that reads first is one unit

    def close(self) -> None:
        """Free the slots. Idempotent."""
        if not self._closed:
            self._closed = True
            self.view.release()
            self._release(self)

    def _read(self, start: int, size: int) -> bytes:
        slot = start - start % SLOT
        return self._bridge.read_sram(self.offset + slot, start - slot + size)[start - slot :]

    def _write(self, start: int, data: bytes | bytearray | memoryview) -> None:
        slot, end = start - start % SLOT, start + len(data)
        last = min(self.size, -(-end // SECTOR) * SECTOR)
        with self._lock:
            head = self._read(slot, start - slot) if slot != start else b""
            tail = self._read(end, last - end) if last > end else b""
            whole = b"".join((head, data, tail)) if head or tail else data
            self._bridge.write_sram(self.offset + slot, whole)

    def __repr__(self) -> str:
        return f"<SramMemory {self.size} bytes at bus {self.segments[0].address:#x}>"


class SramPool:
    """Hands out the SRAM. OutOfMemory once it is used up. Any thread."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._ranges = RangeAllocator(0, SRAM_SIZE, SLOT, name="SRAM of the bridge")
        self._taken: set[SramMemory] = set()
        self._lock = threading.RLock()

    def allocate(self, size: int) -> SramMemory:
        """Allocate and zero `size` bytes, in whole pages."""
        size = rounded(size)
        with self._lock:
            offset = self._ranges.allocate(size, SLOT)
            memory = SramMemory(self._bridge, offset, size, self._free)
            self._taken.add(memory)
            try:
                self._bridge.write_sram(offset, bytes(size))
            except BaseException:
                self._free(memory)
                raise
            return memory

    def _free(self, memory: SramMemory) -> None:
        with self._lock:
            if memory in self._taken:
                self._taken.discard(memory)
                self._ranges.free(memory.offset)

    def close(self) -> None:
        """Free all; idempotent."""
        with self._lock:
            taken = list(self._taken)
        for memory in taken:
            memory.close()
