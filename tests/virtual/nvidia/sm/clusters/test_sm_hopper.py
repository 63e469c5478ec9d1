"""Instructions of barriers, fences, caches and scheduling, as NVIDIA's assembler takes them.

References are written from the PTX ISA: "bar, barrier", "lop3", "createpolicy", "fence",
"griddepcontrol", "setmaxnreg", "elect.sync", "mbarrier.try_wait", "cp.async.bulk.prefetch".
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_clusters import legal
from tests.support.nvidia.sm.sm_run import Bench, body

OUT = "mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd1;"


def run(text: str, data: np.ndarray, threads: int, head: str = "", **options: object) -> np.ndarray:
    """Run a kernel of two pointers, data and a number for each thread."""
    bench = Bench()
    source, _ = bench.array(data)
    target, out = bench.array(np.zeros(threads, np.uint32))
    ptx = legal(body(2, OUT + text, head), str(options.pop("target", "sm_90")))
    bench.good(ptx, source, target, block=(threads,), target="sm_90a", shared=4096)
    return out


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.data())
def test_reductions_at_barriers(warps: int, data: st.DataObject) -> None:
    """Three in a row, of different conditions: each thread finds what all threads have said."""
    threads = 32 * warps
    numbers = st.lists(st.sampled_from([0, 1, 2, 3, 7]), min_size=threads, max_size=threads)
    values = np.array(data.draw(numbers), np.uint32)
    if data.draw(st.booleans()):
        values[:] = data.draw(st.sampled_from([0, 7]))
    out = run("""
    mul.wide.u32 %rd2, %t, 4; add.s64 %rd2, %rd2, %rd0; ld.global.u32 %r1, [%rd2];
    and.b32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; and.b32 %r3, %r1, 2; setp.ne.u32 %p2, %r3, 0;
    and.b32 %r4, %r1, 4; setp.ne.u32 %p3, %r4, 0;
    bar.red.popc.u32 %r5, 0, %p1; barrier.cta.red.and.pred %p4, 0, %p2;
    bar.red.or.pred %p5, 0, !%p3; bar.red.popc.u32 %r6, 0, !%p1;
    selp.u32 %r7, 10000, 0, %p4; selp.u32 %r8, 20000, 0, %p5; add.u32 %r5, %r5, %r7;
    add.u32 %r5, %r5, %r8; mad.lo.u32 %r5, %r6, 100000, %r5; st.global.u32 [%at], %r5;
    """, values, threads)  # fmt: skip
    odd = int((values & 1 != 0).sum())
    wanted = odd + 100000 * (threads - odd)
    wanted += 10000 * bool((values & 2 != 0).all()) + 20000 * bool((values & 4 == 0).any())
    assert (out == wanted).all()


def test_some_warps_reduce_while_others_do_something_else() -> None:
    """Warps 0 and 1 at barrier 3, warps 2 and 3 at barrier 4, in a loop with sums of its own."""
    out = run("""
    .reg .b32 %i, %sum, %id; shr.u32 %id, %t, 6; add.u32 %id, %id, 3; mov.u32 %i, 0;
    mov.u32 %sum, 0;
    NEXT: add.u32 %r1, %t, %i; and.b32 %r1, %r1, 3; setp.eq.u32 %p1, %r1, 0;
    and.b32 %r3, %i, 1; setp.eq.u32 %p3, %r3, 0;
    @%p3 barrier.cta.red.popc.aligned.u32 %r2, %id, 64, %p1; mad.lo.u32 %sum, %sum, 3, %r2;
    add.u32 %i, %i, 1; setp.lt.u32 %p2, %i, 5; @%p2 bra NEXT;
    mad.lo.u32 %sum, %id, 100000, %sum; st.global.u32 [%at], %sum;
    """, np.zeros(1, np.uint32), 128)  # fmt: skip
    total = 0
    for _ in range(5):
        total = total * 3 + 16
    assert np.array_equal(out, np.repeat([300000 + total, 400000 + total], 64))


def test_lanes_that_part_and_lanes_that_have_ended() -> None:
    """Of 64 threads 8 end before; the rest come to the barrier on two ways."""
    out = run("""
    setp.ge.u32 %p1, %t, 56; @%p1 bra END; and.b32 %r1, %t, 1; setp.eq.u32 %p2, %r1, 0;
    @%p2 bra EVEN; setp.lt.u32 %p3, %t, 10; barrier.cta.red.popc.u32 %r2, 0, %p3; bra JOIN;
    EVEN: setp.lt.u32 %p3, %t, 20; barrier.cta.red.popc.u32 %r2, 0, %p3;
    JOIN: st.global.u32 [%at], %r2; END:
    """, np.zeros(1, np.uint32), 64)  # fmt: skip
    assert (out[:56] == 5 + 10).all()
    assert not out[56:].any()


EARLY = (
    "@%p1 bra END; bar.sync 0; mov.u32 %r2, 77; st.global.u32 [%at], %r2; END:",
    "@%p1 exit; bar.sync 0; mov.u32 %r2, 77; st.global.u32 [%at], %r2;",
    """@%p1 bra END; and.b32 %r1, %t, 1; setp.eq.u32 %p2, %r1, 0; @%p2 bra EVEN;
    barrier.cta.sync 0; bra JOIN; EVEN: barrier.cta.sync 0;
    JOIN: mov.u32 %r2, 77; st.global.u32 [%at], %r2; END:""",
    """@%p1 bra END; mov.u32 %r3, 0; NEXT: barrier.cta.sync 0; add.u32 %r3, %r3, 1;
    setp.lt.u32 %p3, %r3, 7; @%p3 bra NEXT; mul.lo.u32 %r2, %r3, 11; st.global.u32 [%at], %r2;
    END:""",
)


@pytest.mark.parametrize("way", range(len(EARLY)))
@pytest.mark.parametrize("ending", [1, 8, 32, 33, 63])
def test_lanes_that_leave_before_a_barrier(way: int, ending: int) -> None:
    """Those that branch to the kernel's end are not the end of those that wait."""
    text = f"setp.ge.u32 %p1, %t, {64 - ending}; {EARLY[way]}"
    out = run(text, np.zeros(1, np.uint32), 64)
    assert (out[: 64 - ending] == 77).all()
    assert not out[64 - ending :].any()


