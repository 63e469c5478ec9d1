"""Address spaces: what the GPU's SMMU translates for one process.

KGSL gives each process a page table of its own and invalidates the SMMU's translations when it
unmaps, so no stale translation outlives an object (Android msm kernel, kgsl_iommu.c,
kgsl_iommu_unmap).
"""

from __future__ import annotations

import bisect
import ctypes
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.virtual.adreno.faults import PageFault
from ugpu.virtual.adreno.memory.objects import PAGE, MemoryObject
from ugpu.virtual.adreno.shader import Accessing
from ugpu.virtual.shader.memory import Abort, Access
from ugpu.virtual.shader.table import DummyPages, clear, fill, new_table

# KGSL_IOMMU_VA_BASE64 and the 32-bit range, Android msm kernel kgsl_iommu.h.
WIDE_START, WIDE_SIZE = 0x5_0000_0000, 0x80_0000_0000
LOW_START, LOW_SIZE = 0x1000_0000, 0xC000_0000
GPU_READ_ONLY = 0x0100_0000  # KGSL_MEMFLAGS_GPUREADONLY


class AddressSpace:
    """One process's page table. `lock` is the machine's. wide: first address and size of the range
    that `place` uses; low: the same for the range below 4 GiB."""

    def __init__(
        self,
        lock: threading.RLock,
        wide: tuple[int, int] = (WIDE_START, WIDE_SIZE),
        low: tuple[int, int] = (LOW_START, LOW_SIZE),
    ) -> None:
        self.lock = lock
        self._starts: list[int] = []
        self._objects: list[MemoryObject] = []
        self._tables: list[NDArray[np.uint64]] = []
        self._wide = RangeAllocator(*wide, PAGE, name="GPU addresses")
        self._low = RangeAllocator(*low, PAGE, name="GPU addresses below 4 GiB")
        self._given: dict[int, RangeAllocator] = {}
        self._cached: dict[int, MemoryObject] = {}  # objects that the GPU has used since `publish`

    def place(self, found: MemoryObject, align: int, *, low: bool) -> None:
        """Give an object an address, followed by an unmapped page, and map it."""
        self.reserve(found, align, low=low)
        self.insert(found)

    def reserve(self, found: MemoryObject, align: int = PAGE, *, low: bool = False) -> None:
        """Give an object an address without mapping it."""
        ranges = self._low if low else self._wide
        address = ranges.allocate(found.mapped_size + PAGE, max(align, PAGE))
        self._given[address] = ranges
        found.gpuaddr = address

    def insert(self, found: MemoryObject) -> None:
        """Map an object at its address."""
        at = bisect.bisect(self._starts, found.gpuaddr)
        self._starts.insert(at, found.gpuaddr)
        self._objects.insert(at, found)

    def overlaps(self, address: int, size: int) -> bool:
        """Return whether a range contains a mapping."""
        at = bisect.bisect(self._starts, address + size - 1)
        if not at:
            return False
        last = self._objects[at - 1]
        return last.gpuaddr + last.mapped_size > address

    def remove(self, found: MemoryObject) -> None:
        """Unmap an object and forget its translations."""
        self._cached.pop(found.id, None)
        if not found.gpuaddr:
            return
        at = bisect.bisect(self._starts, found.gpuaddr) - 1
        if at >= 0 and self._objects[at] is found:  # else the address is only reserved
            del self._starts[at], self._objects[at]
            clear(self._tables)
        ranges = self._given.pop(found.gpuaddr, None)
        if ranges is not None:
            ranges.free(found.gpuaddr)
        found.gpuaddr = 0

    def find(self, address: int) -> MemoryObject | None:
        """Return the object that maps an address."""
        at = bisect.bisect(self._starts, address) - 1
        if at < 0:
            return None
        found = self._objects[at]
        return found if address < found.gpuaddr + found.mapped_size else None

    def resolve(self, address: int, access: Access, client: str) -> MemoryObject:
        """Translate an address. PageFault where nothing is mapped or a write is not permitted."""
        found = self.find(address)
        if found is None:
            raise PageFault(address, access, "translation", client)
        if access is Access.WRITE and found.flags & GPU_READ_ONLY:
            raise PageFault(address, access, "permission", client)
        if found.is_cached:
            self._cached[found.id] = found
        self.touched(found)
        return found

    def publish(self) -> None:
        """Make the GPU's writes known to programs: lines of them in CPU caches become stale.

        RACE: before a program can see that work has ended, as it may store from then on.
        """
        with self.lock:
            for found in self._cached.values():
                found.spoil()
            self._cached.clear()

    def touched(self, found: MemoryObject) -> None:
        """Hook, called when the GPU accesses an object; for kernel drivers that need it."""

    def read(self, address: int, size: int, client: str = "CP") -> bytes:
        """Read memory by GPU addresses; PageFault."""
        with self.lock:
            parts = []
            while size > 0:
                found = self.resolve(address, Access.READ, client)
                inside = address - found.gpuaddr
                length = min(size, found.mapped_size - inside)
                parts.append(ctypes.string_at(found.gpu_address + inside, length))
                address, size = address + length, size - length
            return b"".join(parts)

    def write(self, address: int, data: bytes, client: str = "CP") -> None:
        """Write memory by GPU addresses; PageFault before anything of a page is written."""
        with self.lock:
            while data:
                found = self.resolve(address, Access.WRITE, client)
                inside = address - found.gpuaddr
                length = min(len(data), found.mapped_size - inside)
                ctypes.memmove(found.gpu_address + inside, data[:length], length)
                address, data = address + length, data[length:]

    def new_table(self) -> NDArray[np.uint64]:
        """Create a native translation table that unmapping clears."""
        with self.lock:
            self._tables.append(new_table())
            return self._tables[-1]

    def drop_tables(self, tables: list[NDArray[np.uint64]]) -> None:
        """Forget tables of a launch that has ended."""
        with self.lock:
            mine = {id(table) for table in tables}
            self._tables = [table for table in self._tables if id(table) not in mine]


