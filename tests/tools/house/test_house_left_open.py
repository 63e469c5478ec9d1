"""A run of the tests fails where one of them leaves a device open, and names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.costs import ROOT

TESTS = """
import pytest
from ugpu import Tensor, hcq

@pytest.fixture(scope="module")
def kept():
    with hcq.open("cpu") as device:
        yield device

def test_one(kept): pass
def test_two(kept): assert (Tensor([1], device="cpu") + 1).tolist() == [2]
def test_three(): {}
def test_four(): pass
"""


@pytest.mark.parametrize("workers", ["0", "2"], ids=["one process", "workers"])
@pytest.mark.parametrize("leaves", [True, False], ids=["left", "closed"])
def test_a_device_that_a_test_leaves_open_is_named(
    leaves: bool, workers: str, tmp_path: Path
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TESTS.format('hcq.open("cpu")' if leaves else 'hcq.open("cpu").close()'))
    plugins = ("-p", "tests.left_open", "-p", "no:cacheprovider", "-n", workers)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "not slow",
        "-q",
        *plugins,
        f"--rootdir={tmp_path}",
        str(file),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert "4 passed" in ended.stdout and ended.returncode == leaves, ended.stdout
    assert ended.stdout.count("test_it.py::test_three left <") == leaves, ended.stdout
    assert ended.stdout.count(" open\n") == leaves
