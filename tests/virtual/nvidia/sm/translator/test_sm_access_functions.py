"""Accesses of first versions, which are calls of shared functions: any pattern of addresses, and
that nothing shows after the first that faults."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.virtual.nvidia.sm_contract import SmEnding

UNITS = {(4, 2): "v2.b32", (4, 4): "v4.b32", (8, 2): "v2.b64"}
LANES = list(range(32))
PATTERNS = {
    "consecutive": LANES, "reversed": LANES[::-1], "rows of four": [9 * (n // 4) + n % 4 for n in
    LANES], "one": [5] * 32, "any": Random(3).sample(range(120), 32),
}  # fmt: skip
SHARED = ".shared .align 16 .b8 part[2048];"


def registers(unit: int, count: int) -> str:
    stem = "%r" if unit == 4 else "%rd"
    return "{" + ", ".join(f"{stem}{10 + n}" for n in range(count)) + "}"


@pytest.mark.parametrize("shape", UNITS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("masked", [False, True])
def test_vectors_are_copied_whatever_the_pattern(
    shape: tuple[int, int], pattern: str, masked: bool
) -> None:
    size, kind, named = shape[0] * shape[1], UNITS[shape], registers(*shape)
    guard = "@%p1 " if masked else ""
    bench = Bench()
    content = np.frombuffer(Random(5).randbytes(160 * size), np.uint8)
    source, _ = bench.array(content)
    target, result = bench.array(np.zeros_like(content))
    places, _ = bench.array(np.array(PATTERNS[pattern], np.uint64) * size)
    text = f"""
    and.b32 %r1, %t, 3; setp.ne.b32 %p1, %r1, 0;
    shl.b64 %at, %tw, 3; add.s64 %at, %at, %rd2; ld.global.u64 %rd5, [%at];
    add.s64 %rd3, %rd0, %rd5; add.s64 %rd4, %rd1, %rd5;
    {guard}ld.global.{kind} {named}, [%rd3];
    {guard}st.global.{kind} [%rd4], {named};
    """
    bench.good(body(3, text), source, target, places)
    wanted = np.zeros_like(content).reshape(-1, size)
    for lane, place in enumerate(PATTERNS[pattern]):
        if lane % 4 or not masked:
            wanted[place] = content.reshape(-1, size)[place]
    assert (result.reshape(-1, size) == wanted).all()


@pytest.mark.parametrize("shape", UNITS)
def test_vectors_pass_through_shared_memory(shape: tuple[int, int]) -> None:
    size, kind, named = shape[0] * shape[1], UNITS[shape], registers(*shape)
    bench = Bench()
    content = np.frombuffer(Random(7).randbytes(32 * size), np.uint8)
    source, _ = bench.array(content)
    target, result = bench.array(np.zeros_like(content))
    text = f"""
    mul.wide.u32 %at, %t, {size}; add.s64 %rd3, %rd0, %at; add.s64 %rd4, %rd1, %at;
    xor.b32 %r1, %t, 31; mul.lo.u32 %r1, %r1, {size};
    ld.global.{kind} {named}, [%rd3]; st.shared.{kind} [%r1], {named};
    bar.sync 0; mul.lo.u32 %r1, %t, {size};
    ld.shared.{kind} {named}, [%r1]; st.global.{kind} [%rd4], {named};
    """
    bench.good(body(2, text, SHARED), source, target, shared=2048)
    assert (result.reshape(32, size) == content.reshape(32, size)[::-1]).all()


@pytest.mark.parametrize(
    "wrong",
    [
        "st.shared.u32 [%r1], %t;", "ld.shared.u32 %r2, [%r1];",
        "ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [%r1];",
        "st.shared.v4.u32 [%r1], {%t, %t, %t, %t};", "ld.shared.u32 %r2, [4096];",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "later",
    [
        "st.global.u32 [%at], 7;", "st.global.v4.u32 [%rd0], {%t, %t, %t, %t};",
        "red.global.add.u32 [%rd0], 1;", "st.shared.u32 [%r1], 7;", "trap;",
        "setp.eq.u32 %p1, %t, 9; @%p1 st.global.u32 [%rd0], 7;",
    ],
)  # fmt: skip
def test_the_first_fault_is_told_and_nothing_after_it_shows(wrong: str, later: str) -> None:
    bench = Bench()
    address, content = bench.array(np.zeros(64, np.uint32))
    text = f"""shl.b64 %at, %tw, 2; add.s64 %at, %at, %rd0; or.b32 %r1, %t, 2048;
    shl.b32 %r1, %r1, 4;
    {wrong}
    {later}"""
    found = bench.launch(body(1, text, SHARED), address, shared=2048)
    assert found.ending is SmEnding.ILLEGAL_ADDRESS
    assert found.line == 13
    assert not content.any()
