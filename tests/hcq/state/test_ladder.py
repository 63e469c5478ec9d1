"""The ladder itself: the order of rungs, what is refused, and a report of every try."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ugpu.hcq.errors import BadArgument, ChipError, DeviceLost, NotSupported
from ugpu.hcq.state.ladder import Diagnosis, Ladder, Level, PlainRung


class Story:
    """Rungs whose steps are told in `events`; a step of `failing` raises."""

    def __init__(self, **failing: Exception) -> None:
        self.events: list[str] = []
        self.failing = failing

    def _step(self, name: str, step: str) -> Callable[[], dict[str, object]]:
        def run() -> dict[str, object]:
            self.events.append(f"{name} {step}")
            error = self.failing.get(f"{name}_{step}")
            if error is not None:
                raise error
            return {"by": name}

        return run

    def ladder(self, *levels: Level) -> Ladder:
        return Ladder(
            "card",
            [
                PlainRung(
                    level.label, level, "work", self._step(level.label, "act"),
                    self._step(level.label, "prove"), self._step(level.label, "check"),
                )
                for level in levels
            ],
        )  # fmt: skip


THREE = Level.QUEUE, Level.BLOCK, Level.MODE1


def test_the_first_rung_that_works_ends_the_climb() -> None:
    story = Story(queue_act=ChipError("stuck"))
    found = story.ladder(*THREE).climb(Diagnosis(Level.QUEUE, "a page fault"))
    assert [(one.name, one.worked, one.refused) for one in found] == [
        ("queue", False, False), ("block", True, False),
    ]  # fmt: skip
    assert found[0].detail.startswith("stuck") and found[1].proof == {"by": "block"}
    assert story.events == ["queue check", "queue act", "block check", "block act", "block prove"]


def test_the_diagnosis_says_where_to_begin() -> None:
    story = Story()
    story.ladder(*THREE).climb(Diagnosis(Level.WARM, "firmware"))
    assert story.events == ["mode1 check", "mode1 act", "mode1 prove"]


def test_a_rung_that_proves_nothing_has_not_worked() -> None:
    story = Story(queue_prove=ChipError("no signal"))
    found = story.ladder(*THREE).climb(Diagnosis(Level.QUEUE, ""))
    assert [one.worked for one in found] == [False, True]


def test_a_refused_rung_does_nothing_and_is_in_the_report() -> None:
    story = Story(queue_check=NotSupported("no"))
    found = story.ladder(*THREE).climb(Diagnosis(Level.QUEUE, ""))
    assert [(one.name, one.refused) for one in found] == [("queue", True), ("block", False)]
    assert "queue act" not in story.events


def test_one_rung_and_no_other() -> None:
    story = Story(mode1_act=ChipError("deaf"))
    ladder = story.ladder(*THREE)
    with pytest.raises(ChipError, match="deaf"):
        ladder.climb(Diagnosis(Level.QUEUE, ""), Level.MODE1)
    assert story.events == ["mode1 check", "mode1 act"]
    with pytest.raises(BadArgument, match="it has: queue, block, mode1"):
        ladder.climb(Diagnosis(Level.QUEUE, ""), Level.D3COLD)
    with pytest.raises(BadArgument, match="expected a rung"):
        Level.named("mode9")


def test_the_last_error_is_raised_and_a_refusal_does_not_hide_it() -> None:
    story = Story(queue_act=ChipError("stuck"), block_act=ChipError("dead"),
                  mode1_check=NotSupported("never"))  # fmt: skip
    ladder = story.ladder(*THREE)
    with pytest.raises(ChipError, match="dead") as caught:
        ladder.climb(Diagnosis(Level.QUEUE, ""))
    assert caught.value.facts["tried"] == "queue failed, block failed"
    assert caught.value.facts["phase"] == "act" and caught.value.facts["rung"] == "block"
    assert len(ladder.attempts) == 3


def test_nothing_further_is_tried_where_it_cannot_help() -> None:
    story = Story(queue_act=DeviceLost("gone"))
    with pytest.raises(DeviceLost):
        story.ladder(*THREE).climb(Diagnosis(Level.QUEUE, ""), give_up=lambda: True)
    assert story.events == ["queue check", "queue act"]


def test_a_plan_changes_nothing() -> None:
    story = Story(block_check=NotSupported("no such block"))
    found = story.ladder(*THREE).plan(Diagnosis(Level.BLOCK, ""))
    assert [(one.name, one.taken, bool(one.refusal)) for one in found] == [
        ("queue", False, False), ("block", False, True), ("mode1", True, False),
    ]  # fmt: skip
    assert story.events == ["queue check", "block check", "mode1 check"]


def test_what_ends_a_climb_is_in_the_report() -> None:
    story = Story(queue_act=ChipError("stuck"), block_act=KeyboardInterrupt())  # type: ignore[arg-type]
    ladder = story.ladder(*THREE)
    with pytest.raises(KeyboardInterrupt):
        ladder.climb(Diagnosis(Level.QUEUE, ""))
    assert [one.name for one in ladder.attempts] == ["queue"]
