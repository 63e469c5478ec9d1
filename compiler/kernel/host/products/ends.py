"""The last columns of a product that would leave most of a vector empty: 49 of 64 lanes.

    before   total[row, column] += left[row, step] * right[step, column ..], a vector of columns
    after    total[row, column] += left[row, step ..] * right[step .., column], a vector of the
             depth, for the few columns behind the last whole panel; then sums of the lanes

The left factor's memory runs along the depth. A copy of these columns of the right one has the
order of the depth. Of an incomplete vector at the end of the depth, the last elements are behind
zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ugpu.compiler.dtype import DType
from ugpu.compiler.expression.accumulate import identity
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.value import Memory, Value, binary, load, value
from ugpu.compiler.kernel.host.nest import Panel, filled, round_up, share
from ugpu.compiler.kernel.host.products.dots import ending, sums
from ugpu.compiler.kernel.host.products.packing import Factor
from ugpu.compiler.kernel.ir import Loop, Statement, Store


class Ends:
    """`count` columns, of which the packed right factor has the first element in `panel`. left: in
    panels of `height` rows, as far as `tall`; steps: of a slice of the depth, whole vectors unless
    it is the only slice."""

    def __init__(
        self, left: Factor, right: Factor, panel: int,
        sides: tuple[int, int, int], steps: int, lanes: int, dtype: DType,
    ) -> None:  # fmt: skip
        self.left, self.right, self.panel = left, right, panel
        tall, self.height, self.count = sides
        self.steps, self.lanes = steps, lanes
        self.rows = share(self.height, max(1, lanes // self.count))  # whose lanes are added at once
        self.pitch, self.rest = round_up(steps, lanes), steps % lanes
        self.columns = Memory("ends", dtype, self.count * self.pitch, "local")
        self.sums = Memory("end_sums", dtype, tall * self.count + lanes, "local")
        self.totals = Memory("end_totals", dtype, self.rows * self.count, "register", lanes)

    def clear(self) -> Statement:
        return filled("clear_ends", self.sums, identity("sum", self.sums.dtype))

    def copy(self, steps: Index | None) -> tuple[Statement, ...]:
        """Copy the columns of a slice of the depth, whose bound is `steps`."""
        step = Range("end_step", self.steps)
        copies = [
            Store(self.columns, step.index() + column * self.pitch,
                  self.right.load(constant(self.panel), step.index(), column, 1))
            for column in range(self.count)
        ]  # fmt: skip
        ends = self.ends(constant(self.steps - self.rest)) if self.rest else []
        moved = (Store(self.columns, end.arg.index, ending(end, self.rest, True)) for end in ends)
        return (Loop(step, tuple(copies), steps), *moved)

    def ends(self, step: Index) -> list[Value]:
        """Return a vector of each column."""
        places = (step + column * self.pitch for column in range(self.count))
        return [load(self.columns, place, lanes=self.lanes) for place in places]

    def multiply(self, panel: Index, once: bool, steps: Index | None) -> Iterator[Statement]:
        """Add the products of a slice to the sums of a panel of rows. once: it is the only one."""
        lanes, bound = self.lanes, None if steps is None else steps // self.lanes
        last = constant(self.steps - lanes)
        for first in range(0, self.height, self.rows):
            rows = range(first, min(first + self.rows, self.height))
            totals = Panel(self.totals, len(rows), self.count)
            block = Range(f"end_block{first}", self.steps // lanes)
            at = block.index() * lanes
            left = [self.left.load(panel, at, row, lanes) for row in rows]
            yield from totals.computed(left, self.ends(at), partial(Loop, block, bound=bound))
            if self.rest:
                left = [ending(self.left.load(panel, last, row, lanes), self.rest, False)
                        for row in rows]  # fmt: skip
                yield from totals.added(left, self.ends(constant(self.steps - self.rest)))
            vector = sums([total for _, _, total in totals.each()])
            place = (panel * self.height + first) * self.count
            if once:  # what is behind the last sum is overwritten by those of the next rows
                yield Store(self.sums, place, vector)
                continue
            for slot in range(len(rows) * self.count):
                one = value("extract", self.sums.dtype, (vector,), slot)
                total = load(self.sums, place + slot)
                yield Store(self.sums, place + slot, binary("add", total, one))

    def total(self, row: Index, column: Index) -> Value:
        return load(self.sums, row * self.count + column)
