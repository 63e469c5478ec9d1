"""DMA memory: host memory, its bus addresses, and the space that they are allocated from.

Memory of 2 MiB and more comes from reserved huge pages if the system has any. Otherwise it is
aligned to 2 MiB and transparent huge pages are requested: an IOMMU then maps (and looks up) one
entry instead of 512, and one `map` call is made whatever the size.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Callable, Sequence
from typing import Protocol

from ugpu.hcq.errors import BadArgument, OutOfMemory
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaSegment
from ugpu.hcq.transport.system import MEMORY_REMEDY, System

PAGE = 4096
HUGE_PAGE = 2 << 20
REACH_BITS = 47  # positive on every host; a driver whose chip reaches less gives its own value
# Nothing is placed below it: PC firmware tables, legacy windows, and address 0, to catch bugs.
LOWEST_ADDRESS = 16 << 20


class BusSpace(Protocol):
    """An address space of the bus: the device's addresses, and how memory is mapped
    there."""

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """Return usable bus addresses, as (first, last)."""
        ...

    def map(self, virtual: int, bus: int, size: int) -> None: ...
    def unmap(self, bus: int, size: int) -> None: ...


class BusAddresses:
    """Free bus addresses below a device's reach. Not thread-safe: the owner's lock protects it."""

    def __init__(self, ranges: Sequence[tuple[int, int]], reach_bits: int) -> None:
        limit = 1 << reach_bits
        self._parts = []
        for first, last in ranges:
            start = -(-max(first, LOWEST_ADDRESS) // PAGE) * PAGE
            end = min(last + 1, limit) // PAGE * PAGE
            if end > start:
                self._parts.append(RangeAllocator(start, end - start, PAGE, name="bus addresses"))
        if not self._parts:
            raise OutOfMemory(
                "the IOMMU has no free address that the device can use",
                reach_bits=reach_bits,
                ranges=[f"{first:#x}-{last:#x}" for first, last in ranges],
            )

    def allocate(self, size: int, align: int) -> int:
        for part in self._parts:
            try:
                return part.allocate(size, align)
            except OutOfMemory:
                continue
        raise OutOfMemory("out of bus addresses", size=size)

    def take(self, address: int, size: int) -> None:
        """Allocate the addresses from `address` on; OutOfMemory unless they are free."""
        for part in self._parts:
            if part.base <= address and address + size <= part.base + part.size:
                try:
                    part.reserve(address, size)
                except BadArgument as error:
                    raise OutOfMemory("these bus addresses are in use", **error.facts) from error
                return
        raise OutOfMemory("the device cannot use these bus addresses", address=address, size=size)

    def free(self, address: int) -> None:
        for part in self._parts:
            if part.base <= address < part.base + part.size:
                part.free(address)
                return
        raise BadArgument("the address is outside this address space", address=address)


class HostMemory:
    """Anonymous memory with a stable address; zero-filled. `close` is idempotent."""

    def __init__(self, system: System, size: int) -> None:
        self.size = size
        self._map, start = _obtain(system, size)
        self.view = memoryview(self._map)[start : start + size]
        self.address = _address(self._map) + start

    def close(self) -> None:
        """Free the memory, or leave that to the last array that still uses it."""
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a caller's array keeps the pages; the device cannot reach them any more


class MappedMemory:
    """DMA memory behind an IOMMU: one run of bus addresses. See hcq.transport.base.DmaMemory."""

    def __init__(
        self, memory: HostMemory, address: int, release: Callable[[MappedMemory], None]
    ) -> None:
        self.size: int = memory.size
        self.view: memoryview = memory.view
        self.segments: Sequence[DmaSegment] = (DmaSegment(BusAddr(address), memory.size),)
        self.memory = memory
        self._release = release
        self._closed = False

    def close(self) -> None:
        """Unmap from the IOMMU and free; the device faults on it from here on. Idempotent."""
        if not self._closed:
            self._closed = True
            self._release(self)

    def __repr__(self) -> str:
        return f"<MappedMemory {self.size} bytes at bus {self.segments[0].address:#x}>"


def rounded(size: int) -> int:
    """Return a size in whole pages; BadArgument if it is not positive."""
    if size <= 0:
        raise BadArgument("the size of DMA memory must be positive", size=size)
    return -(-size // PAGE) * PAGE


def alignment(size: int) -> int:
    """Return the alignment of bus addresses that lets the IOMMU use its large pages."""
    return HUGE_PAGE if size >= HUGE_PAGE else PAGE


def _obtain(system: System, size: int) -> tuple[mmap.mmap, int]:
    """Return a mapping that contains `size` bytes, and their offset in it."""
    try:
        if size < HUGE_PAGE:
            return system.anonymous(size), 0
        try:
            return system.anonymous(-(-size // HUGE_PAGE) * HUGE_PAGE, huge=True), 0
        except OSError:
            pass  # no reserved huge pages; common, and only slower
        mapping = system.anonymous(size + HUGE_PAGE - PAGE)
    except (OSError, ValueError) as error:
        raise OutOfMemory("out of host memory for DMA", size=size, remedy=MEMORY_REMEDY) from error
    start = -_address(mapping) % HUGE_PAGE
    with contextlib.suppress(OSError):  # a kernel without transparent huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE, start, size)
    return mapping, start


def _address(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))
