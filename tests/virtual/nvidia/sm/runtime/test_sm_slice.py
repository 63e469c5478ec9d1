"""Whole kernels: elementwise, loops, reductions through shared memory, early ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.nvidia.sm.sm_run import Bench, body, f32
from ugpu.virtual.nvidia.sm import multiprocessors
from ugpu.virtual.nvidia.sm_contract import SmEnding

ADD = """
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) {
.reg .pred %p; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %rd<8>;
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u32 %r1, [n];
mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
mad.lo.s32 %r5, %r2, %r3, %r4;
setp.ge.u32 %p, %r5, %r1;
@%p bra END;
mul.wide.u32 %rd4, %r5, 4;
add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd2, %rd4; add.s64 %rd7, %rd3, %rd4;
ld.global.f32 %f1, [%rd5]; ld.global.f32 %f2, [%rd6];
add.f32 %f3, %f1, %f2;
st.global.f32 [%rd7], %f3;
END: ret;
}
"""

SUM = """
.visible .entry k(.param .u64 a, .param .u64 out) {
.shared .align 4 .b8 part[1024];
.reg .pred %p<3>; .reg .b32 %r<12>; .reg .f32 %f<8>; .reg .b64 %rd<8>;
ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
shl.b32 %r3, %r2, 8; add.u32 %r3, %r3, %r1;
mul.wide.u32 %rd3, %r3, 4; add.s64 %rd3, %rd1, %rd3;
ld.global.f32 %f1, [%rd3];
mov.u32 %r4, part; shl.b32 %r5, %r1, 2; add.u32 %r6, %r4, %r5;
st.shared.f32 [%r6], %f1;
mov.u32 %r7, 128;
LOOP:
bar.sync 0;
setp.ge.u32 %p1, %r1, %r7;
@%p1 bra NEXT;
shl.b32 %r8, %r7, 2; add.u32 %r9, %r6, %r8;
ld.shared.f32 %f2, [%r9]; ld.shared.f32 %f3, [%r6];
add.f32 %f4, %f2, %f3; st.shared.f32 [%r6], %f4;
NEXT:
shr.u32 %r7, %r7, 1;
setp.ne.u32 %p2, %r7, 0;
@%p2 bra LOOP;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra END;
ld.shared.f32 %f5, [part];
mul.wide.u32 %rd4, %r2, 4; add.s64 %rd4, %rd2, %rd4;
st.global.f32 [%rd4], %f5;
END: ret;
}
"""


def test_addition_of_vectors_with_a_ragged_end() -> None:
    bench = Bench(workers=2)
    for n in (1, 31, 32, 1000, 4096):
        x, y = f32(n), f32(n, 1)
        a, b = bench.array(x)[0], bench.array(y)[0]
        c, out = bench.array(np.zeros(n + 8, np.float32))
        bench.good(ADD, a, b, c, np.uint32(n), grid=(-(-n // 256),), block=(256,))
        assert np.array_equal(out[:n], x + y)
        assert not out[n:].any()


def test_reduction_through_shared_memory_and_barriers() -> None:
    bench = Bench(workers=2)
    x = np.random.default_rng(3).integers(-100, 100, 256 * 20).astype(np.float32)
    a = bench.array(x)[0]
    b, out = bench.array(np.zeros(20, np.float32))
    bench.good(SUM, a, b, grid=(20,), block=(256,), shared=1024)
    assert np.array_equal(out, x.reshape(20, 256).sum(1))


def test_a_loop_whose_length_differs_by_lane() -> None:
    text = """
    mov.u32 %r1, 0; mov.u32 %r2, 0;
    AGAIN: setp.ge.u32 %p1, %r1, %t;
    @%p1 bra OUT;
    add.u32 %r2, %r2, %r1; add.u32 %r1, %r1, 1;
    bra AGAIN;
    OUT: mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r2;
    """
    bench = Bench()
    address, out = bench.array(np.zeros(64, np.uint32))
    bench.good(body(1, text), address, block=(64,))
    assert out.tolist() == [n * (n - 1) // 2 for n in range(64)]


def test_memory_that_is_not_mapped_is_a_fault_with_its_place() -> None:
    bench = Bench()
    text = "mul.wide.u32 %at, %t, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %t;"
    outcome = bench.launch(body(1, text), 0xDEAD0000)
    assert outcome.ending is SmEnding.MMU_FAULT
    assert "0xdead0000" in outcome.detail and "st.global.u32" in outcome.detail
    assert outcome.line == 11


def test_translated_kernels_are_kept_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones(512, np.float32)
    for round_ in range(2):
        bench = Bench()
        bench.units = multiprocessors.VirtualMultiprocessors(workers=1, cache=tmp_path)
        a = bench.array(x)[0]
        b, out = bench.array(np.zeros(2, np.float32))
        bench.good(SUM, a, b, grid=(2,), block=(256,), shared=1024)
        assert out.tolist() == [256, 256]
        bench.units.close()
        bench.units.close()
        if round_ == 0:  # from now on nothing may be translated
            monkeypatch.delattr(multiprocessors, "translate")


def test_threads_of_a_block_in_three_dimensions() -> None:
    text = """
    mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y;
    mad.lo.u32 %r5, %r2, %r4, %r1; mad.lo.u32 %r5, %r5, %r3, %t;
    mul.lo.u32 %r6, %r1, 100; mad.lo.u32 %r6, %r2, 10000, %r6; add.u32 %r6, %r6, %t;
    mul.wide.u32 %at, %r5, 4; add.s64 %at, %at, %rd0; st.global.u32 [%at], %r6;
    """
    for shape in ((32, 3, 2), (64, 2, 1), (7, 5, 3), (16, 16, 1), (1, 1, 33)):
        x, y, z = shape
        bench = Bench()
        address, out = bench.array(np.zeros(x * y * z, np.uint32))
        bench.good(body(1, text), address, block=shape)
        wanted = [i + 100 * j + 10000 * n for n in range(z) for j in range(y) for i in range(x)]
        assert out.tolist() == wanted
