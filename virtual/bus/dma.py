"""Host memory that the card can access, and the IOMMU between card and host memory."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import mmap
import random
from collections.abc import Callable, Sequence

from ugpu.hcq.errors import BadArgument, OutOfMemory
from ugpu.hcq.state.memory import BusAddr
from ugpu.hcq.transport.base import DmaSegment

PAGE = 4096
_SLOT_SHIFT = 21  # bus address space is allocated in slots of 2 MiB
_SLOT = 1 << _SLOT_SHIFT
FIRST_ADDRESS = 1 << 40  # of the bus addresses, if a card names no other
_LAST_SLOT = (1 << 44) >> _SLOT_SHIFT  # gfx11 reaches 44 bits of bus address

# Bus address and size to the address in this process and the bytes in one piece; None: refused.
Translate = Callable[[int, int], tuple[int, int] | None]


class Iommu:
    """Map bus addresses to host addresses of live memory. Bus addresses are synthetic and seeded.

    Slots are never reused, so that a stale bus address is always detected.
    """

    def __init__(self, seed: int, first: int = FIRST_ADDRESS) -> None:
        """first: the least bus address."""
        self._random = random.Random(seed)
        self._slots: dict[int, tuple[int, int, int]] = {}  # slot -> (bus start, bus end, host)
        self._next = (first >> _SLOT_SHIFT) + self._random.randrange(1 << 10)
        self._starts: list[int] = []  # bus starts in `_others`, sorted
        self._others: dict[int, tuple[int, int | None]] = {}  # bus start -> (bus end, host)

    def _deal(self, count: int) -> int:
        first = self._next
        self._next += count + self._random.randrange(1, 4)
        if self._next >= _LAST_SLOT:
            raise OutOfMemory("the virtual IOMMU has no free bus addresses")
        return first

    def map(self, host: int, size: int, *, contiguous: bool) -> list[DmaSegment]:
        """Assign bus addresses to `size` bytes of host memory: one run, or runs of up to 2 MiB."""
        segments: list[DmaSegment] = []
        whole = self._deal(-(-size // _SLOT)) if contiguous else 0
        for start in range(0, size, _SLOT):
            length = min(_SLOT, size - start)
            slot = whole + start // _SLOT if contiguous else self._deal(1)
            bus = slot << _SLOT_SHIFT
            self._slots[slot] = (bus, bus + length, host + start)
            if contiguous and segments:
                segments = [DmaSegment(segments[0].address, start + length)]
            else:
                segments.append(DmaSegment(BusAddr(bus), length))
        return segments

    def map_at(self, host: int, size: int, bus: int) -> list[DmaSegment]:
        """Map host memory at a bus address, which begins a slot, as those of `map` do."""
        slots = range(bus >> _SLOT_SHIFT, (bus + size - 1 >> _SLOT_SHIFT) + 1)
        if bus % _SLOT or any(slot in self._slots for slot in slots):
            raise OutOfMemory("these bus addresses are not free", address=bus, size=size)
        for number, slot in enumerate(slots):
            start = bus + number * _SLOT
            end = min(start + _SLOT, bus + size)
            self._slots[slot] = (start, end, host + number * _SLOT)
        return [DmaSegment(BusAddr(bus), size)]

    def unmap(self, segments: Sequence[DmaSegment]) -> None:
        """Invalidate the bus addresses of `segments`."""
        for segment in segments:
            for bus in range(segment.address, segment.address + segment.size, _SLOT):
                self._slots.pop(bus >> _SLOT_SHIFT, None)

    def translate(self, bus: int, size: int) -> tuple[int, int] | None:
        """Return (host address, contiguous bytes, at most `size`); None if refused."""
        slot = self._slots.get(bus >> _SLOT_SHIFT)
        if slot is None or bus >= slot[1]:
            return self._find_other(bus, size) if self._starts else None
        return slot[2] + bus - slot[0], min(size, slot[1] - bus)

    def add(self, bus: int, size: int, host: int | None) -> None:
        """Map memory of another owner at a bus address that the owner chooses; it must be free."""
        bisect.insort(self._starts, bus)
        self._others[bus] = (bus + size, host)

    def remove(self, bus: int) -> None:
        """Unmap the memory added at `bus`."""
        del self._others[bus]
        del self._starts[bisect.bisect_left(self._starts, bus)]

    def _find_other(self, bus: int, size: int) -> tuple[int, int] | None:
        at = bisect.bisect_right(self._starts, bus) - 1
        if at < 0:
            return None
        start = self._starts[at]
        end, host = self._others[start]
        if bus >= end or host is None:
            return None
        found = host + bus - start
        # An owner behind its own IOMMU maps page by page; merge mappings that are contiguous.
        while end - bus < size and (following := self._others.get(end)) is not None:
            if following[1] != found + end - bus:
                break
            end = following[0]
        return found, min(size, end - bus)


def read_bus(translate: Translate, address: int, size: int) -> bytes:
    """Read host memory, up to the first address that `translate` refuses."""
    parts = []
    while size > 0:
        found = translate(address, size)
        if found is None:
            break
        parts.append(ctypes.string_at(*found))
        address, size = address + found[1], size - found[1]
    return b"".join(parts)


def write_bus(translate: Translate, address: int, content: bytes) -> bool:
    """Write host memory, up to the first address that `translate` refuses; return whether there was
    none."""
    while content:
        found = translate(address, len(content))
        if found is None:
            return False
        ctypes.memmove(found[0], content[: found[1]], found[1])
        address, content = address + found[1], content[found[1] :]
    return True


class HostMemory:
    """One allocation of device-accessible memory; implements `hcq.transport.base.DmaMemory`."""

    def __init__(
        self,
        memory: mmap.mmap,
        size: int,
        segments: Sequence[DmaSegment],
        release: Callable[[HostMemory], None],
    ) -> None:
        self.size = size
        self.segments = segments
        self.memory = memory
        self.view = memoryview(memory)
        self.owners: dict[HostMemory, None] = {}  # the set of the transport that will close it
        self._release: Callable[[HostMemory], None] | None = release

    @property
    def closed(self) -> bool:
        """Return whether the memory was freed."""
        return self._release is None

    def close(self) -> None:
        """Revoke the device's access and free the memory; idempotent."""
        release, self._release = self._release, None
        if release is not None:
            self.owners.pop(self, None)
            release(self)

    def __repr__(self) -> str:
        return f"<HostMemory {self.size} bytes in {len(self.segments)} runs>"


