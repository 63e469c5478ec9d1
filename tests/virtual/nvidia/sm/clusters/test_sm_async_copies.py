"""Copies that arrive later: cp.async and its groups, copies in bulk, what waits for them.

References are written from the PTX ISA: "Non-bulk copy", "Bulk copy", "mbarrier", "Async proxy".
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_run import Bench, body
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.nvidia.sm_contract import SmEnding

SHARED = """.shared .align 128 .b8 part[4096];
.shared .align 8 .b64 gate; .shared .align 8 .b64 late;"""
ONE = "setp.ne.u32 %p15, %t, 0;"  # %p15: not the first thread


def out_word(register: str, offset: int) -> str:
    """Store a register of each thread."""
    return f"st.global.b32 [%at+{offset}], {register};"


AT = "mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd1;"


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([4, 8, 16]), st.integers(0, 20), st.integers(0, 2**32 - 1))
def test_lanes_copy_and_fill_with_zeros(size: int, keep: int, lanes: int) -> None:
    keep = min(keep, size)
    text = f"""
    mul.wide.u32 %rd3, %t, {size}; add.s64 %rd4, %rd0, %rd3;
    mov.u32 %r30, part; mad.lo.u32 %r1, %t, {size}, %r30;
    mov.u32 %r2, 0x5A5A5A5A; st.shared.u32 [%r1], %r2;
    mov.u32 %r3, {keep}; mov.u32 %r4, {lanes}; shr.u32 %r4, %r4, %t; and.b32 %r4, %r4, 1;
    setp.ne.u32 %p1, %r4, 0;
    @%p1 cp.async.ca.shared.global [%r1], [%rd4], {size}, %r3;
    cp.async.commit_group; cp.async.wait_group 0; bar.sync 0;
    {AT}
    """ + "\n".join(
        f"ld.shared.u32 %r5, [%r1+{n}]; mad.lo.u32 %r6, %t, {size - 4}, {n};"
        f"cvt.u64.u32 %rd5, %r6; add.s64 %rd6, %at, %rd5; st.global.u32 [%rd6], %r5;"
        for n in range(0, size, 4)
    )  # fmt: skip
    bench = Bench()
    data = np.random.default_rng(size).integers(0, 256, (32, size), np.uint8)
    source, _ = bench.array(data)
    target, out = bench.array(np.zeros((32, size), np.uint8))
    bench.good(body(2, text, SHARED), source, target, shared=8192)
    for lane in range(32):
        wanted = np.where(np.arange(size) < keep, data[lane], 0)
        if not lanes >> lane & 1:
            wanted = np.full(size, 0x5A, np.uint8)
            wanted[4:] = 0
            assert out[lane, :4].tolist() == [0x5A] * 4
            continue
        assert out[lane].tolist() == wanted.tolist()


def test_data_arrive_at_the_wait_and_not_before() -> None:
    text = f"""
    {AT} add.s64 %rd4, %rd0, 0; mul.wide.u32 %rd3, %t, 4; add.s64 %rd4, %rd0, %rd3;
    shl.b32 %r1, %t, 2; mov.u32 %r30, part; add.u32 %r1, %r1, %r30;
    mov.u32 %r2, 7; st.shared.u32 [%r1], %r2; st.shared.u32 [%r1+128], %r2;
    cp.async.ca.shared.global [%r1], [%rd4], 4; cp.async.commit_group;
    cp.async.ca.shared.global [%r1+128], [%rd4], 4; cp.async.commit_group;
    ld.shared.u32 %r3, [%r1];
    cp.async.wait_group 1;
    ld.shared.u32 %r4, [%r1]; ld.shared.u32 %r5, [%r1+128];
    cp.async.wait_all;
    ld.shared.u32 %r6, [%r1+128];
    {out_word("%r3", 0)} {out_word("%r4", 128)} {out_word("%r5", 256)} {out_word("%r6", 384)}
    """
    bench = Bench()
    data = np.arange(100, 132, dtype=np.uint32)
    source, _ = bench.array(data)
    target, out = bench.array(np.zeros((4, 32), np.uint32))
    bench.good(body(2, text, SHARED), source, target, shared=8192)
    assert (out[0] == 0xFFFFFFFF).all() and (out[2] == 0xFFFFFFFF).all()
    assert np.array_equal(out[1], data) and np.array_equal(out[3], data)


def test_groups_are_those_of_each_lane() -> None:
    """Odd lanes commit twice: waiting for all but one leaves them their second copy."""
    text = f"""
    {AT} mul.wide.u32 %rd3, %t, 4; add.s64 %rd4, %rd0, %rd3;
    shl.b32 %r1, %t, 2; mov.u32 %r30, part; add.u32 %r1, %r1, %r30;
    and.b32 %r2, %t, 1; setp.ne.u32 %p1, %r2, 0;
    cp.async.ca.shared.global [%r1], [%rd4], 4; @%p1 cp.async.commit_group;
    cp.async.ca.shared.global [%r1+128], [%rd4], 4; cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.u32 %r3, [%r1]; ld.shared.u32 %r4, [%r1+128];
    {out_word("%r3", 0)} {out_word("%r4", 128)}
    """
    bench = Bench()
    data = np.arange(100, 132, dtype=np.uint32)
    source, _ = bench.array(data)
    target, out = bench.array(np.zeros((2, 32), np.uint32))
    bench.good(body(2, text, SHARED), source, target, shared=8192)
    assert np.array_equal(out[0, 1::2], data[1::2])
    assert (out[0, ::2] == 0xFFFFFFFF).all() and (out[1] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("noinc", ["", ".noinc"])
def test_copies_arrive_at_an_mbarrier_object(noinc: str) -> None:
    """With .noinc the object expects the arrivals of all 64 threads, else only one of its own."""
    text = f"""
    {ONE} {AT} mul.wide.u32 %rd3, %t, 4; add.s64 %rd4, %rd0, %rd3;
    @!%p15 mbarrier.init.shared::cta.b64 [gate], {64 if noinc else 1};
    bar.sync 0;
    shl.b32 %r1, %t, 2; mov.u32 %r30, part; add.u32 %r1, %r1, %r30;
    cp.async.ca.shared.global [%r1], [%rd4], 4;
    cp.async.mbarrier.arrive{noinc}.shared.b64 [gate];
    bar.sync 0;
    ld.shared.u32 %r2, [%r1]; bar.sync 0;
    {"" if noinc else "@!%p15 mbarrier.arrive.shared.b64 %rd5, [gate];"}
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [gate], 0; @!%p1 bra WAIT;
    sub.u32 %r3, 63, %t; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r30; ld.shared.u32 %r4, [%r3];
    {out_word("%r2", 0)} {out_word("%r4", 256)}
    """
    bench = Bench()
    data = np.arange(64, dtype=np.uint32) + 5
    source, _ = bench.array(data)
    target, out = bench.array(np.zeros((2, 64), np.uint32))
    bench.good(body(2, text, SHARED), source, target, shared=8192, block=(64,))
    assert (out[0] == 0xFFFFFFFF).all()
    assert np.array_equal(out[1], data[::-1])


BULK = """
    {one} @%p15 bra READY;
    mbarrier.init.shared::cta.b64 [gate], 1; mbarrier.init.shared::cta.b64 [late], 1;
    {fence}
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd5, [gate], {size};
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [part], [%rd0+{skip}], {size}, [gate];
    READY: bar.sync 0;
    ld.shared.u32 %r2, [part];
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [gate], 0, 1000; @!%p1 bra WAIT;
"""


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 250), st.integers(0, 600))
def test_bulk_copies_come_in_when_their_phase_ends(parts: int, skip: int) -> None:
    size, skip = 16 * parts, 16 * skip
    text = (
        BULK.format(one=ONE, fence="fence.proxy.async.shared::cta;", size=size, skip=skip)
        + f"""
    shl.b32 %r1, %t, 2; mov.u32 %r7, part; {AT}
    {out_word("%r2", 4096)}
    LOOP: setp.ge.u32 %p2, %r1, {size}; @%p2 bra OUT;
    add.u32 %r4, %r1, %r7; ld.shared.u32 %r5, [%r4]; st.global.u32 [%at], %r5;
    add.u32 %r1, %r1, 128; add.s64 %at, %at, 128; bra LOOP; OUT:
    """
    )
    bench = Bench()
    data = np.random.default_rng(parts).integers(0, 256, 16384, np.uint8)
    source, _ = bench.array(data)
    target, out = bench.array(np.zeros(8192, np.uint8))
    bench.good(body(2, text, SHARED), source, target, shared=8192)
    assert np.array_equal(out[:size], data[skip : skip + size])
    assert not out[size:4096].any()
    assert (out[4096 : 4096 + 128] == 0xFF).all()


@pytest.mark.parametrize("wait", ["", ".read"])
def test_bulk_copies_go_out_by_their_groups(wait: str) -> None:
    text = f"""
    {ONE} {AT} shl.b32 %r1, %t, 2; mov.u32 %r30, part; add.u32 %r1, %r1, %r30; add.u32 %r2, %t, 50;
    st.shared.u32 [%r1], %r2; st.shared.u32 [%r1+128], %r2;
    fence.proxy.async; bar.sync 0; @%p15 bra OUT;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [part], 128; cp.async.bulk.commit_group;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1+128], [part+128], 64;
    cp.async.bulk.commit_group;
    ld.global.u32 %r3, [%rd1];
    cp.async.bulk.wait_group{wait} 1;
    ld.global.u32 %r4, [%rd1]; ld.global.u32 %r5, [%rd1+128];
    st.global.v2.u32 [%rd0], {{%r3, %r4}}; st.global.u32 [%rd0+8], %r5; OUT:
    """
    bench = Bench()
    seen, noted = bench.array(np.zeros(3, np.uint32))
    target, out = bench.array(np.zeros(80, np.uint32))
    bench.good(body(2, text, SHARED), seen, target, shared=8192)
    assert noted.tolist() == [0, 50, 0]
    assert out.tolist() == [*range(50, 82), *range(50, 66), *[0] * 32]


def test_a_buffer_written_again_before_its_copy_has_read_it() -> None:
    text = f"""
    {ONE} @%p15 bra OUT;
    mov.u32 %r1, 1; st.shared.v4.u32 [part], {{%r1, %r1, %r1, %r1}}; fence.proxy.async.shared::cta;
    cp.async.bulk.global.shared::cta.bulk_group [%rd0], [part], 16; cp.async.bulk.commit_group;
    mov.u32 %r1, 2; st.shared.v4.u32 [part], {{%r1, %r1, %r1, %r1}};
    cp.async.bulk.wait_group.read 0; OUT:
    """
    bench = Bench()
    target, out = bench.array(np.zeros(4, np.uint32))
    bench.good(body(1, text, SHARED), target, shared=8192)
    assert out.tolist() == [2, 2, 2, 2]


PIPE = """
    {one} {at}
    mov.u32 %r20, full; mov.u32 %r21, empty; mov.u32 %r22, part;
    @%p15 bra SET;
    mbarrier.init.shared::cta.b64 [%r20], 1; mbarrier.init.shared::cta.b64 [%r20+8], 1;
    mbarrier.init.shared::cta.b64 [%r21], 64; mbarrier.init.shared::cta.b64 [%r21+8], 64;
    fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;
    SET: bar.sync 0;
    mov.u32 %r1, 0; mov.u32 %r9, 0; mov.u64 %rd10, %rd0;
    setp.lt.u32 %p1, %t, 64; @%p1 bra CONSUME;
    setmaxnreg.dec.sync.aligned.u32 24;
    setp.ne.u32 %p2, %t, 64; @%p2 bra DONE;
    PRODUCE: and.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 1; and.b32 %r3, %r3, 1; xor.b32 %r3, %r3, 1;
    shl.b32 %r4, %r2, 3; add.u32 %r5, %r20, %r4; add.u32 %r6, %r21, %r4;
    FREE: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6], %r3; @!%p3 bra FREE;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 256;
    shl.b32 %r7, %r2, 8; add.u32 %r7, %r7, %r22;
    cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r7], [%rd10], 256, [{bar}];
    add.s64 %rd10, %rd10, 256; add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, 9; @%p4 bra PRODUCE;
    bra DONE;
    CONSUME: setmaxnreg.inc.sync.aligned.u32 240;
    NEXT: and.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 1; and.b32 %r3, %r3, 1;
    shl.b32 %r4, %r2, 3; add.u32 %r5, %r20, %r4; add.u32 %r6, %r21, %r4;
    HERE: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r5], %r3; @!%p3 bra HERE;
    shl.b32 %r7, %r2, 8; add.u32 %r7, %r7, %r22; shl.b32 %r8, %t, 2; add.u32 %r7, %r7, %r8;
    ld.shared.u32 %r8, [%r7]; add.u32 %r9, %r9, %r8;
    mbarrier.arrive.shared::cta.b64 _, [%r6];
    add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, 9; @%p4 bra NEXT;
    {out}
    DONE:
