"""Device memory: VRAM layout, the heap, the driver's address space and its mappings.

Kinds of addresses: offsets in VRAM; MC addresses, which PSP, SMU and CP use untranslated, through
the system aperture of VMID 0; physical addresses, which page tables contain; and virtual addresses
of the driver's own address space. All are in bytes. See docs/am-bringup.md for the map.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.am.chip.chip import Chip
from ugpu.hcq.errors import BadArgument, OutOfMemory
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.paging.location import Region
from ugpu.hcq.paging.page_table import PageFormat, PageTable
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.base import DmaMemory
from ugpu.hcq.transport.view import HostView, RemoteView, widened

MIB = 1 << 20
PAGE = 4096
LARGE_PAGE = 2 * MIB
# The space lies far above every system aperture, below the canonical hole: no address in it can be
# mistaken for device memory, whichever VMID uses it.
VIRTUAL_BASE = 0x2000_0000_0000
VIRTUAL_END = 0x8000_0000_0000
# Addresses for large pages, below those for small pages: tables that are written only up to the
# last address in use then end in a table of the last level.
_LARGE_SPACE = 32 * MIB
TMR_SPACE = 32 * MIB  # below the firmware's own reserve; the TOC has the size in use


class PageTableFormat(PageFormat, Protocol):
    """Page-table format of a generation. data_flags, code_flags: for pages that work reads and
    writes, or reads and executes. host_flags: added for host memory. shared_flags: added for VRAM
    that the host reads and writes while work does."""

    data_flags: int
    code_flags: int
    host_flags: int
    shared_flags: int

    def is_table(self, level: int, entry: int) -> bool:
        """Return whether an entry of a level points to a table of the next level."""
        ...

    def root(self, physical: int) -> int:
        """Return the value of the hubs' registers for the root table at `physical`."""
        ...


class Carveout:
    """Fixed places in VRAM for data that outlives a process: firmware, and data it points to.

    A warm attach finds them where the cold boot put them. Everything except the TMR is in the first
    4 MiB, which a BAR of any size shows. Only the chip accesses the TMR.
    """

    def __init__(self, size: int, reserved: int, fb_base: int, fb_offset: int) -> None:
        self.size = size
        self.fb_base = fb_base
        self.fb_offset = fb_offset
        # Side by side, so that an image, its command and its frame are one write.
        self.psp_private = 1 * MIB
        self.psp_command = 2 * MIB
        self.psp_ring = 2 * MIB + 0x1000
        self.scratch_page = 2 * MIB + 0x3000  # default of the system aperture
        self._mqd = 2 * MIB + 0x4000
        self.list_pointers = 2 * MIB + 0x5000  # see am.units.lists
        self.list_eop = 2 * MIB + 0x6000
        self.list_mqd = 2 * MIB + 0x7800  # and its ring, side by side
        self.list_ring = 2 * MIB + 0x8000
        self.smu_table = 2 * MIB + 0x10000
        self.smu_table_size = 0x10000
        self._tenants = 2 * MIB + 0x20000  # descriptors of tenants, a page for each
        self.heap = 4 * MIB
        self.tmr_space = TMR_SPACE
        self.tmr = (size - reserved - TMR_SPACE) // MIB * MIB
        if self.tmr <= self.heap:
            raise OutOfMemory(
                "the card has too little VRAM for the driver's own structures", vram=size
            )

    def mqd(self, index: int) -> int:
        """Return the VRAM offset of a compute queue's descriptor. index: of its holder's seat."""
        return self._mqd if index == 0 else self._tenants + index * PAGE

    def mc(self, address: int) -> int:
        """Return the MC address of VRAM offset `address`."""
        return self.fb_base + address

    def physical(self, address: int) -> int:
        """Return the address that page tables hold for VRAM offset `address`."""
        return self.fb_offset + address


