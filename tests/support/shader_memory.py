"""GPU memory for tests of the shader cores: NumPy arrays at chosen addresses, page by page."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.virtual.shader.memory import (
    DELTA,
    INVALID_TAG,
    PAGE_SHIFT,
    READ_TAG,
    TLB_COLUMNS,
    TLB_SETS,
    WRITE_TAG,
    Access,
    tlb_set,
)

PAGE = 1 << PAGE_SHIFT


def page_array(size: int) -> NDArray[np.uint8]:
    """Allocate zeroed bytes that begin on a page of the host."""
    raw = np.zeros(size + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + size]


@dataclass(eq=False)
class ArrayMemory:
    """A `ShaderMemory` of mapped arrays. faults: what was refused, as (address, access)."""

    faults: list[tuple[int, Access]] = field(default_factory=list)
    refills: int = 0

    def __post_init__(self) -> None:
        self._pages: dict[int, tuple[int, bool, bool]] = {}
        self._dummy = page_array(2 * PAGE)
        self._sink = page_array(2 * PAGE)
        self._keep: list[NDArray[np.uint8]] = []
        self.tlbs: list[NDArray[np.uint64]] = []

    def map(
        self,
        address: int,
        array: NDArray[Any],
        writable: bool = True,
        executable: bool = False,
    ) -> NDArray[Any]:
        """Copy an array behind whole pages at `address`; return the view that the GPU works on."""
        size = -(-max(array.nbytes, 1) // PAGE) * PAGE
        memory = page_array(size)
        memory[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._keep.append(memory)
        for offset in range(0, size, PAGE):
            host = memory.ctypes.data + offset
            self._pages[address + offset >> PAGE_SHIFT] = (host, writable, executable)
        return memory[: array.nbytes].view(array.dtype).reshape(array.shape)

    def unmap(self, address: int, size: int) -> None:
        """Remove pages; TLBs keep what they have until `invalidate`."""
        for page in range(address >> PAGE_SHIFT, (address + size - 1 >> PAGE_SHIFT) + 1):
            self._pages.pop(page, None)

    def invalidate(self) -> None:
        """Drop all cached translations."""
        for tlb in self.tlbs:
            tlb[:, :DELTA] = INVALID_TAG

    def new_tlb(self) -> NDArray[np.uint64]:
        """See `ShaderMemory`."""
        tlb = np.full((TLB_SETS, TLB_COLUMNS), INVALID_TAG, np.uint64)
        self.tlbs.append(tlb)
        return tlb

    def refill(
        self,
        tlb: NDArray[np.uint64],
        address: int,
        access: Access,
        who: Callable[[], tuple[int, str]] | None = None,
    ) -> int:
        """See `ShaderMemory`."""
        self.refills += 1
        page = address >> PAGE_SHIFT
        found = self._pages.get(page)
        if found is None or (access.writes and not found[1]):
            self.faults.append((address, access))
            if access is Access.READ:
                return int(self._dummy.ctypes.data) + address % PAGE
            return int(self._sink.ctypes.data) + address % PAGE
        host, writable, _ = found
        row = tlb[tlb_set(page)]
        row[READ_TAG] = row[WRITE_TAG] = INVALID_TAG
        row[DELTA] = (host - (page << PAGE_SHIFT)) % 2**64
        row[READ_TAG] = page
        if writable:
            row[WRITE_TAG] = page
        return host + address % PAGE

    def fetch(self, address: int, size: int) -> bytes | None:
        """See `ShaderMemory`."""
        found = b""
        while size > 0:
            page = self._pages.get(address >> PAGE_SHIFT)
            if page is None or not page[2]:
                self.faults.append((address, Access.EXECUTE))
                return None
            inside = address % PAGE
            count = min(size, PAGE - inside)
            for memory in self._keep:
                start = page[0] + inside - memory.ctypes.data
                if 0 <= start < memory.nbytes:
                    found += memory[start : start + count].tobytes()
                    break
            address += count
            size -= count
        return found

    def peek(self, address: int, size: int) -> bytes | None:
        """See `ShaderMemory`."""
        found = b""
        for at in range(address, address + size):
            page = self._pages.get(at >> PAGE_SHIFT)
            if page is None:
                return None
            found += ctypes.string_at(page[0] + at % PAGE, 1)
        return found
