"""Calls through pointers, recursion, and memory of the stack."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.virtual.nvidia.sm_contract import SmEnding

_FUNCTIONS = """
.func (.param .b32 result) plus(.param .b32 a, .param .b32 b)
{ .reg .b32 %x<4>; ld.param.u32 %x1, [a]; ld.param.u32 %x2, [b]; add.u32 %x1, %x1, %x2;
  st.param.b32 [result], %x1; ret; }
.func (.param .b32 result) times(.param .b32 a, .param .b32 b)
{ .reg .b32 %x<4>; .reg .pred %q; ld.param.u32 %x1, [a]; ld.param.u32 %x2, [b];
  setp.eq.u32 %q, %x1, 3; @%q bra THREE; mul.lo.u32 %x1, %x1, %x2;
  st.param.b32 [result], %x1; ret;
  THREE: mov.u32 %x1, 333; st.param.b32 [result], %x1; ret; }
.func (.param .b32 result) single(.param .b32 a)
{ .reg .b32 %x<4>; mov.u32 %x1, 9; st.param.b32 [result], %x1; ret; }
.global .align 8 .u64 table[3] = {times, plus, single};
.const .align 8 .u64 fixed[2] = {plus, times};
"""
_CALL = """{
    .param .b32 q0; .param .b32 q1; .param .b32 r0;
    st.param.b32 [q0], %t; st.param.b32 [q1], 7;
    proto: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
    call (r0), %rd5, (q0, q1), proto;
    ld.param.b32 %r9, [r0];
    }"""
_STORE = "mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r9;"


def _wanted(lane: int, add: bool) -> int:
    return lane + 7 if add else 333 if lane == 3 else lane * 7


def _run(text: str, head: str = _FUNCTIONS, **options: object) -> list[int]:
    bench = Bench()
    a, out = bench.array(np.zeros(64, np.uint32))
    bench.good(body(1, text, head), a, block=(64,), **options)
    return [int(value) for value in out]


@pytest.mark.parametrize("taken", ["mov", "global", "const"])
def test_lanes_call_different_functions(taken: str) -> None:
    where = {
        "mov": "mov.u64 %rd3, times; mov.u64 %rd4, plus; selp.b64 %rd5, %rd4, %rd3, %p1;",
        "global": "mov.u64 %rd3, table; selp.b64 %rd4, 8, 0, %p1; add.s64 %rd3, %rd3, %rd4;"
                  "ld.global.u64 %rd5, [%rd3];",
        "const": "mov.u64 %rd3, fixed; selp.b64 %rd4, 0, 8, %p1; add.s64 %rd3, %rd3, %rd4;"
                 "ld.const.u64 %rd5, [%rd3];",
    }[taken]  # fmt: skip
    out = _run(f"and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1; {where} {_CALL} {_STORE}")
    assert out == [_wanted(lane, bool(lane & 1)) for lane in range(64)]


def test_a_call_under_a_guard() -> None:
    call = _CALL.replace("call (r0)", "@%p1 call (r0)")
    call = call.replace("ld.param.b32 %r9", "@%p1 ld.param.b32 %r9")
    text = "setp.lt.u32 %p1, %t, 9; mov.u64 %rd5, plus; mov.u32 %r9, 5;"
    assert _run(text + call + _STORE) == [lane + 7 if lane < 9 else 5 for lane in range(64)]


@pytest.mark.parametrize("target", ["mov.u64 %rd5, 12345;", "mov.u64 %rd5, single;"])
def test_what_is_no_function_of_this_kind_is_a_fault(target: str) -> None:
    bench = Bench()
    a, _ = bench.array(np.zeros(64, np.uint32))
    outcome = bench.launch(body(1, target + _CALL + _STORE, _FUNCTIONS), a)
    assert outcome.ending is SmEnding.ILLEGAL_INSTRUCTION
    assert outcome.line > 0


_FIB = """
.func (.param .b32 result) fib(.param .b32 n)
{ .reg .b32 %x<8>; .reg .pred %q; ld.param.u32 %x1, [n];
  setp.lt.u32 %q, %x1, 2; @%q bra SMALL;
  sub.u32 %x2, %x1, 1;
  { .param .b32 p; .param .b32 r; st.param.b32 [p], %x2; call (r), fib, (p);
    ld.param.b32 %x3, [r]; }
  sub.u32 %x2, %x1, 2;
  { .param .b32 p; .param .b32 r; st.param.b32 [p], %x2; call (r), fib, (p);
    ld.param.b32 %x4, [r]; }
  add.u32 %x1, %x3, %x4;
  SMALL: st.param.b32 [result], %x1; ret; }