class VramTables:
    """Memory for page tables: 4 KiB pieces of VRAM that the host reaches through its BAR.

    owned: VRAM belongs to this driver. Until then it may contain another driver's tables, firmware
    or framebuffer, and nothing is written.
    """

    def __init__(self, chip: Chip, carveout: Carveout, heap: RangeAllocator, owner: object) -> None:
        self.chip = chip
        self.carveout = carveout
        self.heap = heap
        self.owner = owner  # of the tables' memory in the heap
        self.owned = False
        # False where a dword takes several messages, see hcq.paging.page_table.TableMemory.
        self.zeroed = chip.transport.traits.staged is None
        self.gathered: dict[int, bytes] | None = None  # content by address, see `gathering`
        self.changed: set[int] | None = None  # tables to be written later, by physical address

    @property
    def whole(self) -> bool:
        """Return whether writing a whole table costs as much as writing one entry."""
        return self.chip.bus.messages and self.zeroed

    def allocate(self, size: int) -> int:
        address = None
        try:
            address = self.heap.allocate(size, PAGE, self.owner)
            if address + size > self.chip.vram.visible:
                raise OutOfMemory(
                    "no VRAM that the host can access is left for page tables", size=size
                )
            physical = self.carveout.physical(address)
            if self.changed is not None:
                self.changed.add(physical)
            elif self.owned and self.zeroed:
                self.chip.vram.write(address, bytes(size))
            return physical
        except BaseException:
            if address is not None:
                self.heap.free(address)
            raise

    def free(self, physical: int) -> None:
        self.heap.free(physical - self.carveout.fb_offset)

    def write(self, physical: int, entries: NDArray[np.uint64]) -> None:
        if self.changed is not None:
            self.changed.add(physical // PAGE * PAGE)
            return
        if not self.owned:
            return
        address = physical - self.carveout.fb_offset
        data = np.ascontiguousarray(entries).tobytes()
        if self.gathered is None:
            self.chip.vram.write(address, data)
        else:
            self.gathered[address] = data

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Where writes are messages, write whole tables at the end, adjacent ones at once."""
        if not self.whole:
            yield
            return
        self.gathered = {}
        try:
            yield
        finally:
            found, self.gathered = self.gathered, None
        start, run = 0, b""
        for address in sorted(found):
            if run and address != start + len(run):
                self.chip.vram.write(start, run)
                run = b""
            start = start if run else address
            run += found[address]
        if run:
            self.chip.vram.write(start, run)


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

    def part(self, offset: int, size: int) -> Mapping:
        """Return a part of this mapping. A part is not released; the whole mapping is."""
        address = VirtAddr(self.address + offset)
        return replace(self, address=address, size=size, asked=size, pieces=[], begin=offset)


class AddressSpace:
    """The driver's address space: allocates, maps and unmaps. Not thread-safe.

    Every change of the tables sets `stale`; the next submission must first flush both hubs' TLBs
    (gmc.Gmc.flush_tlb). After an unmap, the flush must come before the memory is used again:
    `unmap` therefore does not return memory to the heap, `release` does.
    """

    def __init__(
        self,
        chip: Chip,
        carveout: Carveout,
        page_format: PageTableFormat,
        *,
        heap: RangeAllocator | None = None,
        owner: object = None,
    ) -> None:
        """heap: the card's heap, for the space of a tenant; a new one is made if None. owner: of
        the memory of page tables in the heap, see `close`."""
        self.chip = chip
        self.carveout = carveout
        self.format = page_format
        heap_size = carveout.tmr - carveout.heap
        self.heap = heap or RangeAllocator(carveout.heap, heap_size, PAGE)
        self.virtual = RangeAllocator(VIRTUAL_BASE, VIRTUAL_END - VIRTUAL_BASE, PAGE)
        self._table_memory = VramTables(chip, carveout, self.heap, owner)
        self.tables = PageTable(page_format, self._table_memory)
        self.stale = True
        self.mappings: dict[int, Mapping] = {}  # by address

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
        """Return the end of the addresses that the hubs may translate. It grows."""
        return min(VIRTUAL_END, self.tables.reach)

    @property
    def used(self) -> int:
        """Bytes of VRAM in use, page tables included."""
        return self.carveout.tmr - self.carveout.heap - self.heap.free_size

    @property
    def root_entry(self) -> int:
        """Return the value of the hubs' registers for the root table."""
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
        least = VIRTUAL_BASE if large or zeroed else VIRTUAL_BASE + _LARGE_SPACE
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
        physical = self.carveout.physical(vram)
        self.tables.map(address, [(physical, size)], self.format.code_flags)
        return address

    def _map_host(self, mapping: Mapping, flags: int) -> None:
        dma = mapping.dma = self.chip.transport.allocate_dma(mapping.size)
        segments = [(int(segment.address), segment.size) for segment in dma.segments]
        limit = 1 << self.chip.generation.physical_bits
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
        physical = self.carveout.physical(start)
        self.tables.map(
            mapping.address, [(physical, mapping.size)], flags | self.format.shared_flags
        )

    def _map_device(self, mapping: Mapping, align: int, flags: int) -> None:
        self._find(mapping, align)
        physical = [(self.carveout.physical(start), length) for start, length in mapping.pieces]
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

    def clear(self, keep: Mapping) -> None:
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
