"""Shuffles, votes, matches and reductions, with all lanes and with some."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.virtual.nvidia.sm_contract import SmEnding

STORE = "mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r9;"


def run(text: str, block: int = 32, *inputs: np.ndarray) -> list[int]:
    """Run a kernel that leaves its result in %r9; inputs are in %r10 and so on."""
    bench = Bench()
    address, out = bench.array(np.zeros(block, np.uint32))
    arguments = [bench.array(x)[0] for x in inputs]
    loads = "".join(
        f"mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd{n + 1}; ld.global.u32 %r{10 + n}, [%at];\n"
        for n in range(len(inputs))
    )
    bench.good(body(1 + len(inputs), loads + text + STORE), address, *arguments, block=(block,))
    return out.tolist()


def shuffled(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """Return the source lane and the predicate, after the PTX ISA's pseudocode."""
    b, clamp, segment = b & 31, c & 31, c >> 8 & 31
    most = lane & segment | clamp & ~segment
    least = lane & segment
    if mode == "up":
        source = lane - b
        good = source >= most
    elif mode == "down":
        source, good = lane + b, lane + b <= most
    elif mode == "bfly":
        source, good = lane ^ b, lane ^ b <= most
    else:
        source = least | b & ~segment
        good = source <= most
    return (source if good else lane), good


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize(("b", "c"), [(1, 31), (5, 0x181F), (16, 0), (7, 0x1807), (31, 31)])
@pytest.mark.parametrize("known", [True, False])
def test_shuffles(mode: str, b: int, c: int, known: bool) -> None:
    c = c & ~31 if mode == "up" else c
    operands = f"{b}, {c}" if known else "%r4, %r5"
    text = f"""
    mul.lo.u32 %r1, %t, 7; mov.u32 %r4, {b}; mov.u32 %r5, {c};
    shfl.sync.{mode}.b32 %r2|%p1, %r1, {operands}, -1;
    selp.u32 %r3, 1000, 0, %p1;
    add.u32 %r9, %r2, %r3;
    """
    wanted = []
    for lane in range(32):
        source, good = shuffled(mode, lane, b, c)
        wanted.append(7 * source + 1000 * good)
    assert run(text) == wanted


def test_a_shuffle_whose_lane_differs_by_lane() -> None:
    order = np.random.default_rng(5).integers(0, 32, 32).astype(np.uint32)
    text = "mul.lo.u32 %r1, %t, 3; shfl.sync.idx.b32 %r9, %r1, %r10, 31, -1;\n"
    assert run(text, 32, order) == [3 * int(n) for n in order]


def test_votes() -> None:
    text = """
    setp.lt.u32 %p1, %t, 5;
    vote.sync.ballot.b32 %r1, %p1, -1;
    vote.sync.any.pred %p2, %p1, -1;
    vote.sync.all.pred %p3, %p1, 0x1f;
    vote.sync.uni.pred %p4, %p1, -1;
    selp.u32 %r2, 256, 0, %p2; selp.u32 %r3, 512, 0, %p3; selp.u32 %r4, 1024, 0, %p4;
    add.u32 %r9, %r1, %r2; add.u32 %r9, %r9, %r3; add.u32 %r9, %r9, %r4;
    """
    assert run(text) == [31 + 256 + 512] * 32


def test_lanes_that_do_not_exist_neither_vote_nor_match() -> None:
    text = """
    activemask.b32 %r1;
    setp.eq.u32 %p1, %t, %t;
    vote.sync.ballot.b32 %r2, %p1, -1;
    match.any.sync.b32 %r3, %r1, -1;
    and.b32 %r9, %r1, %r2; and.b32 %r9, %r9, %r3;
    """
    assert run(text, 40) == [0xFFFFFFFF] * 32 + [0xFF] * 8


def test_matches() -> None:
    values = np.array([n % 3 for n in range(32)], np.uint32)
    text = """
    match.any.sync.b32 %r1, %r10, -1;
    match.all.sync.b32 %r2|%p1, %r10, -1;
    selp.u32 %r3, 1, 0, %p1;
    add.u32 %r9, %r1, %r2; add.u32 %r9, %r9, %r3;
    """
    wanted = [sum(1 << m for m in range(32) if m % 3 == n % 3) for n in range(32)]
    assert run(text, 32, values) == wanted
    same = np.full(32, 9, np.uint32)
    assert run(text, 32, same) == [(0xFFFFFFFF + 0xFFFFFFFF + 1) & 0xFFFFFFFF] * 32