class LaunchMemory:
    """An address space during one launch; implements `virtual.adreno.shader.ShaderMemory`.

    A fault is recorded in `faults`, and its instruction in `culprits`. Where the kernel driver
    halts the GPU at page faults, a fault also ends the launch.
    """

    def __init__(self, space: AddressSpace, abort: Abort, *, halt: bool) -> None:
        self._space = space
        self._abort = abort
        self._halt = halt
        self._dummy = DummyPages()
        self.faults: list[PageFault] = []
        self.culprits: list[tuple[int, Accessing]] = []
        self._tables: list[NDArray[np.uint64]] = []

    def new_tlb(self) -> NDArray[np.uint64]:
        """Create a table for one worker thread."""
        table = self._space.new_table()
        self._tables.append(table)
        return table

    def refill(
        self,
        tlb: NDArray[np.uint64],
        address: int,
        access: Access,
        who: Callable[[], Accessing] | None = None,
    ) -> int:
        """Translate and fill the table; see the protocol."""
        access = Access(access)
        with self._space.lock:
            try:
                found = self._space.resolve(address, access, "SP")
            except PageFault as fault:
                self._latch(fault, who)
                page = self._dummy.sink if access is Access.WRITE else self._dummy.zeros
                return page + (address & PAGE - 1)
            start = found.gpuaddr
            fill(tlb, address, start, start + found.mapped_size, found.gpu_address,
                 readable=True, writable=not found.flags & GPU_READ_ONLY)  # fmt: skip
            return found.gpu_address + address - start

    def _latch(self, fault: PageFault, who: Callable[[], Accessing] | None) -> None:
        if len(self.faults) < 16:
            self.faults.append(fault)
            if who is not None:
                self.culprits.append((fault.address, who()))
        if self._halt:
            self._abort.set()

    def fetch(self, address: int, size: int) -> bytes | None:
        """Read instructions; None after a fault. The fault is latched."""
        try:
            return self._space.read(address, size, "SP instruction fetch")
        except PageFault as fault:
            with self._space.lock:
                self._latch(fault, None)
            return None

    def peek(self, address: int, size: int) -> bytes | None:
        """Read for a debugger; see the protocol."""
        try:
            return self._space.read(address, size, "debugger")
        except PageFault:
            return None

    def close(self) -> None:
        """End the launch: its tables are no longer kept up to date."""
        self._space.drop_tables(self._tables)
