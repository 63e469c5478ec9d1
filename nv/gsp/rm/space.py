"""The address space of one client of a card: page tables of our own, in regions of addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from ugpu.hcq.bare.space import AddressSpace, Mapping
from ugpu.hcq.bare.tables import TableFormat
from ugpu.hcq.bare.vram import LARGE_PAGE, MemoryMap
from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.transport.base import Transport
from ugpu.nv.gsp.chip.chip import GspChip
from ugpu.nv.gsp.chip.tables import Mmu2Format, Mmu3Format
from ugpu.nv.rm.session import Region

VIRTUAL, VIRTUAL_END = Region.COMMANDS.value[0], Region.DEVICE.value[1]


def format_of(chip: GspChip) -> TableFormat:
    """Return the format of a chip's page tables."""
    return Mmu2Format() if chip.facts.mmu == 2 else Mmu3Format()


class CardMemory(Protocol):
    """The memory of a card (nv.gsp.rm.card)."""

    heap: RangeAllocator
    places: MemoryMap
    transport: Transport

    @property
    def chip(self) -> GspChip: ...


class GspSpace(AddressSpace):
    """An address space whose allocations lie in a region. Not thread-safe; see AddressSpace."""

    chip: GspChip

    def __init__(self, card: CardMemory, owner: object) -> None:
        super().__init__(card.chip, card.places, format_of(card.chip), heap=card.heap, owner=owner)
        self._region: Region | None = None

    @contextmanager
    def within(self, region: Region) -> Iterator[None]:
        """Allocate addresses in a region, inside the block."""
        self._region = region
        try:
            yield
        finally:
            self._region = None

    def _find_addresses(self, size: int, align: int, mapping: Mapping, *, large: bool) -> VirtAddr:
        if self._region is None:
            return super()._find_addresses(size, align, mapping, large=large)
        begin, end = self._region.value
        address = self.virtual.allocate(size, align, mapping, least=begin)
        if address + size > end:
            self.virtual.free(address, mapping)
            raise OutOfMemory(f"addresses of the region {self._region.name.lower()} are used up")
        return VirtAddr(address)

    def map_vram(self, start: int, size: int, flags: int, align: int) -> Mapping:
        """Map VRAM that another owner keeps. `unmap` and `release` give only the addresses back."""
        mapping = Mapping(VirtAddr(0), size, Placement.DEVICE, size, "context")
        mapping.address = self._find_addresses(size, align, mapping, large=False)
        try:
            self.stale = True
            self.tables.map(mapping.address, [(self.places.physical(start), size)], flags)
            self.mappings[mapping.address] = mapping
        except BaseException:
            self.virtual.free(mapping.address, mapping)
            raise
        return mapping

    def protect(self, mapping: Mapping, size: int) -> int:
        """Make the first bytes of a mapping in VRAM read-only; return how many: whole pages."""
        page = LARGE_PAGE if mapping.size >= LARGE_PAGE else 1 << self.tables.page_shift
        length = min(size, mapping.size) // page * page
        if not length:
            return 0
        left, pieces = length, []
        for start, piece in mapping.pieces:
            take = min(piece, left)
            if take:
                pieces.append((self.places.physical(start), take))
            left -= take
        self.stale = True
        self.tables.clear(mapping.address, length)
        self.tables.map(mapping.address, pieces, self.format.code_flags)
        return length

    def flush(self) -> None:
        """Let the chip see the tables as they are now."""
        if self.stale:
            self.chip.flush_translations(self.root_entry)
            self.stale = False
