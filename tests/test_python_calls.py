"""What a first open and the most frequent acts cost in Python calls, which no host changes.

An open parses register tables, so that a call for each of their lines would show. Each bound is
what was counted, and 15% of room; Python 3.12 and later need fewer calls.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MOST = {
    "virtual:navi31": {
        "open": 35_900,
        "launch": 145,
        "wait": 50,
        "copy in": 347,
        "copy out": 343,
        "copy within": 183,
        "replay": 150,
    },
    "virtual:gh100": {
        "open": 23_900,
        "launch": 60,
        "wait": 37,
        "copy in": 216,
        "copy out": 211,
        "copy within": 114,
        "replay": 66,
    },
}


@pytest.mark.parametrize("name", MOST)
def test_python_calls_of_hot_paths(name: str) -> None:
    command = [sys.executable, "-m", "tests.support.python_calls", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    counts = json.loads(done.stdout)
    most = MOST[name]
    assert counts.keys() == most.keys()
    assert {act: counts[act] for act in most if counts[act] > most[act]} == {}, counts
