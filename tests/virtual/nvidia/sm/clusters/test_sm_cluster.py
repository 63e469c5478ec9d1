"""Clusters: groups that run together, their barrier, and each other's shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_clusters import SYNC, legal
from tests.support.nvidia.sm.sm_run import Bench, body
from tests.support.waiting import when
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm_contract import SmEnding, SmOutcome

HEAD = ".shared .align 16 .b8 part[256];"
# %near: the address of word %t of `part`; %out: of word %t of the group's row in memory.
PLACES = """
.reg .b32 %rank, %size, %near, %far, %group, %other; .reg .b64 %out;
mov.u32 %rank, %cluster_ctarank; mov.u32 %size, %cluster_nctarank;
mov.u32 %near, part; shl.b32 %r60, %t, 2; add.u32 %near, %near, %r60;
mov.u32 %r60, %ctaid.y; mov.u32 %r61, %nctaid.x; mov.u32 %r62, %ctaid.x;
mad.lo.u32 %group, %r60, %r61, %r62; mad.lo.u32 %r60, %group, 32, %t;
mul.wide.u32 %out, %r60, 4; add.s64 %out, %out, %rd0;
"""


def launch(text: str, *arguments: Any, bench: Bench | None = None, **options: Any) -> SmOutcome:
    """Run a kernel of one group of 32 or more threads a member, with 256 bytes each."""
    bench = bench or Bench()
    options.setdefault("shared", 256)
    options.setdefault("cluster", (2,))
    options.setdefault("grid", options["cluster"])
    return bench.launch(legal(body(1, PLACES + text, HEAD)), *arguments, **options)


def rows(text: str, groups: int, **options: Any) -> np.ndarray:
    """Run a kernel that writes a row of 32 numbers a group; return them."""
    bench = Bench(workers=options.pop("workers", 1))
    address, out = bench.array(np.zeros((groups, 32), np.uint32))
    outcome = launch(text, address, bench=bench, **options)
    assert outcome.ending is SmEnding.DONE, outcome
    return out


def test_a_group_finds_itself_alone_in_its_cluster() -> None:
    text = """
    mov.u32 %r1, %cluster_nctarank; mov.u32 %r2, %cluster_ctarank; mov.u32 %r3, %clusterid.x;
    shl.b32 %r4, %t, 2; mov.u32 %r5, part; add.u32 %r5, %r5, %r4;
    mapa.shared::cluster.u32 %r6, %r5, %r2;
    st.shared::cluster.u32 [%r6], %t;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    mov.u32 %r7, part; sub.u32 %r8, 63, %t; shl.b32 %r8, %r8, 2; add.u32 %r7, %r7, %r8;
    ld.shared::cta.u32 %r9, [%r7];
    mad.lo.u32 %r9, %r1, 1000, %r9; add.u32 %r9, %r9, %r2; mad.lo.u32 %r10, %r3, 64, %t;
    mul.wide.u32 %at, %r10, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r9;
    """
    bench = Bench()
    address, out = bench.array(np.zeros((3, 64), np.uint32))
    bench.good(legal(body(1, text, HEAD)), address, grid=(3,), block=(64,), shared=256)
    assert (out == 1000 + np.arange(63, -1, -1)).all()


REGISTERS = ("clusterid.x", "clusterid.y", "clusterid.z", "nclusterid.x", "nclusterid.y",
             "nclusterid.z", "cluster_ctaid.x", "cluster_ctaid.y", "cluster_ctaid.z",
             "cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z", "cluster_ctarank",
             "cluster_nctarank")  # fmt: skip


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1), (2, 3, 1), (1, 2, 2), (2, 2, 4)])
@pytest.mark.parametrize("workers", [1, 3])
def test_where_groups_lie(cluster: tuple[int, int, int], workers: int) -> None:
    reads = "\n".join(
        f"mov.u32 %r{n}, %{name}; st.global.u32 [%at+{4 * n}], %r{n};"
        for n, name in enumerate(REGISTERS)
    )
    text = f"""
    mov.u32 %r40, %ctaid.x; mov.u32 %r41, %ctaid.y; mov.u32 %r42, %ctaid.z;
    mov.u32 %r43, %nctaid.x; mov.u32 %r44, %nctaid.y;
    mad.lo.u32 %r45, %r42, %r44, %r41; mad.lo.u32 %r45, %r45, %r43, %r40;
    mul.wide.u32 %at, %r45, 64; add.s64 %at, %at, %rd0;
    {reads}
    mov.pred %p1, %is_explicit_cluster; selp.u32 %r50, 1, 0, %p1; st.global.u32 [%at+56], %r50;
    """
    grid = (4, 6, 4)
    bench = Bench(workers=workers)
    address, out = bench.array(np.zeros((4, 6, 4, 16), np.uint32))
    bench.good(legal(body(1, text)), address, grid=grid, cluster=cluster, block=(1,))
    for z, y, x in np.ndindex(4, 6, 4):
        group = (x, y, z)
        ids = [g // c for g, c in zip(group, cluster, strict=True)]
        counts = [g // c for g, c in zip(grid, cluster, strict=True)]
        own = [g % c for g, c in zip(group, cluster, strict=True)]
        rank = own[0] + cluster[0] * (own[1] + cluster[1] * own[2])
        wanted = [*ids, *counts, *own, *cluster, rank, int(np.prod(cluster)), 1]
        assert list(out[z, y, x, :15]) == wanted, group


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_groups_read_and_write_each_others_memory(size: int) -> None:
    """Each writes to the next group's memory, and then reads from the one before it."""
    out = rows(f"""
    mad.lo.u32 %r1, %group, 100, %t; {SYNC}
    add.u32 %other, %rank, 1; rem.u32 %other, %other, %size;
    mapa.shared::cluster.u32 %far, %near, %other; st.shared::cluster.u32 [%far], %r1; {SYNC}
    ld.shared.u32 %r2, [%near];
    add.u32 %other, %rank, %size; sub.u32 %other, %other, 1; rem.u32 %other, %other, %size;
    mapa.shared::cluster.u32 %far, %near, %other; ld.shared::cluster.u32 %r3, [%far];
    mad.lo.u32 %r2, %r3, 10000, %r2; st.global.u32 [%out], %r2; {SYNC}
    """, 2 * size, cluster=(size,), grid=(2 * size,))  # fmt: skip
    group = np.arange(2 * size)[:, None]
    base, rank, lane = group // size * size, group % size, np.arange(32)

    def written(by: np.ndarray) -> np.ndarray:
        return np.add((base + (by - 1) % size) * 100, lane)

    assert np.array_equal(out, written(rank) + written((rank - 1) % size) * 10000)


