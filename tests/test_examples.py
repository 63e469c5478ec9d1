"""Every example runs as a program, on the devices that it names, and stays short."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PROGRAMS = [file for file in EXAMPLES if not file.name.startswith("test_")]
MOST_LINES = 60  # of code
#: packages from PyPI that an example needs besides ours
NEEDS = re.compile(r"^needs: pip install (.*)$", re.MULTILINE)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_short_and_says_how_it_is_run(file: Path) -> None:
    text = file.read_text("utf-8")
    code = text.split('"""', 2)[2]
    assert sum(bool(line.strip()) for line in code.splitlines()) < MOST_LINES
    name = re.escape(str(file.relative_to(ROOT)))
    assert re.search(rf"^usage: (python|pytest) {name}\b", text, re.MULTILINE)


@pytest.mark.parametrize(
    "file",
    [file for file in PROGRAMS if not NEEDS.search(file.read_text("utf-8"))],
    ids=lambda file: file.stem,
)
def test_an_example_runs(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [str(file)])
    runpy.run_path(str(file), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_tests_of_an_example_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/test_in_ci.py"],
        env={**os.environ, "UGPU_TEST_DEVICES": "cpu"}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
