"""Rows in order on the host, without the places that their elements come from: long rows by digits
(kernel.host.sorting.digits), others by a network of exchanges (kernel.host.sorting.network), for as
many rows at a time as a vector has lanes.

    copied   the rows, one after the other; later those in order
    columns  transposed: key i of all rows is a vector

An element's key is a number of its order, from which it can be computed again: floats and short
integers are floats, since processors exchange these faster, others signed integers. NaN has the key
of infinity, and zeros of different sign have equal keys: where a vector of rows has a negative zero
or NaN, its zeros and NaN are written once more, as they follow each other in the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce

from ugpu.compiler.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint16,
    uint32,
    uint64,
)
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
from ugpu.compiler.kernel.host.products.packing import transpose
from ugpu.compiler.kernel.host.sorting.digits import by_digits
from ugpu.compiler.kernel.host.sorting.network import LANES, LONGEST, Network
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Prefetch, Statement, Store
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.hcq.state.target import TargetSpec

LINE = 64  # bytes of a cache line
CHUNK = 16384  # elements that justify a separate group
WHOLE, WHOLE_BITS = 3 << 22, 0x4B400000  # a float whose last bit is 1, as those nearby; its bits
SOME = Memory("some", int32, 1, "register")  # whether a vector of rows has zeros or NaN to restore
TOTAL = Memory("total", int64, 1, "register")


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation that sorts rows."""
    _, descending, (*half, along) = computation.value.arg
    lanes = target.vector_bytes // _Keys(computation.output.dtype, descending).key.itemsize
    rows = elements(computation.ranges) // along.size
    if not half and along.size <= LONGEST and LANES <= lanes <= 2 * rows:
        return _Rows(computation, target).kernel()
    return _by_digits(computation)