"""


def test_recursion() -> None:
    text = (
        """and.b32 %r1, %t, 7;
    { .param .b32 p; .param .b32 r; st.param.b32 [p], %r1; call (r), fib, (p);
      ld.param.b32 %r9, [r]; }"""
        + _STORE
    )
    numbers = [0, 1, 1, 2, 3, 5, 8, 13]
    assert _run(text, _FIB, local=2048) == [numbers[lane & 7] for lane in range(64)]


_EVEN = """
.func (.param .b32 result) odd(.param .b32 n);
.func (.param .b32 result) even(.param .b32 n)
{ .reg .b32 %x<8>; .reg .pred %q; .reg .b64 %f; ld.param.u32 %x1, [n]; mov.u32 %x5, 1;
  setp.eq.u32 %q, %x1, 0; @%q bra DONE; sub.u32 %x1, %x1, 1; mov.u64 %f, odd;
  { .param .b32 p; .param .b32 r; st.param.b32 [p], %x1;
    proto: .callprototype (.param .b32 _) _ (.param .b32 _); call (r), %f, (p), proto;
    ld.param.b32 %x5, [r]; }
  DONE: st.param.b32 [result], %x5; ret; }
.func (.param .b32 result) odd(.param .b32 n)
{ .reg .b32 %x<8>; .reg .pred %q; ld.param.u32 %x1, [n]; mov.u32 %x5, 0;
  setp.eq.u32 %q, %x1, 0; @%q bra DONE; sub.u32 %x1, %x1, 1;
  { .param .b32 p; .param .b32 r; st.param.b32 [p], %x1; call (r), even, (p);
    ld.param.b32 %x5, [r]; }
  DONE: st.param.b32 [result], %x5; ret; }
"""


def test_two_functions_that_call_each_other_one_of_them_through_a_pointer() -> None:
    text = (
        """{ .param .b32 p; .param .b32 r; st.param.b32 [p], %t; call (r), even, (p);
      ld.param.b32 %r9, [r]; }"""
        + _STORE
    )
    assert _run(text, _EVEN, local=8192) == [1 - lane % 2 for lane in range(64)]


def test_a_stack_that_is_too_small_is_a_fault() -> None:
    bench = Bench()
    a, _ = bench.array(np.zeros(64, np.uint32))
    text = (
        """{ .param .b32 p; .param .b32 r; st.param.b32 [p], 100000; call (r), even, (p);
      ld.param.b32 %r9, [r]; }"""
        + _STORE
    )
    outcome = bench.launch(body(1, text, _EVEN), a, local=1024)
    assert outcome.ending is SmEnding.ILLEGAL_ADDRESS


_ALLOCA = """
    mov.u32 %r8, 0; mov.u32 %r9, 0;
    AGAIN: stacksave.u64 %rd9;
    and.b32 %r1, %t, 3; add.u32 %r1, %r1, %r8; shl.b32 %r2, %r1, 2; cvt.u64.u32 %rd1, %r2;
    alloca.u64 %rd2, %rd1, 16;
    and.b64 %rd3, %rd2, 15; setp.ne.u64 %p1, %rd3, 0; @%p1 trap;
    mov.u32 %r3, 0;
    FILL: setp.ge.u32 %p1, %r3, %r1; @%p1 bra FILLED;
    mul.wide.u32 %rd4, %r3, 4; add.s64 %rd4, %rd4, %rd2;
    add.u32 %r4, %r3, %t; st.local.u32 [%rd4], %r4; add.u32 %r3, %r3, 1; bra FILL;
    FILLED: setp.eq.u32 %p1, %r3, 0; @%p1 bra EMPTIED;
    sub.u32 %r3, %r3, 1; mul.wide.u32 %rd4, %r3, 4; add.s64 %rd4, %rd4, %rd2;
    ld.local.u32 %r4, [%rd4]; add.u32 %r9, %r9, %r4; bra FILLED;
    EMPTIED: stackrestore.u64 %rd9;
    add.u32 %r8, %r8, 1; setp.lt.u32 %p2, %r8, 50; @%p2 bra AGAIN;
"""


def test_memory_of_the_stack() -> None:
    """Given back each time round: fifty blocks of up to 212 bytes fit where one does."""
    wanted = []
    for lane in range(64):
        counts = [lane % 4 + k for k in range(50)]
        wanted.append(sum(k + lane for n in counts for k in range(n)))
    assert _run(".local .u32 other[3];" + _ALLOCA + _STORE, "", local=256) == wanted
