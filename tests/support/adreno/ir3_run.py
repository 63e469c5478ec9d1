"""Cases of the operation corpus, compiled for an Adreno GPU and run by the oracle of ir3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.oracles.ir3 import Machine, Memory
from lab.oracles.ir3_texels import Buffer
from tests.support.adreno.mesa import kernel_of, target
from tests.support.corpus import corpus_ptx
from tests.support.corpus.operation_corpus import corpus
from ugpu import hcq
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.hcq.objects.ir3_object import Ir3Kernel
from ugpu.qcom import chips
from ugpu.virtual.adreno.isa.decoder.decode import program
from ugpu.virtual.adreno.isa.decoder.table import table

Array = NDArray[Any]
MOST = 1 << 16  # threads of a launch that the oracle runs


def launch(
    kernel: Ir3Kernel, chip: str, grid: tuple[int, int, int], arrays: list[Array]
) -> list[Array]:
    """Run a kernel whose parameters are arrays; what they hold then."""
    memory = Memory(arrays)
    constants = np.zeros(4096, np.uint32)
    for parameter, address in zip(kernel.parameters, memory.addresses, strict=True):
        words = np.array([address], np.uint64).view(np.uint32)
        constants[parameter.offset // 4 : parameter.offset // 4 + 2] = words
    start = kernel.immediates_at * 4
    constants[start : start + len(kernel.immediates)] = kernel.immediates
    known = table(chips.facts(chip).gpu_id)
    text = [one.text() for one in program(kernel.code, known)]
    machine = Machine(
        text, grid, kernel.threads, kernel.local_size, constants, memory,
        kernel.group_register, kernel.thread_register,
        [Buffer(memory.addresses[one.parameter], one.bits, one.components, one.width)
         for one in kernel.textures],
    )  # fmt: skip
    machine.run()
    found = []
    for array, address in zip(arrays, memory.addresses, strict=True):
        start = address - memory.base
        data = memory.bytes[start : start + array.nbytes].tobytes()
        found.append(np.frombuffer(data, array.dtype).reshape(array.shape))
    return found


def programs(chip: str, turn: int = 0, every: int = 1) -> Iterator[corpus_ptx.Program]:
    """Each case, or one of so many."""
    with hcq.open("cpu", threads=1) as host:
        for case in list(corpus().values())[turn::every]:
            yield corpus_ptx.program(case, target(chip), host)


def runnable(
    chip: str, turn: int = 0, every: int = 1, most: int = MOST
) -> Iterator[corpus_ptx.Program]:
    """Those with kernels, none of which has more than so many threads."""
    for made in programs(chip, turn, every):
        sizes = [k.kernel.block * int(np.prod(k.kernel.grid)) for k in made.launches]
        if sizes and max(sizes) <= most:
            yield made


Launch = Callable[[Ir3Kernel, str, tuple[int, int, int], list[Array]], list[Array]]


def check(made: corpus_ptx.Program, chip: str, run: Launch = launch) -> None:
    """Compile a case, run it, by the oracle or as `run` says, compare the result with NumPy's."""
    arrays: dict[int, Array] = {}
    for place, array in zip(made.given, made.case.inputs, strict=True):
        if place >= 0:
            arrays[place] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for step in made.launches:
        before = arrays[step.into].copy() if step.into is not None else None
        for place, size in zip(step.outputs, step.sizes, strict=True):
            arrays[place] = np.full(size, 0xC3, np.uint8)
        if before is not None:
            arrays[step.outputs[0]] = before
        text = emit(step.kernel, target(chip))
        kernel = kernel_of(compile_text(text, target(chip)))
        given = [arrays[place] for place in step.outputs]
        given += [arrays[place][start:]
                  for place, start in zip(step.inputs, step.starts, strict=True)]  # fmt: skip
        found = run(kernel, chip, step.kernel.grid, given)
        arrays |= dict(zip(step.outputs, found, strict=False))
    expected = made.case.expected()
    result = arrays[made.result].view(made.dtype if made.dtype != "bool" else "?")
    made.case.compare(result[: expected.size].reshape(expected.shape))
