"""The laboratory's tiers: which there are, and how they run side by side."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from lab.kernel.lab import Lab, Run
from lab.kernel.machine import LabUnavailable, guests_at_once

TIERS = Path(__file__).resolve().parent / "tiers"
LONGEST = "navi31"  # begun first, so that it is not what all wait for in the end
ALWAYS = "amdgpu"  # Linux's own driver on the model: in continuous integration at each commit
# Need a kernel, and modules, that continuous integration does not build.
OPTIONAL = ("own", "nvidia_open")


def tiers() -> list[str]:
    return sorted(path.stem for path in TIERS.glob("*.py"))


def in_turn(names: Sequence[str], number: int) -> list[str]:
    """Those of the tiers that run at the commit with this number."""
    others = [name for name in names if name not in (ALWAYS, *OPTIONAL)]
    turn = [others[number % len(others)]] if others else []
    return [*turn, *(name for name in names if name == ALWAYS)]


def run_tier(name: str, lab: Lab) -> list[Run]:
    """The tier's boots; in a process of its own, where others run beside it."""
    made: list[Run] = importlib.import_module(f"lab.kernel.tiers.{name}").run(lab)
    return made


def run_tiers(names: Sequence[str], lab: Lab) -> Iterator[tuple[str, list[Run] | LabUnavailable]]:
    """Each tier with its boots, or with why it could not run, as they end."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(guests_at_once(), mp_context=context)
    try:
        order = sorted(names, key=lambda name: name != LONGEST)
        futures = {pool.submit(run_tier, name, lab): name for name in order}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except LabUnavailable as reason:
                yield futures[future], reason
    finally:
        pool.shutdown(cancel_futures=True)
