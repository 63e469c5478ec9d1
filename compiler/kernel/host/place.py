"""Places of the largest or smallest elements of rows on the host: argmax and argmin.

    before   total = max over k of x[k];  place = min over k of (k if x[k] == total else last)
    after    for each lane of a vector, the best of its elements, and the block of the row that it
             came from; then the first block that has the best of all lanes is read once more

A row's last block ends with the row and begins inside the one before. A row with NaN has its place
at the first NaN, which another pass finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from typing import NamedTuple

from ugpu.compiler.dtype import DType, bool_, int32, is_narrow
from ugpu.compiler.expression.accumulate import identity, replace
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.expression.computation import Computation, places_at
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    cast,
    const,
    load,
    substitute,
    value,
)
from ugpu.compiler.kernel.host.nest import Rows
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.shared.kernels import stores
from ugpu.compiler.pattern.chain import Chain
from ugpu.hcq.state.target import TargetSpec

ABREAST = 4  # vectors of a step, each with an accumulator of its own: one waits for the one before
STEPS = 2  # of a row, from which on the passes over lanes cost less than those over the row
WIDEST = 64  # steps of a block at most: more bytes would not stay in a first-level cache
JOIN = 4  # vectors that cost as much as to close a block
ZERO = constant(0)


class Place(NamedTuple):
    """A search for the place of an extreme. row: the load of an element; along: its range."""

    operation: str
    row: Value
    along: Range


def find_place(chain: Chain, target: TargetSpec) -> Place | None:
    """Return the search that a chain is, or None."""
    if len(chain.stages) != 2 or chain.inner:
        return None
    best, first = chain.stages
    if best.operation not in ("max", "min") or first.operation != "min" or len(best.ranges) != 1:
        return None
    row, (along,) = best.body, best.ranges
    if row.op != "load" or row.dtype is bool_ or is_narrow(row.dtype):
        return None
    same = binary("eq", row, load(best.total, ZERO))
    if row.dtype.is_float:
        same = binary("or", same, binary("ne", row, row))
    counted = value("index", int32, (), along.index())
    wanted = value("where", int32, (same, counted, const(along.size - 1, int32)))
    if first.body is not wanted or row.arg.conditions or row.arg.index.linear(along) != (1,):
        return None
    least = STEPS * ABREAST * _lanes(row.dtype, target)
    return Place(best.operation, row, along) if along.size >= least else None


def places(computation: Computation, chain: Chain, place: Place, target: TargetSpec) -> Kernel:
    """Return a kernel that searches row by row. Its groups are chunks of rows."""
    return _Search(computation, chain, place, _lanes(place.row.dtype, target)).kernel()


def _lanes(dtype: DType, target: TargetSpec) -> int:
    return target.vector_bytes // dtype.itemsize


class _Search:
    """Sizes and memories.

    Attributes:
        width: elements of a block, whole steps.
        best, block: each lane's best element so far, and the number of its block.
        lost: whether a lane has met NaN; total: the best of all lanes, in each.
        streams: the best of a block, of each vector of a step.
        at: of each lane, the first vector of the block that has the best element.
        start: where the block begins that has it; first: the place of the result.
    """

    def __init__(self, computation: Computation, chain: Chain, place: Place, lanes: int) -> None:
        self.computation, self.chain, self.place = computation, chain, place
        self.size, self.lanes, self.dtype = place.along.size, lanes, place.row.dtype
        step = lanes * ABREAST
        widths = range(step, min(self.size, WIDEST * step) + 1, step)
        self.width = min(widths, key=self._cost)
        self.best, self.total = (
            Memory(name, self.dtype, 1, "register", lanes) for name in ("best", "total")
        )
        self.streams = Memory("streams", self.dtype, ABREAST, "register", lanes)
        self.block, self.at = (
            Memory(name, int32, 1, "register", lanes) for name in ("block", "at")
        )
        self.lost = Memory("lost", bool_, 1, "register", lanes)
        self.start, self.first = (Memory(name, int32, 1, "register") for name in ("start", "first"))

    def _cost(self, width: int) -> int:
        """Return the cost of blocks of a width, in elements: each is read, one of them twice."""
        return -(-self.size // width) * (width + JOIN * self.lanes) + 2 * width

    def kernel(self) -> Kernel:
        rows = Rows(self.computation, self.chain.rows, self.size)
        at = places_at(self.chain.outer, rows.number)
        total, first = self.chain.stages[1].total, load(self.first, ZERO)

        result = replace(self.chain.result, load(total, ZERO), first)
        body = [*self.best_of_lanes(at), *self.best_of_all(), *self.first_of_block(at)]
        if self.dtype.is_float:
            body.append(self.first_not_a_number(at))
        return rows.kernel([*body, *stores(self.computation, result, at)])

    def element(self, at: Mapping[Range, Index], where: Index, lanes: int = 1) -> Value:
        access = substitute(self.place.row, {**at, self.place.along: where}).arg
        return load(access.memory, access.index, lanes=lanes)

    def now(self, memory: Memory, number: int = 0) -> Value:
        return load(memory, constant(number), lanes=self.lanes)

    def each(self, number: Value) -> Value:
        """Return a scalar in all lanes."""
        return broadcast(number, self.lanes)

    def better(self, one: Value, other: Value) -> Value:
        """Return the better elements of two vectors, of equals and for NaN the first's."""
        return self.chosen(self.is_better(one, other), other, one)

    def is_better(self, one: Value, other: Value) -> Value:
        """Return whether the other vector's elements are better."""
        return binary("lt", *((one, other) if self.place.operation == "max" else (other, one)))

    def chosen(self, test: Value, one: Value, other: Value) -> Value:
        """Return the elements of one vector where a test holds, else those of the other."""
        return value("where", one.dtype, (test, one, other), lanes=self.lanes)

    def best_of_lanes(self, at: Mapping[Range, Index]) -> Iterator[Statement]:
        """Find each lane's best element, and whether any is NaN."""
        lowest = identity(self.place.operation, self.dtype)
        yield Store(self.best, ZERO, self.each(lowest))
        yield Store(self.block, ZERO, self.each(const(0, int32)))
        if self.dtype.is_float:
            yield Store(self.lost, ZERO, self.each(const(False, bool_)))
        number = Range("b", self.size // self.width)
        yield Loop(number, tuple(self.one_block(at, number.index() * self.width, number.index())))
        if self.size % self.width:
            yield from self.one_block(at, constant(self.size - self.width), constant(number.size))

    def one_block(
        self, at: Mapping[Range, Index], start: Index, number: Index
    ) -> Iterator[Statement]:
        """Join a block, which begins at `start`, to the best of those before."""
        for stream in range(ABREAST):
            yield Store(self.streams, constant(stream), self.now(self.best))
        step = Range("k", self.width // (ABREAST * self.lanes))
        first = start + step.index() * (ABREAST * self.lanes)
        found = [self.element(at, first + n * self.lanes, self.lanes) for n in range(ABREAST)]
        steps = [
            Store(self.streams, constant(n), self.better(self.now(self.streams, n), each))
            for n, each in enumerate(found)
        ]
        if self.dtype.is_float:  # one comparison tells of a pair whether either is NaN
            odd = [binary("ne", each, each) for each in found]
            pairs = [binary("or", *pair) for pair in zip(odd[::2], odd[1::2], strict=True)]
            lost = reduce(partial(binary, "or"), pairs, self.now(self.lost))
            steps.append(Store(self.lost, ZERO, lost))
        yield Loop(step, tuple(steps))
        best = reduce(self.better, [self.now(self.streams, n) for n in range(ABREAST)])
        here = self.each(value("index", int32, (), number))
        better = self.is_better(self.now(self.best), best)
        yield Store(self.block, ZERO, self.chosen(better, here, self.now(self.block)))
        yield Store(self.best, ZERO, best)

    def best_of_all(self) -> Iterator[Statement]:
        """Find the best of all lanes, and the first block that has it: -1 if there is NaN."""
        yield Store(self.total, ZERO, self.now(self.best))
        yield from self.joined(self.total, self.better)
        same = binary("eq", self.now(self.best), self.now(self.total))
        last = self.each(const(self.size, int32))
        number = self.chosen(same, self.now(self.block), last)
        if self.dtype.is_float:
            number = self.chosen(self.now(self.lost), self.each(const(-1, int32)), number)
        yield Store(self.block, ZERO, number)
        yield from self.joined(self.block, partial(binary, "min"))
        number = value("extract", int32, (self.now(self.block),), 0)
        start = binary("mul", number, const(self.width, int32))
        start = binary("min", start, const(self.size - self.width, int32))
        yield Store(self.start, ZERO, binary("max", start, const(0, int32)))

    def first_of_block(self, at: Mapping[Range, Index]) -> Iterator[Statement]:
        """Find the first element of a block that equals the best."""
        count = self.width // self.lanes
        back = Range("j", count)
        vector = -back.index() + (count - 1)
        start = load(self.start, ZERO)
        begin = lookup(start, self.size - self.width + 1)
        element = self.element(at, begin + vector * self.lanes, self.lanes)
        here = self.each(value("index", int32, (), vector))
        same = binary("eq", element, self.now(self.total))
        yield Store(self.at, ZERO, self.each(const(count, int32)))
        yield Loop(back, (Store(self.at, ZERO, self.chosen(same, here, self.now(self.at))),))
        numbers = [const(lane, int32) for lane in range(self.lanes)]
        lanes = value("pack", int32, numbers, lanes=self.lanes)
        vectors = binary("mul", self.now(self.at), self.each(const(self.lanes, int32)))
        yield Store(self.at, ZERO, binary("add", vectors, lanes))
        yield from self.joined(self.at, partial(binary, "min"))
        least = value("extract", int32, (self.now(self.at),), 0)
        yield Store(self.first, ZERO, binary("add", start, least))

    def joined(
        self, memory: Memory, operation: Callable[[Value, Value], Value]
    ) -> Iterator[Statement]:
        """Combine all lanes of a vector, with the result in each."""
        apart = self.lanes // 2
        while apart:
            mask = tuple(lane ^ apart for lane in range(self.lanes))
            now = self.now(memory)
            other = value("shuffle", memory.dtype, (now, now), mask, self.lanes)
            yield Store(memory, ZERO, operation(now, other))
            apart //= 2

    def first_not_a_number(self, at: Mapping[Range, Index]) -> Statement:
        """Find the first NaN of a row that has any."""
        along, last = self.place.along, const(self.size - 1, int32)
        element = self.element(at, along.index())
        here = value("index", int32, (), along.index())
        place = value("where", int32, (binary("ne", element, element), here, last))
        least = binary("min", load(self.first, ZERO), place)
        loop = Loop(along, (Store(self.first, ZERO, least),))
        number = value("extract", int32, (self.now(self.block),), 0)
        flag = cast(binary("lt", number, const(0, int32)), int32)
        return If(at_least_zero(lookup(flag, 2) - 1), (Store(self.first, ZERO, last), loop))
