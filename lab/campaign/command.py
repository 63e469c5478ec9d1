"""The campaign as a command: shares cases out to processes, prints failures and the last line."""

from __future__ import annotations

import argparse
import atexit
import logging
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from lab.campaign.kind import Case, Kind, Result, cases_of
from lab.campaign.run import run
from lab.campaign.stands.devices import STANDS
from lab.campaign.table import KINDS, render
from tests.support.folders import Folders

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "faults.md"
_BATCH = 12  # cases that a process takes at once


def find(words: str) -> list[Kind]:
    """Kinds whose name, layer or devices have the words."""
    return [
        kind for kind in KINDS
        if words in kind.name or words == kind.layer.value or words in kind.devices
    ]  # fmt: skip


def run_batch(cases: list[Case], seed: int) -> list[Result]:
    """Run cases in this process, each by its own seed."""
    by_name = {kind.name: kind for kind in KINDS}
    results = []
    for case in cases:
        number = random.Random(f"{seed} {case}").randrange(1 << 16)
        make = partial(STANDS[case.device], number)
        results.append(run(case, by_name[case.kind].on(case.device), make))
    return results


def begin() -> None:
    """Prepare a process of the campaign: folders of its own, and no log of expected failures."""
    folders = Folders.prepare()
    atexit.register(folders.close)
    logging.disable(logging.CRITICAL)


def run_all(
    cases: list[Case], seed: int, jobs: int, show: Callable[[Result], None]
) -> list[Result]:
    """Run cases in `jobs` processes. Those of one device stay together: programs are translated
    once for each process. show: takes each result as its batch ends."""
    ordered = sorted(cases, key=lambda case: case.device)
    batches = [ordered[at : at + _BATCH] for at in range(0, len(ordered), _BATCH)]
    context = multiprocessing.get_context("spawn")
    results: list[Result] = []
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=begin) as pool:
        for done in as_completed([pool.submit(run_batch, batch, seed) for batch in batches]):
            batch = done.result()
            results += batch
            for result in batch:
                show(result)
    return results


def show(result: Result, *, verbose: bool) -> None:
    """Print what failed; with `verbose` the error of a case that passed, too."""
    if verbose:
        print(f"{result.case}: {result.seconds:.2f} s {result.error}", flush=True)
    for check, text in result.failed.items():
        print(f"{result.case}: {check}: {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.campaign")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="words of the name, a layer or a device")
    parser.add_argument("--device", default="", help="only the cases of one device")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--write", action="store_true", help="write docs/faults.md")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the error of each case")
    options = parser.parse_args(arguments)
    kinds = find(options.only)
    shown = partial(show, verbose=options.verbose)
    cases = [case for case in cases_of(kinds) if options.device in ("", case.device)]
    results = run_all(cases, options.seed, options.jobs, shown)
    failed = Counter(check for result in results for check in result.failed)
    count = f"kinds={len(kinds)} cases={len(results)}"
    if failed:
        told = " ".join(f"{check}={number}" for check, number in sorted(failed.items()))
        print(f"faults: FAIL {count} failed={sum(failed.values())} {told}")
        return 1
    if options.write:
        PAGE.write_text(render(KINDS), encoding="utf-8")
    print(f"faults: PASS {count}")
    return 0
