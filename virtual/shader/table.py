"""Native TLBs as the model fills them, and dummy memory for unmapped pages.

Rows are filled under the address space's lock, under which other threads clear tags; the owner's
native code reads rows only between two calls.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterable

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
    tlb_set,
)

WINDOW = 64  # rows filled at once
_ROW = struct.Struct("<QQQQ")
_MASK = 0xFFFF_FFFF_FFFF_FFFF
_DUMMY = 4 << PAGE_SHIFT


def new_table() -> NDArray[np.uint64]:
    """Make an empty table. Zero is the tag of page 0, which only the first row can hold: so the
    other rows are zeros, which take no memory before they are filled."""
    table = np.zeros((TLB_SETS, TLB_COLUMNS), np.uint64)
    table[tlb_set(0), READ_TAG : WRITE_TAG + 1] = INVALID_TAG
    return table


def clear(tables: Iterable[NDArray[np.uint64]]) -> None:
    """Clear all translations of tables."""
    for table in tables:
        filled = np.flatnonzero(table[:, READ_TAG] | table[:, WRITE_TAG])
        for rows in (filled, tlb_set(0)):
            table[rows, READ_TAG : WRITE_TAG + 1] = INVALID_TAG


def fill(
    table: NDArray[np.uint64], address: int, start: int, end: int, host: int,
    *, readable: bool, writable: bool,
) -> None:  # fmt: skip
    """Fill the rows around `address` from a piece of memory [start, end) that begins at `host`."""
    page = address >> PAGE_SHIFT
    window = page & -WINDOW
    first = max(window, -(-start >> PAGE_SHIFT))
    last = min(window + WINDOW, end >> PAGE_SHIFT)
    delta = host - start & _MASK
    if last - first <= 1:
        read = page if readable else INVALID_TAG
        write = page if writable else INVALID_TAG
        _ROW.pack_into(table.data, tlb_set(page) * _ROW.size, read, write, delta, 0)
        return
    row = tlb_set(first)
    rows = table[row : row + last - first]
    pages = np.arange(first, last, dtype=np.uint64)
    rows[:, DELTA] = delta
    rows[:, READ_TAG] = pages if readable else INVALID_TAG
    rows[:, WRITE_TAG] = pages if writable else INVALID_TAG


class DummyPages:
    """Addresses of dummy memory for unmapped pages: zeros and ones to read, a sink for writes."""

    def __init__(self) -> None:
        self._pages = [mmap.mmap(-1, _DUMMY, flags=mmap.MAP_PRIVATE) for _ in range(3)]
        self._pages[1][:] = b"\xff" * _DUMMY
        self.zeros, self.ones, self.sink = (
            ctypes.addressof(ctypes.c_char.from_buffer(pages)) for pages in self._pages
        )
