"""`ugpu compile`: kernels for a device that is not here, which finds all of them in a folder."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.adreno.mesa import MESA
from tests.support.folders import ROOT
from ugpu import hcq
from ugpu.compiler.runtime.runtime import kernel_log, set_default_device, use_cache
from ugpu.hcq.state.config import setting
from ugpu.tools.cli import main

SCRIPT = """
import numpy as np
import ugpu

def work(device=None):
    x = ugpu.Tensor(np.ones((40, 30), "f4"), device=device)
    return ((x @ x.permute(1, 0)).relu() + 1).softmax(axis=-1).sum(axis=0).numpy()

if __name__ == "__main__":
    assert np.allclose(work(), 1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    return path


def compiled(script: Path, target: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> object:
    try:
        assert main(["compile", "--json", str(script), "--target", target, "-o", str(folder)]) == 0
    finally:
        set_default_device("")
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("tiers", ["0", "1"], ids=["one version", "two versions"])
@pytest.mark.parametrize(("target", "device"), [
    pytest.param("adreno-a740", "virtual:a740",
                 marks=pytest.mark.skipif(not MESA, reason="tinymesa is not installed")),
    ("virtual:navi31", "virtual:navi31"),
    ("cpu", "cpu"),
])  # fmt: skip
def test_the_device_compiles_nothing(
    target: str,
    device: str,
    tiers: str,
    script: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "objects"
    with setting("UGPU_TIERS", tiers):
        check_nothing_is_compiled(device, script, folder, compiled(script, target, folder, capsys))


def check_nothing_is_compiled(device: str, script: Path, folder: Path, made: object) -> None:
    """Run the script on the device and compare its kernels with those that were compiled."""
    assert isinstance(made, dict) and len(made["kernels"]) >= 2
    assert all(size > 0 for size in made["kernels"].values())
    with hcq.open(device) as opened:
        use_cache(opened, folder / "kernels")
        with kernel_log() as kernels:
            runpy.run_path(str(script))["work"](opened)
    assert {kernel.name for kernel in kernels} == set(made["kernels"])
    assert all(kernel.from_disk for kernel in kernels)


@pytest.mark.parametrize(("target", "translations"), [
    ("virtual:navi31", "gfx1100"), ("virtual:gh100", "sm_90"),
    pytest.param("virtual:a740", "ir3",
                 marks=pytest.mark.skipif(not MESA, reason="tinymesa is not installed")),
])  # fmt: skip
def test_another_process_translates_nothing(
    target: str, translations: str, script: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "objects"

    def python(*arguments: str) -> set[Path]:
        subprocess.run([sys.executable, *arguments], check=True, cwd=ROOT, capture_output=True)
        return {path for path in folder.rglob("*") if path.is_file()}

    program = "-c", f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    with setting("UGPU_TIERS", "1"):
        known = python("-m", "ugpu", "compile", str(script), "--target", target, "-o", str(folder))
        assert any(path.parent.name == translations for path in known)
        with setting("UGPU_CACHE", str(folder)), setting("UGPU_DEVICE", target):
            assert python(*program) == known
            shutil.rmtree(folder / translations)
            assert python(*program) == known


def test_one_folder_holds_code_of_the_model_and_of_its_board(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = []
    for tiers in ("1", "0"):
        with setting("UGPU_TIERS", tiers):
            made = compiled(script, "virtual:navi31", tmp_path / "objects", capsys)
        assert isinstance(made, dict)
        sizes.append(made["kernels"])
    model, board = sizes
    assert len(model) == len(board), "products of a model have a text of their own"
    assert any(model[name] != board[name] for name in model.keys() & board.keys())


@pytest.mark.parametrize("target", ["adreno-a100", "virtual:nothing"])
def test_an_unknown_target_is_wrong_usage(
    target: str, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(script), "--target", target, "-o", str(tmp_path / "x")]) == 2
    assert "--target" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
