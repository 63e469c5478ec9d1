"""Measure what each test costs, and list those that `make test` leaves to `make test-slow`.

    python -m tests.costs [PYTEST ARGUMENT ...]           # show the most expensive tests
    python -m tests.costs --write [PYTEST ARGUMENT ...]   # and write tests/slow.txt

A test that takes more than LIMIT_S of processor time is slow. Processor time, or the time that
passed where that is less: child processes are counted when they end, which may be in another test.
With arguments that choose tests, the list keeps its lines of the tests that did not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "slow.txt"
LIMIT_S = 0.12
SHOWN = 40
_FOLDER = "UGPU_TEST_COSTS"


def listed() -> frozenset[str]:
    """The names of tests that are slow, as pytest spells them."""
    return frozenset(LIST.read_text("utf-8").splitlines())


def renewed(before: frozenset[str], costs: Mapping[str, float]) -> list[str]:
    """The lines of the list after some tests have run. costs: seconds by name."""
    slow = {name for name, seconds in costs.items() if seconds > LIMIT_S}
    return sorted(slow | {name for name in before if name not in costs})


def _spent_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write what a test costs. This module is a plugin of pytest."""
    spent, passed = _spent_s(), time.monotonic()
    try:
        return (yield)
    finally:
        cost = min(_spent_s() - spent, time.monotonic() - passed)
        with (Path(os.environ[_FOLDER]) / str(os.getpid())).open("a", encoding="utf-8") as file:
            file.write(f"{cost:.3f} {item.nodeid}\n")


def _read(folder: Path) -> dict[str, float]:
    lines = [line for file in folder.iterdir() for line in file.read_text("utf-8").splitlines()]
    return {name: float(seconds) for seconds, _, name in (line.partition(" ") for line in lines)}


def main(arguments: Sequence[str]) -> int:
    given = [one for one in arguments if one != "--write"]
    tests = given or ["-n", "auto", "--dist", "worksteal", "tests"]
    marks = "not hardware and not foreign"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.costs", "-m", marks, *tests]
        code = subprocess.run(command, env=os.environ | {_FOLDER: folder}, cwd=ROOT).returncode
        costs = _read(Path(folder))
    for name, seconds in sorted(costs.items(), key=lambda one: -one[1])[:SHOWN]:
        print(f"{seconds:8.2f} s  {name}")
    if "--write" in arguments:
        lines = renewed(listed(), costs)
        LIST.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        print(f"{LIST.relative_to(ROOT)}: {len(lines)} tests")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