def test_generic_addresses_reach_the_cluster() -> None:
    out = rows(f"""
    .reg .b64 %generic, %there; .reg .pred %q<8>;
    {SYNC} cvt.u64.u32 %generic, %near; cvta.shared.u64 %generic, %generic;
    xor.b32 %other, %rank, 1; mapa.u64 %there, %generic, %other;
    add.u32 %r1, %group, 7; st.u32 [%there], %r1; {SYNC} ld.u32 %r2, [%generic];
    getctarank.u64 %r3, %there; getctarank.u64 %r4, %generic;
    getctarank.shared::cluster.u32 %r5, %near;
    mad.lo.u32 %r2, %r3, 10, %r2; mad.lo.u32 %r2, %r4, 100, %r2; mad.lo.u32 %r2, %r5, 1000, %r2;
    isspacep.shared::cta %q1, %there; isspacep.shared::cluster %q2, %there;
    isspacep.global %q3, %there; isspacep.shared %q4, %generic;
    @%q1 add.u32 %r2, %r2, 10000; @%q2 add.u32 %r2, %r2, 20000; @%q3 add.u32 %r2, %r2, 40000;
    @%q4 add.u32 %r2, %r2, 80000;
    st.global.u32 [%out], %r2; {SYNC}
    """, 2)  # fmt: skip
    # The other's rank once, its own twice; in the cluster's memory and not in the group's.
    for rank in range(2):
        wanted = 7 + (1 - rank) + 10 * (1 - rank) + 1100 * rank + 20000 + 80000
        assert (out[rank] == wanted).all()


