"""Atomic operations: of every kind, on global and shared memory, among worker threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.number_codes import decode, random_codes
from tests.support.nvidia.sm.sm_run import Bench, body

_CASES = {
    "add.u32": lambda a, b: a + b, "min.s32": None, "max.u32": max,
    "and.b32": lambda a, b: a & b, "or.b32": lambda a, b: a | b, "xor.b32": lambda a, b: a ^ b,
    "exch.b32": lambda a, b: b, "inc.u32": lambda a, b: 0 if a >= b else a + 1,
    "dec.u32": lambda a, b: b if a == 0 or a > b else a - 1,
}  # fmt: skip


@pytest.mark.parametrize("name", list(_CASES))
@pytest.mark.parametrize("space", ["global", "shared"])
def test_lanes_act_one_after_another(name: str, space: str) -> None:
    """Each lane's old value is what the lanes below it made."""
    bench = Bench()
    values = np.random.default_rng(2).integers(0, 1 << 32, 32, dtype=np.uint32)
    a, _ = bench.array(values)
    cell, memory = bench.array(np.array([12345], np.uint32))
    o, out = bench.array(np.zeros(32, np.uint32))
    load = "mul.wide.u32 %rd3, %t, 4; add.s64 %rd4, %rd3, %rd0; ld.global.u32 %r1, [%rd4];"
    if space == "global":
        act = f"atom.global.{name} %r2, [%rd1], %r1;"
    else:
        act = f"""
        ld.global.u32 %r3, [%rd1]; st.shared.u32 [cell], %r3;
        atom.shared.{name} %r2, [cell], %r1;
        ld.shared.u32 %r3, [cell]; st.global.u32 [%rd1], %r3;
        """
    store = "add.s64 %rd5, %rd3, %rd2; st.global.u32 [%rd5], %r2;"
    text = body(3, load + act + store, ".shared .align 4 .b8 cell[4];")
    bench.good(text, a, cell, o, shared=4)
    state, olds = 12345, []
    for value in values.tolist():
        olds.append(state)
        if name == "min.s32":
            state = int(min(np.uint32(state).view(np.int32), np.uint32(value).view(np.int32)))
            state &= 0xFFFFFFFF
        else:
            state = _CASES[name](state, value) & 0xFFFFFFFF
    assert out.tolist() == olds
    assert memory.tolist() == [state]


def test_compare_and_swap_of_all_widths() -> None:
    bench = Bench()
    for bits, kind in ((16, np.uint16), (32, np.uint32), (64, np.uint64)):
        a, memory = bench.array(np.array([7, 7, 7, 8], kind))
        register = {16: "%h", 32: "%r", 64: "%rd"}[bits]
        text = f"""
        setp.gt.u32 %p1, %t, 3; @%p1 bra OUT;
        mul.wide.u32 %at, %t, {bits // 8}; add.s64 %at, %at, %rd0;
        mov.b{bits} {register}20, 7; mov.b{bits} {register}21, 9;
        atom.global.cas.b{bits} {register}22, [%at], {register}20, {register}21;
        OUT:
        """
        bench.good(body(1, text), a)
        assert memory.tolist() == [9, 9, 9, 8]


def test_counts_of_many_groups_on_several_threads() -> None:
    bench = Bench(workers=3)
    a, memory = bench.array(np.zeros(4, np.uint64))
    text = """
    red.global.add.u32 [%rd0], 1;
    atom.global.add.u64 %rd3, [%rd0+8], 1;
    cvt.rn.f32.u32 %f1, %t;
    red.global.add.f32 [%rd0+16], 0f3F800000;
    mov.f64 %d1, 0d3FF0000000000000;
    atom.add.f64 %d2, [%rd0+24], %d1;
    """
    for _ in range(3):  # the first runs decide how many threads are worth it
        memory[:] = 0
        bench.good(body(1, text), a, grid=(300,), block=(96,))
    assert memory[0] == memory[1] == 300 * 96
    assert memory[2:3].view(np.float32)[0] == 300 * 96
    assert memory[3:].view(np.float64)[0] == 300 * 96


