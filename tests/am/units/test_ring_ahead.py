"""Slots of a ring behind a bridge that are written ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ugpu.am.units.ring_ahead import RingAhead

COUNT = 16


class Ring:
    """A ring in memory, and what a submission of `image` writes to it."""

    def __init__(self) -> None:
        self.slots = [b""] * COUNT
        self.ahead = RingAhead(COUNT)
        self.number = self.seen = self.writes = 0

    def submit(self, image: object, *, cut_off: bool = False) -> None:
        index = self.number % COUNT
        free = COUNT - 1 - (self.number + 1 - self.seen)
        made = self.ahead.missing(index, image, free, lambda ahead: self.slot(image, ahead))
        self.writes += bool(made)
        if cut_off:
            return
        self.slots[index : index + len(made)] = made
        assert len(self.slots) == COUNT, "a write went past the ring's end"
        self.ahead.written(index, made)
        assert self.slots[index] == self.slot(image, 0)
        self.number += 1

    def slot(self, image: object, ahead: int) -> bytes:
        return f"{image} {self.number + ahead}".encode()


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=100))
def test_the_ring_has_each_submission(steps: list[tuple[int, bool, bool]]) -> None:
    """Whatever comes, is cut off, and has ended: no slot that has not ended is written."""
    ring = Ring()
    for image, cut_off, ended in steps:
        if ended or ring.number - ring.seen >= COUNT - 1:
            ring.seen = ring.number
        places = [number % COUNT for number in range(ring.seen, ring.number)]
        waiting = {place: ring.slots[place] for place in places}
        ring.submit(image, cut_off=cut_off)
        assert all(ring.slots[place] == slot for place, slot in waiting.items())


def test_an_image_that_comes_again_and_again_is_written_seldom() -> None:
    ring = Ring()
    for _ in range(10 * COUNT):
        ring.seen = ring.number
        ring.submit("graph")
    assert ring.writes <= 4 + 2 * 10, "two for each time around, four to begin with"


def test_images_that_differ_are_written_one_by_one() -> None:
    ring = Ring()
    for number in range(COUNT):
        ring.seen = ring.number
        ring.submit(number)
    assert ring.writes == COUNT


def test_a_ring_that_was_zeroed_has_nothing() -> None:
    ring = Ring()
    for _ in range(4):
        ring.submit("graph")
    ring.ahead.clear()
    ring.number = 0
    ring.slots = [b""] * COUNT
    before = ring.writes
    ring.submit("graph")
    assert ring.writes == before + 1
