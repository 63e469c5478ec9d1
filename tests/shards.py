"""Run this commit's part of the slow tests, as continuous integration does.

    python -m tests.shards [PYTEST ARGUMENT ...]      UGPU_TEST_NUMBER=N: of another commit

Slow tests are dealt into SHARDS shards by a hash of their name. What runs is the shard that the
commit's number names, and the slow tests of the files that the last commits changed
(tests.changed), the latest first, as long as all costs less than BUDGET_S by tests/slow.txt. What
did not run is printed; `make test-slow` runs all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests import costs
from tests.changed import COMMITS, Checkout

SHARDS = 8
#: of processor time by the list: 5 minutes of two cores as fast as those that made it, 8 of others
BUDGET_S = 600.0
UNKNOWN_S = 0.1  # of a test that is marked slow and not listed: it costs less than those that are
_FILE = "UGPU_TEST_TURN"


def shard_of(name: str) -> int:
    return zlib.crc32(name.encode()) % SHARDS


@dataclass(frozen=True)
class Turn:
    """What a commit asks for: its number, and the test files that count as changed."""

    number: int
    changed: Sequence[str]

    @property
    def shard(self) -> int:
        return self.number % SHARDS


@dataclass(frozen=True)
class Choice:
    """Which slow tests run. fresh: those of other shards, as their files changed; left: those of
    changed files that the budget has no room for; seconds: what all that run cost."""

    shard: frozenset[str]
    fresh: frozenset[str]
    left: frozenset[str]
    seconds: float

    @classmethod
    def of(cls, names: Sequence[str], seconds: Mapping[str, float], turn: Turn) -> Choice:
        """Choose among names, whose costs are known or not."""
        shard = frozenset(name for name in names if shard_of(name) == turn.shard)
        spent = sum(seconds.get(name, UNKNOWN_S) for name in shard)
        order = {file: place for place, file in enumerate(turn.changed)}
        fresh, left = set(), set()
        wanted = [(order.get(name.partition("::")[0]), name) for name in names if name not in shard]
        for _, name in sorted((place, name) for place, name in wanted if place is not None):
            cost = seconds.get(name, UNKNOWN_S)
            if spent + cost > BUDGET_S:
                left.add(name)
            else:
                spent += cost
                fresh.add(name)
        return cls(shard, frozenset(fresh), frozenset(left), spent)

    @property
    def names(self) -> frozenset[str]:
        return self.shard | self.fresh

    def report(self, names: Sequence[str], turn: Turn) -> list[str]:
        """What runs and what does not, in words."""
        others = ", ".join(str(shard) for shard in range(SHARDS) if shard != turn.shard)
        rest = len(names) - len(self.names) - len(self.left)
        lines = [
            f"slow tests of commit {turn.number}: shard {turn.shard} of 0 to {SHARDS - 1}, "
            f"{len(self.shard)} tests; {len(self.fresh)} more of the {len(turn.changed)} files "
            f"that the last {COMMITS} commits changed; {self.seconds:.0f} s by the list",
            f"not run: {rest} slow tests of shards {others} (`make test-slow` runs all)",
        ]
        if self.left:
            files = sorted({name.partition("::")[0] for name in self.left})
            lines.append(
                f"not run: {len(self.left)} slow tests of changed files, as the budget is "
                f"{BUDGET_S:.0f} s: {', '.join(files)}"
            )
        return lines


class _Plugin:
    """Leaves out, in each process, what is not chosen; the main one says so in the end."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.lines: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        names = [item.nodeid for item in items]
        choice = Choice.of(names, costs.listed(), self.turn)
        config.hook.pytest_deselected(
            items=[item for item in items if item.nodeid not in choice.names]
        )
        items[:] = [item for item in items if item.nodeid in choice.names]
        self.lines = choice.report(names, self.turn)
        if hasattr(config, "workeroutput"):
            config.workeroutput["turn"] = self.lines

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self.lines = getattr(node, "workeroutput", {}).get("turn", self.lines)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.lines:
            terminalreporter.write_line(line)


def pytest_configure(config: pytest.Config) -> None:
    """This module is a plugin of pytest, with the turn in a file that the environment names."""
    turn = Turn(**json.loads(Path(os.environ[_FILE]).read_text("utf-8")))
    config.pluginmanager.register(_Plugin(turn))


def main(arguments: Sequence[str]) -> int:
    checkout = Checkout()
    if not checkout.has_history():
        print("no history here (git): no file counts as changed", flush=True)
    turn = Turn(checkout.number(), checkout.changed())
    tests = arguments or ["-n", "auto", "--dist", "worksteal", "tests"]
    marks = "slow and not hardware and not foreign"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "turn.json"
        file.write_text(json.dumps(asdict(turn)), "utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.shards", "-m", marks, *tests]
        environment = os.environ | {_FILE: str(file)}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
