"""tinygrad's instruction tests of RDNA3 and RDNA4, which its authors run on boards, on our cores.

They are in tinygrad's repository alone, neither in its wheel nor in its sdist: TINYGRAD_SOURCE
names a checkout, without which this is skipped (docs/foreign-drivers.md).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.foreign.client import require, run_client

require("tinygrad")
pytestmark = pytest.mark.foreign
SOURCE = os.environ.get("TINYGRAD_SOURCE", "")
LIMIT_S = 580
LEAST = 771  # that agree, of 781 of RDNA3 and RDNA4 in the checkout of August 2026
UNUSED = "LLVM's disassembler, whose tables the decoder has, refuses a register in an unused field"
# Tests that do not hold here, with the reason. Code of CDNA is skipped by itself.
LEFT = {
    "test_dpp.TestVOPCDPP16.test_row_bcast15_materializes_vcc": "row_bcast15 is not of RDNA3",
    "test_sop.TestBasicScalar.test_s_fmamk_f32": "scalar floats came with gfx11.5",
    "test_sop.TestBasicScalar.test_s_fmamk_f32_negative": "scalar floats came with gfx11.5",
    "test_vinterp.TestVInterp.test_v_interp_p10_f16_f32": "graphics: interpolation",
    "test_vinterp.TestVInterp.test_v_interp_p10_f32": "graphics: interpolation",
    "test_ds.TestDSAtomic.test_ds_add_u32_no_rtn_preserves_vdst": UNUSED,
    "test_ds.TestDSAtomic.test_ds_cmpstore_b32_match": UNUSED,
    "test_ds.TestDSAtomic.test_ds_cmpstore_b32_no_match": UNUSED,
    "test_ds.TestDSAtomic.test_ds_max_u32_no_rtn": UNUSED,
    "test_vopd.TestVOPDMultilane.test_vopd_multilane_mov_add": UNUSED,
}


@pytest.mark.skipif(not SOURCE, reason="TINYGRAD_SOURCE names no checkout of tinygrad")
def test_they_agree(tmp_path: Path) -> None:
    found = run_client(
        "tests.foreign.tinygrad.tinygrad_instructions",
        [SOURCE],
        tmp_path / "result.json",
        {},
        LIMIT_S,
    )
    wrong = {
        name: text
        for name, text in found.items()
        if text != "ok" and not text.startswith("skipped: code of ")
    }
    assert {name: text for name, text in wrong.items() if name not in LEFT} == {}
    assert sum(text == "ok" for text in found.values()) >= LEAST
