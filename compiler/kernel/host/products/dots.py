"""Products of few rows with a long factor that lies along the depth, on the host.

    before   out[row, column] = sum over d of left[row, d] * right[column, d]
    after    for a few columns at a time, and a few rows:
             vectors  total[row, column] += left[row, d ..] * right[column, d ..]
             sums     of each total's lanes, several totals at once

The right factor (the weights of a convolution whose image has become small, of a linear layer
[out, in]) is read once, in order and in place, without packing or transposing. The left factor is
first laid out row by row, which evaluates the operations fused into it once per group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

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
from ugpu.compiler.kernel.host.products.tiles import vector_registers
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

MOST_ROWS = 16  # above, packing the long factor pays
HIGH = 4  # rows whose totals are computed together
WIDE = 8  # maximum columns: memory is read at as many places
DEEP = 8  # vectors of depth from which on the sums of lanes cost little
GROUP = 256  # columns of a group, if threads are few: each group lays out the left factor
LEAST = 64  # minimum columns of a group


@dataclass(frozen=True)
class Dots:
    """The sides. right: the load of the long factor, element by element along the depth."""

    parts: Contraction
    rows: Part
    columns: Part
    depth: Part


def find_dots(parts: Contraction, target: TargetSpec) -> Dots | None:
    """Return the sides if a product is of this kind, whichever factor is long; otherwise None."""
    turned = replace(
        parts, left=parts.right, right=parts.left, rows=parts.columns, columns=parts.rows,
        all_rows=parts.all_columns, all_columns=parts.all_rows,
    )  # fmt: skip
    return next((found for each in (parts, turned) if (found := _dots(each, target))), None)


def _dots(parts: Contraction, target: TargetSpec) -> Dots | None:
    lanes, held = target.vector_bytes // float32.itemsize, target.caches.second // 2
    right, rows = parts.right, elements(parts.all_rows)
    if parts.reduce.dtype is not float32 or right.op != "load" or right.arg.conditions:
        return None
    if right.dtype is not float32 or set(parts.reduce.arg[1]) != set(parts.all_depths):
        return None
    ranges = sorted(parts.all_depths, key=lambda r: -right.arg.index.coefficient(r))
    depth = _whole(ranges)
    few = rows <= MOST_ROWS and rows * depth.whole * float32.itemsize <= held
    if not few or elements(parts.all_columns) < WIDE or depth.whole < DEEP * lanes:
        return None
    step = Range("step", depth.whole)
    if right.arg.index.substitute(depth.places(step.index())).linear(step) != (1,):
        return None
    return Dots(parts, _whole(parts.all_rows), _whole(parts.all_columns), depth)


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
        self.width = max(1, min(WIDE, most, self.columns.whole))
        blocks = self.columns.whole // self.width
        shares = max(target.compute_units, self.columns.whole // GROUP)
        shares = max(1, min(shares, self.columns.whole // LEAST))
        joint = {*self.rows.axis.ranges, *self.columns.axis.ranges}
        batch = [r for r in computation.ranges if r not in joint]
        self.nest = Nest(computation, batch, (Range("block", blocks), -(-blocks // shares)))
        self.batch = self.nest.batch
        self.vectors, self.rest = divmod(self.depth.whole, self.lanes)
        self.pitch = round_up(self.depth.whole, self.lanes)
        self.left = Memory("left", float32, self.rows.whole * self.pitch, "local")
        self.sums = Memory("sums", float32, self.rows.whole * self.width, "local")
        count = self.height * self.width
        self.totals = Memory("totals", float32, count, "register", self.lanes)

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
        return self.nest.kernel((self.left, self.sums, self.totals), body)

    def fill(self) -> list[Statement]:
        """Copy the left factor, by rows. If the depth is not a multiple of a vector, the last
        vector has the row's last elements, without those of the one before."""
        factor = self.parts.left
        row, step = self.rows.walk("left_row", factor), self.depth.walk("left_step", factor)
        here = substitute(factor, {**self.batch, **row.places, **step.places})
        end = self.vectors * self.lanes
        first = row.position * self.pitch
        copied = row.around(step.around(Store(self.left, first + step.position, here)))
        if not self.rest:
            return [copied]
        number = Range("row", self.rows.whole)
        place = number.index() * self.pitch + end
        loaded = load(self.left, place, lanes=self.lanes)
        moved = Store(self.left, place, self.ending(loaded, front=True))
        return [copied, Loop(number, (moved,))]

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
        places = list(product(range(height), range(width)))
        slots = [constant(place) for place in range(len(places))]
        step = Range(f"step{height}x{width}", self.vectors)
        terms = self.terms(first, width, row, height, step.index() * self.lanes)
        statements: list[Statement] = [Store(self.totals, slot, self.zero) for slot in slots]
        statements.append(Loop(step, tuple(terms)))
        if self.rest:
            statements += self.terms(first, width, row, height, None)
        totals = [load(self.totals, slot, lanes=self.lanes) for slot in slots]
        for start in range(0, len(places), self.lanes):
            summed = _sums(totals[start : start + self.lanes])
            for lane, (down, across) in enumerate(places[start : start + self.lanes]):
                one = value("extract", float32, (summed,), lane)
                statements.append(Store(self.sums, (row + down) * self.width + across, one))
        return statements

    def terms(
        self, first: Index, width: int, row: Index, height: int, at: Index | None
    ) -> Iterator[Statement]:
        """Add a vector of the depth, or None for the incomplete one, to all totals of a block."""
        end = constant(self.vectors * self.lanes)
        rows = [
            load(self.left, (row + down) * self.pitch + (end if at is None else at), (), self.lanes)
            for down in range(height)
        ]
        last = constant(self.depth.whole - self.lanes)
        depth = self.depth.places(last if at is None else at)
        for across in range(width):
            places = {**self.batch, **self.columns.places(first + across), **depth}
            access = substitute(self.parts.right, places).arg
            column = load(access.memory, access.index, lanes=self.lanes)
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


def _sums(vectors: Sequence[Value]) -> Value:
    """Return a vector whose first lanes are the sums of the lanes of each vector, of which there
    are at most as many as lanes; the rest repeats them."""
    lanes = vectors[0].lanes
    even = tuple(range(0, 2 * lanes, 2))
    odd = tuple(range(1, 2 * lanes, 2))
    some, count = list(vectors), lanes
    while count > 1:
        pairs = [(some[i], some[min(i + 1, len(some) - 1)]) for i in range(0, len(some), 2)]
        some = [
            binary("add", *(value("shuffle", float32, pair, mask, lanes) for mask in (even, odd)))
            for pair in pairs
        ]
        count //= 2
    return some[0]
