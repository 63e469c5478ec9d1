"""tinygrad's USB back end boots the virtual Navi31 in an enclosure; docs/foreign-drivers.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.client import require, run_client

require("tinygrad")
pytestmark = pytest.mark.foreign
LIMIT_S = 300


def test_its_operators_agree_with_numpy(tmp_path: Path) -> None:
    """No violation of the card's rules, and nothing that no driver should do to the bridge. What
    boards forgive are notes."""
    report = run_client(
        "tests.foreign.tinygrad.tinygrad_usb_client",
        ["navi31"],
        tmp_path / "result.json",
        {
            "DEV": "USB+AMD:LLVM",
            "PARALLEL": "0",  # compilers in processes of their own would not be llvmlite
            "HCQ_RUNTIME_DEV": "PYTHON",  # its own CPU device would need clang
        },
        LIMIT_S,
    )
    assert {name: got for name, got in report["steps"].items() if got != "ok"} == {}
    assert len(report["steps"]) == 30
    assert report["violations"] == report["objections"] == []
    assert any("wait in the HDP" in text for text in report["notes"])
