"""A seed gives the same examples again, another one others: tests.seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = """
from hypothesis import given, strategies as st

@given(st.integers(0, 1 << 60))
def test_it(number):
    print(number, file=open({path!r}, "a"))
"""


def drawn(folder: Path, seed: int) -> str:
    said = folder / "said"
    said.unlink(missing_ok=True)
    (folder / "test_it.py").write_text(TEXT.format(path=str(said)))
    command = [sys.executable, "-m", "tests.seeds", str(seed), "-p", "tests.conftest"]
    done = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"seed {seed}:")
    return said.read_text()


@pytest.mark.slow
def test_a_seed_repeats_its_examples(tmp_path: Path) -> None:
    first = drawn(tmp_path, 7)
    assert drawn(tmp_path, 7) == first != drawn(tmp_path, 8)
