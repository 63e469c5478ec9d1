"""Rounds of `daemon_kills` and `daemon_rests`, beside: clients and daemon die, cards rest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(campaign: str, *options: str) -> str:
    """The last line of a campaign that passes."""
    command = [sys.executable, "-m", f"tests.faults.{campaign}", "--seed", "5", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_what_was_acknowledged_is_there_and_every_card_works() -> None:
    last = run("daemon_kills", "--kills", "12")
    assert last.startswith("daemon kills: PASS seed=5 kills=12 failed=0")


@pytest.mark.slow
def test_a_card_that_rests_is_there_for_the_next_whatever_happens() -> None:
    last = run("daemon_rests", "--rounds", "20")
    assert last.startswith("daemon rests: PASS seed=5 rounds=20 failed=0 found at rest=2 ")
