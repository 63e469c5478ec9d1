"""Memory objects: pages of one sparse file, and the CPU caches over them.

All objects of a machine are in one memory file whose page number is the object's id. The mmap
offset that KGSL defines, id << 12, is therefore the offset in the file (adreno: kgsl_mmap in the
Android msm kernel, drivers/gpu/msm/kgsl.c).
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.paging.allocator import RangeAllocator

PAGE = 4096
LINE = 64  # bytes of a CPU cache line
FILE_SIZE = 1 << 32  # the largest offset of an id below 2^20
_MAP_NORESERVE = 0x4000
# Contents of a stale line: bytes that programs seldom store, so that a store of what memory held
# before is detected as a store.
_STALE = (np.arange(LINE) * 37 % 0x7E + 0x81).astype(np.uint8)


class MemoryFile:
    """The file behind all objects. Under the machine's lock."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("kgsl-3d0", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, FILE_SIZE)
        self._map = mmap.mmap(self.fd, FILE_SIZE, flags=mmap.MAP_SHARED | _MAP_NORESERVE)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        # Page 0 is not an object: KGSL's ids begin at 1.
        self._pages = RangeAllocator(PAGE, FILE_SIZE - PAGE, PAGE, name="memory file")

    def allocate(self, size: int) -> int:
        """Return the offset of zeroed pages; OutOfMemory where there are none."""
        return self._pages.allocate(size, PAGE)

    def free(self, offset: int) -> None:
        """Free pages; they then read as zeros."""
        self._map.madvise(mmap.MADV_REMOVE, offset, self._pages.size_of(offset))
        self._pages.free(offset)

    @property
    def used(self) -> int:
        """Return the bytes that objects occupy."""
        return self._pages.used

    def close(self) -> None:
        """Close the file; pages stay until the last mapping is removed."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class MemoryObject:
    """One allocation or import. Sizes and addresses are bytes.

    offset: in the memory file; -1 for the program's own memory. cpu_address: where the CPU maps the
    object in this process; gpu_address: address of its device copy, which is the same except for
    cached memory that no hardware keeps coherent. gpuaddr: GPU virtual address, 0 before it has
    one.
    holds: references: the id, CPU mappings and events; id_valid: not freed by the program.
    """

    def __init__(
        self, number: int, size: int, flags: int, offset: int, address: int, *, cached: bool
    ) -> None:
        self.id = number
        self.size = size
        self.flags = flags
        self.offset = offset
        self.cpu_address = self.gpu_address = address
        self.gpuaddr = 0
        self.mapped_size = -(-size // PAGE) * PAGE
        self.holds = 1
        self.id_valid = True
        self.metadata = b""
        self.pages: mmap.mmap | None = None  # pages of an imported file
        self._lines: tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]] | None = None
        if cached:
            memory = mmap.mmap(-1, self.mapped_size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            device = np.frombuffer(memory, np.uint8).reshape(-1, LINE)
            raw = (ctypes.c_char * self.mapped_size).from_address(address)
            seen = np.frombuffer(memoryview(raw), np.uint8).reshape(-1, LINE)
            device[:] = seen
            # The CPU's view, its contents when each line was last clean, and the memory itself.
            self._lines = seen, seen.copy(), device
            self.gpu_address = device.ctypes.data

    @property
    def is_cached(self) -> bool:
        """Return whether the CPU caches the object without hardware coherence."""
        return self._lines is not None

    def spoil(self) -> None:
        """Make stale the lines that the GPU has written and the CPU has not. Any contents would be
        correct, as the cache may have loaded these lines at any time."""
        if self._lines is not None:
            seen, clean, device = self._lines
            changed = (device != clean).any(axis=1).nonzero()[0]
            kept = (seen[changed] == clean[changed]).all(axis=1)
            fresh = (clean[changed] != _STALE).any(axis=1)
            stale = changed[kept & fresh]
            seen[stale] = clean[stale] = _STALE

    def clean(self, start: int, end: int) -> None:
        """Write the CPU's dirty lines that touch [start, end) back to memory."""
        if self._lines is not None:
            seen, clean, device = (part[start // LINE : -(-end // LINE)] for part in self._lines)
            dirty = (seen != clean).any(axis=1)
            device[dirty] = seen[dirty]
            clean[dirty] = seen[dirty]

    def invalidate(self, start: int, end: int) -> None:
        """Drop the lines that touch [start, end) from the cache; dirty ones are lost."""
        if self._lines is not None:
            seen, clean, device = (part[start // LINE : -(-end // LINE)] for part in self._lines)
            lost = (seen != device).any(axis=1)  # a program's own pages may be read-only
            seen[lost] = device[lost]
            clean[:] = device
