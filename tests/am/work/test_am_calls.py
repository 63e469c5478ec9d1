"""Recursion and calls through pointers on the virtual Navi31: a stack whose limit is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.kernels import compile_ir
from ugpu import hcq
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import BadArgument, NotSupported, PageFault

TRIPLE = "amdgcn-amd-amdhsa"
# @sum recurses; @twice and @sum are called through a table. No attribute rules anything out, so
# the compiler requests the dispatch packet, the queue, the dispatch id and a dynamic stack.
TEXT = f"""
target triple = "{TRIPLE}"
define i32 @sum(i32 %n) noinline {{
  %z = icmp eq i32 %n, 0
  br i1 %z, label %none, label %more
none:
  ret i32 0
more:
  %m = sub i32 %n, 1
  %s = call i32 @sum(i32 %m)
  %r = add i32 %s, %n
  ret i32 %r
}}
define i32 @twice(i32 %n) noinline {{
  %r = mul i32 %n, 2
  ret i32 %r
}}
@table = internal addrspace(4) constant [2 x ptr] [ptr @sum, ptr @twice]
define amdgpu_kernel void @recurses(ptr addrspace(1) %out, i32 %more) #0 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %n = add i32 %i, %more
  %s = call i32 @sum(i32 %n)
  %a = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %s, ptr addrspace(1) %a
  ret void
}}
define amdgpu_kernel void @points(ptr addrspace(1) %out, i32 %more) #0 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %n = add i32 %i, %more
  %o = and i32 %i, 1
  %p = getelementptr [2 x ptr], ptr addrspace(4) @table, i32 0, i32 %o
  %f = load ptr, ptr addrspace(4) %p
  %s = call i32 %f(i32 %n)
  %a = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %s, ptr addrspace(1) %a
  ret void
}}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = {{ "amdgpu-flat-work-group-size"="1,64" }}
"""
LANES = np.arange(64, dtype=np.uint32)
WAVES = pytest.mark.parametrize("features", ["", "-wavefrontsize32,+wavefrontsize64"])


@pytest.fixture
def device() -> Iterator[AmDevice]:
    with hcq.open("virtual:navi31") as opened:
        assert isinstance(opened, AmDevice)
        yield opened


def image(features: str = "") -> bytes:
    return compile_ir(TEXT, TRIPLE, "gfx1100", features)


def run(device: AmDevice, name: str, more: int, features: str = "") -> list[int]:
    with device.load(image(features)) as program, device.alloc(256) as out:
        device.queue().launch(program[name], grid=(1,), block=(64,),
                              args=(out, np.uint32(more))).submit()  # fmt: skip
        device.synchronize()
        return [int(word) for word in out.numpy(np.uint32)]


@WAVES
def test_recursion_and_calls_through_pointers(device: AmDevice, features: str) -> None:
    sums = LANES * (LANES + 1) // 2
    device.dynamic_stack = 4096
    assert run(device, "recurses", 0, features) == sums.tolist()
    assert run(device, "points", 0, features) == np.where(LANES % 2, LANES * 2, sums).tolist()


def test_a_stack_is_as_large_as_the_device_says(device: AmDevice) -> None:
    device.dynamic_stack = 64 << 10
    assert run(device, "recurses", 1000)[63] == 1063 * 1064 // 2
    device.dynamic_stack = 1024
    with pytest.raises(PageFault, match=r"recurses.*stack of 1,040 bytes.*dynamic_stack"):
        run(device, "recurses", 1000)


def test_limits_of_the_stack(device: AmDevice) -> None:
    assert device.dynamic_stack == 1024
    wrong: tuple[Any, ...] = (-1, 1.5, True)
    for size in wrong:
        with pytest.raises(BadArgument, match="dynamic_stack"):
            device.dynamic_stack = size
    device.dynamic_stack = 1 << 20
    with pytest.raises(NotSupported, match="at most 131072 bytes"):
        device.load(image())
