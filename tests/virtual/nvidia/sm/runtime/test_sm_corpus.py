"""The operation corpus on the virtual multiprocessors: some cases always, all of them when slow.

Of an architecture that has a virtual device, tests/compiler/test_operation_corpus.py runs more.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.corpus.corpus_ptx import Program, program
from tests.support.corpus.operation_corpus import corpus
from tests.support.nvidia.sm.sm_run import LOCAL_WINDOW, SHARED_WINDOW, Bench
from ugpu import hcq
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.hcq.state.target import ptx_target
from ugpu.virtual.nvidia.sm_contract import GridLaunch, SmEnding

_ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_WITHOUT_A_DEVICE = ("sm_80", "sm_100")
_SHARED = re.compile(r"\.shared \.align (\d+) \.b8 \S+\[(\d+)\]")


@cache
def _bench() -> Bench:
    return Bench(workers=2)


def _launch(ptx: str, cpu: str, launch: object, addresses: list[int]) -> GridLaunch:
    shared = 0
    for align, size in _SHARED.findall(ptx):
        shared = -(-shared // int(align)) * int(align) + int(size)
    name = re.search(r"\.entry (\S+)\(", ptx)
    assert name is not None
    kernel = launch.kernel
    shared = -(-shared // 1024) * 1024 + kernel.dynamic_local if kernel.dynamic_local else shared
    block = kernel.block if isinstance(kernel.block, tuple) else (kernel.block, 1, 1)
    return GridLaunch(
        ptx, name[1], cpu, tuple(kernel.grid), block,
        b"".join(struct.pack("<Q", address) for address in addresses), shared, 0, SHARED_WINDOW,
        LOCAL_WINDOW, 0, 4,
    )  # fmt: skip


def run_case(bench: Bench, made: Program, cpu: str) -> NDArray[np.generic]:
    """Run a case's kernels; return the answer's memory."""
    target = ptx_target(cpu)
    places: dict[int, tuple[int, NDArray[np.generic]]] = {}
    for place, array in zip(made.given, made.case.inputs, strict=True):
        if place >= 0:
            places[place] = bench.array(array)
    for launch in made.launches:
        for output, size in zip(launch.outputs, launch.sizes, strict=True):
            if output == launch.outputs[0] and launch.into is not None:
                places[output] = places[launch.into]
            else:
                places[output] = bench.array(np.zeros(size, np.uint8))
        ptx = compile_text(emit(launch.kernel, target), target).decode()
        addresses = [places[output][0] for output in launch.outputs]
        addresses += [places[n][0] + start
                      for n, start in zip(launch.inputs, launch.starts, strict=True)]  # fmt: skip
        outcome = bench.units.run(_launch(ptx, cpu, launch, addresses), bench.memory, bench.abort)
        assert outcome.ending is SmEnding.DONE, (made.case.name, outcome)
    return places[made.result][1]


def _check(made: Program, cpu: str) -> None:
    raw = run_case(_bench(), made, cpu).reshape(-1).view(np.uint8)
    expected = made.case.expected()
    if made.dtype == "bfloat16":
        found = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        found = raw.view(made.dtype)
    made.case.compare(found[: expected.size].reshape(expected.shape))


def _cases(step: int, start: int, cpu: str) -> Iterator[Program]:
    names = sorted(corpus())[start::step]
    with hcq.open("cpu", threads=1) as host:
        for name in names:
            yield program(corpus()[name], ptx_target(cpu), host)


@pytest.mark.parametrize(("number", "cpu"), list(enumerate(_ARCHITECTURES)))
def test_some_of_the_corpus(number: int, cpu: str) -> None:
    for made in _cases(40, 5 * number, cpu):
        _check(made, cpu)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("number", "cpu"), list(enumerate(_WITHOUT_A_DEVICE)))
def test_every_case_runs_on_an_architecture_without_a_device(number: int, cpu: str) -> None:
    for made in _cases(len(_WITHOUT_A_DEVICE), number, cpu):
        _check(made, cpu)
