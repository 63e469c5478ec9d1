"""Products of few rows with a long factor that lies along the depth, on the host.

    before   out[row, column] = sum over d of left[row, d] * right[column, d]
    after    for a few columns at a time, and a few rows:
             vectors  total[row, column] += left[row, d ..] * right[column, d ..]
             sums     of each total's lanes, several totals at once

The right factor (the weights of a convolution whose image has become small, of a linear layer
[out, in]) is read once, in order and in place, without packing or transposing; weights of 16 or 8
bits, and groups of them that share a scale, become floats in registers. The left factor is first
laid out row by row, which evaluates the operations fused into it once per group.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.accumulate import multiply_add
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    const,
    load,
    substitute,
    value,
)
from ugpu.compiler.kernel.host.nest import Axis, Nest, Part, round_up, share
from ugpu.compiler.kernel.host.products import along
from ugpu.compiler.kernel.host.products.tiles import vector_registers
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store
from ugpu.compiler.pattern.contraction import Contraction, ranges_of
from ugpu.hcq.state.target import TargetSpec

MOST_ROWS = 16  # above, packing the long factor pays
HIGH = 4  # rows whose totals are computed together
WIDE = 8  # maximum columns: memory is read at as many places
DEEP = 8  # vectors of depth from which on the sums of lanes cost little
GROUP = 256  # columns of a group, if threads are few: each group lays out the left factor
LEAST = 64  # minimum columns of a group


@dataclass(frozen=True)
class Dots:
    """The sides. unit: the long factor, by steps of the depth that are read together."""

    parts: Contraction
    rows: Part
    columns: Part
    depth: Part
    unit: along.Unit


def find_dots(
    computation: Computation, parts: Contraction | None, target: TargetSpec
) -> Dots | None:
    """Return the sides if a product is of this kind, whichever factor is long; otherwise None.
    parts: the product, if it has two sides."""
    parts = parts or _one_row(computation)
    if parts is None:
        return None
    turned = replace(
        parts, left=parts.right, right=parts.left, rows=parts.columns, columns=parts.rows,
        all_rows=parts.all_columns, all_columns=parts.all_rows,
    )  # fmt: skip
    return next((found for each in (parts, turned) if (found := _dots(each, target))), None)


def _one_row(computation: Computation) -> Contraction | None:
    """Return a product of a vector with a matrix, as one of which a side is one row."""
    total = computation.reduction
    if total is None or total.arg[0] != "sum" or total.sources[0].op != "mul":
        return None
    factors = total.sources[0].sources
    for left, right in (factors, factors[::-1]):
        in_left, in_right = ranges_of(left), ranges_of(right)
        columns = tuple(r for r in computation.ranges if r in in_right - in_left)
        depths = tuple(r for r in total.arg[1] if r in in_left & in_right)
        if columns and depths and not any(r in in_left - in_right for r in computation.ranges):
            row = Range("only", 1)
            return Contraction(
                total, left, right, row, columns[-1], depths[-1], (), (), (row,), columns, depths
            )
    return None


def _dots(parts: Contraction, target: TargetSpec) -> Dots | None:
    lanes, held = target.vector_bytes // float32.itemsize, target.caches.second // 2
    right, rows = parts.right, elements(parts.all_rows)
    if parts.reduce.dtype is not float32 or right.dtype is not float32:
        return None
    if set(parts.reduce.arg[1]) != set(parts.all_depths):
        return None
    depth = _whole(along.in_order(right, parts.all_depths))
    few = rows <= MOST_ROWS and rows * depth.whole * float32.itemsize <= held
    if not few or elements(parts.all_columns) < WIDE or depth.whole < DEEP * lanes:
        return None
    unit = along.find_unit(right, depth, lanes)
    if unit is None or (rows == 1 and unit.is_plain):  # of floats, plain loops are as fast
        return None
    return Dots(parts, _whole(parts.all_rows), _whole(parts.all_columns), depth, unit)


def _whole(ranges: Sequence[Range]) -> Part:
    return Axis(ranges[0], tuple(ranges[1:])).whole


def multiply(computation: Computation, dots: Dots, target: TargetSpec) -> Kernel:
    """Return a kernel whose groups compute some columns of all rows."""
    return _Product(computation, dots, target).kernel()


class _Product:
    """Sizes and memories of one kernel."""

    def __init__(self, computation: Computation, dots: Dots, target: TargetSpec) -> None:
        self.parts = dots.parts
        self.rows, self.columns, self.depth = dots.rows, dots.columns, dots.depth
        self.lanes = target.vector_bytes // float32.itemsize
        self.zero = broadcast(const(0, float32), self.lanes)
        self.height = share(self.rows.whole, HIGH)
        # registers: totals, a vector of each row, one of the right factor
        most = (vector_registers(target) - self.height - 2) // self.height
        self.unit, size = dots.unit, dots.unit.size
        self.width = max(1, min(WIDE, most if self.unit.is_plain else WIDE, self.columns.whole))
        blocks = self.columns.whole // self.width
        shares = max(target.compute_units, self.columns.whole // GROUP)
        shares = max(1, min(shares, self.columns.whole // LEAST))
        joint = {*self.rows.axis.ranges, *self.columns.axis.ranges}
        batch = [r for r in computation.ranges if r not in joint]
        self.nest = Nest(computation, batch, (Range("block", blocks), -(-blocks // shares)))
        self.batch = self.nest.batch
        self.units, self.rest = divmod(self.depth.whole, size)
        self.end = self.units * size
        self.pitch = round_up(self.depth.whole, self.lanes)
        self.left = Memory("left", float32, self.rows.whole * self.pitch, "local")
        self.sums = Memory("sums", float32, self.rows.whole * self.width + self.lanes, "local")
        count = self.height * self.width
        # the least ones have totals of their own: one would wait for the other
        held = count if self.unit.is_plain else self.height * (1 + (self.unit.least is not None))
        self.totals = Memory("totals", float32, held, "register", self.lanes)
        self.parts_of_sums = Memory("parts", float32, count * self.lanes, "local")
        self.added = Memory("added", float32, self.rows.whole * self.units * self.lanes, "local")

    def kernel(self) -> Kernel:
        (blocks,) = self.nest.sides
        block = blocks.walk("block")
        first = block.places[blocks.axis.main] * self.width
        body = [*self.fill(), block.around(*self.columns_of(first, self.width))]
        whole, rest = divmod(self.columns.whole, self.width)
        if rest:  # after the last group's blocks
            last = tuple(self.columns_of(constant(whole * self.width), rest))
            is_last = at_least_zero(blocks.start - (self.nest.grid[0] - 1) * blocks.count)
            body += [If(is_last, last)] if self.nest.grid[0] > 1 else last
        memories = [self.left, self.sums, self.totals]
        memories += [] if self.unit.is_plain else [self.parts_of_sums]
        memories += [] if self.unit.least is None else [self.added]
        return self.nest.kernel(memories, body)

    def fill(self) -> list[Statement]:
        """Copy the left factor, by rows. If the depth is not a multiple of a vector, the last
        vector has the row's last elements, without those of the one before."""
        factor = self.parts.left
        row, step = self.rows.walk("left_row", factor), self.depth.walk("left_step", factor)
        here = substitute(factor, {**self.batch, **row.places, **step.places})
        first = row.position * self.pitch
        filled = [row.around(step.around(Store(self.left, first + step.position, here)))]
        number = Range("row", self.rows.whole)
        if self.rest:
            place = number.index() * self.pitch + self.end
            loaded = load(self.left, place, lanes=self.lanes)
            filled.append(Loop(number, (Store(self.left, place, self.ending(loaded, front=True)),)))
        if self.unit.least is not None:
            unit = Range("left_unit", self.units)
            at = number.index() * self.pitch + unit.index() * self.unit.size
            total = functools.reduce(partial(binary, "add"), self.lefts(at))
            place = (number.index() * self.units + unit.index()) * self.lanes
            filled.append(Loop(number, (Loop(unit, (Store(self.added, place, total),)),)))
        return filled

    def lefts(self, first: Index) -> list[Value]:
        """Return the vectors of a unit of the left factor."""
        places = range(0, self.unit.size, self.lanes)
        return [load(self.left, first + place, lanes=self.lanes) for place in places]

    def ending(self, vector: Value, front: bool) -> Value:
        """Return a vector's last `rest` elements (or, from the front, its first ones, moved there)
        behind zeros."""
        apart = self.lanes - self.rest
        kept = range(self.rest) if front else range(apart, self.lanes)
        mask = (*([self.lanes] * apart), *kept)
        return value("shuffle", float32, (vector, self.zero), mask, self.lanes)

    def columns_of(self, first: Index, width: int) -> list[Statement]:
        """Compute all rows of `width` columns, and the results from their sums."""
        full, rest = divmod(self.rows.whole, self.height)
        block = Range(f"rows{width}", full)
        inside = tuple(self.block(first, width, block.index() * self.height, self.height))
        statements: list[Statement] = [Loop(block, inside)]
        if rest:
            statements += self.block(first, width, constant(full * self.height), rest)
        return [*statements, self.finish(first, width)]

    def block(self, first: Index, width: int, row: Index, height: int) -> list[Statement]:
        """Compute the sums of a few rows of `width` columns."""
        compute = self.side_by_side if self.unit.is_plain else self.in_turn
        statements, totals = compute(first, width, row, height)
        for down in range(height):  # a row's last vector also writes into the next row's place
            for start in range(0, width, self.lanes):
                part = totals[down * width + start : down * width + min(start + self.lanes, width)]
                at = (row + down) * self.width + start
                statements.append(Store(self.sums, at, sums(part)))
        return statements

    # ---- totals, each a vector -----------------------------------------------------------------

    def in_turn(
        self, first: Index, width: int, row: Index, height: int
    ) -> tuple[list[Statement], list[Value]]:
        """Compute the totals of one column after the other, in the order of memory."""
        column, step = Range(f"column{height}x{width}", width), Range("step", self.units)
        count = height * (1 + (self.unit.least is not None))
        totals = [load(self.totals, constant(slot), lanes=self.lanes) for slot in range(count)]
        places = {**self.batch, **self.columns.places(first + column.index())}
        terms = self.terms_of_unit(places, row, height, step.index())
        body = [Store(self.totals, total.arg.index, self.zero) for total in totals]
        kept = [
            Store(self.parts_of_sums, (column.index() + down * width) * self.lanes,
                  functools.reduce(partial(binary, "add"), totals[down::height]))
            for down in range(height)
        ]  # fmt: skip
        totals = [
            load(self.parts_of_sums, constant(place * self.lanes), lanes=self.lanes)
            for place in range(height * width)
        ]
        ends = self.terms_of_end(places, row, height) if self.rest else ()
        return [Loop(column, (*body, Loop(step, tuple(terms)), *ends, *kept))], totals

    def terms_of_end(
        self, places: Mapping[Range, Index], row: Index, height: int
    ) -> Iterator[Statement]:
        """Add the incomplete vector at the end of the depth to the totals of one column."""
        inner = substitute(self.unit.inner, places)
        last = constant(self.depth.whole - self.lanes)
        column = self.ending(along.vector(inner, self.depth, last, self.lanes), front=False)
        for down in range(height):
            left = load(self.left, (row + down) * self.pitch + self.end, lanes=self.lanes)
            total = load(self.totals, constant(down), lanes=self.lanes)
            yield Store(self.totals, constant(down), multiply_add(left, column, total))

    def terms_of_unit(
        self, places: Mapping[Range, Index], row: Index, height: int, number: Index
    ) -> Iterator[Statement]:
        """Add a unit of the depth to the totals of one column."""
        unit, depth, lanes, at = self.unit, self.depth, self.lanes, number * self.unit.size
        inner = substitute(unit.inner, places)
        column = [along.vector(inner, depth, at + n, lanes) for n in range(0, unit.size, lanes)]
        scale, least = (
            None if each is None else along.repeated(substitute(each, places), depth, at, lanes)
            for each in (unit.scale, unit.least)
        )
        for down in range(height):
            some, *others = zip(self.lefts((row + down) * self.pitch + at), column, strict=True)
            term = binary("mul", *some)
            for left, right in others:
                term = multiply_add(left, right, term)
            total = load(self.totals, constant(down), lanes=lanes)
            yield Store(
                self.totals, constant(down),
                binary("add", total, term) if scale is None else multiply_add(scale, term, total),
            )  # fmt: skip
            if least is not None:
                place = ((row + down) * self.units + number) * lanes
                left, slot = load(self.added, place, lanes=lanes), constant(height + down)
                total = multiply_add(left, least, load(self.totals, slot, lanes=lanes))
                yield Store(self.totals, slot, total)

    def side_by_side(
        self, first: Index, width: int, row: Index, height: int
    ) -> tuple[list[Statement], list[Value]]:
        """Compute the totals of all columns together."""
        slots = [constant(place) for place in range(height * width)]
        step = Range(f"step{height}x{width}", self.units)
        terms = self.terms(first, width, row, height, step.index() * self.lanes)
        statements: list[Statement] = [Store(self.totals, slot, self.zero) for slot in slots]
        statements.append(Loop(step, tuple(terms)))
        if self.rest:
            statements += self.terms(first, width, row, height, None)
        return statements, [load(self.totals, slot, lanes=self.lanes) for slot in slots]

    def terms(
        self, first: Index, width: int, row: Index, height: int, at: Index | None
    ) -> Iterator[Statement]:
        """Add a vector of the depth, or None for the incomplete one, to all totals of a block."""
        end = constant(self.end)
        rows = [
            load(self.left, (row + down) * self.pitch + (end if at is None else at), (), self.lanes)
            for down in range(height)
        ]
        last = constant(self.depth.whole - self.lanes)
        for across in range(width):
            places = {**self.batch, **self.columns.places(first + across)}
            factor = substitute(self.unit.inner, places)
            column = along.vector(factor, self.depth, last if at is None else at, self.lanes)
            column = self.ending(column, front=False) if at is None else column
            for down in range(height):
                place = constant(down * width + across)
                total = load(self.totals, place, lanes=self.lanes)
                yield Store(self.totals, place, multiply_add(rows[down], column, total))

    def finish(self, first: Index, width: int) -> Statement:
        """Return epilogue and stores, in order of memory."""
        row = self.rows.line(f"row{width}", self.rows.whole)
        column = self.columns.line(f"column{width}", width, first)
        total = load(self.sums, row.position * self.width + column.position)
        places = {**self.batch, **row.places, **column.places}
        to = self.nest.computation.position.substitute(places)
        outer, inner = (column, row) if to.coefficient(row.last) == 1 else (row, column)
        return self.nest.finish(outer, inner, total, self.parts.reduce)


def sums(vectors: Sequence[Value]) -> Value:
    """Return a vector whose first lanes are the sums of the lanes of each vector, of which there
    are at most as many as lanes; the rest repeats them."""
    lanes, dtype = vectors[0].lanes, vectors[0].dtype
    even = tuple(range(0, 2 * lanes, 2))
    odd = tuple(range(1, 2 * lanes, 2))
    some, count = list(vectors), lanes
    while count > 1:
        pairs = [(some[i], some[min(i + 1, len(some) - 1)]) for i in range(0, len(some), 2)]
        some = [
            binary("add", *(value("shuffle", dtype, pair, mask, lanes) for mask in (even, odd)))
            for pair in pairs
        ]
        count //= 2
    return some[0]
