"""Tuning: the kernels that are made ready inside a `with` block are searched first.

    with tuning(beam=4, budget_s=60) as report:
        model(x).realize()
    for kernel in report.kernels: print(kernel.summary())

What is found best is used from then on, by every process on this machine with the same target.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from compiler.codegen.children import Compiled, shared
from compiler.codegen.emit import emit
from compiler.index.ranges import Computation
from compiler.kernel import ir
from compiler.kernel.choices import Choices, Packing, shown
from compiler.kernel.gpu_bulk import packed_layouts
from compiler.kernel.lower import lower, spaces
from compiler.kernel.verify import BrokenKernel
from compiler.search.beam import Found, search
from compiler.search.measure import Candidate, Outcome, Parameter, Problem
from compiler.search.measurer import OUT_OF_TIME, Apart, Here, measurer
from compiler.search.store import Store, key_of, packing_key
from hcq.device import Device
from hcq.errors import BadArgument, CompileError, NotSupported
from hcq.target import TargetSpec

SHARE = 0.25  # of the time that is left, for one kernel


@dataclass(frozen=True)
class KernelTuning:
    """What a search did for one kernel. found: None where nothing was tried; note: why not, or why
    the default stays."""

    name: str
    computes: str
    found: Found | None
    note: str

    def summary(self) -> str:
        """One line: the times and the choices, or that the default stays and why."""
        head = f"{self.name} ({self.computes})"
        if self.found is None:
            return f"{head}: {self.note}"
        default, best = self.found.trials[0].outcome.seconds, self.found.best
        tried = f"{len(self.found.trials)} tried"
        if not self.found.finished:
            tried += ", the time was used up"
        if best is None or best.outcome.seconds is None or default is None:
            return f"{head}: the default stays: {self.note} ({tried})"
        gain = default / best.outcome.seconds
        return (
            f"{head}: {default * 1e3:.3f} ms -> {best.outcome.seconds * 1e3:.3f} ms "
            f"({gain:.2f}x, {tried}): {shown(best.choices)}"
        )

    def details(self) -> list[str]:
        """A line for each record: its time, or why it is out."""
        lines = []
        for trial in self.found.trials if self.found is not None else ():
            seconds, reason = trial.outcome.seconds, trial.outcome.reason
            result = reason if seconds is None else f"{seconds * 1e3:.3f} ms"
            lines.append(f"{shown(trial.choices)}: {result}")
        return lines


@dataclass
class TuningReport:
    """The kernels of a `tuning` block, in the order they were met."""

    kernels: list[KernelTuning] = field(default_factory=list)


class Tuner:
    """Searches for one `tuning` block."""

    def __init__(self, beam: int, budget_s: float, clock: Callable[[], float]) -> None:
        self.beam = beam
        self.clock = clock
        self.end = clock() + budget_s
        self.report = TuningReport()
        self.done: dict[str, float | None] = {}  # seconds of the best, by key
        self.measurers: dict[int, Apart | Here] = {}

    def compare(
        self, plain: Computation, forms: Sequence[Computation], device: Device, store: Store
    ) -> None:
        """Search a product and what may replace it, and store which takes less time in all. Does
        nothing where one of them was not measured."""
        seconds = [self.tune(each, device, store) for each in (plain, *forms)]
        known = [each for each in seconds if each is not None]
        if len(known) == len(seconds):
            with ir.interning:
                key = packing_key(plain, device)
            store.put(key, Packing(sum(known[1:]) < known[0]))

    def tune(self, computation: Computation, device: Device, store: Store) -> float | None:
        """Search the best choices for a computation, unless this block has done so, and store them;
        returns the time of the best, where there is one. Does not hold `ir.interning` while
        anything is measured."""
        with ir.interning:
            key = key_of(computation, device)
            if key in self.done:
                return self.done[key]
            self.done[key] = None
            found = spaces(computation, device.target)
            name = lower(computation, device.target).name
        left = self.end - self.clock()
        if not found:
            self._note(name, computation, None, "this kind of kernel has no choices")
            return None
        if left <= 0:
            self._note(name, computation, None, "not searched: the time was used up")
            return None
        measuring = self._measurer(device)
        measuring.prepare(problem_of(computation, device.target))
        compiling = _Compiling(computation, device)
        met: dict[str, Choices] = {}  # by the kernel's name, which is that of its content

        def measure(choices: Choices, best_s: float) -> Outcome:
            ready = compiling.result(choices, best_s, self.end - self.clock())
            if isinstance(ready, Outcome):
                return ready
            if met.setdefault(ready.kernel, choices) != choices:
                return Outcome(None, "the same kernel as another record's")
            return measuring.run(ready, self.end - self.clock())

        result = search(found, measure, self.beam, left * SHARE, self.clock, compiling.ahead)
        if result.best is not None:
            store.put(key, result.best.choices)
            self._note(name, computation, result, "")
            self.done[key] = result.best.outcome.seconds
            return self.done[key]
        reason = result.trials[0].outcome.reason or "nothing was faster"
        self._note(name, computation, result, reason)
        self.done[key] = result.trials[0].outcome.seconds
        return self.done[key]

    def _note(self, name: str, computed: Computation, found: Found | None, note: str) -> None:
        self.report.kernels.append(KernelTuning(name, computed.origin, found, note))

    def _measurer(self, device: Device) -> Apart | Here:
        made = self.measurers.get(id(device))
        if made is None:
            made = self.measurers[id(device)] = measurer(device)
        return made

    def close(self) -> None:
        for made in self.measurers.values():
            made.close()


def problem_of(computation: Computation, target: TargetSpec) -> Problem:
    """The arrays that candidates for a computation are run with."""
    with ir.interning:
        layouts = packed_layouts(computation, target)
    memories = (*computation.outputs, *computation.inputs)
    arrays = tuple(Parameter(m.dtype.name, m.count, layouts.get(m)) for m in memories)
    return Problem(arrays, len(computation.outputs))


class _Compiling:
    """The candidates of one computation, compiled before they are asked for."""

    def __init__(self, computation: Computation, device: Device) -> None:
        self.computation = computation
        self.device = device
        self.asked: dict[Choices, tuple[ir.Kernel, Future[Compiled]] | Outcome] = {}

    def ahead(self, coming: Sequence[Choices]) -> None:
        for choices in coming:
            if choices not in self.asked:
                self.asked[choices] = self._begin(choices)

    def _begin(self, choices: Choices) -> tuple[ir.Kernel, Future[Compiled]] | Outcome:
        target = self.device.target
        try:
            with ir.interning:
                kernel = lower(self.computation, target, choices)
                text = emit(kernel, target)
        except (BrokenKernel, NotSupported) as error:
            return Outcome(None, f"cannot be lowered: {error}")
        return kernel, shared().submit(text, target, kernel.name)

    def result(self, choices: Choices, best_s: float, left_s: float) -> Candidate | Outcome:
        """What to measure, or why there is nothing, after at most `left_s` seconds."""
        self.ahead([choices])
        begun = self.asked[choices]
        if isinstance(begun, Outcome):
            return begun
        kernel, future = begun
        try:
            image = future.result(max(0.0, left_s)).image
        except TimeoutError:
            return Outcome(None, OUT_OF_TIME)
        except CompileError as error:
            return Outcome(None, error.message)
        return Candidate(
            image, kernel.name, kernel.grid, kernel.block, best_s, kernel.dynamic_local
        )


tuners: list[Tuner] = []


def active() -> Tuner | None:
    """The tuner of the innermost `tuning` block."""
    return tuners[-1] if tuners else None


@contextlib.contextmanager
def tuning(
    beam: int = 4, budget_s: float = 60.0, clock: Callable[[], float] = time.monotonic
) -> Iterator[TuningReport]:
    """Search kernels that are made ready inside, on all devices, for `budget_s` seconds in all.
    beam: how many of the best are varied further."""
    if not isinstance(beam, int) or beam < 1 or not 0 < budget_s < math.inf:
        raise BadArgument(
            f"tuning: expected a beam and a number of seconds above zero, got {beam!r}, "
            f"{budget_s!r}"
        )
    tuner = Tuner(beam, budget_s, clock)
    tuners.append(tuner)
    try:
        yield tuner.report
    finally:
        tuners.remove(tuner)
        tuner.close()


def described(report: TuningReport) -> list[dict[str, Any]]:  # Any: JSON
    """The report as JSON values."""
    return [
        {
            "kernel": kernel.name,
            "computes": kernel.computes,
            "summary": kernel.summary(),
            "finished": kernel.found is None or kernel.found.finished,
            "tried": kernel.details(),
        }
        for kernel in report.kernels
    ]
