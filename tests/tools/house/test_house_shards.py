"""Which slow tests a commit runs: tests.shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests import costs, shards
from tests.shards import BUDGET_S, SHARDS, Choice, Turn, shard_of

NAMES = [f"tests/test_{file}.py::test_it[{number}]" for file in "abc" for number in range(100)]


def test_each_test_has_its_turn_once() -> None:
    chosen = [Choice.of(NAMES, {}, Turn(number, ())) for number in range(SHARDS)]
    assert sorted(name for choice in chosen for name in choice.names) == sorted(NAMES)
    again = Choice.of(NAMES, {}, Turn(3 + SHARDS, ()))
    assert again.names == chosen[3].names == {name for name in NAMES if shard_of(name) == 3}


def test_changed_files_run_whole_the_latest_first_while_the_budget_lasts() -> None:
    seconds = dict.fromkeys(NAMES, BUDGET_S / 150)
    turn = Turn(0, ["tests/test_c.py", "tests/test_gone.py", "tests/test_a.py"])
    choice = Choice.of(NAMES, seconds, turn)
    files = {file: {n for n in NAMES if file in n} for file in ("_a.py", "_b.py", "_c.py")}
    assert files["_c.py"] <= choice.names
    assert choice.fresh & files["_a.py"] and choice.left < files["_a.py"]
    assert choice.names & files["_b.py"] == choice.shard & files["_b.py"]
    assert choice.seconds == pytest.approx(sum(seconds[name] for name in choice.names))
    assert BUDGET_S * 0.99 < choice.seconds <= BUDGET_S


def test_what_does_not_run_is_said() -> None:
    turn = Turn(SHARDS * 10 + 1, ["tests/test_a.py"])
    choice = Choice.of(NAMES, dict.fromkeys(NAMES, BUDGET_S / 60), turn)
    text = "\n".join(choice.report(NAMES, turn))
    rest = len(NAMES) - len(choice.names) - len(choice.left)
    others = ", ".join(str(shard) for shard in range(SHARDS) if shard != 1)
    assert f"shard 1 of 0 to {SHARDS - 1}, {len(choice.shard)} tests" in text
    assert f"not run: {rest} slow tests of shards {others}" in text
    assert f"not run: {len(choice.left)} slow tests of changed files" in text


@pytest.mark.parametrize("shard", range(SHARDS))
def test_each_shard_leaves_room_for_changed_files(shard: int) -> None:
    """A shard always runs whole: a test that is not in budget would never run."""
    listed = costs.listed()
    assert sum(listed[name] for name in listed if shard_of(name) == shard) < BUDGET_S * 0.75


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_pytest_runs_the_chosen_ones_and_says_so(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(40))\ndef test_it(n): pass\n"
    )
    turn = tmp_path / "turn.json"
    turn.write_text(json.dumps(asdict(Turn(5, ()))))
    environment = os.environ | {shards._FILE: str(turn)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "tests.shards", "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [*command, *workers, "--rootdir", str(tmp_path), str(tmp_path)],
        env=environment, cwd=costs.ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    names = {f"test_x.py::test_it[{number}]" for number in range(40)}
    chosen = {name for name in names if shard_of(name) == 5}
    assert ended.returncode == 0, ended.stdout + ended.stderr
    passed = [line for line in ended.stdout.splitlines() if "PASSED" in line]
    assert {name for name in names if any(name in line for line in passed)} == chosen
    assert f"shard 5 of 0 to {SHARDS - 1}, {len(chosen)} tests" in ended.stdout
