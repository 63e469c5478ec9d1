"""Lanes that part and meet: random control flow, also such as no compiler makes."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_run import HEAD, Bench, body
from ugpu.virtual.nvidia.sm.ptx.parser import parse
from ugpu.virtual.nvidia.sm.translator.control.analysis import analyse
from ugpu.virtual.nvidia.sm.translator.control.flatten import flatten
from ugpu.virtual.nvidia.sm.translator.control.graph import EXIT, build

_MASK = 0xFFFFFFFF
_LANES = 48
_FUEL = 60

# Statements on %r1..%r4, as PTX and as Python on a list.
_WORK = [
    ("add.u32 %r{a}, %r{b}, %r{c};", lambda r, a, b, c: r[b] + r[c]),
    ("mul.lo.u32 %r{a}, %r{b}, 3;", lambda r, a, b, c: r[b] * 3),
    ("xor.b32 %r{a}, %r{b}, %r{c};", lambda r, a, b, c: r[b] ^ r[c]),
    ("sub.u32 %r{a}, %r{b}, 7;", lambda r, a, b, c: r[b] - 7),
    ("shr.u32 %r{a}, %r{b}, 1;", lambda r, a, b, c: r[b] >> 1),
]


class Walk:
    """A random graph of blocks; every lane has fuel for so many of them."""

    def __init__(self, seed: int, back: float) -> None:
        draw = Random(seed)
        count = draw.randrange(2, 9)
        self.blocks = []
        for number in range(count):
            work = [(draw.randrange(len(_WORK)), *(draw.randrange(1, 5) for _ in "abc"))
                    for _ in range(draw.randrange(1, 4))]  # fmt: skip
            register, bit = draw.randrange(1, 5), draw.randrange(3)
            targets = []
            for _ in range(2):
                if draw.random() < back:
                    targets.append(draw.randrange(count))
                else:
                    targets.append(draw.randrange(number + 1, count + 1))
            guarded = draw.random() < 0.3
            self.blocks.append((work, register, bit, targets, guarded))

    def text(self) -> str:
        lines = ["mov.u32 %r1, %t; mul.lo.u32 %r2, %t, 5; mov.u32 %r3, 11; xor.b32 %r4, %t, 6;",
                 f"mov.u32 %r5, {_FUEL};"]  # fmt: skip
        for number, (work, register, bit, targets, guarded) in enumerate(self.blocks):
            lines.append(f"B{number}:")
            lines.append("setp.eq.u32 %p1, %r5, 0; @%p1 bra END; sub.u32 %r5, %r5, 1;")
            lines.append(f"and.b32 %r6, %r{register}, {1 << bit}; setp.ne.u32 %p2, %r6, 0;")
            for place, (kind, a, b, c) in enumerate(work):
                guard = "@%p2 " if guarded and place == 0 else ""
                lines.append(guard + _WORK[kind][0].format(a=a, b=b, c=c))
            first, second = (
                "END" if target == len(self.blocks) else f"B{target}" for target in targets
            )
            lines.append(f"@%p2 bra {first}; bra {second};")
        lines.append("END:")
        for register in range(1, 5):
            lines.append(
                f"mul.wide.u32 %at, %t, 16; add.s64 %at, %at, %rd0;"
                f" st.global.u32 [%at+{4 * register - 4}], %r{register};"
            )
        return body(1, "\n".join(lines))

    def wanted(self, lane: int) -> list[int]:
        r = [0, lane, 5 * lane, 11, lane ^ 6]
        fuel, at = _FUEL, 0
        while at < len(self.blocks) and fuel:
            fuel -= 1
            work, register, bit, targets, guarded = self.blocks[at]
            condition = bool(r[register] >> bit & 1)
            for place, (kind, a, b, c) in enumerate(work):
                if guarded and place == 0 and not condition:
                    continue
                r[a] = _WORK[kind][1](r, a, b, c) & _MASK
            at = targets[0 if condition else 1]
        return r[1:]


def _check(seed: int, back: float) -> None:
    walk = Walk(seed, back)
    bench = Bench()
    address, out = bench.array(np.zeros((_LANES, 4), np.uint32))
    bench.good(walk.text(), address, block=(_LANES,))
    assert out.tolist() == [walk.wanted(lane) for lane in range(_LANES)], seed


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_graphs_with_loops_of_any_shape(seed: int) -> None:
    _check(seed, 0.4)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_graphs_that_mostly_go_forward(seed: int) -> None:
    _check(seed, 0.1)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 40), st.floats(0, 1))
def test_blocks_are_numbered_so_that_only_loops_lead_back(seed: int, back: float) -> None:
    flat = flatten(*_entry(Walk(seed, back).text()))
    graph = build(flat)
    analyse(graph, False)
    for number, block in enumerate(graph.blocks):
        for successor in block.successors:
            assert successor == EXIT or successor < len(graph.blocks)
            if graph.reducible and successor != EXIT and successor <= number:
                back_edges = [k for k, b in enumerate(graph.blocks)
                              if successor in b.successors and k >= successor]  # fmt: skip
                assert back_edges == [number]


def _entry(text: str):
    module = parse(HEAD.format(target="sm_90") + text)
    return module, module.functions["k"]


NESTED = """
mov.u32 %r1, 0; mov.u32 %r9, 0;
OUTER: setp.ge.u32 %p1, %r1, %t; @%p1 bra DONE;
  mov.u32 %r2, 0;
  INNER: setp.ge.u32 %p2, %r2, %r1; @%p2 bra NEXT;
    and.b32 %r3, %r2, 1; setp.eq.u32 %p3, %r3, 1; @%p3 bra ODD;
    add.u32 %r9, %r9, %r2; bra MORE;
    ODD: setp.gt.u32 %p4, %r2, 12; @%p4 bra NEXT;
    add.u32 %r9, %r9, 100;
    MORE: add.u32 %r2, %r2, 1; bra INNER;
  NEXT: add.u32 %r1, %r1, 1; bra OUTER;
