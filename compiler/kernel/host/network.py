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

from collections.abc import Callable

from ugpu.compiler.dtype import DType, uint32, uint64
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.value import Memory, Value, binary, cast, const, load
from ugpu.compiler.kernel.host.products.packing import turn
from ugpu.compiler.kernel.ir import Loop, Statement, Store

REGISTERS = {64: 16}  # keys in registers, by the bytes of a vector; elsewhere FEWER
FEWER = 8
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


class Network:
    """The steps that sort `lanes` rows of `size` keys of a type each, by their whole values."""

    def __init__(self, size: int, lanes: int, dtype: DType = uint64) -> None:
        self.size, self.lanes = size, lanes
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
        """Return the steps. read: the key of a row at a place; place: where its lower half goes in
        `output`. left: how many rows there are; those beyond it are neither read nor written."""
        row, each = self._range(self.lanes), self._range(self.size)
        at = row.index() * self.room + each.index()
        key = Store(self.rows, at, read(row.index(), each.index()))
        body: list[Statement] = [Loop(each, (key,))]
        if self.room > self.size:
            rest = self._range(self.room - self.size)
            beyond = row.index() * self.room + self.size + rest.index()
            body.append(Loop(rest, (Store(self.rows, beyond, const((1 << 64) - 1, uint64)),)))
        steps = [Loop(row, tuple(body), left), self._turned(back=False), *self.exchanges()]
        steps.append(self._turned(back=True))
        row, each = self._range(self.lanes), self._range(self.size)
        at = row.index() * self.room + each.index()
        lower = cast(load(self.rows, at), uint32)
        result = Store(output, place(row.index(), each.index()), lower)
        return [*steps, Loop(row, (Loop(each, (result,)),), left)]

    def exchanges(self) -> list[Statement]:
        """Return the steps that sort the columns."""
        steps: list[Statement] = [self._within(_sorting(self.block))]
        size = 2 * self.block
        while size < 2 * self.room:
            steps += self._mirrored(size)
            distance = size // 4
            while distance >= self.block:
                steps += self._apart(distance)
                distance //= 2
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
        body = [
            Store(self._held, constant(at), self._column(place)) for at, place in enumerate(places)
        ]
        for low, high in pairs:
            both = [load(self._held, constant(at), (), self.lanes) for at in (low, high)]
            body += self._exchange(self._held, (constant(low), constant(high)), *both)
        for at, place in enumerate(places):
            held = load(self._held, constant(at), (), self.lanes)
            body.append(Store(self.columns, place * self.lanes, held))
        return Loop(block, tuple(body), rolled=True)

    def _exchange(
        self, memory: Memory, places: tuple[Index, Index], one: Value, other: Value
    ) -> list[Store]:
        zero = constant(0)
        return [
            Store(self._lower, zero, binary("min", one, other)),
            Store(memory, places[1], binary("max", one, other)),
            Store(memory, places[0], load(self._lower, zero, (), self.lanes)),
        ]

    def _mirrored(self, size: int) -> list[Statement]:
        """Exchange places of each `size` keys that mirror each other."""
        return self._everywhere(size, lambda i, length: (i + (size - length), -i + (length - 1)))

    def _apart(self, distance: int) -> list[Statement]:
        """Exchange places at a distance, in blocks of twice as many keys."""
        return self._everywhere(2 * distance, lambda i, _: (i, i + distance))

    def _everywhere(
        self, size: int, pair: Callable[[Index, int], tuple[Index, Index]]
    ) -> list[Statement]:
        """Exchange pairs of places in each block of `size` keys. pair: number i of a block with so
        many keys."""
        whole, rest = divmod(self.room, size)
        steps: list[Statement] = []
        if whole:
            block = self._range(whole)
            each = self._range(size // 2)
            body = self._pair(block.index() * size, pair(each.index(), size))
            steps.append(Loop(block, (Loop(each, body),), rolled=True))
        if rest > size // 2:
            each = self._range(rest - size // 2)
            body = self._pair(constant(whole * size), pair(each.index(), rest))
            steps.append(Loop(each, body))
        return steps

    def _pair(self, start: Index, places: tuple[Index, Index]) -> tuple[Store, ...]:
        at = ((start + places[0]) * self.lanes, (start + places[1]) * self.lanes)
        one, other = (load(self.columns, place, (), self.lanes) for place in at)
        return tuple(self._exchange(self.columns, at, one, other))
