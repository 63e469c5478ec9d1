"""mbarrier objects: phases, arrivals of some threads, expected bytes, hand-over between warps."""

from __future__ import annotations

import numpy as np

from tests.support.nvidia.sm.sm_run import Bench, body

HEAD = ".shared .align 8 .b64 gate; .shared .align 4 .b8 part[256];"


def test_a_phase_ends_with_the_last_arrival() -> None:
    text = """
    setp.ne.u32 %p1, %t, 0; @%p1 bra OUT;
    mbarrier.init.shared.b64 [gate], 3;
    mbarrier.arrive.shared.b64 %rd1, [gate];
    mbarrier.test_wait.shared.b64 %p2, [gate], %rd1; selp.u32 %r1, 1, 0, %p2;
    mbarrier.pending_count.b64 %r2, %rd1;
    mbarrier.arrive.shared.b64 %rd2, [gate], 2;
    mbarrier.test_wait.shared.b64 %p2, [gate], %rd1; selp.u32 %r3, 1, 0, %p2;
    mbarrier.test_wait.parity.shared.b64 %p2, [gate], 1; selp.u32 %r4, 1, 0, %p2;
    mbarrier.test_wait.parity.shared.b64 %p2, [gate], 0; selp.u32 %r5, 1, 0, %p2;
    mbarrier.arrive.shared.b64 %rd3, [gate], 2;
    mbarrier.expect_tx.relaxed.cta.shared.b64 [gate], 64;
    mbarrier.arrive.shared.b64 %rd3, [gate];
    mbarrier.test_wait.parity.shared.b64 %p2, [gate], 1; selp.u32 %r6, 1, 0, %p2;
    mbarrier.complete_tx.relaxed.cta.shared.b64 [gate], 64;
    mbarrier.test_wait.parity.shared.b64 %p2, [gate], 1; selp.u32 %r7, 1, 0, %p2;
    mbarrier.inval.shared.b64 [gate];
    st.global.v4.u32 [%rd0], {%r1, %r2, %r3, %r4};
    st.global.v2.u32 [%rd0+16], {%r5, %r6}; st.global.u32 [%rd0+24], %r7;
    OUT:
    """
    bench = Bench()
    address, out = bench.array(np.zeros(7, np.uint32))
    bench.good(body(1, text, HEAD), address, shared=512)
    assert out.tolist() == [0, 3, 1, 0, 1, 0, 1]


def test_warps_hand_over_by_phases() -> None:
    """A warp fills a buffer in each round; two others wait for the round and read it."""
    text = """
    mov.u32 %r9, 0; mov.u32 %r1, 0;
    setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [gate], 32;
    bar.sync 0;
    ROUND:
    setp.lt.u32 %p2, %t, 64; @%p2 bra WAIT;
    shl.b32 %r2, %t, 2; and.b32 %r2, %r2, 127; mov.u32 %r8, part; add.u32 %r2, %r2, %r8;
    mad.lo.u32 %r3, %r1, 100, %t; st.shared.u32 [%r2], %r3;
    mbarrier.arrive.shared.b64 _, [gate];
    bra NEXT;
    WAIT: and.b32 %r4, %r1, 1;
    AGAIN: mbarrier.try_wait.parity.shared.b64 %p3, [gate], %r4; @!%p3 bra AGAIN;
    shl.b32 %r2, %t, 2; and.b32 %r2, %r2, 127; mov.u32 %r8, part; add.u32 %r2, %r2, %r8;
    ld.shared.u32 %r5, [%r2]; add.u32 %r9, %r9, %r5;
    NEXT: bar.sync 0;
    add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, 5; @%p4 bra ROUND;
    mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r9;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(96, np.uint32))
    bench.good(body(1, text, HEAD), address, block=(96,), shared=512)
    wanted = [sum(100 * r + 64 + n % 32 for r in range(5)) for n in range(64)]
    assert out.tolist() == wanted + [0] * 32
