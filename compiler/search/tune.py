"""Tuning: kernels that are prepared inside a `with` block are searched first.

    with tuning(beam=4, budget_s=60) as report:
        model(x).realize()
    for kernel in report.kernels: print(kernel.summary())

The best choices found are used from then on, by every process on this machine with the same target.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from ugpu.compiler.codegen.emit import emit
from ugpu.compiler.codegen.process.children import Compiled, shared
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import interning
from ugpu.compiler.kernel import ir
from ugpu.compiler.kernel.choices import Choices, Packing, shown
from ugpu.compiler.kernel.lower import lower, spaces
from ugpu.compiler.kernel.nvidia.bulk import packed_layouts
from ugpu.compiler.kernel.verify import BrokenKernel
from ugpu.compiler.runtime.kernels import tuners
from ugpu.compiler.runtime.kernels.store import Store, key_of, packing_key
from ugpu.compiler.search.beam import Found, Trial, search
from ugpu.compiler.search.measure import Candidate, Outcome, Parameter, Problem
from ugpu.compiler.search.measurer import OUT_OF_TIME, Apart, Here, measurer
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, CompileError, NotSupported
from ugpu.hcq.state import trace
from ugpu.hcq.state.target import TargetSpec

SHARE = 0.25  # of the remaining time, for one kernel when first met; the rest at the end
FORMS = "forms"  # what entries of compiler.search.forms compute
NO_CHOICES = "this kind of kernel has no choices"
FINISHED = "no record near the best is faster"


@dataclass(frozen=True)
class KernelTuning:
    """Result of a search for one kernel.

    Attributes:
        name: of the kernel.
        computes: tensor operations.
        found: the trials; None if nothing was tried.
        note: why nothing was tried, or why the default stays.
        kept: choices found by an earlier search.
        ended: why this search stopped.
    """

    name: str
    computes: str
    found: Found | None
    note: str
    kept: Choices | None = None
    ended: str = ""

    @property
    def better(self) -> bool:
        """Return whether the kernel now has better choices than the default."""
        return self.kept is not None or (self.found is not None and self.found.best is not None)

    def summary(self) -> str:
        """Return one line: the times and the choices, or that the default stays and why."""
        head = f"{self.name} ({self.computes})"
        if self.found is None:
            return f"{head}: {self.note}"
        default, best = self.found.trials[0].outcome.seconds, self.found.best
        tried = f"{len(self.found.trials)} tried, {self.ended}"
        if best is None or best.outcome.seconds is None or default is None:
            if self.kept is not None:
                return f"{head}: {shown(self.kept)} stays, found earlier: {self.note} ({tried})"
            return f"{head}: the default stays: {self.note} ({tried})"
        gain = default / best.outcome.seconds
        return (
            f"{head}: {default * 1e3:.3f} ms -> {best.outcome.seconds * 1e3:.3f} ms "
            f"({gain:.2f}x, {tried}): {shown(best.choices)}"
        )

    def details(self) -> list[str]:
        """Return a line for each record: its time, or why it was rejected."""
        lines = []
        for trial in self.found.trials if self.found is not None else ():
            seconds, reason = trial.outcome.seconds, trial.outcome.reason
            result = reason if seconds is None else f"{seconds * 1e3:.3f} ms"
            lines.append(f"{shown(trial.choices)}: {result}")
        return lines


@dataclass
class TuningReport:
    """The result of a `tuning` block.

    Attributes:
        kernels: in the order in which they were met.
        budget_s: the most time for searches, in seconds.
        seconds: time used of it.
        ended: why the search stopped.
    """

    kernels: list[KernelTuning] = field(default_factory=list)
    budget_s: float = 0.0
    seconds: float = 0.0
    ended: str = ""

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of (improved, tunable, fixed) kernels; graph-level forms are
        excluded."""
        kernels = [each for each in self.kernels if each.computes != FORMS]
        without = sum(each.note == NO_CHOICES for each in kernels)
        return sum(each.better for each in kernels), len(kernels) - without, without


@dataclass
class _Search:
    """The search for one kernel, which may be continued later. place: in the report. met: records
    by the kernel's name, which stands for its content."""

    computation: Computation
    device: Device
    store: Store
    key: str
    name: str
    place: int
    kept: Choices | None
    trials: tuple[Trial, ...] = ()
    met: dict[str, Choices] = field(default_factory=dict)


