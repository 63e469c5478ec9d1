"""What happens to memory and devices whose last reference goes before their work has ended.

Each scene runs in a process of its own, with guarded memory: see tests.support.amd.inflight.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.amd.inflight import SCENES
from tests.support.devices import DEVICES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("scene", [scene for scene in SCENES if scene != "tensors"])
def test_references_that_die_before_their_work(scene: str, name: str) -> None:
    _play(scene, name)


def test_tensors_in_flight_at_the_end_of_the_process() -> None:
    _play("tensors", "cpu")


def _play(scene: str, name: str) -> None:
    command = [sys.executable, "-m", "tests.support.amd.inflight", scene, name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["end"]
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
