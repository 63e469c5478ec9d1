"""The operation corpus compiled for a target without a device, and the same as files.

    python -m tests.support.corpus.corpus_ptx --cpu sm_90 FOLDER

writes FOLDER/kernels/<name>.ptx, FOLDER/arrays/*.npy and FOLDER/cases.json: for each case the
launches in order, each with its kernel, grid, block and the names of its arrays (the outputs first,
then the inputs, as the kernel's parameters are), the byte of each array at which its parameter
points, what the result must be, and how near.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.support.corpus.corpus_case import Case
from tests.support.corpus.operation_corpus import corpus
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.objects import compile_text
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.lower import lower
from ugpu.compiler.plan.plan import make_plan, structure
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.compiler.schedule.hazards import in_place
from ugpu.hcq.device.device import Device
from ugpu.hcq.state.target import TargetSpec, ptx_target


@dataclass(frozen=True)
class Launch:
    """A kernel of a case. outputs, inputs: numbers of the case's arrays; starts: the byte of each
    input at which its parameter points; sizes: bytes of each output; into: the array whose memory
    the first output is, where it is written in place."""

    kernel: Kernel
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    into: int | None


@dataclass(frozen=True)
class Program:
    """A case as kernels. given: the number of each input's array, -1 for one that is not read;
    result: of the answer's, whose type is dtype. No launches: the answer is an input."""

    case: Case
    launches: tuple[Launch, ...]
    given: tuple[int, ...]
    result: int
    dtype: str


def program(case: Case, target: TargetSpec, host: Device) -> Program:
    """Schedule and lower a case for a target. host: holds its inputs, computes nothing; it takes
    the target, by which methods choose (running totals and sorts)."""
    host._core.driver.target = target
    tensors = [Tensor(array, device=host) for array in case.inputs]
    root = case.work(*tensors).node
    while root.op == "reshape":
        root = root.sources[0]
    _, nodes = structure([root])
    groups = schedule([root], in_place(nodes, [root]))
    plan = make_plan(groups, nodes)
    kernels = [lower(express(group), target) for group in groups if group.root.size]
    launches = tuple(
        Launch(
            kernel,
            step.results,
            step.inputs,
            step.starts or (0,) * len(step.inputs),
            (step.size, *(size for _, size in step.others)),
            step.target,
        )
        for kernel, step in zip(kernels, plan.steps, strict=True)
    )
    places = {id(node): place for place, node in enumerate(nodes)}
    given = tuple(places.get(id(tensor.node), -1) for tensor in tensors)
    return Program(case, launches, given, places[id(root)], root.dtype.name)


def programs(target: TargetSpec) -> Iterator[Program]:
    """Every case for a target."""
    with hcq.open("cpu", threads=1) as host:
        for case in corpus().values():
            yield program(case, target, host)


def dump(target: TargetSpec, folder: Path) -> int:
    """Write the corpus; returns the number of kernels."""
    for name in ("kernels", "arrays"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    listed: list[dict[str, object]] = []
    kernels: set[str] = set()
    for made in programs(target):
        case = made.case
        for launch in made.launches:
            name = launch.kernel.name
            if name not in kernels:
                kernels.add(name)
                text = compile_text(emit(launch.kernel, target), target)
                (folder / "kernels" / f"{name}.ptx").write_bytes(text)
        given = {}
        for place, array in zip(made.given, case.inputs, strict=True):
            if place >= 0:
                given[place] = f"{case.name}.in{place}.npy"
                np.save(folder / "arrays" / given[place], array)
        np.save(folder / "arrays" / f"{case.name}.expected.npy", case.expected())
        listed.append(
            {
                "name": case.name,
                "given": given,
                "launches": [_described(launch) for launch in made.launches],
                "result": made.result,
                "result_type": made.dtype,
                "expected": f"{case.name}.expected.npy",
                "rtol": case.rtol,
                "atol": case.atol,
            }
        )
    (folder / "cases.json").write_text(json.dumps(listed, indent=1) + "\n")
    return len(kernels)


def _described(launch: Launch) -> dict[str, object]:
    return {
        "kernel": launch.kernel.name,
        "grid": launch.kernel.grid,
        "block": launch.kernel.block,
        "arrays": [*launch.outputs, *launch.inputs],
        "starts": [*(0 for _ in launch.outputs), *launch.starts],
        "output_bytes": launch.sizes,
        "output_is_memory_of": launch.into,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.corpus.corpus_ptx")
    parser.add_argument("--cpu", default="sm_90", help="architecture, such as sm_80 or sm_90a")
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    count = dump(ptx_target(given.cpu), given.folder)
    print(f"{count} kernels of {len(corpus())} cases in {given.folder}")


if __name__ == "__main__":
    main()