DONE: mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r9;
"""


def test_nested_loops_with_breaks() -> None:
    bench = Bench()
    address, out = bench.array(np.zeros(64, np.uint32))
    bench.good(body(1, NESTED), address, block=(64,))
    wanted = []
    for lane in range(64):
        total = 0
        for outer in range(lane):
            for inner in range(outer):
                if inner % 2 and inner > 12:
                    break
                total += 100 if inner % 2 else inner
        wanted.append(total)
    assert out.tolist() == wanted


def test_lanes_end_at_different_places_and_the_rest_meets_a_barrier() -> None:
    text = """
    setp.eq.u32 %p1, %t, 3; @%p1 exit;
    setp.eq.u32 %p1, %t, 40; @%p1 ret;
    shl.b32 %r1, %t, 2;
    st.shared.u32 [%r1], %t;
    bar.sync 0;
    xor.b32 %r2, %r1, 128;
    ld.shared.u32 %r3, [%r2];
    mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r3;
    """
    bench = Bench()
    address, out = bench.array(np.full(64, 99, np.uint32))
    bench.good(body(1, text, ".shared .align 4 .b8 part[256];"), address, block=(64,), shared=256)
    wanted = [lane ^ 32 for lane in range(64)]
    found = out.tolist()
    assert found[3] == found[40] == 99
    assert [found[n] for n in range(64) if n not in (3, 40, 35, 8)] == [
        wanted[n] for n in range(64) if n not in (3, 40, 35, 8)
    ]


def test_a_barrier_that_lanes_reach_on_different_ways() -> None:
    """Both sides of a branch wait at the same barrier, each lane with a number of its own."""
    text = """
    and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1;
    mov.u32 %r5, 7;
    @%p1 bra ODD;
    shl.b32 %r2, %t, 2; st.shared.u32 [%r2], %t; mov.u32 %r5, 1;
    bar.sync 0;
    bra JOIN;
    ODD: mul.lo.u32 %r3, %t, 10; shl.b32 %r2, %t, 2; st.shared.u32 [%r2], %r3; mov.u32 %r5, 2;
    bar.sync 0;
    JOIN: sub.u32 %r6, 63, %t; shl.b32 %r6, %r6, 2; ld.shared.u32 %r7, [%r6];
    mad.lo.u32 %r7, %r5, 1000, %r7;
    mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r7;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(64, np.uint32))
    bench.good(body(1, text, ".shared .align 4 .b8 part[256];"), address, block=(64,), shared=256)
    cell = [lane * 10 if lane % 2 else lane for lane in range(64)]
    assert out.tolist() == [(2 if n % 2 else 1) * 1000 + cell[63 - n] for n in range(64)]


