"""Page tables in a card's memory: what a format adds for a driver, and where the tables lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.bare.chip import BareChip
from ugpu.hcq.bare.vram import PAGE, MemoryMap
from ugpu.hcq.errors import OutOfMemory
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.paging.page_table import PageFormat


class TableFormat(PageFormat, Protocol):
    """Page-table format of a generation of chips. data_flags, code_flags: for pages that work reads
    and writes, or reads and executes. host_flags: added for host memory. shared_flags: added for
    VRAM that the host reads and writes while work does."""

    data_flags: int
    code_flags: int
    host_flags: int
    shared_flags: int

    def is_table(self, level: int, entry: int) -> bool:
        """Return whether an entry of a level points to a table of the next level."""
        ...

    def root(self, physical: int) -> int:
        """Return what the chip's registers hold for the root table at `physical`."""
        ...


class VramTables:
    """Memory for page tables: 4 KiB pieces of VRAM that the host reaches through its BAR.

    owned: VRAM belongs to this driver. Until then it may contain another driver's tables, firmware
    or framebuffer, and nothing is written.
    """

    def __init__(
        self, chip: BareChip, places: MemoryMap, heap: RangeAllocator, owner: object
    ) -> None:
        self.chip = chip
        self.places = places
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
            physical = self.places.physical(address)
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
        self.heap.free(self.places.offset(physical))

    def write(self, physical: int, entries: NDArray[np.uint64]) -> None:
        if self.changed is not None:
            self.changed.add(physical // PAGE * PAGE)
            return
        if not self.owned:
            return
        address = self.places.offset(physical)
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
