"""Opening and closing a thousand times: nothing may stay behind."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.hw import process
from lab.hw.budget import Budget
from lab.hw.report import Result
from ugpu import hcq
from ugpu.hcq.errors import HostError

TITLE = "Life"
CYCLES = 1000
#: cycles before the first count: what is loaded once is loaded then
WARM = 10
GROWTH_LIMIT = 16 << 20
#: that open and close side by side on a real device
PROCESSES = 4
#: seconds for a process to end after its time
END_S = 5.0
ROOT = Path(__file__).resolve().parents[3]


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
    processes = 1 if budget.small else PROCESSES
    begin = budget.clock()
    if processes == 1:
        found = [cycles(device, CYCLES, budget)]
    else:
        found = _side_by_side(device, processes, budget)
    done = sum(each.done for each in found)
    taken = budget.clock() - begin
    remark = f"{done} cycles in {taken:.1f} s, by {processes} processes side by side"
    each_s = sum(each.seconds for each in found) / max(done, 1)
    yield Result(TITLE, "open, use and close", "measured", each_s * 1e3, "ms", remark)
    more, grown = max(each.descriptors for each in found), max(each.grown for each in found)
    cut = "" if done >= CYCLES else f"; only {done} of {CYCLES} cycles within the time"
    whole = "passed" if done >= CYCLES else "skipped"
    remark = f"{more} descriptors left open{cut}"
    outcome = "failed" if more > 0 else whole
    yield Result(TITLE, "descriptors after the cycles", outcome, float(more), "", remark)
    outcome = "failed" if grown > GROWTH_LIMIT else whole
    yield Result(TITLE, "memory after the cycles", outcome, grown / 2**20, "MiB", cut.lstrip("; "))


@dataclass(frozen=True)
class Found:
    """What one process found. grown: bytes. seconds: of all cycles, one after the other."""

    done: int
    seconds: float
    descriptors: int
    grown: int


def cycles(device: str, count: int, budget: Budget) -> Found:
    """Cycle in this process, at most `count` times and while there is time."""
    for _ in budget.part(0.3).rounds(WARM):
        _cycle(device)
    descriptors, memory = _descriptors(), _resident()
    begin, done = budget.clock(), 0
    for _ in budget.rounds(count):
        _cycle(device)
        done += 1
    seconds = budget.clock() - begin
    return Found(done, seconds, _descriptors() - descriptors, _resident() - memory)


def _side_by_side(device: str, processes: int, budget: Budget) -> list[Found]:
    """Cycle in several programs at once, as users of a GPU do."""
    share = -(-CYCLES // processes)
    command = [sys.executable, "-m", "lab.hw.sections.life", device, str(share)]
    limit = max(1.0, budget.left - END_S)

    def one(_: int) -> Found:
        ended = process.run([*command, str(limit)], limit + END_S, folder=ROOT, leader=False)
        if ended.trouble:
            raise HostError(f"a process that opens and closes {ended.trouble}")
        return Found(**json.loads(ended.output))

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(one, range(processes)))


def main(arguments: list[str]) -> int:
    """One process of several: DEVICE COUNT SECONDS."""
    device, count, seconds = arguments
    sys.stdout.write(json.dumps(asdict(cycles(device, int(count), Budget(float(seconds))))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
