"""Every ALU instruction of gfx11 and gfx12 against the pseudocode of AMD's ISA documents.

tinygrad's wheel carries the texts; tests/support/pcode compiles them. Here a sample of operands
runs, one group of 32 lanes for each form; all of it, as many groups as wanted:

    python -m tests.foreign.pseudocode.pseudocode gfx12 SEED GROUPS RESULT

with the environment of `make test-foreign`. pseudocode_corrections.py has what is wrong or open in
the texts, with the source; LISTED what the core does not execute. Anything else fails.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.client import require, run_client

require("tinygrad")
pytestmark = pytest.mark.foreign
LIMIT_S, SEED = 580, 7
LISTED = {
    r"S_\w+(SAVEEXEC|WREXEC)_B64": "of waves of 64 lanes; these run in waves of 32",
    r"S_\w+_F(16|32)": "scalar floats came with gfx11.5",
    r"S_CVT_\w+": "scalar floats came with gfx11.5",
}
"""Names of forms that the core does not execute, by a pattern, and why."""
LEFT = {
    r"SOP1Op\.S_(GETPC|SETPC|SWAPPC|RFE|CALL)|SOPKOp\.S_CALL": "control flow",
    r"SOPKOp\.S_SUBVECTOR_LOOP": "control flow",
    r"SOP1Op\.S_(SENDMSG|BARRIER|GET_BARRIER|SLEEP)": "messages, barriers, sleep: no value",
    r"SOP1Op\.S_ALLOC_VGPR": "dynamic vector registers, which the model refuses by name",
    r"SOPKOp\.S_(VERSION|GETREG|SETREG|WAITCNT)": "modes, versions and waits",
    r"VOP[13]Op\.V_(NOP|PIPEFLUSH)": "computes nothing",
    r"VOP3Op\.V_(READFIRSTLANE|MOVREL)": "the form of 64 bits has no text; that of 32 is judged",
    r"VOP3POp\.V_(WMMA|SWMMAC)": "the text is no pseudocode; NumPy judges matrix instructions",
    r"VOPDOp\.V_DUAL_DOT2ACC_F32_BF16": "gfx11's document has no text of the instruction",
    r"S_\w+_F(16|32)\w* plain|S_CVT_\w+ plain": "scalar floats came with gfx11.5",
    r"V_\w+ (clamped|changed|scaled)": "LLVM's disassembler refuses the form",
}
"""What is not judged, by a pattern of its names, and why."""
LEAST = {"gfx11": 860, "gfx12": 960}  # instructions that were compared
EXTREMES = [
    f"v_{name}_{kind}"
    for name in ("min", "max", "min3", "max3", "med3", "minmax", "maxmin")
    for kind in ("f16", "f32")
]
EXTREMES += ["v_min_f64", "v_max_f64", "v_pk_min_f16", "v_pk_max_f16"]


def _run(target: str, names: list[str], result: Path) -> dict[str, Any]:
    arguments = [target, str(SEED), "1", *names]
    found: dict[str, Any] = run_client(
        "tests.foreign.pseudocode.pseudocode", arguments, result, {}, LIMIT_S
    )
    return found


def _unlisted(found: dict[str, Any]) -> dict[str, str]:
    return {
        form: entry["example"]
        for form, entry in found["wrong"].items()
        if not any(re.match(pattern, form) for pattern in LISTED)
        or not entry["example"].startswith("not executed")
    }


@pytest.mark.parametrize("target", ["gfx11", "gfx12"])
def test_instructions_do_what_the_document_says(target: str, tmp_path: Path) -> None:
    found = _run(target, [], tmp_path / "result.json")
    assert _unlisted(found) == {}
    assert len(found["compared"]) >= LEAST[target]
    left = [name for name in found["left"] if not any(re.match(pattern, name) for pattern in LEFT)]
    assert left == []


def test_extremes_in_ieee_mode(tmp_path: Path) -> None:
    found = _run("gfx11-ieee", EXTREMES, tmp_path / "result.json")
    assert _unlisted(found) == {}
    assert len(found["compared"]) >= len(EXTREMES)


def test_output_modifiers_where_denormals_are_flushed(tmp_path: Path) -> None:
    """Of gfx11, which ignores them elsewhere; the first test has gfx12's, in any mode."""
    found = _run("gfx11-omod", [], tmp_path / "result.json")
    assert _unlisted(found) == {}
    assert len(found["compared"]) >= 95
