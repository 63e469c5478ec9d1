"""tinygrad's NV driver computes on virtual NVIDIA GPUs; docs/foreign-drivers.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.client import require, run_client
from ugpu.nv.code.assemble import find_library

require("tinygrad")
pytestmark = pytest.mark.foreign
LIMIT_S = 150


@pytest.mark.parametrize(
    ("chip", "driver", "arch"),
    [
        ("ga102", "570.144", "sm_86"),
        ("ad102", "580.142", "sm_89"),
        ("gb202", "580.142", "sm_120"),
        ("gb202", "610.43.03", "sm_120"),
    ],
)
def test_its_operators_agree_with_numpy(chip: str, driver: str, arch: str, tmp_path: Path) -> None:
    """No Xid, no violation, no call that the model lacks."""
    library = find_library()
    assert library is not None, "the tier installs nvidia-nvjitlink"
    report = run_client(
        "tests.foreign.tinygrad.tinygrad_nv_client",
        [chip, driver],
        tmp_path / "result.json",
        {
            "DEV": "NVK+NV:PTX",
            "NVJITLINK_PATH": str(library),
            "PARALLEL": "0",  # compilers in processes of their own would add no note
        },
        LIMIT_S,
    )
    wrong = {name: got for name, got in report["steps"].items() if got != "ok"}
    assert (wrong, report["dead"], report.get("slow")) == ({}, [], "")
    assert len(report["steps"]) == 30 and report["kernels"] >= 30
    assert report["arch"] == arch
    assert report["log"] == report["violations"] == report["gaps"] == []