@pytest.mark.parametrize("name", ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"])
def test_reductions_over_a_mask(name: str) -> None:
    values = np.random.default_rng(7).integers(0, 1 << 32, 32, dtype=np.uint32)
    text = f"""
    setp.lt.u32 %p1, %t, 20;
    mov.u32 %r9, 0;
    @!%p1 bra OUT;
    redux.sync.{name} %r9, %r10, 0xfffff;
    OUT:
    """
    part = values[:20]
    operation = name.split(".")[0]
    wanted = {
        "add": np.add.reduce(part, dtype=np.uint32), "min": part.view(np.int32).min().view(
            np.uint32), "max": part.max(), "and": np.bitwise_and.reduce(part),
        "or": np.bitwise_or.reduce(part), "xor": np.bitwise_xor.reduce(part),
    }[operation]  # fmt: skip
    assert run(text, 32, values) == [int(wanted)] * 20 + [0] * 12


def test_lanes_wait_for_each_other_before_a_shuffle() -> None:
    """Half of the lanes take a way of their own; a shuffle behind it names them all."""
    text = """
    setp.lt.u32 %p1, %t, 16;
    mov.u32 %r1, %t;
    @%p1 bra LONG;
    add.u32 %r1, %r1, 100;
    bra JOIN;
    LONG: add.u32 %r1, %r1, 200;
    add.u32 %r1, %r1, 1000;
    JOIN: bar.warp.sync -1;
    shfl.sync.bfly.b32 %r9, %r1, 16, 31, -1;
    """
    wanted = [n + 16 + 100 for n in range(16)] + [n - 16 + 1200 for n in range(16, 32)]
    assert run(text) == wanted


def test_a_shuffle_that_named_lanes_never_reach_is_an_error() -> None:
    text = """
    setp.lt.u32 %p1, %t, 16;
    @%p1 bra ONE;
    shfl.sync.bfly.b32 %r9, %t, 1, 31, -1;
    bra OUT;
    ONE: shfl.sync.bfly.b32 %r9, %t, 2, 31, -1;
    OUT:
    """
    bench = Bench()
    address, _ = bench.array(np.zeros(32, np.uint32))
    outcome = bench.launch(body(1, text + STORE), address)
    assert outcome.ending is SmEnding.ILLEGAL_INSTRUCTION
    assert "together" in outcome.detail


def test_one_lane_is_elected() -> None:
    text = "elect.sync %r1|%p1, 0xff0; selp.u32 %r9, 7, %r1, %p1;\n"
    assert run(text) == [7 if n == 4 else 4 for n in range(32)]


def test_lane_masks() -> None:
    text = """
    mov.u32 %r1, %lanemask_lt; mov.u32 %r2, %lanemask_ge; mov.u32 %r3, %laneid;
    mov.u32 %r4, %lanemask_eq;
    add.u32 %r9, %r1, %r2; sub.u32 %r9, %r9, %r4; add.u32 %r9, %r9, %r3;
    """
    assert run(text) == [(0xFFFFFFFF - (1 << n) + n) & 0xFFFFFFFF for n in range(32)]


@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("flags", ["", ".abs", ".NaN", ".abs.NaN"])
@pytest.mark.parametrize("awkward", [False, True])
def test_floats_are_reduced(operation: str, flags: str, awkward: bool) -> None:
    values = np.linspace(-9, 7, 32).astype(np.float32)
    values[[0, 5]] = [-0.0, 0.0]
    if awkward:
        values[3] = np.nan
    text = f"""
    mul.wide.u32 %rd40, %t, 4; add.s64 %rd41, %rd0, %rd40; add.s64 %rd42, %rd1, %rd40;
    ld.global.f32 %f1, [%rd41];
    redux.sync.{operation}{flags}.f32 %f2, %f1, -1;
    st.global.f32 [%rd42], %f2;
    """
    bench = Bench()
    source, _ = bench.array(values)
    target, out = bench.array(np.zeros(32, np.float32))
    bench.good(body(2, text), source, target, target="sm_100a")
    sized = abs(values) if "abs" in flags else values
    reduce = np.nanmin if operation == "min" else np.nanmax
    wanted = np.float32(np.nan) if awkward and "NaN" in flags else reduce(sized)
    assert np.array_equal(out, np.full(32, wanted), equal_nan=True)
