"""The contract between the virtual chip's command processor and its shader cores.

The command processor (am/virtual) fills a `Dispatch` from the COMPUTE_* registers and runs it on a
`ShaderCore` (am/virtual/isa). The cores reach memory only through `ShaderMemory`, which walks the
driver's page tables and keeps stale translations until they are invalidated, as the chip does.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

TLB_SETS = 4096  # entries of a native TLB, one for each value of `tlb_set`
PAGE_SHIFT = 12
INVALID_TAG = 0xFFFF_FFFF_FFFF_FFFF
# Columns of a native TLB row (uint64). A row translates page p for reading iff row[READ_TAG] == p,
# for writing iff row[WRITE_TAG] == p; then host address = virtual address + row[DELTA] mod 2^64.
READ_TAG, WRITE_TAG, DELTA = 0, 1, 2
TLB_COLUMNS = 4  # the fourth column pads a row to 32 bytes


def tlb_set(page: int) -> int:
    """Return the row of a native TLB that may hold a virtual page.

    Runs of 64 pages lie in rows that follow each other; the pages of arrays whose distance is a
    multiple of 16 MB lie in different rows, so that walking them side by side does not thrash.
    """
    return (page ^ page >> 6 & ~63) % TLB_SETS


class Access(enum.IntEnum):
    """What a client wants of a page."""

    READ = 0
    WRITE = 1
    EXECUTE = 2


class ShaderMemory(Protocol):
    """One VMID's address space as the shader cores see it (clients TCP and SQC of the GFX hub)."""

    def new_tlb(self) -> NDArray[np.uint64]:
        """Make a [TLB_SETS, TLB_COLUMNS] table, all invalid, for one worker thread.

        The memory keeps it and clears its tags on an invalidation; only the owning thread refills.
        """
        ...

    def refill(self, tlb: NDArray[np.uint64], address: int, access: Access) -> int:
        """Translate the page of `address`; return the host address that `address` itself maps to.

        Called on the worker's own thread when its table misses. On success the row is filled: tags
        are made invalid, then DELTA written, then the tags that the page's permissions allow. On a
        fault the fault is latched and reported as the chip does, nothing is cached, and the
        returned host address lies at the same page offset in a dummy page (zeros for reads, a sink
        for writes) that is followed by at least one more page.
        """
        ...

    def fetch(self, address: int, size: int) -> bytes | None:
        """Read instructions; None after a fault (not mapped, not executable), which is latched."""
        ...


@dataclass(frozen=True)
class Dispatch:
    """One DISPATCH_DIRECT as the registers describe it. Addresses are GPU virtual, sizes bytes.

    rsrc1..3: COMPUTE_PGM_RSRC1..3 as written. user_data: COMPUTE_USER_DATA_0..15.
    shared_aperture / private_aperture: base addresses from SH_MEM_BASES (field << 48).
    scratch_base: COMPUTE_DISPATCH_SCRATCH_BASE << 8; scratch_wave_size: TMPRING_SIZE.WAVESIZE in
    bytes.
    """

    code_address: int
    groups: tuple[int, int, int]
    threads: tuple[int, int, int]
    rsrc1: int
    rsrc2: int
    rsrc3: int
    user_data: Sequence[int]
    wave32: bool
    scratch_base: int = 0
    scratch_wave_size: int = 0
    scratch_waves: int = 0
    shared_aperture: int = 0
    private_aperture: int = 0


class Ending(enum.Enum):
    """How a dispatch ended."""

    DONE = "done"
    ILLEGAL_INSTRUCTION = "illegal instruction"  # wave halted at pc
    FETCH_FAULT = "fetch fault"  # instruction page not executable; already latched
    ABORTED = "aborted"  # `Abort.set` was called
    BAD_DISPATCH = "bad dispatch"  # registers that the SPI cannot launch; `detail` says why


@dataclass(frozen=True)
class Outcome:
    """pc: GPU virtual address of the offending instruction. words: its encoding."""

    ending: Ending
    pc: int = 0
    words: tuple[int, ...] = ()
    detail: str = ""
    group: tuple[int, int, int] = (0, 0, 0)
    wave: int = 0


class Abort:
    """A flag that running waves look at on every backward branch and before every workgroup."""

    def __init__(self) -> None:
        self.flag = np.zeros(1, np.uint32)

    def set(self) -> None:
        self.flag[0] = 1

    def clear(self) -> None:
        self.flag[0] = 0


class ShaderCore(Protocol):
    """All compute units of the chip. `run` blocks until the dispatch ends; called by one thread."""

    def run(self, dispatch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome: ...
    def close(self) -> None: ...
