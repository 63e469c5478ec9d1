"""Rows of a kernel that are computed side by side, one in each lane of a vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.kernel.ir import If, Loop, Statement, nested


class Abreast:
    """`count` rows, `lanes` of them at a time from `first` on. The rows of the last vector may be
    fewer."""

    def __init__(self, count: int, lanes: int, first: Index) -> None:
        self.count, self.lanes, self.first = count, lanes, first
        self._ranges = 0

    def range(self, size: int) -> Range:
        """Return a new range."""
        self._ranges += 1
        return Range(f"a{self._ranges}", size)

    @property
    def left(self) -> Index:
        """Return how many rows there are from the first one on."""
        return constant(self.count) - self.first

    def whole(self, fast: Sequence[Statement] | None, slow: Statement) -> list[Statement]:
        """Return the fast form, if there is one, for complete vectors of rows, the slow one for the
        last others."""
        if fast is None:
            return [slow]
        if self.count % self.lanes == 0:
            return list(fast)
        left = self.left - self.lanes
        return [
            If(at_least_zero(left), tuple(fast)), If(at_least_zero(-left - 1), (slow,)),
        ]  # fmt: skip

    def tiles(
        self, size: int, step: int, tile: Callable[[Index], tuple[Statement, ...]]
    ) -> list[Statement] | None:
        """Return the tiles over `size` places, `step` at a time; some may be done twice. None if
        there are fewer."""
        if size < step:
            return None
        each = self.range(size // step)
        steps: list[Statement] = [Loop(each, tile(each.index() * step), rolled=True)]
        if size % step:
            steps += tile(constant(size - step))
        return steps

    def apart(
        self, outer: Sequence[Range], lane: Range, body: Statement, bound: Index | None = None
    ) -> Statement:
        """Return loops around a statement for each lane."""
        (inside,) = nested(outer, Loop(lane, (body,), bound))
        return inside
