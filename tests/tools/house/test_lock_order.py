"""tests.locks finds locks that are taken in a circle, and drivers take none in one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import locks

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 600.0
TEXT = """
import threading

class Pair:
    def __init__(self):
        self.one = threading.{kind}()
        self.two = threading.{kind}()

def test_it():
    pair = Pair()
    with pair.one, pair.two:
        pass
    with pair.{first}, pair.{second}:
        pass
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.locks", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_circles_are_found() -> None:
    steps = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "d"), ("e", "f"), ("f", "e")]
    assert locks.circles(steps) == [[("a", "b"), ("b", "c"), ("c", "a")], [("e", "f"), ("f", "e")]]
    assert locks.circles(steps[3:5]) == []


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
@pytest.mark.parametrize(("first", "second"), [("one", "two"), ("two", "one")])
def test_an_order_that_differs_is_reported(
    tmp_path: Path, kind: str, first: str, second: str
) -> None:
    path = tmp_path / "test_planted.py"
    path.write_text(TEXT.format(kind=kind, first=first, second=second), "utf-8")
    done = run("-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(path))
    assert done.returncode == (first == "two"), done.stdout + done.stderr
    assert ("locks that are taken in a circle" in done.stdout) == (first == "two")


@pytest.mark.slow
def test_drivers_take_no_locks_in_a_circle() -> None:
    done = run()
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
