"""A seed gives the same examples again, another one others: tests.seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = """
from hypothesis import given, strategies as st

@given(st.integers(0, 1 << 60))
def test_it(number):
    print(number, file=open({path!r}, "a"))
"""


def drawn(folder: Path, seed: int, ci: bool) -> str:
    said = folder / "said"
    said.unlink(missing_ok=True)
    (folder / "test_it.py").write_text(TEXT.format(path=str(said)))
    command = [sys.executable, "-m", "tests.seeds", str(seed), "-p", "tests.conftest"]
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        env=environment | ({"CI": "true"} if ci else {}),
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"seed {seed}:")
    return said.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("ci", [False, True])
def test_a_seed_repeats_its_examples(tmp_path: Path, ci: bool) -> None:
    first = drawn(tmp_path, 7, ci)
    assert drawn(tmp_path, 7, ci) == first != drawn(tmp_path, 8, ci)
