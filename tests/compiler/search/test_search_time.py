"""How a search uses its time: all of it, unless nothing is left to try; and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.search.test_search import SIZES, Clock, computation, doubled, total, valley
from ugpu import hcq
from ugpu.compiler import Tensor
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import interning
from ugpu.compiler.kernel.choices import Choices, Chunk, Space
from ugpu.compiler.runtime.kernels.store import Store, key_of
from ugpu.compiler.runtime.runtime import kernel_log, use_cache
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.grouping import schedule
from ugpu.compiler.search import tune
from ugpu.compiler.search.beam import search
from ugpu.compiler.search.measure import Candidate, Outcome, Problem
from ugpu.compiler.search.tune import FINISHED, FORMS, NO_CHOICES, KernelTuning, Tuner, TuningReport
from ugpu.hcq.device.device import Device


class Measurer:
    """A second for each candidate, by a table of seconds; the rest takes one."""

    def __init__(self, clock: Clock, seconds: Callable[[Choices], float]) -> None:
        self.clock = clock
        self.seconds = seconds
        self.measured: list[Choices] = []

    def prepare(self, problem: Problem) -> None:
        pass

    def run(self, candidate: Candidate, left_s: float) -> Outcome:
        choices = Chunk(int(candidate.kernel))
        self.clock.now += 1
        self.measured.append(choices)
        return Outcome(self.seconds(choices))

    def close(self) -> None:
        pass


class Compiling:
    """Names each candidate by its record."""

    def __init__(self, computation: Computation, device: Device) -> None:
        pass

    def ahead(self, coming: Sequence[Choices]) -> None:
        pass

    def result(self, choices: Choices, best_s: float, left_s: float) -> Candidate:
        assert isinstance(choices, Chunk)
        return Candidate(b"", str(choices.size), (1, 1, 1), 1, best_s)


WIDE = Space(Chunk(0), {"size": tuple(range(50))}, lambda _: True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Callable[..., Measurer]:
    def make(seconds: Callable[[Choices], float] = lambda _: 1.0, space: Space = WIDE) -> Measurer:
        measurer = Measurer(clock, seconds)
        monkeypatch.setattr(tune, "_Compiling", Compiling)
        monkeypatch.setattr(tune, "spaces", lambda *_: [space])
        monkeypatch.setattr(Tuner, "_measurer", lambda *_: measurer)
        return measurer

    return make


@pytest.fixture
def device() -> Iterator[Device]:
    with hcq.open("cpu", threads=1) as opened:
        yield opened


def test_a_search_goes_on_where_it_was(clock: Clock) -> None:
    def measure(choices: Choices, _: float) -> Outcome:
        seen.append(choices)
        return valley(clock, choices)

    seen: list[Choices] = []
    first = search([SIZES], measure, 2, 3.5, clock)
    before = list(seen)
    assert not first.finished
    seen.clear()
    second = search([SIZES], measure, 2, 1000, clock, known=first.trials)
    assert second.finished and second.best is not None and second.best.choices == Chunk(64)
    tried = seen[:-2]  # without the winner and the default beside it, in the end
    assert tried[0] == before[0], "the default, which the others are held against"
    assert not set(tried[1:]) & set(before)
    assert {trial.choices for trial in second.trials} >= set(before)


def test_what_was_found_earlier_is_tried_early(clock: Clock) -> None:
    found = search([SIZES], lambda c, _: valley(clock, c), 1, 2.5, clock, starts=(Chunk(64),))
    assert [trial.choices for trial in found.trials][:2] == [Chunk(8), Chunk(64)]
    assert found.best is not None and found.best.choices == Chunk(64)


def test_time_without_progress_is_used_to_the_end(
    faked: Callable[..., Measurer], clock: Clock, device: Device
) -> None:
    measurer = faked()
    tuner = Tuner(4, 30.0, clock)
    tuner.tune(computation(doubled()), device, Store(None))
    assert clock.now < 30 * tune.SHARE + 2, "others may come"
    tuner.go_on()
    (kernel,) = tuner.report.kernels
    assert kernel.ended == tuner.report.ended == "the time was used up"
    assert 30 <= clock.now <= 32 and len(set(measurer.measured)) > 20
    assert tuner.report.counts() == (0, 1, 0)
    assert "nothing was faster" in kernel.summary() and "the time was used up" in kernel.summary()


def test_the_time_that_is_left_is_shared(
    faked: Callable[..., Measurer], clock: Clock, device: Device
) -> None:
    faked()
    tuner = Tuner(4, 60.0, clock)
    for root in (doubled(), total(0), total(1)):
        tuner.tune(computation(root), device, Store(None))
    tuner.go_on()
    tried = [len(kernel.found.trials) for kernel in tuner.report.kernels if kernel.found]
    assert len(tried) == 3 and min(tried) > 10 and 60 <= clock.now <= 62


def test_a_search_that_is_done_says_so(
    faked: Callable[..., Measurer], clock: Clock, device: Device
) -> None:
    faked(space=Space(Chunk(1), {"size": (1, 2, 3)}, lambda _: True))
    tuner = Tuner(4, 1000.0, clock)
    tuner.tune(computation(doubled()), device, Store(None))
    tuner.go_on()
    (kernel,) = tuner.report.kernels
    assert kernel.ended == FINISHED and FINISHED in kernel.summary()
    assert tuner.report.ended == "nothing was left to try" and tuner.report.seconds < 20


def test_late_finds_are_kept_and_counted_once(
    faked: Callable[..., Measurer], clock: Clock, device: Device, tmp_path: Path
) -> None:
    faked(lambda choices: 0.5 if choices == Chunk(40) else 1.0)
    tuner, store = Tuner(4, 100.0, clock), Store(tmp_path)
    told: list[str] = []
    store.listener = lambda: told.append("changed")
    work = computation(doubled())
    tuner.tune(work, device, store)
    with interning:
        key = key_of(work, device)
    assert store.get(key) is None
    tuner.go_on()
    assert store.get(key) == Chunk(40) and told == ["changed"]
    assert tuner.report.counts() == (1, 1, 0)
    again = Tuner(4, 10.0, clock)
    faked()  # now it is no faster than the default
    again.tune(work, device, store)
    again.go_on()
    assert again.report.counts() == (1, 1, 0), "it stays in use"
    assert "size=40 stays, found earlier: nothing was faster" in again.report.kernels[0].summary()


def test_a_device_that_was_closed_ends_its_searches(
    faked: Callable[..., Measurer], clock: Clock
) -> None:
    faked()
    tuner = Tuner(4, 40.0, clock)
    with hcq.open("cpu", threads=1) as device:
        tuner.tune(computation(doubled()), device, Store(None))
    tuner.go_on()
    assert "its device was closed" in tuner.report.kernels[0].summary()
    assert tuner.report.ended == "nothing was left to try"


def test_what_is_no_kernel_with_choices_is_counted_apart() -> None:
    report = TuningReport(
        [
            KernelTuning("a", "add", None, NO_CHOICES),
            KernelTuning("b", "add", None, "not searched: the time was used up"),
            KernelTuning("c", FORMS, None, "plain (plain 1 ms)"),
        ]
    )
    assert report.counts() == (0, 1, 1)


def test_kernels_in_use_give_way_to_better_ones(tmp_path: Path) -> None:
    """Found after the block's work was planned, as late finds are."""
    with hcq.open("cpu", threads=1) as device:
        runtime = use_cache(device, tmp_path / "kernels")
        x = Tensor(np.ones(5000, np.float32), device=device).realize()
        with kernel_log() as before:
            (x * 2 + 1).realize()
        wanted = (x * 2 + 1).node
        (group,) = schedule([wanted])
        with interning:
            key = key_of(express(group), device)
        runtime.programs.tuned.put(key, Chunk(1024))
        runtime.programs.tuned.tell()
        with kernel_log() as after:
            assert (x * 2 + 1).numpy()[0] == 3
        assert after and after[0].name != before[0].name
