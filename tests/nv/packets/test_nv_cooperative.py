"""Cooperative launches: all groups run beside each other and meet through the grid's workspace."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.kernels import contract_object
from tests.support.nvidia.nv_machine import opened, powered
from ugpu import hcq
from ugpu.hcq.errors import BadArgument, NotSupported, PageFault
from ugpu.nv.device.device import NvDevice

# grid.sync() as cooperative_groups of CUDA 13 has it: the address from %envreg1 (upper half) and
# %envreg2, behind a word of its size a counter, whose highest bit turns when all groups have come.
PTX = """.version 8.7
.target {target}
.address_size 64
.visible .entry meet(.param .u64 places, .param .u32 rounds)
{{
  .reg .b32 %r<20>; .reg .b64 %rd<8>; .reg .pred %p<4>;
  ld.param.u64 %rd1, [places]; ld.param.u32 %r1, [rounds];
  mov.u32 %r2, %envreg1; mov.u32 %r3, %envreg2; mov.b64 %rd2, {{%r3, %r2}};
  mov.u32 %r4, %ctaid.x; mov.u32 %r5, %nctaid.x; mov.u32 %r6, %tid.x; mov.u32 %r7, 0;
  mul.wide.u32 %rd3, %r4, 4; add.s64 %rd3, %rd1, %rd3;
ROUND:
  setp.ne.u32 %p1, %r6, 0; @%p1 bra MET;
  add.u32 %r8, %r7, 1; st.global.u32 [%rd3], %r8;
  mov.u32 %r9, 1; setp.ne.u32 %p2, %r4, 0; @%p2 bra ARRIVE; sub.u32 %r9, 0x80000001, %r5;
ARRIVE: atom.add.release.gpu.u32 %r10, [%rd2+4], %r9;
WAIT: ld.acquire.gpu.u32 %r11, [%rd2+4]; xor.b32 %r12, %r11, %r10; setp.ge.s32 %p3, %r12, 0;
  @%p3 bra WAIT;
MET: bar.sync 0;
  add.u32 %r13, %r4, 1; rem.u32 %r13, %r13, %r5; mul.wide.u32 %rd4, %r13, 4;
  add.s64 %rd4, %rd1, %rd4; ld.volatile.global.u32 %r14, [%rd4];
  add.u32 %r7, %r7, 1; setp.lt.u32 %p2, %r14, %r7; @%p2 trap;
  setp.lt.u32 %p2, %r7, %r1; @%p2 bra ROUND;
  ret;
}}
"""


@pytest.fixture(scope="module", params=("ga102", "gh100", "gb202"))
def gpu(request: pytest.FixtureRequest) -> Iterator[NvDevice]:
    with powered(request.param) as machine, opened(machine) as device:
        yield device


def test_groups_meet_at_the_grid(gpu: NvDevice) -> None:
    """Two launches in a row, and each a second time: the counter is right for each."""
    groups = 60
    text = PTX.format(target=gpu.target.name.rstrip("a"))
    with gpu.load(text.encode()) as program, gpu.alloc(4 * groups) as places:
        for _ in range(2):
            queue = gpu.queue()
            for _ in range(2):
                queue.fill(places, 0).barrier()
                queue.launch(program["meet"], grid=(groups,), block=(64,),
                             args=(places, np.uint32(3)), cooperative=True).barrier()  # fmt: skip
            queue.submit()
            gpu.synchronize()
            assert places.numpy(np.uint32).tolist() == [3] * groups


def test_more_groups_than_the_chip_holds_are_refused(gpu: NvDevice) -> None:
    text = PTX.format(target=gpu.target.name.rstrip("a"))
    with gpu.load(text.encode()) as program, gpu.alloc(64) as places:
        with pytest.raises(BadArgument, match="the GPU holds") as told:
            gpu.queue().launch(program["meet"], grid=(1 << 16,), block=(1024,),
                               args=(places, np.uint32(1)), cooperative=True).submit()  # fmt: skip
        assert told.value.facts["groups"] == 1 << 16


def test_without_a_cooperative_launch_there_is_no_workspace() -> None:
    with powered() as machine, opened(machine) as device:
        text = PTX.format(target="sm_90")
        with device.load(text.encode()) as program, device.alloc(64) as places:
            queue = device.queue()
            queue.launch(program["meet"], grid=(1,), block=(32,), args=(places, np.uint32(1)))
            queue.submit()
            with pytest.raises(PageFault):
                device.synchronize()


def test_other_targets_have_none() -> None:
    with (
        hcq.open("cpu") as device,
        device.load(contract_object(device.target)) as program,
        device.alloc(64) as places,
        pytest.raises(NotSupported, match="cooperative"),
    ):
        device.queue().launch(
            program["spin"], grid=(1,), block=(1,), args=(places,), cooperative=True
        )
