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
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Prefetch, Statement, Store
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
        self.far = self.columns.whole * self.depth.whole * float32.itemsize > target.caches.far
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
        return self.nest.kernel(body)

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
            filled.append(
                Loop(number, (Store(self.left, place, ending(loaded, self.rest, front=True)),))
            )
        if self.unit.least is not None:
            unit = Range("left_unit", self.units)
            at = number.index() * self.pitch + unit.index() * self.unit.size
            total = _added(self.lefts(at))
            place = (number.index() * self.units + unit.index()) * self.lanes
            filled.append(Loop(number, (Loop(unit, (Store(self.added, place, total),)),)))
        return filled

    def lefts(self, first: Index) -> list[Value]:
        """Return the vectors of a unit of the left factor."""
        places = range(0, self.unit.size, self.lanes)
        return [load(self.left, first + place, lanes=self.lanes) for place in places]

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
        """Compute the sums of a few rows of `width` columns, whose totals are vectors: of floats
        all together, of other factors one column after the other, in the order of memory."""
        abreast = width if self.unit.is_plain else 1
        shape, count = f"{height}x{width}", height * abreast
        column, step = Range(f"column{shape}", width // abreast), Range(f"step{shape}", self.units)
        slots = [
            load(self.totals, constant(slot), lanes=self.lanes)
            for slot in range(count if self.unit.least is None else 2 * count)
        ]
        terms: list[Statement] = []
        ends: list[Statement] = []
        for across in range(abreast):
            place = first + (column.index() * abreast + across)
            places = {**self.batch, **self.columns.places(place)}
            some = slots[across::abreast]
            terms += self.terms(places, row, some[:height], step.index(), some[height:])
            ends += self.terms(places, row, some, None) if self.rest else []
        if self.far and self.unit.is_plain:
            terms += self.ahead(first + width, width, step.index())
        clear = (Store(self.totals, slot.arg.index, self.zero) for slot in slots)
        body: list[Statement] = [*clear, Loop(step, tuple(terms)), *ends]
        totals = [_added(slots[slot::count]) for slot in range(count)]
        if abreast < width:
            kept = (Store(self.parts_of_sums, (column.index() + down * width) * self.lanes, total)
                    for down, total in enumerate(totals))  # fmt: skip
            body = [Loop(column, (*body, *kept))]
            totals = [
                load(self.parts_of_sums, constant(place * self.lanes), lanes=self.lanes)
                for place in range(height * width)
            ]
        for down in range(height):  # a row's last vector also writes into the next row's place
            for start in range(0, width, self.lanes):
                part = totals[down * width + start : down * width + min(start + self.lanes, width)]
                body.append(Store(self.sums, (row + down) * self.width + start, sums(part)))
        return body

    def terms(
        self, places: Mapping[Range, Index], row: Index, totals: Sequence[Value],
        number: Index | None, leasts: Sequence[Value] = (),
    ) -> Iterator[Store]:  # fmt: skip
        """Add a unit of the depth of one column, or None for the incomplete vector at its end, to
        the totals of some rows."""
        unit, depth, lanes = self.unit, self.depth, self.lanes
        at = constant(depth.whole - lanes) if number is None else number * unit.size
        inner = substitute(unit.inner, places)
        columns = [along.vector(inner, depth, at + n, lanes) for n in range(0, unit.size, lanes)]
        if number is None:
            columns, at = [ending(columns[0], self.rest, front=False)], constant(self.end)
        scale, least = (
            None if each is None else along.repeated(substitute(each, places), depth, at, lanes)
            for each in (unit.scale, unit.least)
        )
        for down, total in enumerate(totals):
            lefts = self.lefts((row + down) * self.pitch + at)
            some, *others = zip(lefts, columns, strict=True)
            term = multiply_add(*some, total) if unit.is_plain else binary("mul", *some)
            for left, column in others:
                term = multiply_add(left, column, term)
            if scale is not None:
                term = multiply_add(scale, term, total)
            elif not unit.is_plain:
                term = binary("add", total, term)
            yield Store(self.totals, total.arg.index, term)
            if least is not None and number is not None:
                place = ((row + down) * self.units + number) * lanes
                term = multiply_add(load(self.added, place, lanes=lanes), least, leasts[down])
                yield Store(self.totals, leasts[down].arg.index, term)

    def ahead(self, first: Index, width: int, number: Index) -> Iterator[Prefetch]:
        """Begin to bring a vector of each of the next columns near the core."""
        for across in range(width):
            places = {**self.batch, **self.columns.places(first + across)}
            inner = substitute(self.unit.inner, places)
            near = along.vector(inner, self.depth, number * self.unit.size, self.lanes).arg
            yield Prefetch(near.memory, near.index)

    def finish(self, first: Index, width: int) -> Statement:
        """Return epilogue and stores, in order of memory."""
        row = self.rows.line(f"row{width}", self.rows.whole)
        column = self.columns.line(f"column{width}", width, first)
        total = load(self.sums, row.position * self.width + column.position)
        places = {**self.batch, **row.places, **column.places}
        to = self.nest.computation.position.substitute(places)
        outer, inner = (column, row) if to.coefficient(row.last) == 1 else (row, column)
        return self.nest.finish(outer, inner, total, self.parts.reduce)


def _added(vectors: Sequence[Value]) -> Value:
    return functools.reduce(partial(binary, "add"), vectors)


def ending(vector: Value, rest: int, front: bool) -> Value:
    """Return a vector's last `rest` elements (or, from the front, its first ones, moved there)
    behind zeros."""
    apart = vector.lanes - rest
    mask = (*([vector.lanes] * apart), *(range(rest) if front else range(apart, vector.lanes)))
    zero = broadcast(const(0, vector.dtype), vector.lanes)
    return value("shuffle", vector.dtype, (vector, zero), mask, vector.lanes)


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
