"""Rows in order on the host, without the places that their elements come from: a network of
exchanges (kernel.host.network) for as many rows at a time as a vector has lanes.

    copied   the rows, one after the other; later those in order
    columns  transposed: key i of all rows is a vector

An element's key is a signed integer of its order, from which it can be computed again. Zeros of
different sign, and NaN, have keys of their own, but keep their order in a row: where a vector of
rows has a negative zero or NaN, its zeros and NaN are written once more, in that order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

from ugpu.compiler.dtype import DType, bool_, float32, int32, int64, uint32, uint64
from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.algebra import Index, Range, Validity, at_least_zero, constant
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
    substitute,
    value,
)
from ugpu.compiler.kernel.host.abreast import Abreast
from ugpu.compiler.kernel.host.loops import rows_of
from ugpu.compiler.kernel.host.network import Network
from ugpu.compiler.kernel.host.products.packing import transpose
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.hcq.state.target import TargetSpec

CHUNK = 16384  # elements that justify a separate group
SOME = Memory("some", int32, 1, "register")  # whether a vector of rows has zeros or NaN to restore
TOTAL = Memory("total", int64, 1, "register")


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation that sorts rows."""
    return _Rows(computation, target).kernel()


class _Keys:
    """Keys of elements of a type, and elements of keys. The bits of a float, of a negative one all
    but the sign turned, rise with it as integers; those of negative NaN lie below, and become the
    largest by a subtraction that wraps."""

    def __init__(self, dtype: DType, descending: bool) -> None:
        self.dtype, self.turns = dtype, -1 if descending else 0
        self.key, self.plain = (int64, uint64) if dtype.itemsize == 8 else (int32, uint32)
        self.most, self.least = (1 << self.key.bits - 1) - 1, -1 << self.key.bits - 1
        self.below = (1 << (52 if self.key is int64 else 23)) - 1  # the bits of a NaN's number
        self.infinity = self.most - 2 * self.below  # the key of infinity
        self.zero = -self.below  # the key of 0; that of -0 is the one before

    def of(self, x: Value) -> Value:
        """Return the keys of a vector, or of one element, all bits turned for falling orders."""
        return self._with("xor", self.rising(x), self.turns) if self.turns else self.rising(x)

    def rising(self, x: Value) -> Value:
        """Return the keys for rising orders."""
        if self.dtype.is_float:
            wide = cast(x, float32) if self.key is int32 else x
            bits = value("bitcast", self.key, (wide,), lanes=x.lanes)
            return self._with("sub", self._folded(bits), self.below)
        key = cast(x, self.key)
        return self._with("xor", key, self.least) if self._wraps else key

    def element(self, key: Value) -> Value:
        """Return the element of a key."""
        if self.turns:
            key = self._with("xor", key, self.turns)
        if self.dtype is bool_:
            return self._with("ne", key, 0)
        if self.dtype.is_float:
            bits = self._folded(self._with("add", key, self.below))
            wide = float32 if self.key is int32 else self.dtype
            return cast(value("bitcast", wide, (bits,), lanes=key.lanes), self.dtype)
        return cast(self._with("xor", key, self.least) if self._wraps else key, self.dtype)

    def from_negative_zero(self, key: Value) -> Value:
        """Return 0 for the key of -0, else another number, as unsigned integers."""
        found = self._with("xor", key, self.zero - 1)
        return value("bitcast", self.plain, (found,), lanes=key.lanes)

    @property
    def _wraps(self) -> bool:
        return self.dtype.kind == "u" and self.dtype.bits == self.key.bits

    def _folded(self, bits: Value) -> Value:
        turned = self._with("xor", bits, self.most)
        test = self._with("lt", bits, 0)
        return value("where", self.key, (test, turned, bits), lanes=bits.lanes)

    def _with(self, op: str, x: Value, number: int) -> Value:
        return binary(op, x, broadcast(const(number, self.key), x.lanes))


