"""tinygrad's KGSL driver computes on the virtual Adreno 630; docs/foreign-drivers.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.foreign.client import require, run_client

require("tinygrad")
require("tinymesa")
pytestmark = pytest.mark.foreign
LIMIT_S = 300


def test_its_operators_agree_with_numpy(tmp_path: Path) -> None:
    """All but float64, which its renderer for ir3 lacks. No fault, no violation, no call that the
    model lacks. The driver writes 256 into the eight bits of CONSTLEN and leaves MERGEDREGS off."""
    report = run_client(
        "tests.foreign.tinygrad.tinygrad_qcom_client",
        ["a630"],
        tmp_path / "result.json",
        {"DEV": "QCOM:IR3", "PARALLEL": "0"},
        LIMIT_S,
    )
    assert {name: got for name, got in report["steps"].items() if got != "ok"} == {}
    assert len(report["steps"]) == 29
    assert (report["arch"], report["renderer"]) == ("a630", "IR3Renderer")
    assert report["log"] == report["violations"] == report["gaps"] == report["refused"] == []
