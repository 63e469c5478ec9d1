"""Waiting with a limit, as the clock of a transport counts it."""

from __future__ import annotations

import itertools
import time

import pytest

from tests.support.clocks import Manual
from ugpu.hcq.errors import UnitTimeout
from ugpu.hcq.state.clock import ALLOWANCE_S, Clock, ModelClock, WatchedClock, Work


def until(clock: Manual, when: float | None, limit_s: float) -> float:
    """Wait for what comes to pass `when` seconds from now; the seconds that it took."""
    start = clock.time
    clock.wait_until(
        lambda: when is not None and clock.time >= start + when,
        unit="toy", waiting_for="time", limit_s=limit_s, state=lambda: "as it is",
    )  # fmt: skip
    return clock.time - start


class Model:
    """A part of a model, with work until a time."""

    def __init__(self, clock: Clock, until: float, kind: Work = Work.ENGINES) -> None:
        self.clock = clock
        self.until = until
        self.kind = kind

    @property
    def work(self) -> Work:
        assert isinstance(self.clock, Manual)
        return self.kind if self.clock.time < self.until else Work.NONE


def busy(model: Model, *others: Model) -> None:
    """Have the model's clock count as that of a transport to the model does."""
    parts = ModelClock()
    for one in (model, *others):
        parts.track(one)
    assert isinstance(model.clock, Manual)
    model.clock.busy = parts.work


def test_what_comes_within_the_limit() -> None:
    clock = Manual()
    assert 0.5 <= until(clock, 0.5, 1.0) < 0.502
    assert until(clock, 0.0, 1.0) < 1e-5


def test_a_limit_that_passes() -> None:
    clock = Manual()
    start = clock.time
    with pytest.raises(UnitTimeout, match=r"toy: no time within 1\.0 s") as caught:
        until(clock, None, 1.0)
    assert 1 < clock.time - start < 1.02
    assert caught.value.facts["state"] == "as it is"


@pytest.mark.parametrize(("look_s", "pause_s"), [(0.003, 0.003), (0.0001, 0.001), (0.5, 0.01)])
def test_pauses_follow_what_a_look_takes(look_s: float, pause_s: float) -> None:
    """Not what the pauses before it took."""
    pauses: list[float] = []
    clock = Manual(on_sleep=pauses.append)

    def look() -> bool:
        clock.time += look_s
        return len(pauses) == 40

    clock.wait_until(look, unit="toy", waiting_for="x", limit_s=100)
    assert max(pauses) == pauses[-1] == pytest.approx(pause_s, rel=0.01)


@pytest.mark.parametrize("needed", [2, 11, 12, 13])
def test_who_slept_longer_than_the_limit_looks_again(needed: int) -> None:
    """A model that answers the eleventh look, or a chip that has answered long since."""

    def overslept(seconds: float) -> None:
        clock.time += 100

    clock = Manual(1e-4, on_sleep=overslept)  # no look is for nothing
    looks = itertools.count(1)

    def wait() -> bool:
        return clock.wait_until(
            lambda: next(looks) >= needed, unit="toy", waiting_for="x", limit_s=0.1
        )

    if needed > 12:
        with pytest.raises(UnitTimeout):
            wait()
    else:
        assert wait()


def test_no_limit_holds_while_a_model_is_at_work() -> None:
    clock = Manual()
    model, idle = Model(clock, clock.time + 3), Model(clock, 0)
    busy(model, idle)
    assert 2.9 <= until(clock, 2.9, 1.0) < 2.91
    start = clock.time
    model.until = start + 3
    with pytest.raises(UnitTimeout):
        until(clock, None, 1.0)
    assert 3.9 <= clock.time - start < 4.1, "the limit, after the model came to rest"


@pytest.mark.parametrize("kind", [Work.ENGINES, Work.TRANSLATION])
def test_a_model_that_never_rests_hangs(kind: Work) -> None:
    clock = Manual(1e-3)
    model = Model(clock, float("inf"), kind)
    busy(model)
    start = clock.time
    with pytest.raises(UnitTimeout):
        until(clock, None, 10.0)
    assert ALLOWANCE_S[kind] <= clock.time - start < ALLOWANCE_S[kind] + 12


def test_a_translation_outlasts_engines() -> None:
    clock = Manual(1e-3)
    engines = Model(clock, float("inf"))
    translation = Model(clock, clock.time + 100, Work.TRANSLATION)
    busy(engines, translation)
    assert until(clock, 105, 1.0) >= 105, "both allowances are used"


def test_one_late_look_costs_one_slice() -> None:
    """A host that stops all processes for a while stops the model too, which then has not begun."""
    clock = Manual()
    deadline = clock.deadline(1.0)
    for _ in range(9):
        clock.time += 1000
        assert not deadline.expired()
    clock.time += 1000
    assert deadline.expired()


def test_a_part_that_is_gone_is_not_asked() -> None:
    parts, clock = ModelClock(), Manual()
    parts.track(Model(clock, float("inf")))
    assert parts.work() is Work.NONE


def test_looks_are_reported_to_every_watcher() -> None:
    seen: list[tuple[str, bool]] = []
    inner = WatchedClock(Manual(1.0), lambda found: seen.append(("inner", found)))
    outer = WatchedClock(inner, lambda found: seen.append(("outer", found)))
    answers = iter([None, False, 7])
    found = outer.wait_until(lambda: next(answers), unit="x", waiting_for="y", limit_s=100.0)
    assert found == 7
    assert seen == [(who, found) for found in (False, False, True) for who in ("inner", "outer")]


def test_hardware_is_never_too_slow() -> None:
    clock = Clock()
    assert clock.work() is Work.NONE
    assert clock.now() <= clock.now()


def test_a_sleep_of_nothing_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a virtual machine one takes 0.1 ms, more than most waits for a GPU."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    Clock().sleep(0)
    assert not slept
    Clock().sleep(0.25)
    ModelClock().sleep(0)  # the threads of a model need the interpreter
    assert slept == [0.25, 0]
