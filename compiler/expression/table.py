"""Integers of a constant table, as atoms of the index algebra; no memory is read for them.

A row of parts is given by the start of each but the first. A Table gives the entry for the part
that contains a number. It is a selection by bisection, of as many comparisons as there are parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import gcd

from ugpu.compiler.expression.algebra import Index, Opaque, Range, Validity


class Table(Opaque):
    """entries[n], where n is the number of `starts` (ascending) that are at most `number`."""

    __slots__ = ("entries", "high", "key", "low", "number", "starts")

    def __init__(self, entries: tuple[int, ...], starts: tuple[int, ...], number: Index) -> None:
        self.entries, self.starts, self.number = entries, starts, number
        self.low, self.high = min(entries), max(entries)
        known, begins = " ".join(map(str, entries)), " ".join(map(str, starts))
        self.key = f"<{known} from {begins} at {number}>"

    def indices(self) -> Iterator[Index]:
        yield self.number

    def rebuild(self, leaf: Callable[[Range], Index]) -> Index:
        return table(self.entries, self.starts, self.number.rebuild(leaf))

    def guarded(self, conditions: Validity) -> Index:
        return Index(((self, 1),), 0)

    def magnitude(self) -> int:
        known = max(abs(each) for each in (*self.entries, *self.starts))
        return max(known, self.number.magnitude())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Table)
            and self.entries == other.entries
            and self.starts == other.starts
            and self.number == other.number
        )

    def __hash__(self) -> int:
        return hash((self.entries, self.starts, self.number))


def table(entries: Sequence[int], starts: Sequence[int], number: Index) -> Index:
    """Return the entry of the part that contains a number, in its simplest form."""
    least = min(entries)
    if number.is_constant:
        return Index((), entries[sum(start <= number.constant for start in starts)])
    if len(set(entries)) == 1:
        return Index((), least)
    inside = number.low >= 0 and number.high < len(entries)
    if inside and tuple(starts) == tuple(range(1, len(entries))):  # each part is one number
        steps = {after - before for before, after in pairwise(entries)}
        if len(steps) == 1:
            return number * steps.pop() + entries[0]
    factor = gcd(*(each - least for each in entries))
    scaled = tuple([(each - least) // factor for each in entries])
    return Index(((Table(scaled, tuple(starts), number), factor),), least)
