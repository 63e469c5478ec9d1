"""Groups, warps and lanes that wait in loops for memory which others write all make progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_clusters import SYNC, legal
from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.virtual.nvidia.sm_contract import SmEnding

_SAFETY_S = 30.0  # ends a launch that hangs, so that its test fails
_G = "mov.u32 %r10, %ctaid.x; mov.u32 %r11, %nctaid.x;"


@contextmanager
def _guarded(bench: Bench, limit_s: float = _SAFETY_S) -> Iterator[None]:
    timer = threading.Timer(limit_s, bench.abort.set)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _barrier(load: str = "ld.acquire.gpu.global.u32") -> str:
    """Return a barrier of all groups of a grid, `turn` times; the counter is at %rd0."""
    return f"""
    {_G} mov.u32 %r20, 0;
    ROUND:
    bar.sync 0;
    setp.ne.u32 %p1, %t, 0; @%p1 bra MEET;
    membar.gl; atom.global.add.u32 %r1, [%rd0], 1;
    add.u32 %r21, %r20, 1; mul.lo.u32 %r21, %r21, %r11;
    SPIN: {load} %r2, [%rd0]; setp.lt.u32 %p2, %r2, %r21; @%p2 bra SPIN;
    membar.gl;
    MEET: bar.sync 0;
    add.u32 %r20, %r20, 1; setp.lt.u32 %p3, %r20, 3; @%p3 bra ROUND;
    mul.wide.u32 %at, %r10, 4; add.s64 %at, %at, %rd1; st.global.u32 [%at], %r20;
    """


@pytest.mark.parametrize("load", ["ld.acquire.gpu.global.u32", "ld.volatile.global.u32",
                                  "membar.gl; ld.global.u32", "ld.global.cg.u32"])  # fmt: skip
@pytest.mark.parametrize("workers", [1, 2])
def test_a_barrier_between_groups(workers: int, load: str) -> None:
    bench = Bench(workers=workers)
    counter, count = bench.array(np.zeros(1, np.uint32))
    done, found = bench.array(np.zeros(37, np.uint32))
    with _guarded(bench):
        bench.good(body(2, _barrier(load)), counter, done, grid=(37,), block=(64,))
    assert count[0] == 3 * 37
    assert found.tolist() == [3] * 37


def test_a_barrier_between_groups_of_clusters() -> None:
    bench = Bench(workers=2)
    counter, count = bench.array(np.zeros(1, np.uint32))
    done, found = bench.array(np.zeros(24, np.uint32))
    text = _barrier() + "barrier.cluster.arrive; barrier.cluster.wait;"
    with _guarded(bench):
        bench.good(body(2, text), counter, done, grid=(24,), block=(64,), cluster=(4,))
    assert count[0] == 3 * 24
    assert found.tolist() == [3] * 24


@pytest.mark.parametrize("workers", [1, 2])
def test_each_group_waits_for_the_one_behind_it(workers: int) -> None:
    """The last group is the first that can end. Shared and local memory are each group's own."""
    bench = Bench(workers=workers)
    flags, found = bench.array(np.zeros(33, np.uint32))
    text = f"""
    .shared .u32 own[64]; .local .u32 mine[2];
    {_G}
    mov.u32 %r1, own; shl.b32 %r2, %t, 2; add.u32 %r1, %r1, %r2;
    add.u32 %r3, %r10, %t; st.shared.u32 [%r1], %r3; st.local.u32 [mine+4], %r3;
    mul.wide.u32 %at, %r10, 4; add.s64 %at, %at, %rd0;
    add.u32 %r4, %r10, 1; setp.eq.u32 %p1, %r4, %r11; @%p1 bra LAST;
    SPIN: nanosleep.u32 20; ld.volatile.global.u32 %r5, [%at+4]; setp.eq.u32 %p2, %r5, 0;
    @%p2 bra SPIN;
    bra GO;
    LAST: mov.u32 %r5, 0;
    GO: ld.shared.u32 %r6, [%r1]; ld.local.u32 %r7, [mine+4];
    setp.ne.u32 %p3, %r6, %r3; @%p3 trap; setp.ne.u32 %p3, %r7, %r3; @%p3 trap;
    bar.sync 0;
    add.u32 %r5, %r5, 1; st.volatile.global.u32 [%at], %r5;
    """
    with _guarded(bench):
        bench.good(body(1, text), flags, grid=(32,), block=(64,), shared=256)
    assert found.tolist() == [*range(32, 0, -1), 0]


def test_a_lock_with_backoff_that_groups_take_in_turn() -> None:
    bench = Bench(workers=2)
    a, memory = bench.array(np.zeros(2, np.uint32))
    text = """
    setp.ne.u32 %p3, %t, 0; @%p3 bra OUT;
    mov.u32 %r5, 8;
    AGAIN: atom.acquire.gpu.global.cas.b32 %r1, [%rd0], 0, 1;
    setp.eq.u32 %p1, %r1, 0; @%p1 bra TAKEN;
    nanosleep.u32 %r5; shl.b32 %r5, %r5, 1; min.u32 %r5, %r5, 256; bra AGAIN;
    TAKEN: ld.volatile.global.u32 %r2, [%rd0+4]; add.u32 %r2, %r2, 1;
    st.volatile.global.u32 [%rd0+4], %r2;
    membar.gl; atom.release.gpu.global.exch.b32 %r1, [%rd0], 0;
    OUT:
    """
    with _guarded(bench):
        bench.good(body(1, text), a, grid=(200,), block=(64,))
    assert memory.tolist() == [0, 200]