class _Rows:
    """Memories and rows of one kernel."""

    def __init__(self, computation: Computation, target: TargetSpec) -> None:
        _, descending, (self.along,) = computation.value.arg
        self.computation, self.size = computation, self.along.size
        self.outer = computation.ranges[:-1]
        self.body = ops.expand(computation.value.sources[0])
        self.keys = _Keys(computation.output.dtype, descending)
        self.lanes = lanes = target.vector_bytes // self.keys.key.itemsize
        self.network = Network(self.size, lanes, self.keys.key)
        count = elements(self.outer)
        self.blocks = max(1, CHUNK // (self.size * lanes))
        self.grid, block, self.bound = rows_of(-(-count // lanes), self.blocks)
        self.rows = Abreast(count, lanes, block * lanes)
        self.pitch = (-(-self.size // lanes) + 1) * lanes  # rows share no cache set
        self.copied = Memory("copied", computation.output.dtype, self.pitch * lanes, "local")
        self.largest = Memory("largest", self.keys.key, 1, "register", lanes)
        self.nearest = Memory("nearest", self.keys.plain, 1, "register", lanes)
        self.restores = computation.output.dtype.is_float

    def kernel(self) -> Kernel:
        """Return the kernel: a group has some vectors of rows."""
        steps: list[Statement] = []
        if self.restores:
            steps.append(Store(SOME, constant(0), const(0, int32)))
        steps += [*self._beyond(), *self.rows.whole(self._taken(), self._taken_apart())]
        steps += self.network.exchanges()
        steps += self.rows.whole(self._given(), self._given_apart())
        memories = [*self.network.memories[1:], self.copied]
        if self.restores:
            steps.append(self._restored())
            memories += [self.largest, self.nearest, SOME, TOTAL]
        loop = Loop(Range("r", self.blocks), tuple(steps), self.bound)
        return kernel_of(self.computation, tuple(memories), self.grid, 1, (loop,))

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
        if self.body.op != "load" or self.body.arg.conditions:
            return None
        if self.body.arg.index.linear(self.along) != (1,):
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
                steps += self._watched(list(map(self.keys.rising, rows)))
            for i, each in enumerate(transpose([self.keys.of(row) for row in rows])):
                steps.append(Store(self.network.columns, (place + i) * lanes, each))
            return tuple(steps)

        tiles = self.rows.tiles(self.size, lanes, tile)
        if tiles is None:
            return None
        tiles = [self._copies(copied), *tiles]
        if not self.restores:
            return tiles
        least = broadcast(const(self.keys.least, self.keys.key), lanes)
        most = broadcast(const(-1, self.keys.plain), lanes)
        begin = Store(self.largest, zero, least), Store(self.nearest, zero, most)
        return [*begin, *tiles, self._met(self._lanes(self.largest, "max"),
                                          self._lanes(self.nearest, "min"))]  # fmt: skip

    def _watched(self, keys: list[Value]) -> list[Statement]:
        """Remember the largest key, and the one nearest to that of -0."""
        zero = constant(0)
        most = load(self.largest, zero, (), self.lanes)
        least = load(self.nearest, zero, (), self.lanes)
        for each in keys:
            most = binary("max", most, each)
            least = binary("min", least, self.keys.from_negative_zero(each))
        return [Store(self.largest, zero, most), Store(self.nearest, zero, least)]

    def _lanes(self, memory: Memory, operation: str) -> Value:
        """Return the extreme of a vector's lanes."""
        vector = load(memory, constant(0), (), self.lanes)
        each = [value("extract", memory.dtype, (vector,), lane) for lane in range(self.lanes)]
        return reduce(partial(binary, operation), each)

    def _met(self, largest: Value, nearest: Value) -> Store:
        """Remember whether any element is NaN or -0."""
        nan = binary("lt", const(self.keys.infinity, self.keys.key), largest)
        zero = binary("eq", nearest, const(0, self.keys.plain))
        some = cast(binary("or", nan, zero), int32)
        return Store(SOME, constant(0), binary("or", load(SOME, constant(0)), some))

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
        steps: list[Statement] = [Store(self.network.columns, at, self.keys.of(element))]
        if self.restores:
            key = self.keys.rising(element)
            steps.append(self._met(key, self.keys.from_negative_zero(key)))
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
        """Write zeros and NaN with their own bits, if there are any to restore."""
        lane, zero = self.rows.range(self.lanes), constant(0)
        total = load(TOTAL, zero)
        steps: list[Statement] = []
        for low, high in ((self.keys.zero - 1, self.keys.zero), (self.keys.infinity + 1, None)):
            below, place = self.rows.range(self.size), self.rows.range(self.size)
            other = self._element(lane.index(), below.index())
            more = binary("add", total, cast(self._before(other, low, high), int64))
            element = self._element(lane.index(), place.index())
            to = (self.rows.first + lane.index()) * self.size + lookup(total, self.size)
            write = (
                Store(self.computation.output, to, element),
                Store(TOTAL, zero, binary("add", total, const(1, int64))),
            )
            steps += [
                Store(TOTAL, zero, const(0, int64)),
                Loop(below, (Store(TOTAL, zero, more),)),
                Loop(place, (If(_holds(cast(self._within(element, low, high), int32)), write),)),
            ]
        flag = _holds(load(SOME, zero))
        return If(flag, (Loop(lane, tuple(steps), self.rows.left),))

    def _before(self, element: Value, low: int, high: int | None) -> Value:
        """Return whether an element comes before those whose rising keys are from low to high."""
        key = self.keys.rising(element)
        if not self.keys.turns:
            return binary("lt", key, const(low, key.dtype))
        return binary("lt", const(self.keys.most if high is None else high, key.dtype), key)

    def _within(self, element: Value, low: int, high: int | None) -> Value:
        key = self.keys.rising(element)
        found = binary("le", const(low, key.dtype), key)
        if high is None:
            return found
        return binary("and", found, binary("le", key, const(high, key.dtype)))


def _holds(flag: Value) -> Validity:
    """Return the validity that a number is 1, not 0."""
    return at_least_zero(lookup(flag, 2) - 1)