class DmaPool:
    """Host memory of a virtual chip.

    A shader core's worker thread may be between its translation and its access when memory is
    freed. So memory is never unmapped from the process while the chip exists: once no views of it
    are left, freed memory reads as zeros and can be allocated again.
    """

    def __init__(self, iommu: Iommu, revoked: Callable[[int, int], None]) -> None:
        self._iommu = iommu
        self._revoked = revoked  # (host address, size): invalidate translations to this range
        self._free: dict[int, list[mmap.mmap]] = {}
        self._returned: list[mmap.mmap] = []

    def allocate(self, size: int, *, contiguous: bool) -> HostMemory:
        """Allocate zeroed memory, rounded up to pages."""
        memory, host = self._obtain(size)
        segments = self._iommu.map(host, len(memory), contiguous=contiguous)
        return HostMemory(memory, len(memory), segments, self._give_back)

    def place(self, size: int, address: int) -> HostMemory:
        """Allocate zeroed memory at a bus address that the caller chooses; OutOfMemory if a part of
        it is in use."""
        memory, host = self._obtain(size)
        segments = self._iommu.map_at(host, len(memory), address)
        return HostMemory(memory, len(memory), segments, self._give_back)

    def _obtain(self, size: int) -> tuple[mmap.mmap, int]:
        """Return zeroed memory of whole pages, and its address in this process."""
        if size <= 0:
            raise BadArgument("the size of a DMA allocation must be at least 1 byte", size=size)
        size = -(-size // PAGE) * PAGE
        self._collect()
        spare = self._free.get(size)
        try:
            memory = spare.pop() if spare else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
        except OSError as error:
            raise OutOfMemory(f"the host has no memory left: {error}", size=size) from None
        return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def _give_back(self, lent: HostMemory) -> None:
        self._iommu.unmap(lent.segments)
        host = ctypes.addressof(ctypes.c_char.from_buffer(lent.memory))
        self._revoked(host, lent.size)
        with contextlib.suppress(BufferError):  # the caller's arrays still view it
            lent.view.release()
        self._returned.append(lent.memory)
        self._collect()

    def _collect(self) -> None:
        """Reclaim returned memory that none of the caller's arrays views any more."""
        held = []
        for memory in self._returned:
            try:
                memory.resize(len(memory))  # raises BufferError while there are views of it
            except BufferError:
                held.append(memory)
                continue
            memory.madvise(mmap.MADV_DONTNEED)
            self._free.setdefault(len(memory), []).append(memory)
        self._returned = held
