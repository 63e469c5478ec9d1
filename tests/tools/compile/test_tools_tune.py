"""`ugpu tune` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ugpu.compiler.runtime.runtime import device_of, use_cache
from ugpu.tools.cli import main

SCRIPT = """
import sys
from ugpu.compiler import Tensor
print(sys.argv[1], (Tensor([1.0, 2.0, 3.0]) * 17 + 1).tolist())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    use_cache(device_of("cpu"), tmp_path / "cache" / "kernels")  # not the user's
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_is_tuned(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["tune", "--json", "--beam", "1", "--budget", "600", str(script), "word"])
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert code == report["exit"] == 0
    assert "word [18.0, 35.0, 52.0]" in said.err
    (kernel,) = report["kernels"]
    assert kernel["computes"] == "mul add" and kernel["tried"]
    assert kernel["tried"][0].startswith("chunk size=")


def test_for_people(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--budget", "600", "--details", str(script), "word"]) == 0
    said = capsys.readouterr().out
    assert "kernels have better choices than the default now" in said
    assert "    chunk size=" in said


def test_a_missing_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "nowhere.py"]) == 2
    assert "file nowhere.py does not exist" in capsys.readouterr().err


def test_a_senseless_budget(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--budget", "-1", str(script), "x"]) == 2
    assert "above zero" in capsys.readouterr().err