"""
PIPE_SHARED = """.shared .align 128 .b8 part[512];
.shared .align 8 .b8 full[16]; .shared .align 8 .b8 empty[16];"""


def pipeline(bar: str) -> tuple[np.ndarray, np.ndarray]:
    text = PIPE.format(one=ONE, at=AT, out=out_word("%r9", 0), bar=bar)
    bench = Bench()
    data = np.arange(9 * 64, dtype=np.uint32).reshape(9, 64) ** 2
    source, _ = bench.array(data)
    target, out = bench.array(np.zeros(64, np.uint32))
    outcome = bench.launch(body(2, text, PIPE_SHARED), source, target, shared=8192, block=(96,))
    assert outcome.ending is SmEnding.DONE, outcome
    return out, data.sum(0, dtype=np.uint32)


def test_a_warp_loads_what_others_use() -> None:
    out, wanted = pipeline("%r5")
    assert np.array_equal(out, wanted)


UNFENCED = {
    "no proxy fence after init": (
        BULK.format(one=ONE, fence="", size=64, skip=0), "fence.proxy.async", 64),
    "no proxy fence before a store": (
        f"{ONE} @%p15 bra OUT; st.shared.u32 [part+16], %t;"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [part], 32; OUT:",
        "fence.proxy.async", 1),
    "a fence of another warp alone": (
        "setp.ge.u32 %p1, %t, 32; @%p1 fence.proxy.async; st.shared.u32 [part], %t;"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [part], 32;",
        "fence.proxy.async", 64),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFENCED)
def test_a_missing_proxy_fence_is_a_violation(name: str) -> None:
    """Boards do not trap for it: the kernel goes on."""
    text, wanted, threads = UNFENCED[name]
    bench = Bench()
    source, _ = bench.array(np.arange(1024, dtype=np.uint32))
    target, _ = bench.array(np.zeros(1024, np.uint32))
    outcome = bench.launch(body(2, text, SHARED), source, target, shared=8192,
                           block=(max(threads, 32),))  # fmt: skip
    assert outcome.ending is SmEnding.DONE, outcome
    assert outcome.violations
    assert all(wanted in said and said.startswith("PTX line ") for said in outcome.violations)


FAULTS = {
    "an object that was never made": (
        f"{ONE} @%p15 bra OUT; fence.proxy.async;"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [part], [%rd0], 64, [gate]; OUT:", "holds no mbarrier object", 1),
    "a wait on an object that was taken down": (
        f"{ONE} @%p15 bra OUT; mbarrier.init.shared.b64 [gate], 1;"
        "mbarrier.inval.shared.b64 [gate]; mbarrier.arrive.shared.b64 %rd5, [gate]; OUT:",
        "holds no mbarrier object", 1),
    "more arrivals than expected": (
        f"{ONE} @%p15 bra OUT; mbarrier.init.shared.b64 [gate], 2;"
        "mbarrier.arrive.shared.b64 %rd5, [gate], 3; OUT:", "a count of 3", 1),
    "an object for nobody": (
        f"{ONE} @%p15 bra OUT; mov.u32 %r1, 0; mbarrier.init.shared.b64 [gate], %r1; OUT:",
        "a count of 0", 1),
    "a source that is not mapped": (
        BULK.format(one=ONE, fence="fence.proxy.async;", size=64, skip=1 << 30), "not mapped", 32),
    "a size of no 16 bytes": (
        f"{ONE} @%p15 bra OUT; mov.u32 %r1, 24; fence.proxy.async;"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [part], %r1; OUT:", "misaligned", 1),
    "beyond shared memory": (
        f"{ONE} @%p15 bra OUT; mov.u32 %r1, 8208;"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [part], %r1; OUT:",
        "out of range", 1),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_is_named(name: str) -> None:
    text, wanted, threads = FAULTS[name]
    bench = Bench()
    source, _ = bench.array(np.zeros(1024, np.uint32))
    target, _ = bench.array(np.zeros(1024, np.uint32))
    ptx = body(2, text, SHARED)
    outcome = bench.launch(ptx, source, target, shared=8192, block=(max(threads, 32),))
    assert outcome.ending is not SmEnding.DONE, name
    assert wanted in outcome.detail and outcome.line > 0


@pytest.mark.parametrize(("text", "line"), [
    ("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"
     " [part], [%rd0, {%r1}], [gate];", "several coordinates"),
    ("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
     " [part], [%rd0], [gate];", "tensor maps"),
    ("cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd0], [part], 16, %h1;",
     "cp_mask"),
])  # fmt: skip
def test_what_is_not_there_is_refused(text: str, line: str) -> None:
    with pytest.raises(NotSupported, match=line):
        Bench().launch(body(2, text, SHARED), 0, 0, shared=8192)
