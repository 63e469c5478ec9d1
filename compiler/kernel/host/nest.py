"""The nest of a host's kernel: blocks of results, one for each group, and loops over their sides.

A side is one range, or several walked as one: a convolution's columns are an image's rows and
columns; its depth is channels and the places of a window. A block takes `count` steps of the `main`
range and, inside each, all of the inner ranges. What a block reads is laid out first where it pays
(packed by compiler.kernel.host.products.packing, or copied by lines and turned in
compiler.kernel.host); then totals are computed, in registers (`Panel`), then results from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ugpu.compiler.expression.accumulate import multiply_add
from ugpu.compiler.expression.algebra import (
    Div,
    Index,
    Mod,
    Opaque,
    Range,
    constant,
    flatten,
    unflatten,
)
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    broadcast,
    const,
    indices_of,
    load,
    substitute,
)
from ugpu.compiler.kernel.ir import (
    If,
    Kernel,
    Loop,
    Statement,
    Store,
    group_range,
    nested,
)
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over, result

LONG = 16  # elements of a loop that LLVM takes in vectors; loops around it need not be unrolled
UNROLLED = 256  # elements from which on LLVM does not unroll a loop completely
CHUNK = 16384  # elements of work that justify a separate group
COLUMNS = 1024  # totals that a group has side by side in local memory
LINE = 64  # minimum of these


@dataclass(frozen=True)
class Axis:
    """Ranges of which a block takes a part of the first and all of the others."""

    main: Range
    inner: tuple[Range, ...] = ()

    @cached_property
    def unit(self) -> int:
        """Number of elements in a step of the main range."""
        return prod(r.size for r in self.inner)

    @property
    def size(self) -> int:
        return self.main.size * self.unit

    @property
    def ranges(self) -> tuple[Range, ...]:
        return (self.main, *self.inner)

    @property
    def whole(self) -> Part:
        return Part(self, constant(0), self.main.size)


@dataclass(frozen=True)
class Part:
    """`count` steps of an axis, from `start` on: the part in a block or a slice."""

    axis: Axis
    start: Index
    count: int

    @property
    def whole(self) -> int:
        """Number of elements; the last part may have fewer."""
        return self.count * self.axis.unit

    @property
    def left(self) -> Index:
        """Number of elements from the start to the axis's end."""
        return (constant(self.axis.main.size) - self.start) * self.axis.unit

    def bound(self) -> Index | None:
        """Return what bounds the number of elements if it varies, otherwise None."""
        return self.left if self.axis.main.size % self.count else None

    def elements(self) -> Index:
        """Return the number of elements."""
        rest = self.axis.main.size % self.count
        if not rest:
            return constant(self.whole)
        last = self.axis.main.size - rest  # where the last part starts, if not the only one
        if not last:
            return constant(rest * self.axis.unit)
        return constant(self.whole) - self.start // last * ((self.count - rest) * self.axis.unit)

    def places(self, position: Index) -> dict[Range, Index]:
        """Return the values of the ranges at an element of the part."""
        unit = self.axis.unit
        if unit == 1:
            return {self.axis.main: self.start + position}
        sizes = tuple(r.size for r in self.axis.inner)
        inner = unflatten(position % unit, sizes)
        main = self.start + position // unit
        return {self.axis.main: main, **dict(zip(self.axis.inner, inner, strict=True))}

    def is_flat(self, *roots: Value | Index) -> bool:
        """Return whether one counter walks all elements without a division."""
        if self.axis.unit == 1:
            return True
        counter = Range("flat", self.whole)
        places = self.places(counter.index())
        for root in roots:
            if isinstance(root, Index):
                indices = [root.substitute(places)]
            else:
                indices = list(indices_of(substitute(root, places)))
            if any(_divides(index, counter) for index in indices):
                return False
        return True

    def line(
        self, name: str, count: int, first: Index | int = 0, bound: Index | None = None
    ) -> Walk:
        """Return one loop over `count` elements from `first` on."""
        counter = Range(name, count)
        return Walk(((counter, bound),), counter.index(), self.places(counter.index() + first))

    def steps(self, name: str) -> Walk:
        """Return one loop over the elements, as far as there are any."""
        return self.line(name, self.whole, bound=self.left)

    def panel(self, name: str, first: Index, count: int, whole: int, step: int = 1) -> Walk:
        """Return the loop over each `step`th of `count` elements from `first` on, of panels that
        extend to `whole`."""
        bound = self.bound() if self.whole == whole else self.elements()
        bound = None if bound is None else bound - first
        if step == 1:
            return self.line(name, count, first, bound)
        counter = Range(name, -(-count // step))
        position = counter.index() * step
        return Walk(((counter, blocks(bound, step)),), position, self.places(position + first))

    def walk(self, name: str, *roots: Value | Index) -> Walk:
        """Return the loops over all elements: one loop if it needs no divisions in `roots`."""
        if self.is_flat(*roots):
            return self.panel(name, constant(0), self.whole, self.whole)
        counters = [Range(name, self.count)]
        counters += [Range(f"{name}{i}", r.size) for i, r in enumerate(self.axis.inner)]
        main = self.axis.main
        bound = None if main.size % self.count == 0 else constant(main.size) - self.start
        indices = [counter.index() for counter in counters]
        places = dict(zip(self.axis.ranges, indices, strict=True))
        places[main] = self.start + indices[0]
        loops = [(counters[0], bound), *((counter, None) for counter in counters[1:])]
        return Walk(tuple(loops), flatten(indices, [c.size for c in counters]), places)


@dataclass(frozen=True)
class Walk:
    """Loops, outermost first, with their bounds; the current element; the values of the ranges."""

    loops: tuple[tuple[Range, Index | None], ...]
    position: Index
    places: dict[Range, Index]

    @property
    def last(self) -> Range:
        return self.loops[-1][0]

    def around(self, *body: Statement) -> Statement:
        for counter, bound in reversed(self.loops):
            body = (Loop(counter, body, bound),)
        (statement,) = body
        return statement


class Nest:
    """Blocks of results, a group for each.

    Attributes:
        sides: of a block; of each the grid has an axis, x first.
        batch: the values of the other output ranges, which the next axis of the grid counts.
        grid: groups along each axis.
    """

    def __init__(
        self, computation: Computation, batch: Sequence[Range], *sides: tuple[Axis | Range, int]
    ) -> None:
        axes = [(side if isinstance(side, Axis) else Axis(side), count) for side, count in sides]
        groups = [-(-axis.main.size // count) for axis, count in axes]
        self.computation = computation
        self.sides = [
            Part(axis, group_range(number, groups[number]).index() * count, count)
            for number, (axis, count) in enumerate(axes)
        ]
        self.batch = groups_at(batch, len(sides))
        x, y, z, *_ = (*groups, elements(batch), 1, 1)
        self.grid = (x, y, z)

    def finish(self, outer: Walk, inner: Walk, total: Value, reduce: Value | None) -> Statement:
        """Return the loops that compute results from their totals, and store them."""
        places = {**self.batch, **outer.places, **inner.places}
        return outer.around(inner.around(result(self.computation, places, total, reduce)))

    def kernel(self, body: Sequence[Statement]) -> Kernel:
        """Return the kernel of the blocks' statements."""
        return kernel_over(self.computation, self.grid, 1, body)


class Rows(Nest):
    """Blocks of as many of `count` rows of `size` elements as make up a chunk. number: of a row."""

    def __init__(self, computation: Computation, count: int, size: int, chunk: int = CHUNK) -> None:
        super().__init__(computation, (), (Range("row", count), max(1, chunk // size)))
        self._walk = self.sides[0].steps("r")
        self.number = self._walk.places[self.sides[0].axis.main]

    def kernel(self, body: Sequence[Statement]) -> Kernel:
        return super().kernel((self._walk.around(*body),))


Make = Callable[[Index, dict[Range, Index]], Iterable[Statement]]


class Streams(Rows):
    """Some rows at once, each with a total in a register: `abreast` neighbours, or as far apart as
    possible."""

    space = "register"

    def __init__(
        self, computation: Computation, ranges: Sequence[Range], size: int, chunk: int = CHUNK,
        abreast: int = 1, neighbours: bool = False,
    ) -> None:  # fmt: skip
        count = elements(ranges) // abreast
        super().__init__(computation, count, size, chunk)
        self.totals = abreast
        first, apart = (self.number * abreast, 1) if neighbours else (self.number, count)
        self._places = [places_at(ranges, first + n * apart) for n in range(abreast)]

    def each(self, name: str, make: Make) -> list[Statement]:
        """Return the statements for every row, given the place of its total, and its own."""
        rows = enumerate(self._places)
        return [statement for n, places in rows for statement in make(constant(n), places)]


class Columns(Nest):
    """Rows side by side in memory at once, which LLVM takes in vectors: COLUMNS for a `size` of
    CHUNK, or fewer if all units are to have some. Totals are in local memory. alike: a range whose
    rows read the same."""

    space = "local"

    def __init__(
        self, computation: Computation, outer: Sequence[Range], inner: Sequence[Range],
        units: int, size: int = CHUNK, alike: Range | None = None,
    ) -> None:  # fmt: skip
        count, most = elements(inner), COLUMNS
        if units > 1 and elements(outer) < 2 * units:
            most = min(most, round_up(-(-count // (2 * units)), LINE))
        most = max(1, most * size // CHUNK)
        super().__init__(computation, outer, (Range("column", count), min(most, count)))
        self._inner = inner
        self._alike = [{alike: constant(n)} for n in range(alike.size)] if alike else [{}]
        self.totals = self.sides[0].count * len(self._alike)

    def each(self, name: str, make: Make) -> list[Statement]:
        """Return the same, as a loop whose counter has a name."""
        (side,) = self.sides
        walk = side.steps(name)
        places = self.batch | places_at(self._inner, walk.places[side.axis.main])
        rows = enumerate(self._alike)
        return [walk.around(*(
            each for n, more in rows for each in make(walk.position + n * side.count, places | more)
        ))]  # fmt: skip


def in_vectors(ranges: Sequence[Range], *body: Statement) -> tuple[Statement, ...]:
    """Return the same, for elements that LLVM takes in vectors: otherwise it unrolls a loop over a
    few of them, which takes longer to compile and to run."""
    if not ranges or not LONG <= ranges[-1].size < UNROLLED:
        return nested(ranges, *body)
    return nested(ranges[:-1], Loop(ranges[-1], body, rolled=True))


def rolled(statement: Statement) -> Statement:
    """Return loops of which those around a loop of some vectors are not unrolled: LLVM would gain
    nothing, and take seconds to compare all addresses with each other."""
    if not isinstance(statement, Loop | If):
        return statement
    body = tuple(map(rolled, statement.body))
    around = any(isinstance(inner, Loop) and inner.range.size >= LONG for inner in body)
    if isinstance(statement, Loop) and around:
        return dataclasses.replace(statement, body=body, rolled=True)
    return dataclasses.replace(statement, body=body)


At = Callable[[Index, Index], Value]


@dataclass(frozen=True)
class Panel:
    """Totals in registers, [row][column], each a vector: the first ones of a memory."""

    totals: Memory
    height: int
    width: int

    def each(self) -> Iterator[tuple[int, int, Value]]:
        """Yield each total with the numbers of its row and its column."""
        for number in range(self.height * self.width):
            total = load(self.totals, constant(number), lanes=self.totals.lanes)
            yield *divmod(number, self.width), total

    def computed(
        self, rows: Sequence[Value], columns: Sequence[Value],
        loop: Callable[[tuple[Statement, ...]], Loop],
        start: Callable[[int, int], Value] | None = None,
        product: Callable[[Value, Value, Value], Value] = multiply_add,
    ) -> list[Statement]:  # fmt: skip
        """Return total[i][j] = start(i, j), or zero; a loop around total[i][j] = product(rows[i],
        columns[j], total[i][j]), by default the sum of products in the order of the loop. A row is
        a vector, or a number that all lanes have."""
        zero = broadcast(const(0, self.totals.dtype), self.totals.lanes)
        starts = (
            Store(self.totals, total.arg.index, zero if start is None else start(i, j))
            for i, j, total in self.each()
        )
        return [*starts, loop(tuple(self.added(rows, columns, product)))]

    def added(
        self, rows: Sequence[Value], columns: Sequence[Value],
        product: Callable[[Value, Value, Value], Value] = multiply_add,
    ) -> Iterator[Statement]:  # fmt: skip
        """Yield total[i][j] = product(rows[i], columns[j], total[i][j])."""
        lanes = self.totals.lanes
        rows = [broadcast(row, lanes) if row.lanes == 1 else row for row in rows]
        for i, j, total in self.each():
            yield Store(self.totals, total.arg.index, product(rows[i], columns[j], total))

    def over(
        self, name: str, counts: tuple[int, int], steps: Range, left: At, right: At,
        start: At | None, stored: Callable[[Index, Index, Value], Store],
        bounds: tuple[Index | None, Index | None],
    ) -> Statement:  # fmt: skip
        """Return the loops over panels: start(i, j), or zero, with the sum over steps of left(i,
        step) * right(step, j), is stored. counts: of i, and of elements along j, from which on
        there are vectors; bounds: of i, and of steps."""
        lanes, width = self.totals.lanes, self.width * self.totals.lanes
        panel = Range(f"{name}_panel", counts[0] // self.height)
        group = Range(f"{name}_group", counts[1] // width)
        step, first, column = steps.index(), panel.index() * self.height, group.index() * width
        rows = [left(first + i, step) for i in range(self.height)]
        columns = [right(step, column + j * lanes) for j in range(self.width)]
        begin = None if start is None else lambda i, j: start(first + i, column + j * lanes)
        body = [
            *self.computed(rows, columns, lambda inside: Loop(steps, inside, bounds[1]), begin),
            *(stored(first + i, column + j * lanes, total) for i, j, total in self.each()),
        ]
        return Loop(panel, (Loop(group, tuple(body)),), blocks(bounds[0], self.height))

    def stored(self, memory: Memory, place: Callable[[int, int], Index]) -> list[Statement]:
        """Return the stores of all totals, each at its place of a memory."""
        return [Store(memory, place(i, j), total) for i, j, total in self.each()]


def filled(name: str, memory: Memory, number: Value) -> Loop:
    """Return the loop that stores a number, or a vector of it, everywhere in a memory."""
    counter = Range(name, memory.count // number.lanes)
    return Loop(counter, (Store(memory, counter.index() * number.lanes, number),))


def blocks(bound: Index | None, size: int) -> Index | None:
    """Return the number of blocks of `size` elements, the last one perhaps incomplete; None if it
    does not vary."""
    return None if bound is None else (bound + (size - 1)) // size


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def share(count: int, most: int) -> int:
    """Split `count` into the fewest equal shares of at most `most`."""
    return -(-count // -(-count // most))


def joined(ranges: Sequence[Range], wanted: int) -> Axis:
    """Return the last ranges, as many as needed to have `wanted` elements."""
    first = len(ranges) - 1
    while first and prod(r.size for r in ranges[first:]) < wanted:
        first -= 1
    return Axis(ranges[first], tuple(ranges[first + 1 :]))


def deep(ranges: Sequence[Range], most: int) -> Axis:
    """Return the longest range, and others that together have at most `most` elements."""
    main = max(ranges, key=lambda r: r.size)
    inner: tuple[Range, ...] = ()
    for each in reversed(ranges):
        if each is not main and each.size * prod(r.size for r in inner) <= most:
            inner = (each, *inner)
    return Axis(main, inner)


def _divides(index: Index, counter: Range) -> bool:
    """Return whether an index divides the counter, or uses it to look up a value."""
    for atom, _ in index.terms:
        if isinstance(atom, Opaque):
            if any(counter in inner.ranges() for inner in atom.indices()):
                return True
        elif isinstance(atom, Div | Mod) and counter in atom.value.ranges():
            return True
    return False
