"""Our code for Adreno on the virtual shader processors: the operation corpus against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import ir3_machine, ir3_run
from tests.support.adreno import compiled, module, needs_mesa

SHARE = 130
LONG = ("matmul_int64_64x64x129", "matmul_int64_65x33x130")  # 12,000 instructions
CHIPS = ("a630", "a660", "a740", "a750")


@needs_mesa
@pytest.mark.parametrize(("chip", "turn"), list(zip(CHIPS, (2, 34, 66, 98), strict=True)))
def test_a_share_of_the_corpus(chip: str, turn: int) -> None:
    count = 0
    for made in ir3_run.runnable(chip, turn, SHARE, 1 << 12):
        ir3_run.check(made, chip, ir3_machine.launch)
        count += 1
    assert count >= 2


@needs_mesa
@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("chip", CHIPS)
def test_every_case_on_one_chip(chip: str, part: int) -> None:
    """A quarter of the corpus on each; not the two whose kernels take minutes to translate."""
    for made in ir3_run.runnable(chip, CHIPS.index(chip) + 4 * part, 8):
        if made.case.name not in LONG:
            ir3_run.check(made, chip, ir3_machine.launch)


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