def test_the_own_memory_by_its_rank() -> None:
    """What mapa makes of the own rank is an address of the group's own memory too."""
    out = rows(f"""
    mapa.shared::cluster.u32 %far, %near, %rank; st.shared::cta.u32 [%far], %t;
    atom.shared.add.u32 %r1, [%far], 5; bar.sync 0; ld.shared.u32 %r2, [%near];
    shl.b32 %r2, %r2, 1; st.global.u32 [%out], %r2; {SYNC}
    """, 2)  # fmt: skip
    assert (out == 2 * (np.arange(32) + 5)).all()


def test_atomics_on_another_groups_memory() -> None:
    out = rows(f"""
    st.shared.u32 [%near], 0; {SYNC}
    mov.u32 %r1, part; mov.u32 %r2, 0; mapa.shared::cluster.u32 %far, %r1, %r2;
    red.relaxed.cluster.shared::cluster.add.u32 [%far], 1;
    atom.shared::cluster.cluster.max.u32 %r3, [%far+4], %group;
    {SYNC} mapa.shared::cluster.u32 %far, %near, %r2;
    ld.shared::cluster.u32 %r4, [%far]; st.global.u32 [%out], %r4; {SYNC}
    """, 8, cluster=(4,), grid=(8,))  # fmt: skip
    assert (out[:, 0] == 128).all()
    assert list(out[:, 1]) == [3] * 4 + [7] * 4