def test_sums_of_halves() -> None:
    bench = Bench()
    a, memory = bench.array(np.zeros(4, np.float16))
    text = """
    mov.b32 %r1, 0x3c004000;
    red.global.add.noftz.f16x2 [%rd0], %r1;
    mov.b16 %h1, 0x3800;
    atom.global.add.noftz.f16 %h2, [%rd0+4], %h1;
    mov.b16 %h3, 0x3f80;
    atom.global.add.noftz.bf16 %h4, [%rd0+6], %h3;
    """
    bench.good(body(1, text), a)
    assert memory[:3].tolist() == [64, 32, 16]
    assert (memory[3:].view(np.uint16).astype(np.uint32) << 16).view(np.float32)[0] == 32


def test_a_lock_that_lanes_of_one_warp_take_in_turn() -> None:
    """The lane that holds the lock must get to run though others spin at a lower place."""
    bench = Bench()
    a, memory = bench.array(np.zeros(2, np.uint32))
    text = """
    AGAIN: atom.global.cas.b32 %r1, [%rd0], 0, 1;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ld.global.u32 %r2, [%rd0+4]; add.u32 %r2, %r2, 1; st.global.u32 [%rd0+4], %r2;
    membar.gl;
    atom.global.exch.b32 %r1, [%rd0], 0;
    """
    bench.good(body(1, text), a, block=(64,))
    assert memory.tolist() == [0, 64]


def test_warps_of_a_group_wait_for_each_other_through_memory() -> None:
    """Without a barrier: the first warp spins until the last has stored."""
    bench = Bench()
    a, memory = bench.array(np.zeros(64, np.uint32))
    text = """
    setp.lt.u32 %p1, %t, 32;
    @!%p1 bra SECOND;
    SPIN: ld.volatile.global.u32 %r1, [%rd0];
    setp.eq.u32 %p2, %r1, 0;
    @%p2 bra SPIN;
    bra OUT;
    SECOND: mov.u32 %r1, 5; st.volatile.global.u32 [%rd0], %r1;
    OUT: mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r1;
    """
    bench.good(body(1, text), a, block=(64,))
    assert memory.tolist() == [5] * 64


@pytest.mark.parametrize("operation", ["min", "max"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_the_least_and_the_greatest_of_halves(operation: str, kind: str) -> None:
    """Vectors of halves and of pairs: numbers before NaN, the old values come back."""
    random = np.random.default_rng(9)
    codes = random_codes(random, kind, (8,), True).astype(np.uint16)
    codes[:4] = [0x8000, 0, 0x7FFF, 0x3C00]
    given = random_codes(random, kind, (8,), True).astype(np.uint16)
    given[:4] = [0, 0x8000, 0x3C00, 0x7FFF]
    both = ", ".join(f"%h{n}" for n in range(8))
    loads = "".join(f"ld.global.b16 %h{n}, [%rd1+{2 * n}];" for n in range(8))
    text = f"""
    setp.ne.u32 %p1, %t, 0; @%p1 exit;
    {loads}
    atom.global.{operation}.noftz.L2::cache_hint.v8.{kind} {{{both}}}, [%rd0], {{{both}}}, %rd9;
    {"".join(f"st.global.b16 [%rd2+{2 * n}], %h{n};" for n in range(8))}
    ld.global.v2.b32 {{%r1, %r2}}, [%rd1];
    red.global.v2.{kind}x2.{operation}.noftz [%rd0+16], {{%r1, %r2}};
    """
    bench = Bench()
    place, memory = bench.array(np.concatenate([codes, codes[:4]]))
    source, _ = bench.array(given)
    old, was = bench.array(np.zeros(8, np.uint16))
    bench.good(body(3, text), place, source, old)
    assert np.array_equal(was, codes)
    a, b = decode(kind, codes.astype(np.uint64)), decode(kind, given.astype(np.uint64))
    wanted = np.fmin(a, b) if operation == "min" else np.fmax(a, b)
    found = decode(kind, memory.astype(np.uint64))
    assert np.array_equal(found[:8], wanted, equal_nan=True)
    assert np.array_equal(found[8:], wanted[:4], equal_nan=True)
    assert np.signbit(found[:2]).all() == (operation == "min")
