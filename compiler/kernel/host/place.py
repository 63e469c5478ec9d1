"""Places of the largest or smallest elements of rows on the host: argmax and argmin in one pass.

    before   total = max over k of x[k];  place = min over k of (k if x[k] == total else last)
    after    for each lane, the best of its elements so far, of a few vectors a step, and the step
             at which it came; then the same two passes over the lanes, over the first step that
             has the best of all, and over a rest of the row

A row with NaN has its place at the first NaN, which another pass finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ugpu.compiler.dtype import bool_, float32, int32
from ugpu.compiler.expression.accumulate import advanced, combine, ended, identity, total_type
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    cast,
    const,
    load,
    rebuild,
    substitute,
    value,
)
from ugpu.compiler.kernel.host.loops import CHUNK, rows_of
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.compiler.pattern.chain import Chain
from ugpu.hcq.state.target import TargetSpec

ABREAST = 4  # vectors of a step, a power of two: it waits for the one before
STEPS = 4  # of all lanes, from which on the passes over them cost less than those over the row
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
    total = load(best.total, ZERO)
    same = binary("or", binary("eq", row, total), binary("ne", row, row))
    counted = value("index", int32, (), along.index())
    wanted = value("where", int32, (same, counted, const(along.size - 1, int32)))
    if first.body is not wanted or row.op != "load" or row.dtype is not float32:
        return None
    if row.arg.conditions or row.arg.index.linear(along) != (1,):
        return None
    lanes = target.vector_bytes // float32.itemsize
    return Place(best.operation, row, along) if along.size >= STEPS * ABREAST * lanes else None


def places(computation: Computation, chain: Chain, place: Place, target: TargetSpec) -> Kernel:
    """Return a kernel that searches row by row. Its groups are chunks of rows."""
    return _Search(computation, chain, place, target.vector_bytes // float32.itemsize).kernel()


class _Search:
    """Sizes and memories. width: elements of a step; whole: those that all steps take."""

    def __init__(self, computation: Computation, chain: Chain, place: Place, lanes: int) -> None:
        self.computation, self.chain, self.place = computation, chain, place
        self.size, self.lanes, self.width = place.along.size, lanes, lanes * ABREAST
        self.whole = self.size // self.width * self.width
        self.best = Memory("best", float32, 1, "register", lanes)
        self.step = Memory("step", int32, 1, "register", lanes)
        self.lost = Memory("lost", bool_, 1, "register", lanes)
        self.bests = Memory("bests", float32, lanes, "local")
        self.steps = Memory("steps", int32, lanes, "local")
        self.total = Memory("total", total_type(place.operation, float32), 1, "register")
        self.first, self.flag, self.least = (
            Memory(name, int32, 1, "register") for name in ("first", "flag", "least")
        )

    def kernel(self) -> Kernel:
        rows = max(1, CHUNK // self.size)
        grid, row, bound = rows_of(elements(self.chain.outer), rows)
        at = places_at(self.chain.outer, row)
        total, first = self.chain.stages[1].total, load(self.first, ZERO)

        def change(node: Value, _: tuple[Value, ...]) -> Value | None:
            return first if node.op == "load" and node.arg.memory == total else None

        result = substitute(rebuild(self.chain.result, change), at)
        position = self.computation.position.substitute(at)
        body = (*self.lanes_of(at), *self.joined(at), *self.not_numbers(at))
        stored = (Store(to, position, each) for to, each in self.computation.results(result))
        memories = (self.best, self.step, self.lost, self.bests, self.steps, self.total,
                    self.first, self.flag, self.least)  # fmt: skip
        loop = Loop(Range("r", rows), (*body, *stored), bound)
        return kernel_of(self.computation, memories, grid, 1, (loop,))

    def element(self, at: Mapping[Range, Index], where: Index, lanes: int = 1) -> Value:
        access = substitute(self.place.row, {**at, self.place.along: where}).arg
        return load(access.memory, access.index, lanes=lanes)

    def lanes_of(self, at: Mapping[Range, Index]) -> Iterator[Statement]:
        """Find each lane's best element, and whether any is NaN."""
        lowest = identity(self.place.operation, float32)
        counter = Range("k", self.whole // self.width)
        now = broadcast(value("index", int32, (), counter.index()), self.lanes)
        best, step = (load(m, ZERO, lanes=self.lanes) for m in (self.best, self.step))
        yield Store(self.lost, ZERO, broadcast(const(False, bool_), self.lanes))
        yield Store(self.best, ZERO, broadcast(lowest, self.lanes))
        yield Store(self.step, ZERO, broadcast(const(0, int32), self.lanes))
        places = [counter.index() * self.width + n * self.lanes for n in range(ABREAST)]
        found = [self.element(at, place, self.lanes) for place in places]
        odd = [binary("ne", each, each) for each in found]
        while len(odd) > 1:  # one comparison tells of a pair whether either is NaN
            found = [
                self.chosen(self.better(*pair), pair[1], pair[0])
                for pair in zip(found[::2], found[1::2], strict=True)
            ]
            odd = [binary("or", *pair) for pair in zip(odd[::2], odd[1::2], strict=True)]
        better = self.better(best, found[0])
        lost = binary("or", load(self.lost, ZERO, lanes=self.lanes), odd[0])
        yield Loop(counter, (
            Store(self.step, ZERO, self.chosen(better, now, step)),
            Store(self.best, ZERO, self.chosen(better, found[0], best)),
            Store(self.lost, ZERO, lost),
        ))  # fmt: skip

    def better(self, one: Value, other: Value) -> Value:
        """Return whether the other vector's elements are better."""
        pair = (one, other) if self.place.operation == "max" else (other, one)
        return value("lt", bool_, pair, lanes=self.lanes)

    def chosen(self, test: Value, one: Value, other: Value) -> Value:
        """Return the elements of one vector where a test holds, else those of the other."""
        return value("where", one.dtype, (test, one, other), lanes=self.lanes)

    def joined(self, at: Mapping[Range, Index]) -> Iterator[Statement]:
        """Find the best of all lanes and of the rest of the row, and the first place that has it;
        set the flag if there is NaN."""
        rest, last = self.size - self.whole, const(self.size - 1, int32)
        flag, operation = const(0, int32), self.place.operation
        for source, to in ((self.best, self.bests), (self.step, self.steps)):
            yield Store(to, ZERO, load(source, ZERO, lanes=self.lanes))
        lost = load(self.lost, ZERO, lanes=self.lanes)
        for number in range(self.lanes):
            flag = binary("or", flag, cast(value("extract", bool_, (lost,), number), int32))
        yield Store(self.flag, ZERO, flag)
        yield Store(self.total, ZERO, identity(operation, self.total.dtype))
        yield Store(self.first, ZERO, last)
        yield Store(self.least, ZERO, last)
        lane, other, each = Range("lane", self.lanes), Range("rest", rest), Range("j", self.width)
        total = load(self.total, ZERO)
        one, ending = load(self.bests, lane.index()), self.element(at, other.index() + self.whole)
        yield Loop(lane, (Store(self.total, ZERO, advanced(operation, total, one)),))
        if rest:
            odd = cast(binary("ne", ending, ending), int32)
            best = Store(self.total, ZERO, advanced(operation, total, ending))
            yield Loop(other, (best, self.updated(self.flag, "or", odd)))
        best_of_all = ended(operation, float32, total)
        step = self.where("eq", one, best_of_all, load(self.steps, lane.index()))
        yield Loop(lane, (self.updated(self.least, "min", step),))
        start = lookup(load(self.least, ZERO), self.whole // self.width) * self.width
        place = value("index", int32, (), start + each.index())
        place = self.where("eq", self.element(at, start + each.index()), best_of_all, place)
        yield Loop(each, (self.updated(self.first, "min", place),))
        if rest:
            place = value("index", int32, (), other.index() + self.whole)
            place = self.where("eq", ending, best_of_all, place)
            yield Loop(other, (self.updated(self.first, "min", place),))

    def not_numbers(self, at: Mapping[Range, Index]) -> Iterator[Statement]:
        """Find the first NaN of a row that has any."""
        along = self.place.along
        element = self.element(at, along.index())
        place = self.where("ne", element, element, value("index", int32, (), along.index()))
        loop = Loop(along, (self.updated(self.first, "min", place),))
        last = Store(self.first, ZERO, const(self.size - 1, int32))
        yield If(at_least_zero(lookup(load(self.flag, ZERO), 2) - 1), (last, loop))

    def where(self, comparison: str, left: Value, right: Value, place: Value) -> Value:
        """Return a place where a comparison holds, else the row's last."""
        last = const(self.size - 1, int32)
        return value("where", int32, (binary(comparison, left, right), place, last))

    def updated(self, memory: Memory, operation: str, number: Value) -> Store:
        return Store(memory, ZERO, combine(operation, load(memory, ZERO), number))
