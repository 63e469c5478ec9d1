"""Loads and stores whose lanes follow patterns that have ways of their own."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.virtual.nvidia.sm_contract import SmEnding

_BYTES = 2048
_HEAD = f".shared .align 16 .b8 part[{_BYTES}];"
_LOADS = {
    (4, 1): ("b32", "%r10"), (4, 2): ("v2.b32", "{%r10, %r11}"),
    (4, 4): ("v4.b32", "{%r10, %r11, %r12, %r13}"), (8, 1): ("b64", "%rd10"),
    (8, 2): ("v2.b64", "{%rd10, %rd11}"), (2, 1): ("b16", "%h10"),
}  # fmt: skip


def _offsets(draw: Random, size: int) -> list[int]:
    """Where lanes read: each half one place, a row, or anything."""
    found = []
    whole = draw.random() < 0.2
    for half in range(2):
        kind = draw.choice(("same", "row", "row", "any"))
        last = _BYTES // size - 1
        start = draw.randrange(last - 31) if kind == "row" else draw.randrange(last + 1)
        for lane in range(16):
            if whole:
                found.append(size * (16 * half + lane))
            else:
                place = {"same": start, "row": start + lane, "any": draw.randrange(last + 1)}
                found.append(size * place[kind])
    return found


@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize(("unit", "count"), list(_LOADS))
def test_every_pattern_reads_what_lies_there(space: str, unit: int, count: int) -> None:
    kind, registers = _LOADS[unit, count]
    size = unit * count
    bench = Bench()
    data = np.random.default_rng(1).integers(0, 256, _BYTES).astype(np.uint8)
    source, _ = bench.array(data)
    wanted_at, where = bench.array(np.zeros(32, np.uint32))
    target, out = bench.array(np.zeros((32, 16), np.uint8))
    copies = "\n".join(
        f"ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%rd20+{n}];"
        f" st.shared.v4.b32 [%rd21+{n}], {{%r1, %r2, %r3, %r4}};"
        for n in range(0, _BYTES, 512)
    )
    text = f"""
    mul.wide.u32 %rd3, %t, 16; add.s64 %rd20, %rd0, %rd3;
    mov.u64 %rd22, part; add.s64 %rd21, %rd22, %rd3;
    {copies}
    mul.wide.u32 %rd4, %t, 4; add.s64 %rd4, %rd4, %rd1; ld.global.u32 %r5, [%rd4];
    setp.ne.u32 %p1, %r5, 0xffffffff; cvt.u64.u32 %rd5, %r5;
    add.s64 %rd5, %rd5, {"%rd22" if space == "shared" else "%rd0"};
    add.s64 %rd6, %rd2, %rd3;
    @%p1 ld.{space}.{kind} {registers}, [%rd5];
    @%p1 st.global.{kind} [%rd6], {registers};
    """
    ptx = body(3, text, _HEAD)

    @settings(max_examples=12, deadline=None)
    @given(st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        draw = Random(seed)
        offsets = _offsets(draw, size)
        off = {n for n in range(32) if draw.random() < 0.3} if draw.random() < 0.4 else set()
        where[:] = [0xFFFFFFFF if n in off else at for n, at in enumerate(offsets)]
        out[:] = 0
        bench.good(ptx, source, wanted_at, target, shared=_BYTES)
        for lane, at in enumerate(offsets):
            found = out[lane, :size].tolist()
            assert found == ([0] * size if lane in off else data[at : at + size].tolist())

    check()


@pytest.mark.parametrize("kind", ["b32", "v4.b32", "b64"])
def test_a_row_that_leaves_shared_memory_is_a_fault_of_its_lanes(kind: str) -> None:
    size = {"b32": 4, "v4.b32": 16, "b64": 8}[kind]
    unit, count = {"b32": (4, 1), "v4.b32": (4, 4), "b64": (8, 1)}[kind]
    text = f"""
    mul.lo.u32 %r1, %t, {size}; add.u32 %r1, %r1, {_BYTES - 20 * size};
    ld.shared.{kind} {_LOADS[unit, count][1]}, [%r1];
    """
    outcome = Bench().launch(body(1, text, _HEAD), 0x1000, shared=_BYTES)
    assert outcome.ending is SmEnding.ILLEGAL_ADDRESS
    assert outcome.lane_mask == 0xFFF00000
