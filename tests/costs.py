"""Measure what each test costs, and list those that `make test` leaves to `make test-slow`.

    python -m tests.costs [PYTEST ARGUMENT ...]           # show the most expensive tests
    python -m tests.costs --write [PYTEST ARGUMENT ...]   # and write tests/slow.txt
    python -m tests.costs --read FOLDER                   # what other runs have measured: .ci/run

A line of tests/slow.txt is a cost in seconds and the name of a test, as pytest spells it: of each
test that takes more than LIMIT_S of processor time. Processor time, or the time that passed where
that is less: child processes are counted when they end, which may be in another test. `make test`
leaves out what is listed, and what is marked slow, which may cost less (too many of a kind). With
arguments that choose tests, the list keeps its lines of the tests that did not run; without, what
is left to `make test` must fit into its budget, FAST_S.

Each run of pytest with UGPU_TEST_COSTS=FOLDER writes there what its tests cost. --read compares
that with the list, as if this machine were as fast as the list's, shows what should be in the
list, and writes it as build/slow.txt, to be copied.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tests" / "slow.txt"
LIMIT_S = 0.12
#: processor time of all tests of `make test`, which is to end within 6 minutes on two cores; each
#: of its processes collects the tests too
FAST_S = 300.0
#: a cost that was measured again replaces the listed one where it differs by more than this part
NOISE = 0.3
LEAST = 20  # tests by which machines are compared
#: in pytest's configuration: the names of all tests that it has found, and of those that `make
#: test` runs
COLLECTED, FAST = pytest.StashKey[frozenset[str]](), pytest.StashKey[frozenset[str]]()
SHOWN = 40
FOLDER = "UGPU_TEST_COSTS"
_MARKED, _SKIPPED, _COLLECTED = "marked", "skipped", "collected"


@dataclass(frozen=True)
class Costs:
    """What a run has measured. seconds: by test; marked: tests that are slow by a mark of their
    file; skipped: tests that could not run on this machine; collected: all tests of the files that
    it looked at, or none where it was told to look at some tests of a file."""

    seconds: Mapping[str, float]
    marked: frozenset[str] = frozenset()
    skipped: frozenset[str] = frozenset()
    collected: frozenset[str] = frozenset()

    def slow(self) -> dict[str, float]:
        """The tests of the list."""
        return {
            name: seconds
            for name, seconds in self.seconds.items()
            if name not in self.skipped and seconds > LIMIT_S
        }

    def at_pace_of(self, before: Mapping[str, float]) -> Costs:
        """The same as if this machine were as fast as that of the list, by the tests of both."""
        both = [self.seconds[name] / before[name] for name in self.seconds if before.get(name)]
        pace = statistics.median(both) if len(both) >= LEAST else 1.0
        seconds = {name: cost / pace for name, cost in self.seconds.items()}
        return replace(self, seconds=seconds) if pace else self

    def fast_s(self) -> float:
        """What the tests of `make test` cost together."""
        left = self.marked | self.slow().keys()
        return sum(seconds for name, seconds in self.seconds.items() if name not in left)


def listed(text: str | None = None) -> dict[str, float]:
    """What each slow test costs in seconds, by its name."""
    lines = (LIST.read_text("utf-8") if text is None else text).splitlines()
    parts = (line.lstrip().partition(" ") for line in lines)
    return {name: float(seconds) for seconds, _, name in parts}


def renewed(before: Mapping[str, float], costs: Costs) -> dict[str, float]:
    """The list after some tests have run: without names that are no tests, and with the earlier
    cost of tests that did not run."""
    gone = stale(before, costs.collected) if costs.collected else ()
    after = {
        name: seconds
        for name, seconds in before.items()
        if name in costs.skipped or not (name in costs.seconds or name in gone)
    }
    for name, seconds in costs.slow().items():
        known = before.get(name, 0.0)
        after[name] = known if abs(seconds - known) <= NOISE * known else seconds
    return after


def written(costs: Mapping[str, float]) -> str:
    """The text of the list."""
    return "".join(f"{costs[name]:7.2f} {name}\n" for name in sorted(costs))


def collected_whole_files(config: pytest.Config) -> bool:
    """Whether pytest has found all tests of the files that it was given, on all devices."""
    return not config.getoption("--device") and not any("::" in given for given in config.args)


def stale(names: Collection[str], collected: Collection[str]) -> list[str]:
    """The listed names that are no test's, of the files that were collected. A file of which this
    machine runs no test at all (it lacks a package) says nothing about its names."""
    files = {name.partition("::")[0] for name in collected}
    return sorted(
        name
        for name in set(names) - set(collected)
        if name.partition("::")[0] in files or not (ROOT / name.partition("::")[0]).is_file()
    )


def _spent_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Recorder:
    """A plugin of pytest that writes into a folder what each test costs."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / str(os.getpid())

    def _write(self, line: str) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if collected_whole_files(session.config):
            names = session.config.stash[COLLECTED]
            for name in sorted(names):
                self._write(f"{_COLLECTED} {name}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        spent, passed = _spent_s(), time.monotonic()
        try:
            return (yield)
        finally:
            cost = min(_spent_s() - spent, time.monotonic() - passed)
            self._write(f"{cost:.3f} {item.nodeid}")
            if item.get_closest_marker("slow") and not item.get_closest_marker("costly"):
                self._write(f"{_MARKED} {item.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._write(f"{_SKIPPED} {report.nodeid}")


def record(config: pytest.Config) -> None:
    """Record what tests cost where the environment names a folder. Programs that the tests start
    do not; the processes of pytest-xdist do, which get the environment of the first."""
    folder = os.environ.get(FOLDER)
    if folder:
        config.pluginmanager.register(Recorder(Path(folder)))
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        os.environ.pop(FOLDER, None)


def read(folder: Path) -> Costs:
    """What the processes of a run have written."""
    seconds: dict[str, float] = {}
    kinds: dict[str, set[str]] = {_MARKED: set(), _SKIPPED: set(), _COLLECTED: set()}
    for file in folder.iterdir():
        for line in file.read_text("utf-8").splitlines():
            word, _, name = line.partition(" ")
            if word in kinds:
                kinds[word].add(name)
            else:
                seconds[name] = float(word)
    return Costs(seconds, *(frozenset(kinds[kind]) for kind in (_MARKED, _SKIPPED, _COLLECTED)))


def measure(tests: Sequence[str]) -> tuple[int, Costs]:
    """Run tests; return pytest's exit code and the costs."""
    marks = "not hardware and not foreign"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-m", marks, *tests]
        code = subprocess.run(command, env=os.environ | {FOLDER: folder}, cwd=ROOT).returncode
        return code, read(Path(folder))


def _show(costs: Costs) -> None:
    for name, seconds in sorted(costs.seconds.items(), key=lambda item: -item[1])[:SHOWN]:
        print(f"{seconds:8.2f} s  {name}")
    print(f"{sum(costs.seconds.values()):.0f} s together, {costs.fast_s():.0f} s in `make test`")


def compare(folder: Path) -> int:
    """Show what the list lacks by the costs of other runs, and write what it should be."""
    before = listed()
    after = renewed(before, read(folder).at_pace_of(before))
    for name in sorted(set(after) - set(before)):
        print(f"not in {LIST.relative_to(ROOT)}: {after[name]:.2f} s {name}")
    target = ROOT / "build" / LIST.name
    target.parent.mkdir(exist_ok=True)
    target.write_text(written(after), "utf-8")
    gone = len(set(before) - set(after))
    print(f"{target.relative_to(ROOT)}: {len(after)} tests; {gone} of the list are not slow now")
    return 0


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--read"]:
        return compare(Path(arguments[1]))
    given = [argument for argument in arguments if argument != "--write"]
    code, costs = measure(given or ["-n", "auto", "--dist", "worksteal", "tests"])
    _show(costs)
    if "--write" in arguments:
        names = renewed(listed(), costs)
        LIST.write_text(written(names), "utf-8")
        print(f"{LIST.relative_to(ROOT)}: {len(names)} tests, {sum(names.values()):.0f} s")
    if costs.fast_s() > FAST_S:
        print(f"`make test` may cost {FAST_S:.0f} s: lower tests.costs.LIMIT_S ({LIMIT_S} s)")
        return code or 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
