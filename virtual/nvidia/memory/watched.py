"""Lane memory that reports which pages a grid reads and writes: `MachineOptions.coherence`.

Its translations are dropped before each grid and cover one page and one access each. The first
access of each kind to each page therefore calls this module. That costs about 10 us a page.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.nvidia.memory.faults import Client, MmuFault, Stall
from ugpu.virtual.nvidia.memory.space import KINDS, AddressSpace, GridMemory
from ugpu.virtual.shader.memory import (
    DELTA,
    INVALID_TAG,
    PAGE_SHIFT,
    READ_TAG,
    WRITE_TAG,
    Access,
    tlb_set,
)

PAGE = 1 << PAGE_SHIFT
_MASK = 0xFFFF_FFFF_FFFF_FFFF


class WatchedMemory(GridMemory):
    """See GridMemory. `written`: pages that the last grid wrote, by their number in this process.

    on_read(virtual page, page in this process) is called for each page that a grid reads, once a
    grid, before the read.
    """

    def __init__(
        self,
        space: AddressSpace,
        stop: Callable[[], None],
        stall: Callable[[MmuFault], Stall],
        on_read: Callable[[int, int], None],
    ) -> None:
        super().__init__(space, stop, stall)
        self.written: set[int] = set()
        self._read: set[int] = set()
        self._on_read = on_read

    def begin(self) -> None:
        super().begin()
        self.written = set()
        self._read = set()
        with self._space.lock:
            for table in self._tables:
                table[:, READ_TAG : WRITE_TAG + 1] = INVALID_TAG

    def refill(self, tlb: NDArray[np.uint64], address: int, access: Access) -> int:
        wanted = KINDS[access]
        with self._space.lock:
            fault = isinstance(self._space.translate(address, wanted, Client.SM), MmuFault)
        if fault:
            super().refill(tlb, address, access)
        with self._space.lock:
            found = self._space.translate(address, wanted, Client.SM)
            if isinstance(found, MmuFault):
                return self._dummy_address(address, access)
            host = found.host + address - found.virtual
            page = address >> PAGE_SHIFT
            row = tlb[tlb_set(page)]
            tag, other = (WRITE_TAG, READ_TAG) if wanted.writes else (READ_TAG, WRITE_TAG)
            row[tag] = INVALID_TAG
            if row[other] != page:
                row[other] = INVALID_TAG
            row[DELTA] = host - address & _MASK
            row[tag] = page
            if wanted.writes:
                self.written.add(host // PAGE)
            elif page not in self._read:
                self._read.add(page)
                self._on_read(page, host // PAGE)
            return host