def _by_digits(computation: Computation) -> Kernel:
    """Sort row by row. Elements themselves are moved, so that equal ones keep their order."""
    _, descending, (*half, along) = computation.value.arg
    output, size = computation.output, along.size
    outer = computation.ranges[: -2 if half else -1]
    body = ops.expand(computation.value.sources[0])
    rows = max(1, CHUNK // size)
    grid, row, bound = rows_of(elements(outer), rows)

    def read(place: Index) -> Value:
        return substitute(body, places_at(outer, row) | {along: place})

    halves: tuple[Memory, ...] = ()
    if half:
        start = row * (2 * size)
        places = (output, start), (output, start + size), (output, start)
    else:
        halves = tuple(Memory(name, output.dtype, size, "local") for name in ("even", "odd"))
        even, odd = ((each, constant(0)) for each in halves)
        places = (output, row * size), even, odd
    bits = 1 if output.dtype is bool_ else output.dtype.bits
    local, steps = by_digits(bits, size, read, partial(_ordered, descending), places)
    loop = Loop(Range("r", rows), tuple(steps), bound)
    return kernel_of(computation, (*halves, *local), grid, 1, (loop,))


def _ordered(descending: bool, x: Value) -> Value:
    """Return the unsigned integer of an element's order, equal for both zeros, and for all NaN."""
    dtype = x.dtype
    key = uint64 if dtype.itemsize == 8 else uint32
    bits = 1 if dtype is bool_ else dtype.bits
    most, sign = ((1 << count) - 1 for count in (bits, bits - 1))
    sign += 1

    def with_(op: str, one: Value, number: int) -> Value:
        return binary(op, one, const(number, key))

    if dtype.is_float:
        plain = {16: uint16, 32: uint32, 64: uint64}[bits]
        number = cast(value("bitcast", plain, (x,)), key)
        magnitude = with_("and", number, sign - 1)
        infinity = sign - (1 << {float16: 10, bfloat16: 7, float32: 23, float64: 52}[dtype])
        negative = binary("lt", const(sign, key), number)  # not of -0
        turned = value(
            "where", key, (negative, with_("xor", number, most), with_("or", number, sign))
        )
        found = value(
            "where", key, (binary("lt", const(infinity, key), magnitude), const(most, key), turned)
        )
    else:
        found = with_("and", cast(x, key), most)
        if dtype.kind == "i":
            found = with_("xor", found, sign)
    return with_("xor", found, most) if descending else found


class _Keys:
    """Keys of elements of a type, and elements of keys.

    Attributes:
        key: the type of keys.
        watched: of floats, unsigned integers of as many bits; of other types None.
    """

    def __init__(self, dtype: DType, descending: bool) -> None:
        self.dtype, self.descending = dtype, descending
        long, short = dtype.itemsize == 8, dtype.itemsize < 4
        if dtype.is_float or short:
            self.key = float64 if long else float32
        else:
            self.key = int64 if long else int32
        self.watched = (uint64 if long else uint32) if dtype.is_float else None
        self.sign = 1 << self.key.bits - 1
        self.most: float = math.inf if self.key.is_float else self.sign - 1  # the largest key
        self.infinity = self.sign - (1 << (52 if long else 23))  # its bits

    def of(self, x: Value) -> Value:
        """Return the keys of a vector, or of one element, but for NaN."""
        if not self.key.is_float:
            key = cast(x, self.key)
            key = self._with("xor", key, -self.sign) if self.dtype.kind == "u" else key
            return self._with("xor", key, -1) if self.descending else key
        key = cast(x, self.key)
        return value("neg", self.key, (key,), lanes=key.lanes) if self.descending else key

    def finite(self, key: Value) -> Value:
        """Return keys, with NaN become infinity. (Of rows before they are transposed, LLVM would
        transpose the results of the comparisons.)"""
        if self.watched is None:
            return key
        end = broadcast(const(-self.most if self.descending else self.most, self.key), key.lanes)
        inside = binary("lt", end, key) if self.descending else binary("lt", key, end)
        return value("where", self.key, (inside, key, end), lanes=key.lanes)

    def element(self, key: Value) -> Value:
        """Return the element of a key."""
        if self.key.is_float:
            number = value("neg", self.key, (key,), lanes=key.lanes) if self.descending else key
            if self.dtype is bool_:
                return self._with("ne", number, 0)
            if self.dtype.is_float:
                return cast(number, self.dtype)
            bits = value("bitcast", int32, (self._with("add", number, WHOLE),), lanes=key.lanes)
            return cast(self._with("sub", bits, WHOLE_BITS), self.dtype)
        key = self._with("xor", key, -1) if self.descending else key
        key = self._with("xor", key, -self.sign) if self.dtype.kind == "u" else key
        return cast(key, self.dtype)

    def magnitude(self, x: Value) -> Value:
        """Return the bits of floats without their signs: above `infinity` for NaN."""
        return self._with("and", self._bits(x), self.sign - 1)

    def from_negative_zero(self, x: Value) -> Value:
        """Return 0 for -0, else another number."""
        return self._with("xor", self._bits(x), self.sign)

    def _bits(self, x: Value) -> Value:
        assert self.watched is not None
        return value("bitcast", self.watched, (cast(x, self.key),), lanes=x.lanes)

    def _with(self, op: str, x: Value, number: int) -> Value:
        return binary(op, x, broadcast(const(number, x.dtype), x.lanes))


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
        return [*begin, *tiles, self._met(self._lanes(self.largest, "max"),
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

    def _met(self, largest: Value, nearest: Value) -> Store:
        """Remember whether any element is NaN or -0."""
        nan = binary("lt", const(self.keys.infinity, largest.dtype), largest)
        zero = binary("eq", nearest, const(0, nearest.dtype))
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
        steps: list[Statement] = [
            Store(self.network.columns, at, self.keys.finite(self.keys.of(element)))
        ]
        if self.restores:
            there = self.keys.magnitude(element), self.keys.from_negative_zero(element)
            steps.append(self._met(*there))
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
        number = self.keys.key
        for nan in (False, True):
            below, place = self.rows.range(self.size), self.rows.range(self.size)
            other = cast(self._element(lane.index(), below.index()), number)
            before = self._before_nan(other) if nan else self._before_zero(other)
            more = binary("add", total, cast(before, int64))
            element = self._element(lane.index(), place.index())
            there = cast(element, number)
            within = binary("ne", there, there) if nan else binary("eq", there, const(0, number))
            to = (self.rows.first + lane.index()) * self.size + lookup(total, self.size)
            write = (
                Store(self.computation.output, to, element),
                Store(TOTAL, zero, binary("add", total, const(1, int64))),
            )
            steps += [
                Store(TOTAL, zero, const(0, int64)),
                Loop(below, (Store(TOTAL, zero, more),)),
                Loop(place, (If(_holds(cast(within, int32)), write),)),
            ]
        flag = _holds(load(SOME, zero))
        return If(flag, (Loop(lane, tuple(steps), self.rows.left),))

    def _before_nan(self, element: Value) -> Value:
        """Return whether an element comes before NaN."""
        if self.keys.descending:
            return const(False, bool_)
        return binary("eq", element, element)

    def _before_zero(self, element: Value) -> Value:
        """Return whether an element comes before zeros; the largest come first if descending."""
        zero = const(0, element.dtype)
        if not self.keys.descending:
            return binary("lt", element, zero)
        return binary("or", binary("lt", zero, element), binary("ne", element, element))


def _holds(flag: Value) -> Validity:
    """Return the validity that a number is 1, not 0."""
    return at_least_zero(lookup(flag, 2) - 1)
