"""Memory access of virtual shader cores: native translation tables over a model's page tables.

A shader core translates kernels to native code whose loads and stores use a table of translations
that each worker thread owns. The model behind it walks the page tables that the driver wrote (or
that a kernel driver keeps) and fills the table on a miss. It keeps stale translations until they
are invalidated, as chips do.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.state.clock import Work

# Entries of a native TLB, one for each value of `tlb_set`: 64 MB, more than the weights of most
# networks, which evict the pages of small arrays in every run.
TLB_SETS = 16384
PAGE_SHIFT = 12
INVALID_TAG = 0xFFFF_FFFF_FFFF_FFFF
# Columns of a native TLB row (uint64). A row translates page p for reading iff row[READ_TAG] == p,
# for writing iff row[WRITE_TAG] == p; then host address = virtual address + row[DELTA] mod 2^64.
READ_TAG, WRITE_TAG, DELTA = 0, 1, 2
TLB_COLUMNS = 4  # the fourth column pads a row to 32 bytes


def tlb_set(page: int) -> int:
    """Return the row of a native TLB that may hold a virtual page.

    Runs of 64 pages use consecutive rows. Pages of arrays whose distance is a multiple of 64 MB use
    different rows, so that walking them side by side does not thrash.
    """
    return (page ^ page >> 6 & ~63) % TLB_SETS


def place_of(array: NDArray[Any]) -> int:
    """Return the address of an array's first byte; the array must be writable and not empty.

    Takes a quarter of the time of `array.ctypes.data`; a launch needs ten such addresses.
    """
    return ctypes.addressof(ctypes.c_char.from_buffer(array.data))


class Access(enum.IntEnum):
    """The kind of access to a page. ATOMIC: at the scope of the whole system; ATOMIC_LOCAL: at a
    smaller one."""

    READ = 0
    WRITE = 1
    EXECUTE = 2
    ATOMIC = 3
    ATOMIC_LOCAL = 4

    @property
    def writes(self) -> bool:
        """Whether the page must be writable."""
        return self not in (Access.READ, Access.EXECUTE)


class LaneMemory(Protocol):
    """One address space as the lanes of a shader core see it."""

    def new_tlb(self) -> NDArray[np.uint64]:
        """Make a [TLB_SETS, TLB_COLUMNS] table, all invalid, for one worker thread.

        The address space keeps it and clears its tags on an invalidation; only the owning thread
        refills.
        """
        ...

    def refill(self, tlb: NDArray[np.uint64], address: int, access: Access) -> int:
        """Translate the page of `address`; return the host address that `address` itself maps to.

        Called on the worker's own thread when its table misses. On success the row is filled: tags
        are made invalid, then DELTA is written, then the tags that the page's permissions allow. A
        fault is latched and reported as on the chip, nothing is cached, and the returned host
        address lies at the same page offset in a dummy page (zeros for reads, a sink for writes)
        that is followed by at least one more page.
        """
        ...


class _Translation:
    """Counts the threads that are inside it. threads: their number."""

    def __init__(self) -> None:
        self.threads = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.threads += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.threads -= 1


class Abort:
    """A flag that running waves check on every backward branch and before every workgroup.

    flag[1]: waves record their position (`look`), if the core's code does that.
    """

    def __init__(self) -> None:
        self.flag = np.zeros(2, np.uint32)
        self.debugged: Callable[[], bool] | None = None  # whether a debugger runs the program
        self._translation = _Translation()

    def translation(self) -> AbstractContextManager[None]:
        """Mark the program, or part of it, as being translated while the block runs."""
        return self._translation

    @property
    def work(self) -> Work:
        """Return the work of an engine that runs this program; see hcq.state.clock.Part. A program
        may never end, unless the flag is set."""
        debugged = self.debugged
        if debugged is not None and debugged() and not self.flag[0]:
            return Work.DEBUGGED
        if self._translation.threads:
            return Work.TRANSLATION
        return Work.ENGINES if self.flag[0] else Work.NONE

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        """Have waves record their state on every backward branch while the block runs."""
        self.flag[1] = 1
        try:
            yield
        finally:
            self.flag[1] = 0

    def set(self) -> None:
        self.flag[0] = 1

    def clear(self) -> None:
        self.flag[0] = 0
