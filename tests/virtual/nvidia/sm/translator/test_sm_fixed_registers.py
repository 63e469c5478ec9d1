"""Registers that one move writes: constants in the code, unless something may read them before."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.virtual.nvidia.sm import multiprocessors
from ugpu.virtual.nvidia.sm.ptx.parser import parse
from ugpu.virtual.nvidia.sm.translator.control.analysis import analyse
from ugpu.virtual.nvidia.sm.translator.control.flatten import flatten
from ugpu.virtual.nvidia.sm.translator.control.graph import build

OUT = "mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r2; ret;"
SHARED = ".shared .align 16 .b8 part[256];"
# The text, and for each lane of 32 what it stores. %r3 is the register in question.
CASES = {
    "a number and an address, across a barrier": (
        "mov.u32 %r3, 7; mov.b64 %rd3, part; mul.wide.u32 %rd4, %t, 4; add.s64 %rd5, %rd3, %rd4;"
        "st.shared.u32 [%rd5], %t; bar.sync 0; ld.shared.u32 %r4, [%rd3+124];"
        f"add.u32 %r2, %r4, %r3; {OUT}",
        [31 + 7] * 32, {"%r3", "%rd3"},
    ),
    "a float, in a loop": (
        "mov.b32 %r3, 0f40000000; mov.u32 %r4, 0; mov.b32 %r2, 0f3f800000;"
        "L: mul.f32 %r2, %r2, %r3; add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 5; @%p1 bra L;"
        f"{OUT}",
        [np.float32(32).view(np.uint32)] * 32, {"%r3"},
    ),
    "read before, the first time around": (
        "mov.u32 %r2, 0; mov.u32 %r4, 0; L: add.u32 %r2, %r2, %r3; mov.u32 %r3, 9;"
        f"add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 4; @%p1 bra L; {OUT}",
        [27] * 32, set(),
    ),
    "written under a guard": (
        "and.b32 %r4, %t, 1; setp.ne.u32 %p1, %r4, 0; @%p1 mov.u32 %r3, 9;"
        f"add.u32 %r2, %r3, 1; {OUT}",
        [10 if lane % 2 else 1 for lane in range(32)], set(),
    ),
    "written twice": (
        "mov.u32 %r3, 3; add.u32 %r2, %r3, %t; mov.u32 %r3, 5; bar.sync 0;"
        f"add.u32 %r2, %r2, %r3; {OUT}",
        [8 + lane for lane in range(32)], set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_register_that_one_move_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessors, "_HOT", 0.0)  # the second launch has the second version
    text, wanted, fixed = CASES[name]
    ptx, bench = body(1, text, SHARED), Bench()
    for _ in range(2):
        address, out = bench.array(np.zeros(32, np.uint32))
        bench.good(ptx, address, shared=256)
        assert out.tolist() == wanted
    module = parse(HEAD.format(target="sm_90") + ptx)
    facts = analyse(build(flatten(module, module.functions["k"])), rows=True)
    assert {"%r3", "%rd3"} & facts.fixed == fixed