def test_named_barriers_of_some_warps() -> None:
    """Two warps hand over through barrier 1, which the third neither waits at nor arrives at."""
    text = """
    setp.ge.u32 %p1, %t, 64; @%p1 bra REST;
    shl.b32 %r1, %t, 2; st.shared.u32 [%r1], %t;
    bar.sync 1, 64;
    xor.b32 %r2, %r1, 128; ld.shared.u32 %r3, [%r2];
    bra OUT;
    REST: mov.u32 %r3, 5;
    OUT: mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r3;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(96, np.uint32))
    bench.good(body(1, text, ".shared .align 4 .b8 part[256];"), address, block=(96,), shared=256)
    assert out.tolist() == [n ^ 32 for n in range(64)] + [5] * 32


def test_a_producer_arrives_and_goes_on() -> None:
    text = """
    setp.ge.u32 %p1, %t, 32; @%p1 bra PRODUCER;
    bar.sync 2, 64;
    ld.shared.u32 %r3, [part];
    bra OUT;
    PRODUCER: mov.u32 %r3, 77; st.shared.u32 [part], %r3;
    bar.arrive 2, 64;
    OUT: mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r3;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(64, np.uint32))
    bench.good(body(1, text, ".shared .align 4 .b8 part[256];"), address, block=(64,), shared=256)
    assert out.tolist() == [77] * 64


def test_a_table_of_branches() -> None:
    text = """
    and.b32 %r1, %t, 3; mov.u32 %r2, 0;
    TABLE: .branchtargets A, B, C, D;
    brx.idx %r1, TABLE;
    A: add.u32 %r2, %r2, 1;
    B: add.u32 %r2, %r2, 10; bra E;
    C: add.u32 %r2, %r2, 100;
    D: add.u32 %r2, %r2, 1000;
    E: mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r2;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(32, np.uint32))
    bench.good(body(1, text), address)
    assert out.tolist() == [[11, 10, 1100, 1000][n % 4] for n in range(32)]


CALL = """
.func (.param .b32 result) twice(.param .b32 x, .param .b64 y) {
.reg .b32 %r<4>; .reg .b64 %rd<3>; .reg .pred %p;
ld.param.b32 %r1, [x]; ld.param.b64 %rd1, [y]; cvt.u32.u64 %r2, %rd1;
setp.gt.u32 %p, %r1, 10; @%p bra BIG;
shl.b32 %r3, %r1, 1; add.u32 %r3, %r3, %r2;
st.param.b32 [result], %r3; ret;
BIG: st.param.b32 [result], %r2; ret;
}
"""


def test_a_call_of_a_device_function() -> None:
    text = """
    { .param .b32 param0; .param .b64 param1; .param .b32 retval0;
    st.param.b32 [param0], %t; mov.b64 %rd5, 1000; st.param.b64 [param1], %rd5;
    call.uni (retval0), twice, (param0, param1);
    ld.param.b32 %r9, [retval0]; }
    { .param .b32 param0; .param .b64 param1; .param .b32 retval0;
    st.param.b32 [param0], %r9; mov.b64 %rd5, 5; st.param.b64 [param1], %rd5;
    call.uni (retval0), twice, (param0, param1);
    ld.param.b32 %r8, [retval0]; }
    add.u32 %r9, %r9, %r8;
    mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r9;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(32, np.uint32))
    bench.good(body(1, text, CALL), address)

    def twice(x: int, y: int) -> int:
        return y if x > 10 else 2 * x + y

    assert out.tolist() == [twice(n, 1000) + twice(twice(n, 1000), 5) for n in range(32)]
