"""Functions by their addresses, and stacks whose size no assembler knows, from load to launch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.nvidia.nv_machine import opened, powered
from ugpu.hcq.errors import UgpuError
from ugpu.nv.device.device import NvDevice

PTX = """.version 8.7
.target {target}
.address_size 64
.func (.param .b32 r) plus(.param .b32 a)
{{ .reg .b32 %x; ld.param.u32 %x, [a]; add.u32 %x, %x, 5; st.param.b32 [r], %x; ret; }}
.func (.param .b32 r) times(.param .b32 a)
{{ .reg .b32 %x; ld.param.u32 %x, [a]; mul.lo.u32 %x, %x, 5; st.param.b32 [r], %x; ret; }}
.func (.param .b32 r) sum(.param .b32 n)
{{ .reg .b32 %x<4>; .reg .pred %q; ld.param.u32 %x1, [n]; mov.u32 %x2, 0;
  setp.eq.u32 %q, %x1, 0; @%q bra DONE; sub.u32 %x3, %x1, 1;
  {{ .param .b32 p; .param .b32 s; st.param.b32 [p], %x3; call (s), sum, (p);
    ld.param.b32 %x2, [s]; }}
  DONE: add.u32 %x2, %x2, %x1; st.param.b32 [r], %x2; ret; }}
.global .align 8 .u64 moving[2] = {{times, plus}};
.const .align 8 .u64 fixed[2] = {{plus, times}};
.visible .entry choose(.param .u64 out, .param .u32 where)
{{
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [where];
  mov.u32 %r2, %tid.x; and.b32 %r3, %r2, 1; mul.wide.u32 %rd2, %r3, 8;
  mov.u64 %rd3, fixed; add.s64 %rd3, %rd3, %rd2; ld.const.u64 %rd4, [%rd3];
  setp.eq.u32 %p1, %r1, 0; @%p1 bra CALL;
  mov.u64 %rd3, moving; add.s64 %rd3, %rd3, %rd2; ld.global.u64 %rd4, [%rd3];
  setp.eq.u32 %p1, %r1, 1; @%p1 bra CALL;
  mov.u64 %rd4, plus; setp.eq.u32 %p1, %r3, 0; @%p1 bra CALL; mov.u64 %rd4, times;
CALL:
  {{ .param .b32 p; .param .b32 r; st.param.b32 [p], %r2;
    proto: .callprototype (.param .b32 _) _ (.param .b32 _); call (r), %rd4, (p), proto;
    ld.param.b32 %r4, [r]; }}
  mul.wide.u32 %rd2, %r2, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r4; ret;
}}
.visible .entry deep(.param .u64 out, .param .u32 depth)
{{
  .reg .b32 %r<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [depth]; mov.u32 %r2, %tid.x; add.u32 %r3, %r1, %r2;
  {{ .param .b32 p; .param .b32 r; st.param.b32 [p], %r3; call (r), sum, (p);
    ld.param.b32 %r4, [r]; }}
  mul.wide.u32 %rd2, %r2, 4; add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r4; ret;
}}
"""


@pytest.fixture(scope="module", params=("tu102", "gh100", "gb202"))
def gpu(request: pytest.FixtureRequest) -> Iterator[NvDevice]:
    with powered(request.param) as machine, opened(machine) as device:
        yield device


def _text(device: NvDevice) -> bytes:
    return PTX.format(target=device.target.name.rstrip("a")).encode()


@pytest.mark.parametrize("where", [0, 1, 2])
def test_functions_are_called_by_address(gpu: NvDevice, where: int) -> None:
    """From a table in .const, one in .global that the loader fills, and registers."""
    lanes = np.arange(32)
    plus = lanes % 2 == (1 if where == 1 else 0)
    with gpu.load(_text(gpu)) as program, gpu.alloc(128) as out:
        gpu.queue().launch(program["choose"], grid=(1,), block=(32,),
                           args=(out, np.uint32(where))).submit()  # fmt: skip
        gpu.synchronize()
        assert out.numpy(np.uint32).tolist() == np.where(plus, lanes + 5, lanes * 5).tolist()


def test_recursion_has_a_stack(gpu: NvDevice) -> None:
    with gpu.load(_text(gpu)) as program, gpu.alloc(128) as out:
        gpu.queue().launch(program["deep"], grid=(1,), block=(32,),
                           args=(out, np.uint32(3))).submit()  # fmt: skip
        gpu.synchronize()
        assert out.numpy(np.uint32).tolist() == [n * (n + 1) // 2 for n in range(3, 35)]


def test_a_stack_is_as_large_as_the_device_says() -> None:
    with powered() as machine, opened(machine) as device, device.alloc(128) as out:
        for size, good in ((1024, False), (128 << 10, True)):
            device.dynamic_stack = size
            with device.load(_text(device)) as program:
                arguments = (out, np.uint32(1000))
                device.queue().launch(program["deep"], grid=(1,), block=(32,),
                                      args=arguments).submit()  # fmt: skip
                if good:
                    device.synchronize()
                    assert out.numpy(np.uint32)[31] == 1031 * 1032 // 2
                else:
                    with pytest.raises(UgpuError, match="left its shared or local memory"):
                        device.synchronize()
                    device.reset()
