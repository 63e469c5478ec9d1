"""Tests that failed are repeated where they are few and the run is whole, and not elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.house import again

ROOT = Path(__file__).resolve().parents[2]


def noted(folder: Path, ended: object, names: list[str]) -> Path:
    for name, value in ((again.NOTE, ended), ("cache/lastfailed", dict.fromkeys(names, True))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return folder


@pytest.mark.parametrize("status", [0, 1])
def test_a_few_are_repeated(tmp_path: Path, status: int) -> None:
    asked: list[list[str]] = []

    def run(options: list[str]) -> int:
        asked.append(options)
        return status

    names = ["tests/a.py::one", "tests/b.py::two[x y]"]
    assert again.main(noted(tmp_path, 1, names), run) == status
    assert asked == [["-q", *names]]


@pytest.mark.parametrize(
    ("ended", "names"),
    [
        (1, [f"tests/a.py::test_{number}" for number in range(again.MOST + 1)]),
        (1, []),
        (1, ["tests/a.py"]),  # could not be imported
        (0, ["tests/a.py::of_an_earlier_run"]),
        (2, ["tests/a.py::one"]),  # interrupted
        (3, ["tests/a.py::one"]),
        (None, ["tests/a.py::one"]),  # killed
    ],
)
def test_all_else_stands(tmp_path: Path, ended: int | None, names: list[str]) -> None:
    def run(options: list[str]) -> int:
        raise AssertionError(options)

    assert again.main(noted(tmp_path, ended, names), run) == 1


@pytest.mark.parametrize("damage", [None, b"", b"\xff", b"[1"])
def test_without_a_note_nothing_is_repeated(tmp_path: Path, damage: bytes | None) -> None:
    if damage is not None:
        (noted(tmp_path, 1, ["tests/a.py::one"]) / "cache/lastfailed").write_bytes(damage)
    assert again.failed(tmp_path) == []


FLAKY = """
from pathlib import Path
def test_good(): pass
def test_flaky():
    mark = Path(__file__).with_name("mark")
    seen = mark.exists()
    mark.touch()
    assert seen
"""


def test_a_run_of_pytest_leaves_the_note(tmp_path: Path) -> None:
    conftest = (ROOT / "tests/conftest.py").read_text(encoding="utf-8")
    (tmp_path / "conftest.py").write_text(conftest, encoding="utf-8")
    (tmp_path / "test_toy.py").write_text(FLAKY, encoding="ascii")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def ran(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert ran("pytest", "-q", "-n", "1").returncode == 1
    assert again.failed(tmp_path / again.CACHE) == ["test_toy.py::test_flaky"]
    second = ran("tools.house.again")
    assert second.returncode == 0 and "1 passed" in second.stdout, second.stdout
    assert again.failed(tmp_path / again.CACHE) == []
