"""Rows in order on the host, without the places that their elements come from: rows of up to
LONGEST elements by a network of exchanges (kernel.host.sorting.network), for as many at a time as a
vector has lanes, longer ones by quicksort where the processor divides vectors
(kernel.host.sorting.quicksort), others by digits (kernel.host.sorting.digits).

    copied   the rows, one after the other; later those in order
    columns  transposed: key i of all rows is a vector

Where a vector of rows has a negative zero or NaN, their zeros and NaN are written once more, as
they follow each other in the row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

from ugpu.compiler.dtype import (
    bool_,
    int32,
    uint32,
)
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements, places_at
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
from ugpu.compiler.graph.along import room
from ugpu.compiler.kernel.host.abreast import Abreast
from ugpu.compiler.kernel.host.loops import rows_of
from ugpu.compiler.kernel.host.products.packing import transpose
from ugpu.compiler.kernel.host.sorting.digits import Place, by_digits
from ugpu.compiler.kernel.host.sorting.keys import SOME, TOTAL, Keys, holds, ordered
from ugpu.compiler.kernel.host.sorting.network import LANES, LONGEST, Network
from ugpu.compiler.kernel.host.sorting.quicksort import Quicksort, can_divide
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Prefetch, Statement, Store
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.hcq.state.target import TargetSpec

LINE = 64  # bytes of a cache line
CHUNK = 16384  # elements that justify a separate group


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation that sorts rows."""
    _, (descending, along), (own,) = computation.value.arg
    lanes = target.vector_bytes // Keys(computation.output.dtype, descending).key.itemsize
    rows = elements(computation.ranges) // own.size
    if along.size <= LONGEST and own is along and LANES <= lanes <= 2 * rows:
        return _Rows(computation, target).kernel()
    return _row_by_row(computation, target)


