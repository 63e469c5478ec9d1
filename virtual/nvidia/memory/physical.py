"""Physical memory: the card's own, and system pages that the kernel driver allocates."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.virtual.bus.sparse import SparseMemory

PAGE = 4096
GRANULE = 64 << 10  # the resource manager's smallest allocation of video memory


class VideoMemory:
    """The card's memory as sparse host memory. Addresses are offsets, sizes are bytes.

    The top is reserved for the kernel driver's page tables and instance blocks. Reused memory reads
    as zeros, because the resource manager scrubs freed memory. Not thread-safe: the GPU's lock
    protects it. poison: a 32-bit word that fills the memory instead. descriptor: see SparseMemory.
    """

    def __init__(self, size: int, poison: int | None = None, *, shared: bool = False) -> None:
        self.size = size
        self._poison = poison
        reserved = max(4 << 20, min(size // 32, 64 << 20)) // GRANULE * GRANULE
        self.usable = (size - reserved) // GRANULE * GRANULE
        self._sparse = SparseMemory(
            size, shared=shared, smaller="ugpu.open('virtual:gh100', memory=1 << 30)"
        )
        self.descriptor = self._sparse.descriptor
        self._memory, self.base = self._sparse.memory, self._sparse.base
        self.view = memoryview(self._memory)
        self.words: NDArray[np.uint64] = np.frombuffer(self._memory, np.uint64, size // 8)
        self._clients = RangeAllocator(0, self.usable, GRANULE, name="video memory")
        self._tables = RangeAllocator(
            self.usable, size // PAGE * PAGE - self.usable, 256, name="kernel driver's memory"
        )

    @property
    def free_size(self) -> int:
        """Bytes that clients can still allocate."""
        return self._clients.free_size

    @property
    def table_bytes(self) -> int:
        """Bytes used by page tables."""
        return self._tables.used

    def allocate(self, size: int, align: int) -> int:
        """Allocate scrubbed memory for a client. Raises hcq.errors.OutOfMemory."""
        address = self._clients.allocate(size, max(align, GRANULE))
        length = self._clients.size_of(address)
        if self._poison is None:
            self._sparse.forget(address, length)
        else:
            self.words[address // 8 : (address + length) // 8] = self._poison << 32 | self._poison
        return address

    def free(self, address: int) -> None:
        """Free memory that `allocate` returned."""
        self._clients.free(address)

    def zero(self, host: int, size: int) -> None:
        """Zero bytes at an address in this process, which may be outside of this memory. Whole
        pages of the card's memory use no host memory afterwards."""
        start = host - self.base
        first, end = -(-start // PAGE) * PAGE, (start + size) // PAGE * PAGE
        if start < 0 or start + size > self.size or first >= end:
            ctypes.memset(host, 0, size)
            return
        ctypes.memset(host, 0, first - start)
        self._sparse.forget(first, end - first)
        ctypes.memset(self.base + end, 0, start + size - end)

    def place_tables(self, start: int, size: int) -> None:
        """Have page tables, of which none may exist, in [start, start + size)."""
        self._tables = RangeAllocator(start, size, 256, name="kernel driver's memory")

    def allocate_table(self, size: int) -> int:
        """Allocate zeroed memory for a page table."""
        address = self._tables.allocate(size, size)
        self.words[address // 8 : (address + size) // 8] = 0
        return address

    def free_table(self, address: int) -> None:
        """Free a page table."""
        self._tables.free(address)

    def close(self) -> None:
        """Return the memory to the host; later reads return zeros."""
        self._sparse.close()


class SystemPages:
    """Pinned pages of the host. Their bus address is their address in this process."""

    def __init__(self, size: int) -> None:
        self.size = -(-size // PAGE) * PAGE
        self._memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))


@dataclass(eq=False)
class Backing:
    """Physical memory of one memory object, alive while it has users.

    gpu: index of the GPU whose video memory it is; None for system memory. physical: offset in
    video memory, or bus address. users: the object itself and every mapping that UVM duplicated.
    """

    size: int
    page_size: int
    physical: int
    host: int
    gpu: int | None
    view: memoryview | None
    pages: SystemPages | None = None
    read_only: bool = False
    cached: bool = True
    kind: int = 0
    users: int = 1
