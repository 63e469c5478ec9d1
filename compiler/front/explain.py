"""Reports of runs as text: the graph, its kernels, their code and their times.

    with watch() as runs:
        (tensor @ tensor).softmax().realize()
    for run in runs:
        print(run.graph)
        for kernel in run.kernels: print(kernel.name, kernel.seconds, kernel.ir)

While `watch` is active, every kernel is submitted alone, waited for, and run again a few times for
timing; memory that it writes into is restored before each run. Kernels of a function being recorded
(compiler.front.jit) are not timed, and replays are not reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.graph import origin
from ugpu.compiler.graph.call import PARAMETER
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.kernel.text import format_kernel
from ugpu.compiler.pattern.work import flops, moved
from ugpu.compiler.plan.packing import Derived, computation_of
from ugpu.compiler.plan.plan import body_plan, kernels, make_plan
from ugpu.compiler.runtime.watch import Run, Timed, Times, watchers
from ugpu.compiler.schedule.calls import CallGroup, body_of
from ugpu.compiler.schedule.group import Group, describe
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.state.text import table


@dataclass
class KernelReport:
    """A kernel of a run.

    Attributes:
        name: of its entry point.
        computes: tensor operations.
        result: number of the node in the graph's text.
        inputs: numbers of nodes in the graph's text.
        target: the node whose memory it writes into; None: memory of its own.
        ir: text of the kernel IR, see compiler.kernel.text.
        code: LLVM IR.
        others: numbers of further results.
        flops: floating-point operations, see pattern.work.
        bytes: moved bytes, see pattern.work.
        seconds: the best time of all runs but the first; None if not timed.
        first_seconds: time of the first run; None if not timed.
        runs: how often it ran.
    """

    name: str
    computes: str
    result: int
    inputs: tuple[int, ...]
    target: int | None
    ir: str
    code: str
    others: tuple[int, ...] = ()
    flops: int = 0
    bytes: int = 0
    seconds: float | None = None
    first_seconds: float | None = None
    runs: int = 1

    @property
    def line(self) -> str:
        into = "" if self.target is None else f"into %{self.target} "
        made = _numbers((self.result, *self.others))
        return f"{made} = {self.computes} {into}from {_numbers(self.inputs)}: {self.name}"

    def _repr_html_(self) -> str:
        return table(f"Kernel {self.name}", {
            "computes": self.computes, "best time": _time(self.seconds), "operations": self.flops,
            "bytes moved": self.bytes,
        }, self.ir)  # fmt: skip


@dataclass
class CallReport:
    """A call of a nested function.

    Attributes:
        function: its name.
        results: numbers of nodes.
        inputs: numbers of nodes.
        first: number of its first kernel in the run.
        kernels: how many of the run's kernels are its own.
        like: the number of an earlier call of the run with the same schedule.
    """

    function: str
    results: tuple[int, ...]
    inputs: tuple[int, ...]
    first: int
    kernels: int
    like: int | None = None

    @property
    def line(self) -> str:
        again = "" if self.like is None else ", as before"
        made = f"{_numbers(self.results)} = call {self.function}"
        return f"{made} from {_numbers(self.inputs)}: {self.kernels} kernels{again}"


@dataclass
class RunReport:
    """One realization.

    Attributes:
        device: its name.
        graph: a line per node: number, operation, sources, where it was built; then each nested
            function once, with its own numbers.
        kernels: in the order of the run.
        calls: of nested functions.
    """

    device: str
    graph: str
    kernels: list[KernelReport] = field(default_factory=list)
    calls: list[CallReport] = field(default_factory=list)

    def _repr_html_(self) -> str:
        rows = {
            f"{number} {each.name}": f"{each.computes}: {_time(each.seconds)}"
            for number, each in enumerate(self.kernels)
        }
        return table(f"Run on {self.device}: {len(self.kernels)} kernels", rows, self.graph)

    @property
    def schedule(self) -> str:
        """Return a line per kernel and call, with the kernels of equal calls listed once and no
        times or addresses."""
        lines = []
        calls = {call.first: call for call in self.calls}
        place = 0
        while place < len(self.kernels):
            call = calls.get(place)
            if call is None:
                lines.append(self.kernels[place].line)
                place += 1
                continue
            lines.append(call.line)
            if call.like is None:
                inside = self.kernels[place : place + call.kernels]
                lines += ["    " + kernel.line for kernel in inside]
            place += call.kernels
        return "\n".join(lines) + "\n"


def _time(seconds: float | None) -> str:
    return "not timed" if seconds is None else f"{seconds * 1e6:.1f} us"


def _numbers(places: Sequence[int]) -> str:
    return ", ".join(f"%{number}" for number in places) or "nothing"


@contextlib.contextmanager
def watch() -> Iterator[list[RunReport]]:
    """Collect a report of every run of this process, on all devices and threads."""
    watcher = _Watch()
    watchers.append(watcher)
    try:
        yield watcher.reports
    finally:
        watchers.remove(watcher)


class _Watch:
    """Collects reports."""

    def __init__(self) -> None:
        self.reports: list[RunReport] = []

    def begins(self, run: Run) -> Timed:
        made = report(run)
        self.reports.append(made)

        def timed(number: int, times: Times) -> None:
            kernel = made.kernels[number]
            kernel.seconds, kernel.first_seconds, kernel.runs = times.best, times.first, times.runs

        return timed


def report(run: Run) -> RunReport:
    """Describe a run before it starts. The caller holds compiler.expression.value.interning."""
    groups, nodes, target = run.groups, run.nodes, run.target
    places = {id(node): place for place, node in enumerate(nodes)}
    made = RunReport(run.device, graph_text(nodes, places) + _functions(nodes))
    lowered: dict[int, Kernel] = {}
    for group, step in zip(
        kernels(groups, target), make_plan(groups, nodes, target).steps, strict=True
    ):
        kernel = lowered.get(id(group))
        if kernel is None:
            kernel = lowered[id(group)] = run.lower(computation_of(group))
        computation = computation_of(group)
        made.kernels.append(
            KernelReport(
                kernel.name,
                _words(group),
                step.root,
                step.inputs,
                step.target,
                format_kernel(kernel),
                emit(kernel, target),
                tuple(place for place, _ in step.others),
                flops(computation),
                moved(computation),
            )
        )
    made.calls = _calls(groups, places, target)
    return made


def _words(group: Group) -> str:
    return group.computation.origin if isinstance(group, Derived) else describe(group)


def _calls(
    groups: Sequence[Group], places: Mapping[int, int], target: TargetSpec
) -> list[CallReport]:
    found: list[CallReport] = []
    earlier: dict[int, int] = {}  # by id of a function's plan: its first call
    first = 0
    for group in groups:
        if not isinstance(group, CallGroup):
            first += bool(group.root.size)
            continue
        inner = body_plan(group, target)
        count = len(inner.kernels)
        results = tuple(places[id(node)] for node in group.roots)
        inputs = tuple(places[id(node)] for node in group.inputs)
        like = earlier.setdefault(id(inner), len(found))
        report = CallReport(group.body.name, results, inputs, first, count)
        report.like = like if like != len(found) else None
        found.append(report)
        first += count
    return found


def _functions(nodes: Sequence[Node]) -> str:
    """Return the graphs of all called functions, nested calls included, each once."""
    texts: dict[int, str] = {}
    waiting = list(nodes)[::-1]
    while waiting:
        node = waiting.pop()
        if node.op == "call" and node.storage is None:
            body = body_of(node)
            if id(body) not in texts:
                places = {id(each): place for place, each in enumerate(body.nodes)}
                given = _numbers([places[id(root)] for root in body.roots])
                texts[id(body)] = (
                    f"\nfunction {body.name} gives {given}\n{graph_text(body.nodes, places)}"
                )
                waiting += body.nodes[::-1]
    return "".join(texts.values())


def graph_text(nodes: Sequence[Node], places: Mapping[int, int]) -> str:
    """Return the nodes as text, by number, sources first."""
    lines = []
    for place, node in enumerate(nodes):
        stored = node.storage is not None
        state = "parameter" if node.storage is PARAMETER else "stored" if stored else node.op
        words = [f"%{place} =", state]
        words.append(f"{node.dtype.name}{list(node.shape)}")
        if not stored:
            words += [f"%{places[id(source)]}" for source in node.sources]
            if node.arg is not None:
                words.append(f"({node.arg!r})")
        built = origin.text(node.origin)
        lines.append(" ".join(words) + (f"  # {Path(built).name}" if built else ""))
    return "\n".join(lines) + "\n"
