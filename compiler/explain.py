"""What runs do, as text: the graph, the kernels it became, their code, and how long each took.

    with watch() as runs:
        (tensor @ tensor).softmax().realize()
    for run in runs:
        print(run.graph)
        for kernel in run.kernels: print(kernel.name, kernel.seconds, kernel.ir)

While watched, every kernel is submitted alone and waited for, so that it can be timed; kernels of
a function being recorded (compiler.replay.jit) are not timed, and replays are not seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compiler.codegen.emit import emit
from compiler.graph import origin
from compiler.graph.node import Node
from compiler.index.ranges import express
from compiler.kernel.lower import lower
from compiler.kernel.text import format_kernel
from compiler.schedule.group import Group, describe
from hcq.target import TargetSpec


@dataclass
class KernelReport:
    """A kernel of a run. result, inputs: numbers of nodes in the graph's text. computes: tensor
    operations. ir: compiler.kernel.text. code: LLVM IR. seconds: None where not timed."""

    name: str
    computes: str
    result: int
    inputs: tuple[int, ...]
    target: int | None  # the node whose memory it writes into
    ir: str
    code: str
    others: tuple[int, ...] = ()  # further results
    seconds: float | None = None


@dataclass
class RunReport:
    """One realization. graph: a line per node: number, operation, sources, where it was built."""

    device: str
    graph: str
    kernels: list[KernelReport] = field(default_factory=list)

    @property
    def schedule(self) -> str:
        """A line per kernel, stable: no times, no addresses."""
        lines = []
        for kernel in self.kernels:
            read = ", ".join(f"%{number}" for number in kernel.inputs) or "nothing"
            into = "" if kernel.target is None else f"into %{kernel.target} "
            made = ", ".join(f"%{number}" for number in (kernel.result, *kernel.others))
            lines.append(f"{made} = {kernel.computes} {into}from {read}: {kernel.name}")
        return "\n".join(lines) + "\n"


_watching: list[list[RunReport]] = []


@contextlib.contextmanager
def watch() -> Iterator[list[RunReport]]:
    """Collect a report of every run of this process, on all devices and threads."""
    reports: list[RunReport] = []
    _watching.append(reports)
    try:
        yield reports
    finally:
        _watching.remove(reports)


def report(
    device: str, target: TargetSpec, groups: Sequence[Group], nodes: Sequence[Node]
) -> RunReport | None:
    """Describe a run that is about to happen, for all who watch; None if nobody does. The caller
    holds compiler.kernel.ir.interning."""
    if not _watching:
        return None
    places = {id(node): place for place, node in enumerate(nodes)}
    made = RunReport(device, graph_text(nodes, places))
    for group in groups:
        if group.root.size:
            kernel = lower(express(group), target)
            inputs = tuple(places[id(node)] for node in group.inputs)
            made.kernels.append(
                KernelReport(
                    kernel.name,
                    describe(group),
                    places[id(group.root)],
                    inputs,
                    places[id(group.root.sources[0])] if group.in_place else None,
                    format_kernel(kernel),
                    emit(kernel, target),
                    tuple(places[id(node)] for node in group.others),
                )
            )
    for listening in _watching:
        listening.append(made)
    return made


def watched() -> bool:
    return bool(_watching)


def graph_text(nodes: Sequence[Node], places: Mapping[int, int]) -> str:
    """Nodes by number, sources first."""
    lines = []
    for place, node in enumerate(nodes):
        stored = node.storage is not None
        words = [f"%{place} =", "stored" if stored else node.op]
        words.append(f"{node.dtype.name}{list(node.shape)}")
        if not stored:
            words += [f"%{places[id(source)]}" for source in node.sources]
            if node.arg is not None:
                words.append(f"({node.arg!r})")
        built = origin.text(node.origin)
        lines.append(" ".join(words) + (f"  # {Path(built).name}" if built else ""))
    return "\n".join(lines) + "\n"