_BATCH = f"""
    {_G}
    shr.u32 %r1, %r10, 3; mul.wide.u32 %at, %r1, 4; add.s64 %at, %at, %rd0;
    bar.sync 0;
    setp.ne.u32 %p1, %t, 0; @%p1 bra MEET;
    atom.global.add.u32 %r2, [%at], 1;
    SPIN: ld.volatile.global.u32 %r2, [%at]; setp.lt.u32 %p2, %r2, 8; @%p2 bra SPIN;
    MEET: bar.sync 0;
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_more_groups_than_a_chip_holds_begin_as_others_end(workers: int) -> None:
    """Four multiprocessors hold eight groups of 1024 threads."""
    bench = Bench(workers=workers)
    counters, found = bench.array(np.zeros(3, np.uint32))
    with _guarded(bench):
        bench.good(body(1, _BATCH), counters, grid=(24,), block=(1024,))
    assert found.tolist() == [8, 8, 8]


@pytest.mark.parametrize("cause", ["threads", "shared", "registers"])
def test_groups_that_do_not_fit_beside_each_other_wait_for_ever(cause: str) -> None:
    """Eight groups are to meet, and four multiprocessors hold only four of them."""
    bench = Bench(workers=2)
    counters, found = bench.array(np.zeros(1, np.uint32))
    options = {
        "threads": ({}, (1024,), "sm_86"),  # 1,536 threads a multiprocessor
        "shared": ({"shared": 120 << 10}, (64,), "sm_90"),
        "registers": ({"registers": 255}, (256,), "sm_90"),
    }[cause]  # fmt: skip
    extra, block, target = options
    with _guarded(bench, 0.5):
        outcome = bench.launch(
            body(1, _BATCH), counters, grid=(8,), block=block, target=target, **extra
        )
    assert outcome.ending is SmEnding.ABORTED
    assert found[0] == 4


def test_warps_that_wait_in_a_ring() -> None:
    """Each warp waits for the one behind it, many times over."""
    bench = Bench()
    a, memory = bench.array(np.zeros(33, np.uint32))
    text = """
    shr.u32 %r1, %t, 5; mul.wide.u32 %at, %r1, 4; add.s64 %at, %at, %rd0;
    mov.u32 %r3, 1;
    ROUND: setp.eq.u32 %p4, %r1, 31; @%p4 bra GO;
    SPIN: ld.relaxed.gpu.global.u32 %r2, [%at+4]; setp.lt.u32 %p1, %r2, %r3; @%p1 bra SPIN;
    GO: st.relaxed.gpu.global.u32 [%at], %r3;
    add.u32 %r3, %r3, 1; setp.le.u32 %p2, %r3, 5; @%p2 bra ROUND;
    """
    with _guarded(bench):
        bench.good(body(1, text), a, block=(1024,))
    assert memory.tolist() == [5] * 32 + [0]


_ROLES = (
    """ld.volatile.global.u32 %r1, [%rd0+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra PLACE;
    st.volatile.global.u32 [%rd0+8], %r1;""",
    """ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p2, %r1, 0; @%p2 bra PLACE;
    st.volatile.global.u32 [%rd0+4], %r1;""",
    """and.b32 %r4, %r3, %t; setp.eq.u32 %p4, %r4, 7; @%p4 bra ODD;
    bra EVEN; ODD: add.u32 %r5, %r5, 1; EVEN:
    add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 3000; @%p2 bra PLACE;
    st.volatile.global.u32 [%rd0], %r3;""",
)


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_lanes_that_wait_at_several_places_for_each_other(order: tuple[int, int, int]) -> None:
    """One part waits for another, and that for the third, which has long to go."""
    bench = Bench()
    a, memory = bench.array(np.zeros(3, np.uint32))
    text = """mov.u32 %r3, 0;
    setp.lt.u32 %p1, %t, 10; @%p1 bra PLACE0; setp.lt.u32 %p1, %t, 20; @%p1 bra PLACE1;
    bra PLACE2;"""
    for place, role in enumerate(order):
        text += f"PLACE{place}: {_ROLES[role].replace('PLACE', f'PLACE{place}')} bra OUT;"
    with _guarded(bench):
        bench.good(body(1, text + "OUT:"), a)
    assert memory.tolist() == [3000] * 3


def test_a_wait_that_gives_up_sees_what_others_write_meanwhile() -> None:
    """A loop with a counter and a flag: the flag comes from a group that begins later."""
    bench = Bench()
    a, memory = bench.array(np.zeros(2, np.uint32))
    text = f"""
    {_G} setp.ne.u32 %p1, %r10, 0; @%p1 bra SECOND;
    mov.u32 %r3, 0;
    SPIN: ld.volatile.global.u32 %r1, [%rd0]; setp.ne.u32 %p2, %r1, 0; @%p2 bra SEEN;
    add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 1000000; @%p3 bra SPIN;
    SEEN: st.global.u32 [%rd0+4], %r1; bra OUT;
    SECOND: mov.u32 %r1, 9; st.volatile.global.u32 [%rd0], %r1;
    OUT:
    """
    with _guarded(bench):
        bench.good(body(1, text), a, grid=(2,))
    assert memory.tolist() == [9, 9]


def test_a_fault_of_a_group_that_runs_beside_others_names_it() -> None:
    bench = Bench()
    counter, _ = bench.array(np.zeros(1, np.uint32))
    done, _ = bench.array(np.zeros(6, np.uint32))
    text = _barrier() + "setp.eq.u32 %p5, %r10, 4; setp.gt.and.u32 %p5, %t, 37, %p5; @%p5 trap;"
    with _guarded(bench):
        outcome = bench.launch(body(2, text), counter, done, grid=(6,), block=(64,))
    assert outcome.ending is SmEnding.ILLEGAL_INSTRUCTION
    assert (outcome.group, outcome.warp) == ((4, 0, 0), 1)
    assert outcome.lane_mask == 0xFFFF_FFFF << 6 & 0xFFFF_FFFF


_BYTES = "mbarrier::complete_tx::bytes"
_TOLD = """bar.warp.sync 0xFFFFFFFF;
    @%p5 mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r34], 128;"""
_BY_RANK = {  # each lane sends four bytes to %r33, for the mbarrier object at %r34
    "cp.async.bulk": f"""@%p5 cp.async.bulk.shared::cluster.global.{_BYTES}
    [%r33], [%rd0], 128, [%r34];""",
    "st": f"st.shared::cluster.u32 [%r33], %t; {_TOLD}",
    "atom": f"atom.shared::cluster.add.u32 %r5, [%r33], %t; {_TOLD}",
    "st.async": f"st.async.weak.shared::cluster.{_BYTES}.u32 [%r33], %t, [%r34];",
    "red.async": f"red.async.relaxed.cluster.shared::cluster.{_BYTES}.add.u32 [%r33], %t, [%r34];",
}
# Groups alone send to themselves, which PTX does not define for the last two.
_SENT = [
    (kind, size)
    for kind in _BY_RANK
    for size in (None, 1, 2)
    if size == 2 or kind in ("cp.async.bulk", "st", "atom")
]


@pytest.mark.parametrize(("kind", "size"), _SENT)
def test_groups_behind_one_that_waited_have_their_memory(kind: str, size: int | None) -> None:
    """Four groups meet, so that the worker puts each of them aside; those that begin in their
    places reach shared memory by rank, and each waits at its own mbarrier object."""
    bench = Bench()
    source, _ = bench.array(np.arange(32, dtype=np.uint32))
    counters, met = bench.array(np.zeros(4, np.uint32))
    target, found = bench.array(np.zeros((16, 32), np.uint32))
    text = f"""
    {_G} setp.eq.u32 %p5, %t, 0; mov.u32 %r30, part; mov.u32 %r32, gate;
    shl.b32 %r31, %t, 2; add.u32 %r31, %r31, %r30;
    mov.u32 %r36, %cluster_ctarank; mov.u32 %r37, %cluster_nctarank;
    add.u32 %r36, %r36, 1; rem.u32 %r36, %r36, %r37;
    mapa.shared::cluster.u32 %r33, %r31, %r36; mapa.shared::cluster.u32 %r34, %r32, %r36;
    mov.u32 %r1, 0; st.shared.u32 [%r31], %r1;
    @%p5 mbarrier.init.shared::cta.b64 [%r32], 1;
    @%p5 fence.mbarrier_init.release.cluster; fence.proxy.async; bar.warp.sync 0xFFFFFFFF;
    @%p5 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r32], 128; bar.warp.sync 0xFFFFFFFF;
    {SYNC if size == 2 else ""}
    {_BY_RANK[kind]}
    LAND: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r32], 0;
    @!%p2 bra LAND;
    shr.u32 %r1, %r10, 2; mul.wide.u32 %at, %r1, 4; add.s64 %at, %at, %rd1;
    @%p5 red.global.add.u32 [%at], 1;
    SPIN: ld.volatile.global.u32 %r2, [%at]; setp.lt.u32 %p1, %r2, 4; @%p1 bra SPIN;
    ld.shared.u32 %r3, [%r31]; mad.lo.u32 %r4, %r10, 32, %t;
    mul.wide.u32 %at, %r4, 4; add.s64 %at, %at, %rd2; st.global.u32 [%at], %r3;
    """
    head = ".shared .align 128 .b8 part[128]; .shared .align 8 .b64 gate;"
    cluster = None if size is None else (size,)
    with _guarded(bench):
        bench.good(
            legal(body(3, text, head)), source, counters, target,
            grid=(16,), shared=256, cluster=cluster,
        )  # fmt: skip
    assert met.tolist() == [4] * 4
    assert found.tolist() == [[*range(32)]] * 16
