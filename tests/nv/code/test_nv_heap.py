"""malloc and free of kernels: blocks that do not overlap, stay, and are given out again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.nvidia.nv_machine import opened, powered
from ugpu.hcq.errors import IllegalInstruction
from ugpu.nv.code.heap import SIZE
from ugpu.nv.device.device import NvDevice

PTX = """.version 8.7
.target {target}
.address_size 64
.extern .func  (.param .b64 func_retval0) malloc
(
  .param .b64 malloc_param_0
)
;
.extern .func free ( .param .b64 free_param_0 );
.visible .entry take(.param .u64 out, .param .u32 size)
{{
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [size];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r4, %r2, %r3, %r4;
  and.b32 %r5, %r4, 31; add.u32 %r1, %r1, %r5; cvt.u64.u32 %rd2, %r1;
  {{ .param .b64 p; .param .b64 q; st.param.b64 [p], %rd2; call.uni (q), malloc, (p);
    ld.param.b64 %rd3, [q]; }}
  mul.wide.u32 %rd4, %r4, 8; add.s64 %rd1, %rd1, %rd4; st.global.u64 [%rd1], %rd3;
  setp.eq.u64 %p, %rd3, 0; @%p bra DONE;
  mov.u32 %r6, 0;
FILL: cvt.u64.u32 %rd5, %r6; add.s64 %rd5, %rd5, %rd3; st.u8 [%rd5], %r4;
  add.u32 %r6, %r6, 1; setp.lt.u32 %p, %r6, %r1; @%p bra FILL;
DONE: ret;
}}
.visible .entry give(.param .u64 out, .param .u32 size)
{{
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [size];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r4, %r2, %r3, %r4;
  and.b32 %r5, %r4, 31; add.u32 %r1, %r1, %r5; and.b32 %r7, %r4, 255;
  mul.wide.u32 %rd4, %r4, 8; add.s64 %rd1, %rd1, %rd4; ld.global.u64 %rd3, [%rd1];
  mov.u32 %r6, 0;
LOOK: cvt.u64.u32 %rd5, %r6; add.s64 %rd5, %rd5, %rd3; ld.u8 %r8, [%rd5];
  setp.ne.u32 %p, %r8, %r7; @%p trap;
  add.u32 %r6, %r6, 1; setp.lt.u32 %p, %r6, %r1; @%p bra LOOK;
  {{ .param .b64 p; st.param.b64 [p], %rd3; call.uni free, (p); }}
  ret;
}}
.visible .entry wrong(.param .u64 place)
{{
  .reg .b64 %rd<2>; ld.param.u64 %rd1, [place];
  {{ .param .b64 p; st.param.b64 [p], %rd1; call.uni free, (p); }}
  ret;
}}
"""
THREADS = 512


@pytest.fixture(scope="module", params=("tu102", "gh100", "gb202"))
def gpu(request: pytest.FixtureRequest) -> Iterator[NvDevice]:
    with powered(request.param) as machine, opened(machine) as device:
        yield device


def _text(device: NvDevice) -> bytes:
    return PTX.format(target=device.target.name.rstrip("a")).encode()


def test_blocks_are_given_back_and_out_again(gpu: NvDevice) -> None:
    """Thirty times what fits at once: the heap would run out if blocks were lost."""
    size, seen = 300, set()
    with gpu.load(_text(gpu)) as program, gpu.alloc(8 * THREADS) as out:
        for _ in range(30):
            for name in ("take", "give"):
                gpu.queue().launch(program[name], grid=(THREADS // 64,), block=(64,),
                                   args=(out, np.uint32(size))).submit()  # fmt: skip
                gpu.synchronize()
            places = np.sort(out.numpy(np.uint64)).astype(object)
            assert places[0] and all(place % 16 == 0 for place in places)
            assert (np.diff(places) >= size).all()
            seen |= set(places)
        assert len(seen) * 512 <= SIZE // 4


def test_a_heap_that_is_full_gives_null(gpu: NvDevice) -> None:
    with gpu.load(_text(gpu)) as program, gpu.alloc(8 * THREADS) as out:
        gpu.queue().launch(program["take"], grid=(1,), block=(32,),
                           args=(out, np.uint32(SIZE))).submit()  # fmt: skip
        gpu.synchronize()
        assert not out.numpy(np.uint64)[:32].any()


def test_what_was_not_allocated_cannot_be_freed() -> None:
    with (
        powered() as machine,
        opened(machine) as device,
        device.load(_text(device)) as program,
        device.alloc(64) as buffer,
    ):
        device.queue().launch(program["wrong"], grid=(1,), block=(1,), args=(buffer,)).submit()
        with pytest.raises(IllegalInstruction):
            device.synchronize()
        device.reset()
        null = (np.uint64(0),)
        device.queue().launch(program["wrong"], grid=(1,), block=(1,), args=null).submit()
        device.synchronize()