class Tuner:
    """Searches for one `tuning` block."""

    def __init__(self, beam: int, budget_s: float, clock: Callable[[], float]) -> None:
        self.beam = beam
        self.clock = clock
        self.start = clock()
        self.end = self.start + budget_s
        self.report = TuningReport(budget_s=budget_s)
        self.done: dict[str, float | None] = {}  # seconds of the best, by key
        self.measurers: dict[int, Apart | Here] = {}
        self.unfinished: list[_Search] = []  # searches that used up their share of the time

    def compare(
        self, plain: Computation, forms: Sequence[Computation], device: Device, store: Store
    ) -> None:
        """Search a product and its possible replacements, and store which takes less time in all.
        Does nothing if one of them was not measured."""
        seconds = [self.tune(each, device, store) for each in (plain, *forms)]
        known = [each for each in seconds if each is not None]
        if len(known) == len(seconds):
            with interning:
                key = packing_key(plain, device)
            store.put(key, Packing(sum(known[1:]) < known[0]))

    def tune(self, computation: Computation, device: Device, store: Store) -> float | None:
        """Search the best choices for a computation, unless this block has done so, and store them;
        return the time of the best, if there is one. Does not hold `interning` during
        measurements."""
        with interning:
            key = key_of(computation, device)
            if key in self.done:
                return self.done[key]
            self.done[key] = None
            found = spaces(computation, device.target)
            name = lower(computation, device.target).name
        left = self.end - self.clock()
        if not found:
            self._note(name, computation, NO_CHOICES)
            return None
        if left <= 0:
            self._note(name, computation, "not searched: the time was used up")
            return None
        place = len(self.report.kernels)
        self._note(name, computation, "")
        self._search(
            _Search(computation, device, store, key, name, place, store.get(key)), left * SHARE
        )
        return self.done[key]

    def _search(self, work: _Search, budget_s: float) -> bool:
        """Begin or continue a search, and store the best; return whether that is new."""
        computation, device = work.computation, work.device
        with interning:
            found = spaces(computation, device.target)
        measuring = self._measurer(device)
        measuring.prepare(problem_of(computation, device.target))
        compiling = _Compiling(computation, device)

        def measure(choices: Choices, best_s: float) -> Outcome:
            trace.point("tuning", device=device.name, kernel=work.name, tried=len(work.met))
            ready = compiling.result(choices, best_s, self.end - self.clock())
            if isinstance(ready, Outcome):
                return ready
            if work.met.setdefault(ready.kernel, choices) != choices:
                return Outcome(None, "the same kernel as another record's")
            return measuring.run(ready, self.end - self.clock())

        kept = () if work.kept is None else (work.kept,)
        result = search(
            found, measure, self.beam, budget_s, self.clock, compiling.ahead, kept, work.trials
        )
        work.trials = result.trials
        default = result.trials[0].outcome
        ended = FINISHED
        if default.seconds is None:
            ended = "the default does not run"
        elif not result.finished:
            ended = OUT_OF_TIME
            self.unfinished.append(work)
        best, note = result.best, ""
        if best is not None:
            work.store.put(work.key, best.choices)
        else:
            note = default.reason or "nothing was faster"
        known = [trial for trial in result.trials if trial.choices == work.kept]
        chosen = best or next(iter(known), result.trials[0])
        self.done[work.key] = chosen.outcome.seconds
        self.report.kernels[work.place] = KernelTuning(
            work.name, computation.origin, result, note, work.kept, ended
        )
        return best is not None

    def go_on(self) -> None:
        """Spend the remaining time on searches that used up their share."""
        changed: list[Store] = []
        while self.unfinished and self.clock() < self.end:
            work = self.unfinished.pop(0)
            if work.device.closed:
                told = self.report.kernels[work.place]
                self.report.kernels[work.place] = replace(told, ended="its device was closed")
                continue
            share = (self.end - self.clock()) / (len(self.unfinished) + 1)
            if self._search(work, share):
                changed.append(work.store)
        for store in {id(each): each for each in changed}.values():
            store.tell()
        self.report.seconds = self.clock() - self.start
        self.report.ended = OUT_OF_TIME if self.clock() >= self.end else "nothing was left to try"

    def _note(self, name: str, computed: Computation, note: str) -> None:
        self.report.kernels.append(KernelTuning(name, computed.origin, None, note))

    def _measurer(self, device: Device) -> Apart | Here:
        made = self.measurers.get(id(device))
        if made is None:
            made = self.measurers[id(device)] = measurer(device)
        return made

    def close(self) -> None:
        for made in self.measurers.values():
            made.close()


def problem_of(computation: Computation, target: TargetSpec) -> Problem:
    """Return the arrays that candidates for a computation are run with."""
    with interning:
        layouts = packed_layouts(computation, target)
    memories = (*computation.outputs, *computation.inputs)
    arrays = tuple(Parameter(m.dtype.name, m.count, layouts.get(m)) for m in memories)
    return Problem(arrays, len(computation.outputs))


class _Compiling:
    """The candidates of one computation, compiled before they are requested."""

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
            with interning:
                kernel = lower(self.computation, target, choices)
                text = emit(kernel, target)
        except (BrokenKernel, NotSupported) as error:
            return Outcome(None, f"cannot be lowered: {error}")
        return kernel, shared().submit(text, target, kernel.name)

    def result(self, choices: Choices, best_s: float, left_s: float) -> Candidate | Outcome:
        """Return the candidate to measure, or the reason why there is none, after at most `left_s`
        seconds."""
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


def active() -> Tuner | None:
    """Return the tuner of the innermost `tuning` block."""
    found = tuners.active()
    return found if isinstance(found, Tuner) else None


@contextlib.contextmanager
def tuning(
    beam: int = 4, budget_s: float = 60.0, clock: Callable[[], float] = time.monotonic
) -> Iterator[TuningReport]:
    """Search kernels that are prepared inside, on all devices, for `budget_s` seconds in all: each
    for a share of the time when first met, those that need more at the end. beam: how many of the
    best are varied further."""
    if not isinstance(beam, int) or beam < 1 or not 0 < budget_s < math.inf:
        raise BadArgument(
            f"tuning: beam and budget_s must be above zero, got {beam!r} and {budget_s!r}"
        )
    tuner = Tuner(beam, budget_s, clock)
    tuners.tuners.append(tuner)
    try:
        try:
            yield tuner.report
        finally:
            tuners.tuners.remove(tuner)
        tuner.go_on()
    finally:
        tuner.close()


def described(report: TuningReport) -> list[dict[str, Any]]:  # Any: JSON
    """Return the report as JSON values."""
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
