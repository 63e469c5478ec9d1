"""Sorts of several rows at once on the host: networks of exchanges, a vector of rows side by side.

    rows     the rows' keys, one after the other
    columns  transposed: key i of all rows is a vector

In an exchange, the smaller of two keys goes to the lower place. A sorted run of k keys comes from
two of k / 2 by exchanges of places that mirror each other, then of places k / 4, k / 8 .. 1 apart
(the bitonic sorter of K. Batcher, 1968, with ascending exchanges alone). A place beyond the end
counts as the largest key, so exchanges with it are left out. The first sizes and the last distances
lie within as many keys as registers hold, and are exchanged there.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ugpu.compiler.dtype import DType, float64, uint64
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.value import Memory, Value, binary, cast, const, load, value
from ugpu.compiler.kernel.host.products.packing import turn
from ugpu.compiler.kernel.ir import Loop, Statement, Store

REGISTERS = {64: 16}  # keys in registers, by the bytes of a vector; elsewhere FEWER
FEWER = 8
DEEPEST = (
    3  # distances at which keys in registers are exchanged: of eight places, which share a set
)
PLACE = 20  # bits of a place beside a key of 32 bits in a float64's 52; a LONGEST row needs 10
LANES = 4  # minimum of a vector of keys
LONGEST = 1024  # keys of a row: more do not fit the second level of caches
Pairs = list[tuple[int, int]]


def _merging(count: int) -> Pairs:
    """Return the exchanges of `count` neighbours at distances from half of them down to 1."""
    distances = [count >> step for step in range(1, count.bit_length())]
    return [(at, at + by) for by in distances for at in range(count) if not at & by]


def _sorting(count: int) -> Pairs:
    """Return the exchanges that sort `count` neighbours, a power of two: two sorted halves are
    merged by merging their even and their odd places (K. Batcher, 1968)."""

    def merge(low: int, size: int, step: int) -> Pairs:
        if 2 * step >= size:
            return [(low, low + step)]
        both = merge(low, size, 2 * step) + merge(low + step, size, 2 * step)
        ends = range(low + step, low + size - step, 2 * step)
        return both + [(at, at + step) for at in ends]

    def sort(low: int, size: int) -> Pairs:
        if size < 2:
            return []
        half = size // 2
        return sort(low, half) + sort(low + half, half) + merge(low, size, 1)

    return sort(0, count)


def _packed(key: Value) -> Value:
    """Return a float64 between 1 and 2 of the order of a uint64 whose lower half is a place."""
    low = binary("and", key, const((1 << PLACE) - 1, uint64))
    high = binary("shr", key, const(32, uint64))
    bits = binary("or", binary("shl", high, const(PLACE, uint64)), low)
    one = const(0x3FF << 52, uint64)
    return value("bitcast", float64, (binary("or", bits, one),))


class Network:
    """The steps that sort `lanes` rows of `size` keys of a type each, by their whole values."""

    def __init__(self, size: int, lanes: int, dtype: DType) -> None:
        self.size, self.lanes, self.dtype = size, lanes, dtype
        most = REGISTERS.get(lanes * dtype.itemsize, FEWER)
        self.block = FEWER if size <= FEWER else most
        self.room = -(-size // self.block) * self.block
        self.rows, self.columns = (
            Memory(name, dtype, self.room * lanes, "local") for name in ("rows", "columns")
        )
        self._held = Memory("held", dtype, self.block, "register", lanes)
        self._lower = Memory("lower", dtype, 1, "register", lanes)
        self._count = 0  # of loops

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The memory of the steps, that of rows first."""
        return self.rows, self.columns, self._held, self._lower

    def steps(
        self, read: Callable[[Index, Index], Value], output: Memory,
        place: Callable[[Index, Index], Index], left: Index,
    ) -> list[Statement]:  # fmt: skip
        """Return the steps for float64. read: the key of a row at a place, in the upper half of a
        uint64; place: where its lower half goes in `output`. left: how many rows there are; those
        beyond it are neither read nor written."""
        row, each = self._range(self.lanes), self._range(self.size)
        at = row.index() * self.room + each.index()
        key = Store(self.rows, at, _packed(read(row.index(), each.index())))
        body: list[Statement] = [Loop(each, (key,))]
        if self.room > self.size:
            rest = self._range(self.room - self.size)
            beyond = row.index() * self.room + self.size + rest.index()
            body.append(Loop(rest, (Store(self.rows, beyond, const(math.inf, float64)),)))
        steps = [Loop(row, tuple(body), left), *self.sorted_rows()]
        row, each = self._range(self.lanes), self._range(self.size)
        at = row.index() * self.room + each.index()
        bits = value("bitcast", uint64, (load(self.rows, at),))
        found = cast(binary("and", bits, const((1 << PLACE) - 1, uint64)), output.dtype)
        result = Store(output, place(row.index(), each.index()), found)
        return [*steps, Loop(row, (Loop(each, (result,)),), left)]

    def sorted_rows(self) -> list[Statement]:
        """Return the steps that sort the rows."""
        return [self._turned(back=False), *self.exchanges(), self._turned(back=True)]

    def exchanges(self) -> list[Statement]:
        """Return the steps that sort the columns."""
        steps: list[Statement] = [self._within(_sorting(self.block))]
        size = 2 * self.block
        while size < 2 * self.room:
            distances = (size // self.block).bit_length() - 1
            parts = -(-distances // DEEPEST)
            apart = size
            for part in range(parts):
                share = -(-distances // (parts - part))
                steps += self._apart(apart, share, mirrored=not part)
                apart >>= share
                distances -= share
            steps.append(self._within(_merging(self.block)))
            size *= 2
        return steps

    def _range(self, size: int) -> Range:
        self._count += 1
        return Range(f"n{self._count}", size)

    def _turned(self, back: bool) -> Statement:
        """Move the keys from rows to columns, or back."""
        block = self._range(self.room // self.lanes)
        lanes, first = self.lanes, block.index() * self.lanes
        if back:
            vectors = [self._column(first + lane) for lane in range(lanes)]
            return Loop(block, turn(self.rows, first, self.room, vectors), rolled=True)
        places = [first + lane * self.room for lane in range(lanes)]
        vectors = [load(self.rows, place, (), lanes) for place in places]
        return Loop(block, turn(self.columns, first * lanes, lanes, vectors), rolled=True)

    def _column(self, place: Index) -> Value:
        return load(self.columns, place * self.lanes, (), self.lanes)

    def _within(self, pairs: Pairs) -> Statement:
        """Exchange within each block of neighbours."""
        block = self._range(self.room // self.block)
        places = [block.index() * self.block + at for at in range(self.block)]
        return Loop(block, self._together(places, pairs), rolled=True)

    def _exchanged(self, pairs: Pairs) -> list[Statement]:
        """Exchange pairs of the keys in registers. The operations of floats are one instruction
        each, and of two equal ones, also zeros of different sign, each is kept."""
        body: list[Statement] = []
        for low, high in pairs:
            one, other = (load(self._held, constant(at), (), self.lanes) for at in (low, high))
            if self.dtype.is_float:
                below = binary("lt", one, other)
                least, most = (
                    value("where", self.dtype, (below, *both), lanes=self.lanes)
                    for both in ((one, other), (other, one))
                )
            else:
                least, most = binary("min", one, other), binary("max", one, other)
            body += [
                Store(self._lower, constant(0), least),
                Store(self._held, constant(high), most),
                Store(self._held, constant(low), load(self._lower, constant(0), (), self.lanes)),
            ]
        return body

    def _apart(self, size: int, distances: int, *, mirrored: bool) -> list[Statement]:
        """Exchange in each block of `size` keys at the largest distances, each half of the one
        before: of 2 ** distances keys, one of each part of the block, at a time. mirrored: the
        first exchange is of places that mirror each other; so the upper half's parts are walked
        backwards."""
        count = 1 << distances
        part = size >> distances
        pairs = _merging(count)
        if mirrored:
            half = count // 2
            pairs = [(at, count - 1 - at) for at in range(half)] + pairs[half:]

        def places(each: Index, start: Index) -> list[Index]:
            return [
                start + at * part + (-each + (part - 1) if mirrored and 2 * at >= count else each)
                for at in range(count)
            ]

        whole, rest = divmod(self.room, size)
        steps: list[Statement] = []
        if whole:
            block, each = self._range(whole), self._range(part)
            body = self._together(places(each.index(), block.index() * size), pairs)
            steps.append(Loop(block, (Loop(each, body, rolled=True),), rolled=True))
        if mirrored and 2 * rest <= size:  # what is there is in order
            return steps
        full, some = divmod(rest, part)  # parts of the last block, and keys of one more
        some_first, others_first = (part - some, 0) if mirrored else (0, some)
        for first, keys, parts in ((some_first, some, full + 1), (others_first, part - some, full)):
            inside = [pair for pair in pairs if max(pair) < parts]
            if keys and inside:
                each = self._range(keys)
                at = places(each.index() + first, constant(whole * size))[:parts]
                steps.append(Loop(each, self._together(at, inside), rolled=True))
        return steps

    def _together(self, places: list[Index], pairs: Pairs) -> tuple[Statement, ...]:
        """Exchange pairs of keys at places, which are in registers meanwhile."""
        body: list[Statement] = [
            Store(self._held, constant(at), self._column(place)) for at, place in enumerate(places)
        ]
        body += self._exchanged(pairs)
        for at, place in enumerate(places):
            held = load(self._held, constant(at), (), self.lanes)
            body.append(Store(self.columns, place * self.lanes, held))
        return tuple(body)
