"""Beam search over choices: the best few so far are varied, one field at a time, until nothing
improves or the time is used up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ugpu.compiler.kernel.choices import Choices, Space
from ugpu.compiler.search.measure import Outcome

AHEAD = 6  # records that are compiled while others are measured
CLEAR = 0.97  # times the default's seconds: a gain smaller than this is noise


@dataclass(frozen=True)
class Trial:
    """One record and the outcome of its measurement.

    Attributes:
        choices: the record.
        outcome: of its measurement.
    """

    choices: Choices
    outcome: Outcome


@dataclass(frozen=True)
class Found:
    """trials: in the order they were made, the default's first. best: None if the default stays.
    finished: whether the search ended by itself rather than by the clock."""

    trials: tuple[Trial, ...]
    best: Trial | None
    finished: bool


def search(
    spaces: Sequence[Space],
    measure: Callable[[Choices, float], Outcome],
    width: int,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
    ahead: Callable[[Sequence[Choices]], None] = lambda _: None,
    starts: Sequence[Choices] = (),
    known: Sequence[Trial] = (),
) -> Found:
    """Try the starts of all spaces, then neighbours of the `width` best. measure: takes a record
    and the best seconds so far (0 at first); the default comes first, even if it is known. The
    winner is measured again beside the default. ahead: is called with the records that come next.
    starts: further records to try early. known: trials of an earlier part of the same search."""
    end = clock() + budget_s
    trials: dict[Choices, Trial] = {}
    home: dict[Choices, Space] = {}

    def best() -> float:
        return min((t.outcome.seconds for t in trials.values() if t.outcome.seconds), default=0.0)

    def attempt(choices: Choices, space: Space) -> None:
        home[choices] = space
        trials[choices] = Trial(choices, measure(choices, best()))

    default = spaces[0].start
    attempt(default, spaces[0])
    finished = trials[default].outcome.seconds is not None
    for trial in known if finished else ():
        former = _home(trial.choices, spaces)
        if former is not None and trial.choices not in trials:
            trials[trial.choices], home[trial.choices] = trial, former
    early = [(space.start, space) for space in spaces[1:] if space.fits(space.start)]
    early += [(each, space) for each in starts if (space := _home(each, spaces)) is not None]
    for choices, space in early if finished else ():
        if choices not in trials:
            attempt(choices, space)
    improving = finished
    while improving:
        before = best()
        coming = list(_next(trials, home, width))
        for number, (choices, space) in enumerate(coming):
            if clock() >= end:
                finished = improving = False
                break
            ahead([other for other, _ in coming[number : number + AHEAD]])
            attempt(choices, space)
        improving = improving and best() < before
    found = tuple(trials.values())
    return Found(found, _winner(found, measure), finished)


def _home(choices: Choices, spaces: Sequence[Space]) -> Space | None:
    return next((space for space in spaces if space.contains(choices)), None)


def _next(
    trials: dict[Choices, Trial], home: dict[Choices, Space], width: int
) -> Iterator[tuple[Choices, Space]]:
    """Yield untried choices around the best, the best's own first."""
    measured = [t for t in trials.values() if t.outcome.seconds is not None]
    measured.sort(key=lambda t: t.outcome.seconds or 0.0)
    given = set(trials)
    for trial in measured[:width]:
        space = home[trial.choices]
        for other in space.neighbours(trial.choices):
            if other not in given:
                given.add(other)
                yield other, space


def _winner(
    trials: tuple[Trial, ...], measure: Callable[[Choices, float], Outcome]
) -> Trial | None:
    """Return the fastest if, when both are measured again, it is still faster than the default."""
    default = trials[0]
    measured = [t for t in trials if t.outcome.seconds is not None]
    if default.outcome.seconds is None or len(measured) < 2:
        return None
    first = min(measured, key=lambda t: t.outcome.seconds or 0.0)
    if first is default:
        return None
    again = measure(first.choices, 0.0).seconds
    beside = measure(default.choices, 0.0).seconds
    if again is None or beside is None:
        return None
    seconds = min(again, first.outcome.seconds or again)
    if seconds >= CLEAR * min(beside, default.outcome.seconds):
        return None
    return Trial(first.choices, Outcome(seconds))
