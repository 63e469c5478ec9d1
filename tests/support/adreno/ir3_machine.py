"""Kernels of ir3 on the virtual shader processors."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.shader_memory import ArrayMemory
from ugpu.hcq.objects.ir3_object import Ir3Kernel
from ugpu.qcom import chips
from ugpu.virtual.adreno.shader import Dispatch, Ending, Outcome
from ugpu.virtual.adreno.sp.processors import Processors
from ugpu.virtual.shader.memory import Abort

Array = NDArray[Any]
CODE, PRIVATE = 0x10_0000_0000, 0x20_0000_0000
PRIVATE_STRIDE = 4 << 20


@cache
def processors() -> Processors:
    """One for all tests of a process."""
    return Processors(workers=1)


class Place:
    """Arrays in GPU memory, in one piece that crosses a multiple of 2^32."""

    def __init__(self, arrays: list[Array]) -> None:
        self.memory = ArrayMemory()
        base, size = (1 << 32) - 4096, 4096 - 256
        self.addresses = []
        for array in arrays:
            self.addresses.append(base + size)
            size += array.nbytes + -array.nbytes % 256 + 256
        self.bytes = self.memory.map(base, np.full(size, 0xA5, np.uint8))
        self.arrays = []
        for array, address in zip(arrays, self.addresses, strict=True):
            view = self.bytes[address - base : address - base + array.nbytes]
            view[:] = np.frombuffer(array.tobytes(), np.uint8)
            self.arrays.append(view)

    def found(self, like: list[Array]) -> list[Array]:
        """What the arrays hold now."""
        return [
            view.view(array.dtype).reshape(array.shape).copy()
            for view, array in zip(self.arrays, like, strict=True)
        ]


def dispatch_of(
    kernel: Ir3Kernel, chip: str, grid: tuple[int, int, int], addresses: list[int], **more: Any
) -> Dispatch:
    """The dispatch of a kernel whose parameters are addresses."""
    constants = np.zeros(2048, np.uint32)
    for parameter, address in zip(kernel.parameters, addresses, strict=True):
        words = np.array([address], np.uint64).view(np.uint32)
        constants[parameter.offset // 4 : parameter.offset // 4 + 2] = words
    start = kernel.immediates_at * 4
    constants[start : start + len(kernel.immediates)] = kernel.immediates
    made = Dispatch(
        gpu_id=chips.facts(chip).gpu_id, code_address=CODE,
        code_size=len(kernel.code) + -len(kernel.code) % 128, groups=grid,
        threads=(kernel.threads, 1, 1), thread_size=128 if kernel.double_wave else 64,
        full_registers=kernel.full_registers, half_registers=kernel.half_registers,
        merged_registers=kernel.merged_registers, branch_stack=kernel.branch_stack,
        group_register=kernel.group_register, thread_register=kernel.thread_register,
        constants=constants, local_size=kernel.local_size, private_base=PRIVATE,
        private_size=kernel.private_size, private_per_wave=kernel.private_per_wave,
        private_stride=PRIVATE_STRIDE, early_preamble=kernel.early_preamble,
        scalar_unit=chips.facts(chip).scalar_unit,
        predication_nops=chips.facts(chip).predication_nops,
    )  # fmt: skip
    return replace(made, **more)


def map_code(memory: ArrayMemory, code: bytes, address: int = CODE) -> None:
    """Put a kernel into GPU memory."""
    padded = code + bytes(-len(code) % 128)
    memory.map(address, np.frombuffer(padded, np.uint8), writable=False, executable=True)


def outcome_of(dispatch: Dispatch, memory: ArrayMemory) -> Outcome:
    """Run a dispatch."""
    return processors().launch(dispatch, memory, Abort())


def launch(
    kernel: Ir3Kernel, chip: str, grid: tuple[int, int, int], arrays: list[Array], **more: Any
) -> list[Array]:
    """Run a kernel whose parameters are arrays; what they hold then."""
    place = Place(arrays)
    map_code(place.memory, kernel.code)
    if kernel.private_size:
        place.memory.map(PRIVATE, np.zeros(PRIVATE_STRIDE, np.uint8))
    dispatch = dispatch_of(kernel, chip, grid, place.addresses, **more)
    outcome = outcome_of(dispatch, place.memory)
    assert outcome.ending is Ending.DONE, outcome
    assert not outcome.violations, outcome.violations
    assert not place.memory.faults, place.memory.faults
    return place.found(arrays)
