"""Waiting with a limit, which holds unless a model of this process is at work."""

from __future__ import annotations

import itertools

import pytest

from hcq import poll
from hcq.errors import UnitTimeout
from hcq.poll import plays, wait_until


class Clock:
    """Time that passes in sleep, and a little with each look."""

    def __init__(self) -> None:
        self.now = 100.0
        self.tick = 1e-6

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def until(self, when: float | None, limit_s: float) -> float:
        """Wait for what comes to pass `when` seconds from now; the seconds that it took."""
        start = self.now
        wait_until(
            lambda: when is not None and self.now >= start + when,
            unit="toy", waiting_for="time", limit_s=limit_s, clock=self, sleep=self.sleep,
            state=lambda: "as it is",
        )  # fmt: skip
        return self.now - start


class Model:
    """At work until a time."""

    def __init__(self, clock: Clock, until: float) -> None:
        self.clock = clock
        self.until = until

    @property
    def at_work(self) -> bool:
        return self.clock.now < self.until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(poll, "_players", type(poll._players)())
    return Clock()


def test_what_comes_within_the_limit(clock: Clock) -> None:
    assert 0.5 <= clock.until(0.5, 1.0) < 0.502
    assert clock.until(0.0, 1.0) < 1e-5


def test_a_limit_that_passes(clock: Clock) -> None:
    start = clock.now
    with pytest.raises(UnitTimeout, match=r"toy: no time within 1\.0 s") as caught:
        clock.until(None, 1.0)
    assert 1 < clock.now - start < 1.01
    assert caught.value.facts["state"] == "as it is"


@pytest.mark.parametrize("needed", [2, 10, 11, 12])
def test_who_slept_longer_than_the_limit_looks_again(clock: Clock, needed: int) -> None:
    """A model that answers the tenth look, or a chip that has answered long since."""

    def overslept(seconds: float) -> None:
        clock.now += 100

    clock.tick = 1e-4  # no look is for nothing
    looks = itertools.count(1)

    def look() -> bool:
        return next(looks) >= needed

    def wait() -> bool:
        return wait_until(
            look, unit="toy", waiting_for="x", limit_s=0.1, clock=clock, sleep=overslept
        )

    if needed > 11:
        with pytest.raises(UnitTimeout):
            wait()
    else:
        assert wait()


def test_no_limit_holds_while_a_model_is_at_work(clock: Clock) -> None:
    model, idle = Model(clock, clock.now + 3), Model(clock, 0)
    plays(model)
    plays(idle)
    assert 2.9 <= clock.until(2.9, 1.0) < 2.91
    start = clock.now
    model.until = start + 3
    with pytest.raises(UnitTimeout):
        clock.until(None, 1.0)
    assert 3 <= clock.now - start < 3.01, "the model came to rest, and nothing had come"
    model.until = clock.now + 1e6
    start = clock.now
    with pytest.raises(UnitTimeout):
        clock.until(None, 1.0)
    assert 20 < clock.now - start < 30, "a model that never rests"


def test_a_model_that_is_gone_is_not_asked(clock: Clock) -> None:
    plays(Model(clock, clock.now + 1e6))
    start = clock.now
    with pytest.raises(UnitTimeout):
        clock.until(None, 1.0)
    assert clock.now - start < 1.01
