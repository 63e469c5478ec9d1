"""The last columns of a product that would leave most of a vector empty: 49 of 64 lanes.

    before   total[row, column] += left[row, step] * right[step, column ..], a vector of columns
    after    total[row, column] += left[row, step ..] * right[step .., column], a vector of the
             depth, for the few columns behind the last whole panel; then sums of the lanes

The left factor's memory runs along the depth. A copy of these columns of the right one has the
order of the depth. Steps of the depth behind its last whole vector are added one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ugpu.compiler.dtype import DType
from ugpu.compiler.expression.accumulate import identity, multiply_add
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.value import Memory, Value, binary, broadcast, load, value
from ugpu.compiler.kernel.host.nest import computed, round_up, share
from ugpu.compiler.kernel.host.products.dots import sums
from ugpu.compiler.kernel.host.products.packing import Again, Direct, Lines, Packed
from ugpu.compiler.kernel.ir import Loop, Statement, Store


class Ends:
    """`count` columns, of which the packed right factor has the first element in `panel`. left: in
    panels of `height` rows, as far as `tall`; steps: of a slice of the depth, whole vectors unless
    it is the only slice."""

    def __init__(
        self, left: Packed | Direct | Again, right: Packed | Lines, panel: int,
        sides: tuple[int, int, int], steps: int, lanes: int, dtype: DType,
    ) -> None:  # fmt: skip
        self.left, self.right, self.panel = left, right, panel
        tall, self.height, self.count = sides
        self.steps, self.lanes = steps, lanes
        self.rows = share(self.height, max(1, lanes // self.count))  # whose lanes are added at once
        self.pitch = round_up(steps, lanes)
        self.columns = Memory("ends", dtype, self.count * self.pitch, "local")
        self.sums = Memory("end_sums", dtype, tall * self.count + lanes, "local")
        self.totals = Memory("end_totals", dtype, self.rows * self.count, "register", lanes)

    @property
    def memories(self) -> tuple[Memory, ...]:
        return self.columns, self.sums, self.totals

    def clear(self) -> Statement:
        counter = Range("clear_ends", self.sums.count)
        return Loop(counter, (Store(self.sums, counter.index(), identity("sum", self.sums.dtype)),))

    def copy(self, steps: Index | None) -> Statement:
        """Copy the columns of a slice of the depth, whose bound is `steps`."""
        step = Range("end_step", self.steps)
        copies = [
            Store(self.columns, step.index() + column * self.pitch,
                  self.right.load(constant(self.panel), step.index(), column, 1))
            for column in range(self.count)
        ]  # fmt: skip
        return Loop(step, tuple(copies), steps)

    def multiply(self, panel: Index, once: bool, steps: Index | None) -> Iterator[Statement]:
        """Add the products of a slice to the sums of a panel of rows. once: it is the only one."""
        for first in range(0, self.height, self.rows):
            rows = min(self.rows, self.height - first)
            yield from self.lanes_of(panel, first, rows, steps)
            slots = [constant(number) for number in range(rows * self.count)]
            vector = sums([load(self.totals, slot, lanes=self.lanes) for slot in slots])
            place = (panel * self.height + first) * self.count
            if once:  # what is behind the last sum is overwritten by those of the next rows
                yield Store(self.sums, place, vector)
                yield from self.rest(panel, first, rows)
                continue
            for slot in slots:
                total = load(self.sums, place + slot)
                one = value("extract", self.sums.dtype, (vector,), slot.constant)
                yield Store(self.sums, place + slot, binary("add", total, one))

    def rest(self, panel: Index, first: int, rows: int) -> Iterator[Statement]:
        """Add the products of the steps behind the last whole vector to the sums of some rows."""
        count = self.steps % self.lanes
        if not count:
            return
        step = Range(f"end_rest{first}", count)
        at, stores = step.index() + (self.steps - count), list[Statement]()
        for number in range(rows * self.count):
            down, column = divmod(number, self.count)
            place = (panel * self.height + first) * self.count + number
            left = self.left.load(panel, at, first + down, 1)
            right = load(self.columns, at + column * self.pitch)
            total = multiply_add(left, right, load(self.sums, place))
            stores.append(Store(self.sums, place, total))
        yield Loop(step, tuple(stores))

    def lanes_of(self, panel: Index, first: int, rows: int, steps: Index | None) -> list[Statement]:
        """Compute totals of some rows of a panel, a vector each."""
        lanes, count = self.lanes, self.count
        block = Range(f"end_block{first}", self.steps // lanes)
        at = block.index() * lanes
        ends = [load(self.columns, at + n * self.pitch, lanes=lanes) for n in range(count)]
        zero = broadcast(identity("sum", self.sums.dtype), lanes)

        def term(number: int, total: Value) -> Value:
            down, column = divmod(number, count)
            left = self.left.load(panel, at, first + down, lanes)
            return multiply_add(left, ends[column], total)

        loop = partial(Loop, block, bound=None if steps is None else steps // lanes)
        return computed(self.totals, rows * count, loop, lambda _: zero, term)

    def total(self, row: Index, column: Index) -> Value:
        return load(self.sums, row * self.count + column)
