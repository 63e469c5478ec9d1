"""The address space of one holder of a card: its virtual addresses, mappings, and their memory.

Kinds of addresses: offsets in VRAM; physical addresses, which page tables contain; bus addresses of
host memory; and virtual addresses of the space. All are in bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.bare.tables import TableFormat, VramTables
from ugpu.hcq.bare.vram import LARGE_PAGE, PAGE, MemoryMap
from ugpu.hcq.errors import BadArgument, OutOfMemory
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.paging.location import Region
from ugpu.hcq.paging.page_table import PageTable
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.base import DmaMemory
from ugpu.hcq.transport.view import HostView, RemoteView, widened

# Addresses for large pages, below those for small pages: tables that are written only up to the
# last address in use then end in a table of the last level.
_LARGE_SPACE = 32 << 20


@dataclass(eq=False)
class Mapping:
    """One allocation: where it is mapped and what backs it. view: the host's view of it, for HOST
    placement; it is VRAM where the chip cannot reach host memory. begin: offset of a part in the
    memory."""

    address: VirtAddr
    size: int  # mapped bytes, whole pages
    placement: Placement
    asked: int = 0  # requested bytes
    kind: str = ""  # its content, for reports
    pieces: list[tuple[int, int]] = field(default_factory=list)  # VRAM offsets and sizes
    dma: DmaMemory | None = None
    shared: RemoteView | None = None
    begin: int = 0

    @property
    def view(self) -> HostView:
        if self.shared is not None:
            return self.shared[self.begin : self.begin + self.size]
        assert self.dma is not None
        return self.dma.view[self.begin : self.begin + self.size]

    def clear_behind(self, used: int) -> None:
        """Clear the part of VRAM that the host reaches behind its first `used` bytes, up to the end
        of its pages. Does nothing for memory of the host, which is zero when it is mapped."""
        if self.shared is not None and used < self.size:
            self.shared[used : self.size] = bytes(self.size - used)

    def part(self, offset: int, size: int) -> Mapping:
        """Return a part of this mapping. A part is not released; the whole mapping is."""
        address = VirtAddr(self.address + offset)
        return replace(self, address=address, size=size, asked=size, pieces=[], begin=offset)


class AddressSpace:
    """An address space: allocates, maps and unmaps. Not thread-safe.

    Every change of the tables sets `stale`; before the next submission, the vendor flushes the
    chip's cached translations and clears it. After an unmap, the flush must come before the memory
    is used again: `unmap` therefore does not return memory to the heap, `release` does.

    heap: the card's, which all its spaces share. tables: nothing of them is written before `own`.
    mappings: by address; they own the memory behind them.
    """

    def __init__(
        self,
        chip: BareChip,
        places: MemoryMap,
        page_format: TableFormat,
        *,
        heap: RangeAllocator | None = None,
        owner: object = None,
    ) -> None:
        """heap: of another space of the card; a new one is made if None. owner: of the memory of
        page tables in the heap, see `close`."""
        self.chip = chip
        self.places = places
        self.format = page_format
        heap_size = places.heap_end - places.heap
        self.heap = heap or RangeAllocator(places.heap, heap_size, PAGE)
        span = places.virtual_end - places.virtual
        self.virtual = RangeAllocator(places.virtual, span, PAGE)
        self._table_memory = VramTables(chip, places, self.heap, owner)
        self.tables = PageTable(page_format, self._table_memory)
        self.stale = True
        self.mappings: dict[int, Mapping] = {}

    def sibling(self, owner: object) -> AddressSpace:
        """Return a new space of the same card, for the holder `owner`; see `own` and `close`."""
        return AddressSpace(self.chip, self.places, self.format, heap=self.heap, owner=owner)

    def regions(self) -> list[Region]:
        """Return the mapped regions, for reports."""
        return [
            Region(mapping.address, mapping.asked or mapping.size, mapping.kind)
            for mapping in list(self.mappings.values())
        ]

    def own(self) -> None:
        """Write the tables: this driver owns VRAM from now on, or VRAM has lost its content."""
        self._table_memory.owned = True
        with self._table_memory.gathering():
            self.tables.rewrite()
        self.stale = True

    @contextmanager
    def together(self) -> Iterator[None]:
        """Change several mappings before the next flush of the TLBs. Where each write is a message,
        tables are written once, whole, at the end: use the new mappings only after it."""
        if not self._table_memory.whole or self._table_memory.changed is not None:
            yield
            return
        changed = self._table_memory.changed = set[int]()
        try:
            yield
        finally:
            self._table_memory.changed = None
            with self._table_memory.gathering():
                self.tables.rewrite(changed)

    @property
    def end(self) -> int:
        """Return the end of the addresses that the chip may translate. It grows."""
        return min(self.places.virtual_end, self.tables.reach)

    @property
    def used(self) -> int:
        """Bytes of VRAM in use, page tables included."""
        return self.heap.used

    @property
    def root_entry(self) -> int:
        """Return what the chip's registers hold for the root table."""
        return self.format.root(self.tables.root)

    def allocate(
        self,
        size: int,
        placement: Placement,
        *,
        code: bool = False,
        bus: int | None = None,
        align: int = PAGE,
    ) -> Mapping:
        """Allocate and map at least `size` bytes, with an unmapped guard page behind them.

        code: work may read and execute the memory, not write it. bus: a bus address of memory that
        is only mapped, not allocated; the host cannot reach it through the mapping. align:
        alignment of the virtual address, a power of two.
        """
        if size < 0:
            raise BadArgument("size must not be negative", size=size)
        asked = size
        size = max(PAGE, -(-size // PAGE) * PAGE)
        shared = placement is Placement.HOST and not self.chip.transport.traits.host_memory
        if shared and LARGE_PAGE // 2 <= size < LARGE_PAGE:
            size = LARGE_PAGE  # one entry instead of hundreds
        large = size >= LARGE_PAGE
        align = max(align, LARGE_PAGE if large else PAGE)
        kind = "code" if code else f"{placement.value} memory"
        flags = self.format.code_flags if code else self.format.data_flags
        mapping = Mapping(VirtAddr(0), size, placement, asked, kind)
        try:
            mapping.address = self._find_addresses(size + PAGE, align, mapping, large=large)
            if bus is not None:
                self.stale = True
                self.tables.map(mapping.address, [(bus, size)], flags | self.format.host_flags)
            elif placement is Placement.HOST:
                if shared:
                    self._map_shared(mapping, flags)
                else:
                    self._map_host(mapping, flags)
            else:
                self._map_device(mapping, align, flags)
            self.mappings[mapping.address] = mapping
            return mapping
        except BaseException:
            # Needed even after everything is mapped: the addresses will be allocated again.
            if mapping.address:
                self.tables.clear(mapping.address, size)
                self.release(mapping)
            raise

    def _find_addresses(self, size: int, align: int, mapping: Mapping, *, large: bool) -> VirtAddr:
        """Allocate virtual addresses. large: for large pages."""
        zeroed = self._table_memory.zeroed
        least = self.places.virtual + (0 if large or zeroed else _LARGE_SPACE)
        return VirtAddr(self.virtual.allocate(size, align, mapping, least=least))

    def reserve(self, count: int, step: int, vram: int) -> Mapping:
        """Reserve addresses for `count` things, `step` bytes apart and aligned to `step`. The last
        page of each step maps the page at `vram`, which keeps the tables of that step."""
        size = count * step
        mapping = Mapping(VirtAddr(0), size, Placement.DEVICE, kind="reserved addresses")
        mapping.address = VirtAddr(self.virtual.allocate(size, step, mapping))
        for number in range(count):
            self.place(mapping, (number + 1) * step - PAGE, vram, PAGE)
        self.mappings[mapping.address] = mapping
        return mapping

    def place(self, mapping: Mapping, offset: int, vram: int, size: int) -> VirtAddr:
        """Map whole pages of VRAM outside the heap at reserved addresses, for reading, once. Return
        the virtual address."""
        address = VirtAddr(mapping.address + offset)
        self.stale = True
        physical = self.places.physical(vram)
        self.tables.map(address, [(physical, size)], self.format.code_flags)
        return address

    def _map_host(self, mapping: Mapping, flags: int) -> None:
        dma = mapping.dma = self.chip.transport.allocate_dma(mapping.size)
        segments = [(int(segment.address), segment.size) for segment in dma.segments]
        limit = 1 << self.places.bus_bits
        if any(start + length > limit for start, length in segments):
            raise OutOfMemory("the host memory lies above the chip's address limit", limit=limit)
        self.stale = True
        self.tables.map(
            mapping.address, _cut(segments, mapping.size), flags | self.format.host_flags
        )

    def _map_shared(self, mapping: Mapping, flags: int) -> None:
        """Map one contiguous piece of VRAM that the host reaches through its window."""
        align = LARGE_PAGE if mapping.size >= LARGE_PAGE else PAGE
        # ORDER: in one statement, so that no exception in between leaves the memory allocated.
        mapping.pieces.append((self.heap.allocate(mapping.size, align, mapping), mapping.size))
        start = mapping.pieces[0][0]
        vram = self.chip.vram
        if start + mapping.size > vram.visible:
            raise OutOfMemory("shared memory must lie in visible VRAM", size=mapping.size)
        read, write = widened(vram.read, vram.write)

        def read_here(offset: int, size: int) -> bytes:
            return read(start + offset, size)

        def write_here(offset: int, data: bytes | bytearray | memoryview) -> None:
            write(start + offset, data)

        mapping.shared = RemoteView(read_here, write_here, mapping.size)
        self.stale = True
        physical = self.places.physical(start)
        self.tables.map(
            mapping.address, [(physical, mapping.size)], flags | self.format.shared_flags
        )

    def _map_device(self, mapping: Mapping, align: int, flags: int) -> None:
        self._find(mapping, align)
        physical = [(self.places.physical(start), length) for start, length in mapping.pieces]
        self.stale = True
        self.tables.map(mapping.address, physical, flags)

    def _find(self, mapping: Mapping, align: int) -> None:
        """Allocate VRAM in one piece if there is one, else in the largest pieces that fit."""
        left = length = mapping.size
        while left:
            length = min(length, left)
            try:
                fit = min(align, LARGE_PAGE)
                mapping.pieces.append((self.heap.allocate(length, fit, mapping), length))
            except OutOfMemory as error:
                if length <= PAGE:
                    raise OutOfMemory(
                        "the device has too little free memory", size=mapping.size, missing=left
                    ) from error
                length = max(PAGE, length // 2 // PAGE * PAGE)
                align = PAGE if length < LARGE_PAGE else align
                continue
            left -= length

    def unmap(self, mapping: Mapping) -> None:
        """Remove a mapping from the tables. Flush the TLBs next, then call `release`. Can be
        repeated until `release` has returned."""
        self.stale = True
        if self.virtual.owns(mapping.address, mapping):
            self.tables.clear(mapping.address, mapping.size)

    def release(self, mapping: Mapping) -> None:
        """Return the memory and the addresses for others to use. Can be repeated."""
        for start, _ in mapping.pieces:
            self.heap.free(start, mapping)
        if mapping.dma is not None:
            mapping.dma.close()
        self.virtual.free(mapping.address, mapping)
        # ORDER: last, so that `close` still finds the mapping if this was interrupted.
        if self.mappings.get(mapping.address) is mapping:
            self.mappings.pop(mapping.address)

    def clear(self, keep: Mapping | None) -> None:
        """Return all memory but that of `keep`; the tables stay. The rest was unmapped before."""
        for mapping in [each for each in self.mappings.values() if each is not keep]:
            self.release(mapping)

    def close(self) -> None:
        """Return all memory, including that of the tables if it has an owner. Contexts no longer
        refer to the tables, and the TLBs have been flushed. Can be repeated."""
        for mapping in list(self.mappings.values()):
            self.release(mapping)
        if self._table_memory.owner is not None:
            self.heap.free_all(self._table_memory.owner)


def _cut(segments: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Return the first `size` bytes of `segments`."""
    kept = []
    for start, length in segments:
        take = min(length, size)
        if take:
            kept.append((start, take))
        size -= take
    return kept
