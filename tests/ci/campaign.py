"""The verdict campaign: planted device faults and test bugs, and how many verdicts are right.

usage: python -m tests.ci.campaign [--cases 200] [--seed 1] [--jobs N]
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

from tests.ci.planted import judged
from tests.support.folders import Folders
from tools.ci import health
from tools.ci.verdict import Verdict

REACH = 0.99


def begin() -> None:
    """Prepare a process: folders of its own, and no log of expected failures."""
    folders = Folders.prepare()
    atexit.register(folders.close)
    logging.disable(logging.CRITICAL)
    health.LIMIT_S = 0.5


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ci.campaign")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    given: Counter[tuple[Verdict, bool]] = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.jobs, mp_context=context, initializer=begin) as pool,
    ):
        numbers = range(options.cases)
        made = [pool.submit(judged, number, options.seed, Path(folder)) for number in numbers]
        for count, done in enumerate(as_completed(made), 1):
            kind, right, found = done.result()
            given[right, right is found] += 1
            if right is not found:
                print(f"{kind}: expected {right.value}, got {found.value}", flush=True)
            if count % 20 == 0:
                print(f"{count} of {options.cases}", flush=True)
    right = sum(count for (_, good), count in given.items() if good)
    for verdict in (Verdict.DEVICE, Verdict.TEST, Verdict.FLAKY):
        total = given[verdict, True] + given[verdict, False]
        print(f"{verdict.value}: {given[verdict, True]} of {total} right")
    print(f"{right} of {options.cases} verdicts right")
    return 0 if right >= REACH * options.cases else 1


if __name__ == "__main__":
    raise SystemExit(main())
