"""Our code for Adreno on the virtual shader processors: what lanes of a wave tell each other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import ir3_machine
from tests.support.adreno import compiled, module, needs_mesa


@needs_mesa
@pytest.mark.parametrize("chip", ["a630", "a740"])
@pytest.mark.parametrize("wave", [64, 128])
def test_lanes_and_local_memory(chip: str, wave: int) -> None:
    """Threads exchange words through the wave and through local memory, over several waves."""
    kernel = compiled(module("""
  %there = call i32 @adreno.exchange(i32 %i, i32 33)
  %mine = getelementptr i32, ptr addrspace(3) @k.m, i32 %thread
  store i32 %there, ptr addrspace(3) %mine, align 4
  call void @adreno.barrier()
  %turned = sub i32 255, %thread
  %theirs = getelementptr i32, ptr addrspace(3) @k.m, i32 %turned
  %x = load i32, ptr addrspace(3) %theirs, align 4
  %to = getelementptr i32, ptr addrspace(1) %out, i64 %wide
  store i32 %x, ptr addrspace(1) %to, align 4""", "ptr addrspace(1) %out", 256,
        "@k.m = internal addrspace(3) global [256 x i32] poison, align 64"), chip)  # fmt: skip
    (found,) = ir3_machine.launch(
        kernel, chip, (3, 1, 1), [np.zeros(768, np.uint32)], thread_size=wave
    )
    number = np.arange(768)
    np.testing.assert_array_equal(found, (number // 256 * 256 + 255 - number % 256) ^ 33)
