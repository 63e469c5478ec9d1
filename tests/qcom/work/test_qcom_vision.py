"""examples/models/vision.py on Adreno: the camera's memory is read where it is."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.support.adreno.mesa import needs_mesa
from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.work.buffer import Buffer

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "models" / "vision.py"


def _run(device: str, frames: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Run the example; sizes of what was copied to the GPU."""
    copied: list[int] = []
    upload = Transfer.upload

    def noted(self: Transfer, buffer: Buffer, data: memoryview) -> None:
        copied.append(data.nbytes)
        upload(self, buffer, data)

    with monkeypatch.context() as patch:
        patch.setattr(Transfer, "upload", noted)
        patch.setattr(sys, "argv", [str(EXAMPLE), device, str(frames)])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return copied


@needs_mesa
@pytest.mark.parametrize("device", ["virtual:a630", "virtual:a740+msm"])
def test_frames_are_counted_and_not_copied(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = _run(device, 1, monkeypatch)
    capsys.readouterr()
    many = _run(device, 4, monkeypatch)
    assert few == many, "what is copied does not depend on the number of frames"
    assert many, "weights are"
    lines = capsys.readouterr().out.splitlines()
    found = re.fullmatch(rf"4 frames at 20 Hz on {re.escape(device)}, (\d) late", lines[0])
    assert found is not None and len(lines) == 10
    bars = [re.fullmatch(r" *[\d.]+ ms #*(?: (\d+))? ?", line) for line in lines[1:9]]
    counts = [int(bar[1] or 0) for bar in bars if bar is not None]
    assert len(counts) == 8 and sum(counts) == 4
    latest = re.fullmatch(r"jitter [\d.]+ ms, latest ([\d.]+) ms", lines[9])
    assert latest is not None and (float(latest[1]) > 50) == (int(found[1]) > 0)
