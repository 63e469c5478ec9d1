"""Opening and closing a thousand times: nothing may stay behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import hcq
from tests.hw.budget import Budget
from tests.hw.report import Result

TITLE = "Life"
CYCLES = 1000
#: cycles before the first count: what is loaded once is loaded then
WARM = 10
GROWTH_LIMIT = 16 << 20


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident() -> int:
    """Bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _cycle(device: str) -> None:
    with hcq.open(device) as opened, opened.alloc(4096) as buffer:
        buffer.fill(1)


def run(device: str, budget: Budget) -> Iterator[Result]:
    """Open, use and close over and over; a run that had time for fewer is not a passed one."""
    start = budget.clock()
    _cycle(device)
    first = budget.clock() - start
    yield Result(TITLE, "first open, use and close", "measured", first * 1e3, "ms")
    for _ in budget.part(0.3).rounds(WARM):
        _cycle(device)
    descriptors, memory = _descriptors(), _resident()
    begin, done = budget.clock(), 0
    for _ in budget.rounds(CYCLES):
        _cycle(device)
        done += 1
    each = (budget.clock() - begin) / done
    yield Result(TITLE, "open, use and close", "measured", each * 1e3, "ms", f"of {done} cycles")
    more, grown = _descriptors() - descriptors, _resident() - memory
    outcome = "failed" if more > 0 else "passed" if done == CYCLES else "skipped"
    cut = "" if done == CYCLES else f"; only {done} of {CYCLES} cycles within the time"
    remark = f"{more} descriptors left open{cut}"
    yield Result(TITLE, "descriptors after the cycles", outcome, float(more), "", remark)
    outcome = "failed" if grown > GROWTH_LIMIT else "passed" if done == CYCLES else "skipped"
    yield Result(TITLE, "memory after the cycles", outcome, grown / 2**20, "MiB", cut.lstrip("; "))