@pytest.mark.parametrize("join", ["or", "and"])
def test_lop3_joined_with_a_predicate(join: str) -> None:
    data = np.arange(32, dtype=np.uint32)
    out = run(f"""
    and.b32 %r1, %t, 3; mov.u32 %r2, 1; setp.lt.u32 %p1, %t, 16;
    lop3.{join}.b32 %r3|%p2, %r1, %r2, %r2, 0xC0, %p1; selp.u32 %r4, 10, 0, %p2;
    add.u32 %r3, %r3, %r4; st.global.u32 [%at], %r3;
    """, data, 32)  # fmt: skip
    both = data & 3 & 1
    said = (both != 0) | (data < 16) if join == "or" else (both != 0) & (data < 16)
    assert np.array_equal(out, both + 10 * said)


def test_what_changes_no_result() -> None:
    """Fences of all kinds, cache policies, hints, register counts, dependent grids."""
    data = np.arange(64, dtype=np.uint32)
    out = run("""
    createpolicy.fractional.L2::evict_last.b64 %rd5, 1.0;
    createpolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %rd6, 0.5;
    createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %rd7, [%rd0], 128, 256;
    createpolicy.cvt.L2.b64 %rd8, %rd5; setmaxnreg.inc.sync.aligned.u32 96;
    griddepcontrol.wait; fence.proxy.alias; fence.proxy.async; fence.proxy.async.global;
    fence.proxy.async.shared::cta; fence.acq_rel.cluster; fence.sc.sys; membar.gl;
    fence.mbarrier_init.release.cluster; fence.proxy.tensormap::generic.release.gpu;
    mul.wide.u32 %rd2, %t, 4; add.s64 %rd2, %rd2, %rd0; prefetch.global.L2 [%rd2];
    cp.async.bulk.prefetch.L2.global [%rd0], 64; applypriority.global.L2::evict_normal [%rd0], 128;
    ld.global.L2::cache_hint.u32 %r1, [%rd2], %rd5; griddepcontrol.launch_dependents;
    elect.sync %r2|%p1, -1; @%p1 add.u32 %r1, %r1, 1000;
    st.global.L2::cache_hint.u32 [%at], %r1, %rd7; nanosleep.u32 5;
    """, data, 64, target="sm_90a")  # fmt: skip
    wanted = data.copy()
    wanted[::32] += 1000
    assert np.array_equal(out, wanted)


def test_a_wait_with_a_limit_of_time() -> None:
    """One try says no at once, and the loop around it goes on until all threads have come."""
    out = run("""
    mov.u32 %r1, gate; setp.eq.u32 %p1, %t, 0;
    @%p1 mbarrier.init.shared::cta.b64 [%r1], 64; bar.sync 0;
    mbarrier.arrive.shared::cta.b64 %rd3, [%r1];
    HERE: mbarrier.try_wait.acquire.cta.shared::cta.b64 %p2, [%r1], %rd3, 1000; @!%p2 bra HERE;
    mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p3, [%r1], 1, 20;
    selp.u32 %r2, 1, 2, %p3; st.global.u32 [%at], %r2;
    """, np.zeros(1, np.uint32), 64, ".shared .align 8 .b64 gate;")  # fmt: skip
    assert (out == 2).all()
