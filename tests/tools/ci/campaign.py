"""The verdict campaign: planted device faults and test bugs, and how many verdicts are right.

All have to be, and no test that failed may end green.

usage: python -m tests.tools.ci.campaign [--cases 200] [--seed 1] [--jobs N]
"""

from __future__ import annotations

import argparse
import atexit
import logging
import multiprocessing
import os
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.support.folders import Folders
from tests.tools.ci.planted import judged
from ugpu.tools.ci import health
from ugpu.tools.ci.verdict import Verdict


def begin() -> None:
    """Prepare a process: folders of its own, and no log of expected failures."""
    folders = Folders.prepare()
    atexit.register(folders.close)
    logging.disable(logging.CRITICAL)
    health.LIMIT_S = 0.5


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.ci.campaign")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    counts: Counter[tuple[Verdict, bool]] = Counter()
    hidden = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.jobs, mp_context=context, initializer=begin) as pool,
    ):
        numbers = range(options.cases)
        made = [pool.submit(judged, number, options.seed, Path(folder)) for number in numbers]
        for count, done in enumerate(as_completed(made), 1):
            kind, right, given = done.result()
            counts[right.verdict, right == given] += 1
            hidden += given.green and not right.green
            if right != given:
                print(f"{kind}: expected {right}, got {given}", flush=True)
            if count % 20 == 0:
                print(f"{count} of {options.cases}", flush=True)
    good = sum(count for (_, right), count in counts.items() if right)
    for verdict in Verdict:
        total = counts[verdict, True] + counts[verdict, False]
        print(f"{verdict.value}: {counts[verdict, True]} of {total} right")
    print(f"{good} of {options.cases} verdicts right, {hidden} green that failed")
    return 0 if good == options.cases else 1


if __name__ == "__main__":
    raise SystemExit(main())
