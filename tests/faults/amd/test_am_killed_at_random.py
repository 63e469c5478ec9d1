"""A few rounds of `tests.faults.amd.kills`: whatever a driver was at when it was killed, the next
open works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["navi31", "navi32"])
def test_the_next_open_works(chip: str) -> None:
    command = [sys.executable, "-m", "tests.faults.amd.kills", "--kills", "12", "--seed", "7"]
    command += ["--chip", chip]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert last and last[0].startswith("kills: PASS seed=7 kills=12 next open works=12")
