"""What a process holds at work, and whether it grows: a leak, told from what only fills up.

Resident memory alone tells little: the C library keeps freed memory of each of its arenas, and as
many arenas as threads once allocated at the same time, so that it rises to a bound and stays. What
is in use is counted instead: bytes that malloc returned and that were not freed (NumPy, LLVM and
other libraries included), blocks of Python's own allocator, mappings (code of translated programs,
memory for devices), descriptors and threads. Resident memory is counted after the C library
returned what it can.

A cache fills and then stays: of its growth nothing is left in the last third of a run. A leak goes
on. So of malloc's bytes and Python's blocks, which caches hold, only growth in both halves is one;
of mappings, descriptors and threads any. Each third counts by its least sample: what one case holds
for a while is in one sample and not in the next.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.campaign.run import counts

#: bytes of resident memory that may come: pages that the C library cannot return, since something
#: small is still in use in each
SLACK = 24 << 20
#: bytes of malloc's in each half
USED_SLACK = 512 << 10
#: Python's blocks in each half, and for each case of a half, the larger of both
BLOCKS_SLACK, BLOCKS_OF_CASE = 1000, 1
LEAST = 6  # samples
_FILLING = ("used", "blocks")  # what caches hold

Sample = dict[str, int]


class _Mallinfo(ctypes.Structure):
    """struct mallinfo2 (glibc 2.33, malloc.h); bytes, of all arenas."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    ]  # fmt: skip
    hblkhd: int
    uordblks: int


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    return libc


def resident() -> int:
    """Bytes of memory that the process has of its own in RAM."""
    pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def sample() -> Sample:
    """Count what the process holds now: descriptors, mappings, threads; "used", malloc's bytes in
    use; "blocks", Python's; "memory", resident bytes once free memory was returned."""
    gc.collect()
    gc.collect()  # what finalisers of the first one let go of
    libc = _libc()
    known = libc.mallinfo2()
    found = {"used": known.uordblks + known.hblkhd, "blocks": sys.getallocatedblocks()}
    libc.malloc_trim(0)
    return counts() | found | {"memory": resident()}


def growth(samples: Sequence[Sample]) -> dict[str, tuple[int, int]]:
    """How much each count grew from the first third of the samples to the second, and from there
    to the last; ValueError for less than LEAST samples."""
    if len(samples) < LEAST:
        raise ValueError(f"expected at least {LEAST} samples, got {len(samples)}")
    third = len(samples) // 3
    parts = samples[:third], samples[third:-third], samples[-third:]
    found = {}
    for name in samples[0]:
        first, middle, last = (min(one[name] for one in part) for part in parts)
        found[name] = middle - first, last - middle
    return found


def leaks(samples: Sequence[Sample], cases: int) -> dict[str, int]:
    """The counts that leak, and by how much; cases: that were run between the first sample and the
    last."""
    allowed = {"used": USED_SLACK, "blocks": max(BLOCKS_SLACK, BLOCKS_OF_CASE * cases // 2)}
    found = {}
    for name, (one, two) in growth(samples).items():
        if name in _FILLING:
            leaking = min(one, two) > allowed[name]
        else:
            leaking = one + two > (SLACK if name == "memory" else 0)
        if leaking:
            found[name] = one + two
    return found