def test_vectors_and_bytes_in_the_cluster() -> None:
    out = rows(f"""
    xor.b32 %other, %rank, 1; {SYNC} setp.lt.u32 %p1, %t, 8; mov.u32 %r10, part;
    shl.b32 %r11, %t, 4; and.b32 %r11, %r11, 127; add.u32 %r10, %r10, %r11;
    mapa.shared::cluster.u32 %far, %r10, %other; add.u32 %r1, %t, 1; add.u32 %r2, %t, 2;
    @%p1 st.shared::cluster.v4.b32 [%far], {{%t, %r1, %r2, %group}}; {SYNC}
    mapa.shared::cluster.u32 %far, %near, %other; ld.shared::cluster.u8 %r4, [%far];
    st.global.u32 [%out], %r4; {SYNC}
    """, 2)  # fmt: skip
    lane = np.arange(32)
    wanted = np.where(lane % 4 < 3, lane // 4 + lane % 4, 0)
    for rank in range(2):
        assert np.array_equal(out[rank], np.where(lane % 4 == 3, rank, wanted))


def test_phases_of_the_barrier() -> None:
    """Arriving and waiting apart, often, with work between them, and warps at their own pace."""
    out = rows("""
    .reg .b32 %i, %sum; mov.u32 %i, 0; mov.u32 %sum, 0; and.b32 %r9, %t, 31; mov.u32 %r10, part;
    shl.b32 %r11, %t, 2; add.u32 %r10, %r10, %r11;
    barrier.cluster.arrive.relaxed; barrier.cluster.wait;
    NEXT: xor.b32 %other, %rank, 1; mapa.shared::cluster.u32 %far, %r10, %other;
    st.shared::cluster.u32 [%far], %i;
    barrier.cluster.arrive.release; mad.lo.u32 %sum, %sum, 1, 0; barrier.cluster.wait.acquire;
    ld.shared.u32 %r1, [%r10]; add.u32 %sum, %sum, %r1;
    barrier.cluster.arrive; barrier.cluster.wait;
    add.u32 %i, %i, 1; setp.lt.u32 %p1, %i, 20; @%p1 bra NEXT;
    setp.ge.u32 %p2, %t, 32; @%p2 bra END; st.global.u32 [%out], %sum; END:
    """, 2, block=(64,))  # fmt: skip
    assert (out == 190).all()


@settings(max_examples=10, deadline=None)
@given(size=st.integers(1, 6), warps=st.integers(1, 3), phases=st.integers(1, 6),
       haste=st.sampled_from([0, 30, 500]))  # fmt: skip
def test_no_warp_is_ahead_of_a_phase(size: int, warps: int, phases: int, haste: int) -> None:
    """Warps take their time, each another, and let others run meanwhile (after 2,048 rounds);
    between two phases each reads what all groups wrote before, and nobody writes on."""
    threads = 32 * warps
    text = f"""
    .reg .b32 %i, %sum, %g, %delay; mov.u32 %i, 0; mov.u32 %sum, 0; shr.u32 %r9, %t, 5;
    barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;
    NEXT: mad.lo.u32 %delay, %r9, 7, %rank; mad.lo.u32 %delay, %delay, {haste}, %i;
    SLOW: setp.eq.u32 %p1, %delay, 0; @%p1 bra GO; sub.u32 %delay, %delay, 1;
    ld.volatile.shared.u32 %r1, [%near]; bra SLOW;
    GO: mad.lo.u32 %r2, %i, 1000, %rank; st.shared.u32 [%near], %r2; mov.u32 %g, 0;
    barrier.cluster.arrive.release.aligned; mad.lo.u32 %r3, %sum, 1, 0;
    barrier.cluster.wait.acquire.aligned;
    SUM: mapa.shared::cluster.u32 %far, %near, %g; ld.shared::cluster.u32 %r4, [%far];
    add.u32 %sum, %sum, %r4; add.u32 %g, %g, 1; setp.lt.u32 %p2, %g, %size; @%p2 bra SUM;
    barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
    add.u32 %i, %i, 1; setp.lt.u32 %p3, %i, {phases}; @%p3 bra NEXT;
    mul.wide.u32 %rd9, %group, {4 * threads}; mul.wide.u32 %rd8, %t, 4; add.s64 %rd9, %rd9, %rd8;
    add.s64 %rd9, %rd9, %rd0; st.global.u32 [%rd9], %sum;
    """
    bench = Bench()
    address, out = bench.array(np.zeros((2 * size, threads), np.uint32))
    outcome = launch(text, address, bench=bench, cluster=(size,), grid=(2 * size,),
                     block=(threads,), shared=512)  # fmt: skip
    assert outcome.ending is SmEnding.DONE, outcome
    wanted = sum(phase * 1000 + rank for phase in range(phases) for rank in range(size))
    assert (out == wanted).all()


def test_a_late_group_is_waited_for() -> None:
    """Group 1 lets the others run ten times before it writes and arrives."""
    out = rows(f"""
    setp.ne.u32 %p1, %rank, 1; @%p1 bra MEET; mov.u32 %r1, 0;
    SLOW: ld.volatile.shared.u32 %r2, [%near]; add.u32 %r1, %r1, 1;
    setp.lt.u32 %p2, %r1, 20480; @%p2 bra SLOW;
    MEET: add.u32 %r3, %rank, 40; st.shared.u32 [%near], %r3; {SYNC}
    mapa.shared::cluster.u32 %far, %near, 1; ld.shared::cluster.u32 %r4, [%far];
    st.global.u32 [%out], %r4; {SYNC}
    """, 3, cluster=(3,))  # fmt: skip
    assert (out == 41).all()


def test_lanes_that_part_meet_at_the_barrier() -> None:
    out = rows(f"""
    st.shared.u32 [%near], %t; setp.lt.u32 %p1, %t, 10; @%p1 bra FEW;
    add.u32 %r1, %t, 1000; st.shared.u32 [%near], %r1;
    barrier.cluster.arrive.release; barrier.cluster.wait.acquire; bra JOIN;
    FEW: barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
    JOIN: xor.b32 %other, %rank, 1; mapa.shared::cluster.u32 %far, %near, %other;
    ld.shared::cluster.u32 %r2, [%far]; st.global.u32 [%out], %r2; {SYNC}
    """, 2)  # fmt: skip
    lane = np.arange(32)
    assert (out == np.where(lane < 10, lane, lane + 1000)).all()


def test_ended_threads_are_not_waited_for() -> None:
    out = rows("""
    setp.eq.u32 %p1, %rank, 1; @%p1 bra END;
    st.shared.u32 [%near], 5; barrier.cluster.arrive; barrier.cluster.wait;
    ld.shared.u32 %r1, [%near]; st.global.u32 [%out], %r1; END:
    """, 2)  # fmt: skip
    assert (out[0] == 5).all()
    assert not out[1].any()


def test_groups_that_wait_for_each_other_without_a_barrier() -> None:
    """A flag goes round the cluster: all of its groups make progress, whatever waits."""
    out = rows(f"""
    st.shared.u32 [%near], 0; {SYNC}
    setp.ne.u32 %p1, %t, 0; @%p1 bra DONE; mov.u32 %r1, part;
    add.u32 %other, %rank, 1; rem.u32 %other, %other, %size;
    mapa.shared::cluster.u32 %far, %r1, %other;
    setp.eq.u32 %p2, %rank, 0; @%p2 bra SEND;
    WAIT: ld.volatile.shared.u32 %r2, [%r1]; setp.eq.u32 %p3, %r2, 0; @%p3 bra WAIT;
    SEND: add.u32 %r3, %rank, 1; st.release.cluster.shared::cluster.u32 [%far], %r3;
    DONE: {SYNC} ld.shared.u32 %r4, [%near]; st.global.u32 [%out], %r4;
    """, 5, cluster=(5,))  # fmt: skip
    assert list(out[:, 0]) == [5, 1, 2, 3, 4]


# -- what is wrong -------------------------------------------------------------------------------


def test_there_is_no_other_group() -> None:
    bench = Bench()
    text = "mov.u32 %r1, part; mapa.shared::cluster.u32 %r2, %r1, 1;"
    outcome = bench.launch(body(1, text, HEAD), 0, shared=256)
    assert outcome.ending is SmEnding.ILLEGAL_ADDRESS
    assert "in no group of the cluster" in outcome.detail


WRONG = {
    "a rank beyond": (
        f"{SYNC} mapa.shared::cluster.u32 %far, %near, 1; add.u32 %far, %far, 0x1000000;"
        "ld.shared::cluster.u32 %r1, [%far];",
        SmEnding.ILLEGAL_ADDRESS, "0x3000000 is in no group of the cluster",
    ),
    "beyond a group": (
        f"{SYNC} mapa.shared::cluster.u32 %far, %near, 1; ld.shared::cluster.u32 %r1, [%far+132];",
        SmEnding.ILLEGAL_ADDRESS, "0x2000100 is out of range",
    ),
    "beyond a group, generic": (
        f"{SYNC} .reg .b64 %g; cvt.u64.u32 %g, %near; cvta.shared.u64 %g, %g; mapa.u64 %g, %g, 1;"
        "st.u32 [%g+132], %t;",
        SmEnding.ILLEGAL_ADDRESS, "0x2000100 is out of range",
    ),
    "misaligned": (
        f"{SYNC} mapa.shared::cluster.u32 %far, %near, 1; ld.shared::cluster.u64 %rd9, [%far];",
        SmEnding.MISALIGNED_ADDRESS, "misaligned",
    ),
    "another's memory as the own": (
        f"{SYNC} xor.b32 %other, %rank, 1; mapa.shared::cluster.u32 %far, %near, %other;"
        "ld.shared::cta.u32 %r1, [%far];",
        SmEnding.ILLEGAL_ADDRESS, "out of range",
    ),
    "a group that has not begun": (
        "mapa.shared::cluster.u32 %far, %near, 1; st.shared::cluster.u32 [%far], %t;",
        SmEnding.ILLEGAL_ADDRESS, "in a group that has not begun",
    ),
    "a group that has ended": (
        "barrier.cluster.arrive; barrier.cluster.wait; setp.eq.u32 %p1, %rank, 1; @%p1 bra END;"
        "mov.u32 %r1, 0; SPIN: ld.volatile.shared.u32 %r2, [%near]; add.u32 %r1, %r1, 1;"
        "setp.lt.u32 %p2, %r1, 5000; @%p2 bra SPIN;"
        "mapa.shared::cluster.u32 %far, %near, 1; ld.shared::cluster.u32 %r1, [%far]; END:",
        SmEnding.ILLEGAL_ADDRESS, "in a group that has ended",
    ),
    "arriving twice": (
        "barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;",
        SmEnding.ILLEGAL_INSTRUCTION, "arrived, and not waited since",
    ),
    "waiting without arriving": (
        "barrier.cluster.wait;", SmEnding.ILLEGAL_INSTRUCTION, "waits without having arrived",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors_have_names(name: str) -> None:
    text, ending, detail = WRONG[name]
    outcome = launch(text, 0)
    assert outcome.ending is ending, outcome
    assert detail in outcome.detail


def test_the_faulting_group_is_named() -> None:
    outcome = launch("setp.ne.u32 %p1, %rank, 2; @%p1 bra END; trap; END:", 0, cluster=(1, 4),
                     grid=(3, 4), block=(64,))  # fmt: skip
    assert outcome.ending is SmEnding.ILLEGAL_INSTRUCTION
    assert outcome.group == (0, 2, 0)


LAUNCHES: dict[str, tuple[str, dict[str, Any], str]] = {
    "not required": (".reqnctapercluster 2", {"cluster": (4,), "grid": (4,)},
                     "clusters of 4x1x1 groups; k requires 2x1x1"),
    "none": (".reqnctapercluster 2", {"cluster": None, "grid": (4,)},
             "no clusters; k requires 2x1x1"),
    "not said": (".explicitcluster", {"cluster": None, "grid": (4,)}, "requires that the launch"),
    "rank": (".maxclusterrank 4", {"cluster": (8,), "grid": (8,)}, "at most 4"),
    "large": ("", {"cluster": (32,), "grid": (32,)}, "at most 16"),
    "grid": ("", {"cluster": (2,), "grid": (3,)}, "do not divide a grid of 3x1x1"),
    "depth": ("", {"cluster": (1, 1, 2), "grid": (4,)}, "do not divide"),
    "chip": ("", {"cluster": (2,), "grid": (2,), "target": "sm_89"}, "sm_89 has none"),
}  # fmt: skip


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_that_are_refused(name: str) -> None:
    directive, options, detail = LAUNCHES[name]
    text = body(1, "").replace(") {", f") {directive} {{", 1)
    outcome = Bench().launch(text, 0, **options)
    assert outcome.ending is SmEnding.BAD_LAUNCH
    assert detail in outcome.detail


def test_launches_that_are_what_the_kernel_requires() -> None:
    for directive, cluster in ((".reqnctapercluster 2, 1, 1", (2,)), (".explicitcluster", (4,)),
                               (".maxclusterrank 4", (4,)), (".maxclusterrank 4", None),
                               (".reqnctapercluster 1", None)):  # fmt: skip
        text = legal(body(1, "").replace(") {", f") {directive} {{", 1))
        Bench().good(text, 0, grid=(8,), cluster=cluster)
    with pytest.raises(NotSupported, match="counts its grid in clusters"):
        Bench().launch(body(1, "").replace(") {", ") .blocksareclusters {", 1), 0)


def test_a_barrier_that_never_opens_is_ended() -> None:
    """One group waits for a byte that never comes, the other at the barrier."""
    bench = Bench()
    address, view = bench.array(np.zeros(1, np.uint32))
    ending = when(lambda: view[0], bench.abort.set)
    outcome = launch("""
    st.volatile.global.u32 [%rd0], 1; setp.eq.u32 %p1, %rank, 0; @%p1 bra MEET;
    st.shared.u32 [%near], 0;
    FOREVER: ld.volatile.shared.u32 %r1, [%near]; setp.eq.u32 %p2, %r1, 0; @%p2 bra FOREVER;
    MEET: barrier.cluster.arrive; barrier.cluster.wait;
    """, address, bench=bench)  # fmt: skip
    ending.join()
    assert outcome.ending is SmEnding.ABORTED
    bench.abort.clear()
    assert launch(SYNC, 0, bench=bench).ending is SmEnding.DONE


def test_many_clusters_on_several_threads() -> None:
    """The same numbers whatever the number of workers."""
    text = f"""
    mad.lo.u32 %r1, %group, 3, %t; st.shared.u32 [%near], %r1; {SYNC}
    mov.u32 %r2, 0; mov.u32 %r3, 0;
    NEXT: mapa.shared::cluster.u32 %far, %near, %r2; ld.shared::cluster.u32 %r4, [%far];
    mad.lo.u32 %r3, %r3, 31, %r4; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %size; @%p1 bra NEXT;
    st.global.u32 [%out], %r3; {SYNC}
    """
    first = rows(text, 256, cluster=(4,), grid=(256,))
    values = (np.arange(256)[:, None] * 3 + np.arange(32)).astype(np.uint32).reshape(64, 4, 32)
    wanted = np.zeros((64, 32), np.uint32)
    for rank in range(4):
        wanted = wanted * np.uint32(31) + values[:, rank]
    assert np.array_equal(first, wanted.repeat(4, axis=0))
    assert np.array_equal(first, rows(text, 256, cluster=(4,), grid=(256,), workers=3))
