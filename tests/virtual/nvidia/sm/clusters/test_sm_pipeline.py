"""A whole product as Hopper wants it: a warp loads by copies in bulk, two warp groups multiply."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import Bench, body
from tests.support.nvidia.wgmma_case import Lying
from ugpu.virtual.nvidia.sm_contract import SmEnding

# Slices of 64 of k: 128 rows of A and 64 columns of B, both K-major without swizzling, which copies
# in bulk can bring because the test packs them so in memory: [8 rows][16 bytes] in a row.
STAGES, SLICE_A, SLICE_B = 2, 128 * 128, 64 * 128
SLICE = SLICE_A + SLICE_B
A = Lying("none", False, 0, 128, 1024)
B = Lying("none", False, SLICE_A, 128, 1024)


def packed(matrix: np.ndarray) -> np.ndarray:
    """Rows of 64 numbers of k as core matrices: [slice][row / 8][k / 8][row % 8][k % 8]."""
    rows, depth = matrix.shape
    parts = matrix.astype(np.float16).reshape(rows // 8, 8, depth // 64, 8, 8)
    return np.ascontiguousarray(parts.transpose(2, 0, 3, 1, 4))


def kernel(slices: int, early: str = "", late: str = "") -> str:
    """early: what a group does before its products are done; late: behind them, before the next."""
    sums = "{" + ", ".join(f"%s{n}" for n in range(32)) + "}"
    multiply = ""
    for step in range(4):
        a, b = A.descriptor(A.step() * step), B.descriptor(B.step() * step)
        multiply += f"""
        mov.b64 %rd20, {a:#x}; add.s64 %rd20, %rd20, %rd12;
        mov.b64 %rd21, {b:#x}; add.s64 %rd21, %rd21, %rd11;
        wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {sums}, %rd20, %rd21, %p5, 1, 1, 0, 0;
        """
    clear = "\n".join(f"mov.f32 %s{n}, 0f00000000;" for n in range(32))
    store = "\n".join(f"st.global.f32 [%at+{1024 * n}], %s{n};" for n in range(32))
    return body(3, f"""
    .reg .f32 %s<32>; .shared .align 8 .b8 full[16]; .shared .align 8 .b8 empty[16];
    mov.u32 %r20, full; mov.u32 %r21, empty; mov.u32 %r22, part;
    setp.ne.u32 %p15, %t, 0; @%p15 bra SET;
    mbarrier.init.shared::cta.b64 [%r20], 1; mbarrier.init.shared::cta.b64 [%r20+8], 1;
    mbarrier.init.shared::cta.b64 [%r21], 2; mbarrier.init.shared::cta.b64 [%r21+8], 2;
    fence.proxy.async.shared::cta;
    SET: bar.sync 0;
    mov.u32 %r1, 0; mov.u64 %rd10, %rd0;
    shr.u32 %r10, %t, 7; setp.lt.u32 %p1, %r10, 2; @%p1 bra CONSUME;
    setmaxnreg.dec.sync.aligned.u32 24;
    setp.ne.u32 %p2, %t, 256; @%p2 bra DONE;
    PRODUCE: and.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 1; and.b32 %r3, %r3, 1; xor.b32 %r3, %r3, 1;
    shl.b32 %r4, %r2, 3; add.u32 %r5, %r20, %r4; add.u32 %r6, %r21, %r4;
    FREE: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6], %r3; @!%p3 bra FREE;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], {SLICE};
    mul.lo.u32 %r7, %r2, {SLICE}; add.u32 %r7, %r7, %r22;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd10], {SLICE_A},
        [%r5];
    add.u32 %r7, %r7, {SLICE_A};
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%rd1], {SLICE_B},
        [%r5];
    add.s64 %rd10, %rd10, {SLICE_A}; add.s64 %rd1, %rd1, {SLICE_B};
    add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, {slices}; @%p4 bra PRODUCE;
    bra DONE;
    CONSUME: setmaxnreg.inc.sync.aligned.u32 240;
    {clear} setp.eq.u32 %p5, %r1, 0;
    NEXT: and.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 1; and.b32 %r3, %r3, 1;
    shl.b32 %r4, %r2, 3; add.u32 %r5, %r20, %r4; add.u32 %r6, %r21, %r4;
    HERE: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r5], %r3; @!%p3 bra HERE;
    mul.lo.u32 %r7, %r2, {SLICE}; add.u32 %r7, %r7, %r22; shr.u32 %r8, %r7, 4;
    cvt.u64.u32 %rd11, %r8;
    mul.lo.u32 %r8, %r10, {SLICE_A // 2}; shr.u32 %r8, %r8, 4; cvt.u64.u32 %rd12, %r8;
    add.s64 %rd12, %rd12, %rd11;
    wgmma.fence.sync.aligned; {multiply} wgmma.commit_group.sync.aligned;
    {early} wgmma.wait_group.sync.aligned 0; {late}
    and.b32 %r9, %t, 127; setp.eq.u32 %p6, %r9, 0;
    @%p6 mbarrier.arrive.shared::cta.b64 _, [%r6];
    add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, {slices}; @%p4 bra NEXT;
    mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd2; {store}
    DONE:
    """, ".extern .shared .align 1024 .b8 part[];")  # fmt: skip


def run(text: str, slices: int) -> tuple[str, np.ndarray, np.ndarray]:
    random = np.random.default_rng(slices)
    a = random.integers(-4, 5, (128, 64 * slices))
    b = random.integers(-4, 5, (64, 64 * slices))
    bench = Bench()
    left, _ = bench.array(packed(a))
    right, _ = bench.array(packed(b))
    target, out = bench.array(np.zeros((32, 256), np.float32))
    outcome = bench.launch(text, left, right, target, block=(384,), target="sm_90a",
                           shared=STAGES * SLICE + 1024)  # fmt: skip
    found = np.zeros((128, 64))
    for n in range(32):
        thread = np.arange(256)
        row = thread // 128 * 64 + thread % 128 // 32 * 16 + thread % 32 // 4 + 8 * (n // 2 % 2)
        found[row, 8 * (n // 4) + thread % 4 * 2 + n % 2] = out[n]
    return outcome.detail if outcome.ending is not SmEnding.DONE else "", found, a @ b.T


@pytest.mark.parametrize("slices", [1, 2, 7])
def test_a_product_of_many_slices(slices: int) -> None:
    detail, found, wanted = run(kernel(slices), slices)
    assert not detail
    assert np.array_equal(found, wanted)


def test_a_slice_given_back_before_its_product_is_done_is_seen() -> None:
    """The producer's next copy then lies over what the product still has to read."""
    given = """and.b32 %r9, %t, 127; setp.eq.u32 %p6, %r9, 0;
    @%p6 mbarrier.arrive.shared::cta.b64 _, [%r6];
    mov.u32 %r30, 0; SPIN: ld.volatile.shared.u32 %r31, [%r7]; add.u32 %r30, %r30, 1;
    setp.lt.u32 %p7, %r30, 5000; @%p7 bra SPIN;"""
    text = kernel(7, early=given).replace(
        "@%p6 mbarrier.arrive.shared::cta.b64 _, [%r6];\n    add.u32", "add.u32")  # fmt: skip
    detail, found, wanted = run(text, 7)
    assert not detail
    assert not np.array_equal(found, wanted)


def test_asking_once_is_not_waiting() -> None:
    text = kernel(7).replace("%p3, [%r5], %r3; @!%p3 bra HERE;", "%p3, [%r5], %r3;")
    detail, found, wanted = run(text, 7)
    assert not detail
    assert not np.array_equal(found, wanted)