def _row_by_row(computation: Computation, target: TargetSpec) -> Kernel:
    """Sort row by row: by quicksort, or by digits, which move elements themselves, so that equal
    ones keep their order."""
    _, (descending, along), (own,) = computation.value.arg
    output, size, outer = computation.output, along.size, computation.ranges[:-1]
    body = ops.expand(computation.value.sources[0])
    rows = max(1, CHUNK // size)
    grid, row, bound = rows_of(elements(outer), rows)

    def read(place: Index) -> Value:
        return substitute(body, places_at(outer, row) | {along: place})

    last: Place = output, row * own.size
    halves: tuple[Memory, ...] = ()
    if own is not along:
        even, odd = last, (output, row * own.size + room(size))
    else:
        halves = tuple(Memory(name, output.dtype, room(size), "local") for name in ("even", "odd"))
        even, odd = ((each, constant(0)) for each in halves)
    places = (last, odd, last) if own is not along else (last, even, odd)
    bits = 1 if output.dtype is bool_ else output.dtype.bits
    local, steps = by_digits(bits, size, read, partial(ordered, descending), places)
    if size > LONGEST and can_divide(output.dtype, target):
        quicksort = Quicksort(size, Keys(output.dtype, descending), target, even, odd)
        local = (*local, *quicksort.memories)
        steps = quicksort.steps(read, last, steps)
    loop = Loop(Range("r", rows), tuple(steps), bound)
    return kernel_of(computation, (*halves, *local), grid, 1, (loop,))


class _Rows:
    """Memories and rows of one kernel."""

    def __init__(self, computation: Computation, target: TargetSpec) -> None:
        _, (descending, self.along), _ = computation.value.arg
        self.computation, self.size = computation, self.along.size
        self.outer = computation.ranges[:-1]
        self.body = ops.expand(computation.value.sources[0])
        self.keys = Keys(computation.output.dtype, descending)
        self.lanes = lanes = target.vector_bytes // self.keys.key.itemsize
        self.network = Network(self.size, lanes, self.keys.key)
        count = elements(self.outer)
        self.blocks = max(1, CHUNK // (self.size * lanes))
        self.grid, block, self.bound = rows_of(-(-count // lanes), self.blocks)
        self.rows = Abreast(count, lanes, block * lanes)
        self.pitch = (-(-self.size // lanes) + 1) * lanes  # rows share no cache set
        self.copied = Memory("copied", computation.output.dtype, self.pitch * lanes, "local")
        bits = self.keys.watched or uint32
        self.largest, self.nearest = (
            Memory(name, bits, 1, "register", lanes) for name in ("largest", "nearest")
        )
        self.restores = computation.output.dtype.is_float

    def kernel(self) -> Kernel:
        """Return the kernel: a group has some vectors of rows."""
        steps: list[Statement] = []
        if self.restores:
            steps.append(Store(SOME, constant(0), const(0, int32)))
        steps += [*self._beyond(), *self.rows.whole(self._taken(), self._taken_apart())]
        steps += [*self._ahead(), *self.network.exchanges()]
        steps += self.rows.whole(self._given(), self._given_apart())
        memories = [*self.network.memories[1:], self.copied]
        if self.restores:
            steps.append(self._restored())
            memories += [self.largest, self.nearest, SOME, TOTAL]
        loop = Loop(Range("r", self.blocks), tuple(steps), self.bound)
        return kernel_of(self.computation, tuple(memories), self.grid, 1, (loop,))

    def _ahead(self) -> list[Statement]:
        """Begin to bring the next rows near, and where those in order go: they come while keys are
        exchanged."""
        step = max(1, LINE // self.computation.output.dtype.itemsize)
        row, line = self.rows.range(self.lanes), self.rows.range(-(-self.size // step))
        place = line.index() * step
        here = (self.rows.first + row.index()) % self.rows.count
        steps = [Prefetch(self.computation.output, here * self.size + place)]
        if self._in_lines:
            access = self._element(row.index() + self.lanes, place).arg
            steps.append(Prefetch(access.memory, access.index))
        return [Loop(row, (Loop(line, tuple(steps)),), rolled=True)]

    @property
    def _in_lines(self) -> bool:
        """Return whether rows lie along memory."""
        access = self.body.arg if self.body.op == "load" else None
        return (
            access is not None and not access.conditions and access.index.linear(self.along) == (1,)
        )

    def _column(self, place: Index) -> Value:
        return load(self.network.columns, place * self.lanes, (), self.lanes)

    def _beyond(self) -> list[Statement]:
        """Places beyond the end have the largest key."""
        rest = self.rows.range(self.network.room - self.size)
        if not rest.size:
            return []
        most = broadcast(const(self.keys.most, self.keys.key), self.lanes)
        at = (rest.index() + self.size) * self.lanes
        return [Loop(rest, (Store(self.network.columns, at, most),))]

    def _element(self, lane: Index, place: Index) -> Value:
        row = (self.rows.first + lane) % self.rows.count
        return substitute(self.body, places_at(self.outer, row) | {self.along: place})

    def _taken(self) -> list[Statement] | None:
        """Read tiles of as many places as rows; None if rows do not lie along memory."""
        if not self._in_lines:
            return None
        zero, lanes = constant(0), self.lanes

        def copied(row: Range, place: Index) -> Store:
            index = self._element(row.index(), place).arg.index
            there = load(self.body.arg.memory, index, (), lanes)
            return Store(self.copied, row.index() * self.pitch + place, there)

        def tile(place: Index) -> tuple[Statement, ...]:
            rows = [self._copied(row, place) for row in range(lanes)]
            steps: list[Statement] = []
            if self.restores:
                steps += self._watched(rows)
            for i, each in enumerate(transpose([self.keys.of(row) for row in rows])):
                key = self.keys.finite(each)
                steps.append(Store(self.network.columns, (place + i) * lanes, key))
            return tuple(steps)

        tiles = self.rows.tiles(self.size, lanes, tile)
        if tiles is None:
            return None
        tiles = [self._copies(copied), *tiles]
        if not self.restores:
            return tiles
        bits = self.largest.dtype
        begin = [
            Store(memory, zero, broadcast(const(number, bits), lanes))
            for memory, number in ((self.largest, 0), (self.nearest, (1 << bits.bits) - 1))
        ]
        return [*begin, *tiles, self.keys.met(self._lanes(self.largest, "max"),
                                          self._lanes(self.nearest, "min"))]  # fmt: skip

    def _watched(self, rows: list[Value]) -> list[Statement]:
        """Remember the largest magnitude, and the bits nearest to those of -0."""
        zero = constant(0)
        most = load(self.largest, zero, (), self.lanes)
        least = load(self.nearest, zero, (), self.lanes)
        for each in rows:
            most = binary("max", most, self.keys.magnitude(each))
            least = binary("min", least, self.keys.from_negative_zero(each))
        return [Store(self.largest, zero, most), Store(self.nearest, zero, least)]

    def _lanes(self, memory: Memory, operation: str) -> Value:
        """Return the extreme of a vector's lanes."""
        vector = load(memory, constant(0), (), self.lanes)
        each = [value("extract", memory.dtype, (vector,), lane) for lane in range(self.lanes)]
        return reduce(partial(binary, operation), each)

    def _copied(self, row: int, place: Index) -> Value:
        return load(self.copied, place + row * self.pitch, (), self.lanes)

    def _copies(self, copy: Callable[[Range, Index], Store]) -> Statement:
        """Copy row by row: a processor follows one row, but not as many as are side by side."""
        row = self.rows.range(self.lanes)
        steps = self.rows.tiles(self.size, self.lanes, lambda place: (copy(row, place),))
        return Loop(row, tuple(steps or ()), rolled=True)

    def _taken_apart(self) -> Statement:
        """Read element by element; rows beyond the last are read as others."""
        lane, place = self.rows.range(self.lanes), self.rows.range(self.size)
        element = self._element(lane.index(), place.index())
        at = place.index() * self.lanes + lane.index()
        steps: list[Statement] = [
            Store(self.network.columns, at, self.keys.finite(self.keys.of(element)))
        ]
        if self.restores:
            there = self.keys.magnitude(element), self.keys.from_negative_zero(element)
            steps.append(self.keys.met(*there))
        return Loop(place, (Loop(lane, tuple(steps)),))

    def _given(self) -> list[Statement] | None:
        def tile(place: Index) -> tuple[Statement, ...]:
            vectors = transpose([self._column(place + i) for i in range(self.lanes)])
            return tuple([
                Store(self.copied, place + row * self.pitch, self.keys.element(each))
                for row, each in enumerate(vectors)
            ])  # fmt: skip

        def copied(row: Range, place: Index) -> Store:
            there = load(self.copied, row.index() * self.pitch + place, (), self.lanes)
            to = (self.rows.first + row.index()) * self.size + place
            return Store(self.computation.output, to, there)

        tiles = self.rows.tiles(self.size, self.lanes, tile)
        return None if tiles is None else [*tiles, self._copies(copied)]

    def _given_apart(self) -> Statement:
        lane, place = self.rows.range(self.lanes), self.rows.range(self.size)
        key = load(self.network.columns, place.index() * self.lanes + lane.index())
        to = (self.rows.first + lane.index()) * self.size + place.index()
        store = Store(self.computation.output, to, self.keys.element(key))
        return self.rows.apart([place], lane, store, self.rows.left)

    def _restored(self) -> Statement:
        lane = self.rows.range(self.lanes)
        steps = self.keys.restored(
            self.size, partial(self._element, lane.index()), self.computation.output,
            (self.rows.first + lane.index()) * self.size,
        )  # fmt: skip
        return If(holds(load(SOME, constant(0))), (Loop(lane, tuple(steps), self.rows.left),))
