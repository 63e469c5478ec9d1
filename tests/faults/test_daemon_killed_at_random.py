"""Rounds of `tests.faults.daemon_kills`: clients and daemon die, what was acknowledged stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_what_was_acknowledged_is_there_and_every_card_works() -> None:
    command = [sys.executable, "-m", "tests.faults.daemon_kills", "--kills", "12", "--seed", "5"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert last and last[0].startswith("daemon kills: PASS seed=5 kills=12 failed=0")
