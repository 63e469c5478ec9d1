"""Quicksort of a row on the host (C. Hoare, 1962) by vectors, for processors that compress them.

A part of the row is divided by a pivot, one of its elements: what comes before it is written to the
beginning of the part, what comes behind it to spare memory, and from there to the end of the part;
between them the pivot is repeated. Parts of at most PIECE elements are pieces: as many of them as a
vector has lanes are sorted side by side by a network (kernel.host.sorting.network). Of two longer
parts the shorter one is divided first, so that few parts wait.

Vectors are written whole. Those at the end of a part overwrite elements behind it, which are read
before, and written back. The work is counted: a row whose parts are divided badly again and again
is sorted by other steps instead.
"""

from __future__ import annotations

import math

from ugpu.compiler.dtype import DType, int32, int64, uint64
from ugpu.compiler.expression.algebra import Index, Range, Validity, constant
from ugpu.compiler.expression.lookup import lookup
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    binary,
    broadcast,
    cast,
    const,
    load,
    value,
)
from ugpu.compiler.kernel.host.sorting.digits import Place, Read
from ugpu.compiler.kernel.host.sorting.keys import SOME, TOTAL, Keys, holds
from ugpu.compiler.kernel.host.sorting.network import Network
from ugpu.compiler.kernel.ir import If, Loop, Statement, Store
from ugpu.hcq.state.target import TargetSpec

PIECE = 128  # maximum elements of a piece
WAITING = 64  # maximum parts that wait: more than the bits of a row's size
STEPS = 64  # divisions before it is tested whether there is more to do
SAMPLES = 9  # vectors whose median is the pivot
LIMIT, MORE = 2, 4  # the work, of the elements: LIMIT times the halvings to PIECE, and MORE
ZERO = constant(0)
NAMES = ("waiting", "pieces", "start", "length", "before", "behind")
NUMBERS = tuple([Memory(name, uint64, 1, "register") for name in NAMES])
COUNT, PIECES, START, LENGTH, BEFORE, BEHIND = NUMBERS
LEFT = Memory("left", int64, 1, "register")  # the work that may still be done


def can_divide(dtype: DType, target: TargetSpec) -> bool:
    """Return whether a processor compresses a vector of a type by an instruction: AVX-512F has
    those of 32 and 64 bits (Intel's manual, "VPCOMPRESSD")."""
    return (
        dtype.itemsize >= 4
        and target.vector_bytes == 64
        and "+avx512f" in target.features.split(",")
    )


class Quicksort:
    """The steps that sort a row of `size` elements at a place; `spare` is memory as large. Behind
    both there are at least PIECE and a vector's elements that may be overwritten."""

    def __init__(
        self, size: int, keys: Keys, target: TargetSpec, row: Place, spare: Place
    ) -> None:  # fmt: skip
        self.size, self.keys = size, keys
        self.lanes = lanes = target.vector_bytes // keys.dtype.itemsize
        (self.row, self.first), (self.spare, self.beside) = row, spare
        self.network = Network(PIECE, lanes, keys.key)
        self.pivot, self.vector, self.kept = (
            Memory(name, keys.dtype, 1, "register", lanes) for name in ("pivot", "vector", "kept")
        )
        self.waiting = [Memory(name, uint64, WAITING, "local") for name in ("starts", "lengths")]
        room = lanes + 2
        self.pieces = [
            Memory(name, uint64, room, "local") for name in ("piece_starts", "piece_lengths")
        ]
        bits = keys.watched
        self.watched = () if bits is None else tuple(
            [Memory(name, bits, 1, "register") for name in ("largest", "nearest")]
        )  # fmt: skip
        self._ranges = 0

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The memory of the steps; of floats SOME, too, which holds what they met."""
        own = (*self.network.memories, self.pivot, self.vector, self.kept, *self.watched)
        restores = (SOME, TOTAL) if self.watched else ()
        return (*own, *self.waiting, *self.pieces, *NUMBERS, LEFT, *restores)

    def steps(self, read: Read, last: Place, otherwise: list[Statement]) -> list[Statement]:
        """Return the steps. read: an element of the row as it was. last: where those in order go.
        otherwise: steps for a row that is divided badly again and again."""
        output, first = last
        end: list[Statement] = []
        if output is not self.row:
            each = self._range(self.size)
            moved = load(self.row, self.first + each.index())
            end.append(Loop(each, (Store(output, first + each.index(), moved),)))
        if self.watched:
            restored = tuple(self.keys.restored(self.size, read, output, first))
            end.append(If(holds(load(SOME, ZERO)), restored))
        given_up = binary("lt", load(LEFT, ZERO), const(0, int64))
        in_order = binary("le", const(0, int64), load(LEFT, ZERO))
        return [
            *self._in_place(read),
            *([If(_when(in_order), tuple(end))] if end else ()),
            If(_when(given_up), tuple(otherwise)),
        ]

    def _in_place(self, read: Read) -> list[Statement]:
        """Sort the copied row, as far as LEFT allows."""
        halvings = math.ceil(math.log2(max(2, self.size / PIECE)))
        work = self.size * (LIMIT * halvings + MORE)
        rounds = self._range(-(-work // (PIECE * STEPS)) + 1)
        numbers = ((COUNT, 1), (PIECES, 0))
        begin: list[Statement] = [
            *self._copied(read),
            *[Store(memory, ZERO, const(number, uint64)) for memory, number in numbers],
            Store(LEFT, ZERO, const(work, int64)),
            *[
                Store(memory, ZERO, const(number, uint64))
                for memory, number in zip(self.waiting, (0, self.size), strict=True)
            ],
        ]
        none = const(0, uint64)
        full = binary("lt", const(self.lanes - 2, uint64), load(PIECES, ZERO))
        some = binary("lt", none, load(PIECES, ZERO))
        waits = binary("lt", none, load(COUNT, ZERO))
        last = binary("and", some, binary("eq", load(COUNT, ZERO), none))
        step = (
            If(_when(binary("or", full, last)), tuple(self._sorted())),
            If(_when(waits), tuple(self._divided())),
        )
        inside = Loop(self._range(STEPS), step, rolled=True)
        more = If(_when(binary("or", waits, some)), (inside,))
        return [*begin, Loop(rounds, (more,), rolled=True)]

    def _range(self, size: int) -> Range:
        self._ranges += 1
        return Range(f"q{self._ranges}", size)

    def _copied(self, read: Read) -> list[Statement]:
        """Copy the row, NaN as infinity, and find out what there is to restore."""
        each = self._range(self.size)
        element = read(each.index())
        if not self.watched:
            return [Loop(each, (Store(self.row, self.first + each.index(), element),))]
        largest, nearest = self.watched
        most = const((1 << nearest.dtype.bits) - 1, nearest.dtype)
        infinity = const(math.inf, element.dtype)
        number = value(
            "where", element.dtype, (binary("eq", element, element), element, infinity)
        )  # fmt: skip
        body = (
            Store(self.row, self.first + each.index(), number),
            Store(
                largest, ZERO, binary("max", load(largest, ZERO), self.keys.magnitude(element))
            ),
            Store(
                nearest, ZERO,
                binary("min", load(nearest, ZERO), self.keys.from_negative_zero(element)),
            ),
        )  # fmt: skip
        return [
            Store(SOME, ZERO, const(0, int32)),
            Store(largest, ZERO, const(0, largest.dtype)),
            Store(nearest, ZERO, most),
            Loop(each, body),
            self.keys.met(load(largest, ZERO), load(nearest, ZERO)),
        ]

    # ---- parts ---------------------------------------------------------------------------------

    def _divided(self) -> list[Statement]:
        """Divide the part that waits for the shortest time."""
        one = const(1, uint64)
        last = lookup(binary("sub", load(COUNT, ZERO), one), WAITING)
        starts, lengths = self.waiting
        length, before, behind = (load(each, ZERO) for each in (LENGTH, BEFORE, BEHIND))
        start = load(START, ZERO)
        end = self.first + self._place(binary("add", start, length))
        none = const(0, uint64)
        upper = binary("sub", binary("add", start, length), behind)
        shorter = binary("lt", before, behind)
        parts = [
            (value("where", uint64, (shorter, *starts)), value("where", uint64, (shorter, *counts)))
            for starts, counts in (
                ((upper, start), (behind, before)), ((start, upper), (before, behind))
            )
        ]  # fmt: skip
        left = binary("sub", load(LEFT, ZERO), cast(length, int64))
        given_up = binary("lt", load(LEFT, ZERO), const(0, int64))
        steps: list[Statement] = [
            Store(START, ZERO, load(starts, last)),
            Store(LENGTH, ZERO, load(lengths, last)),
            Store(COUNT, ZERO, binary("sub", load(COUNT, ZERO), one)),
            Store(self.pivot, ZERO, self._median()),
            Store(self.kept, ZERO, self._vector(self.row, end)),
            Store(self.row, end, self._vector(self.pivot)),  # neither before the pivot nor behind
            Store(BEFORE, ZERO, none),
            Store(BEHIND, ZERO, none),
            *self._moved(),
            Store(self.row, end, self._vector(self.kept)),
        ]
        for part in parts:
            steps += self._waits(*part)
        steps += [Store(LEFT, ZERO, left)]
        steps += [
            Store(memory, ZERO, value("where", uint64, (given_up, none, load(memory, ZERO))))
            for memory in (COUNT, PIECES)
        ]
        return steps

    def _median(self) -> Value:
        """Return the median of medians of some vectors of the part, in all lanes."""
        lanes = self.lanes
        among = binary("sub", load(LENGTH, ZERO), const(lanes, uint64))
        apart = binary("floordiv", among, const(SAMPLES - 1, uint64))
        vectors = []
        for number in range(SAMPLES):
            along = binary("mul", apart, const(number, uint64))
            place = self._place(binary("add", load(START, ZERO), along))
            vectors.append(self._vector(self.row, self.first + place))
        while len(vectors) > 1:
            vectors = [self._middle(vectors[i : i + 3]) for i in range(0, len(vectors), 3)]
        (found,) = vectors
        for step in (1, 3):
            turned = [
                value("shuffle", found.dtype, (found, found),
                      tuple([(lane + by) % lanes for lane in range(lanes)]), lanes)
                for by in (step, 2 * step)
            ]  # fmt: skip
            found = self._middle([found, *turned])
        return broadcast(value("extract", found.dtype, (found,), 0), lanes)

    def _middle(self, three: list[Value]) -> Value:
        one, two, other = three
        upper = self._extreme(one, two, largest=True)
        between = self._extreme(upper, other, largest=False)
        return self._extreme(self._extreme(one, two, largest=False), between, largest=True)

    def _extreme(self, one: Value, other: Value, *, largest: bool) -> Value:
        if not one.dtype.is_float:
            return binary("max" if largest else "min", one, other)
        pair = (other, one) if largest else (one, other)
        return value("where", one.dtype, (binary("lt", one, other), *pair), lanes=one.lanes)

    def _moved(self) -> list[Statement]:
        """Move the elements of the part."""
        lanes, vector, pivot = self.lanes, self._vector(self.vector), self._vector(self.pivot)
        start, length, before, behind = (
            load(each, ZERO) for each in (START, LENGTH, BEFORE, BEHIND)
        )
        below, above = binary("lt", vector, pivot), binary("lt", pivot, vector)
        if self.keys.descending:
            below, above = above, below
        each, same, back = (self._range(-(-self.size // lanes)) for _ in range(3))
        middle = binary("add", start, before)  # the end of those before the pivot
        upper = binary("sub", binary("add", start, length), behind)
        alike = binary("sub", binary("sub", length, before), behind)
        divide = [Store(self.vector, ZERO, self._vector(self.row, self._at(start, each)))]
        kinds = (
            (below, BEFORE, self.row, self.first + self._place(middle)),
            (above, BEHIND, self.spare, self.beside + self._place(behind)),
        )
        for chosen, _, memory, place in kinds:
            taken = value("compress", vector.dtype, (vector, chosen), lanes=lanes)
            divide.append(Store(memory, place, taken))
        for chosen, number, *_ in kinds:
            more = value("count", uint64, (chosen,))
            divide.append(Store(number, ZERO, binary("add", load(number, ZERO), more)))
        other = self._vector(self.spare, self.beside + back.index() * lanes)
        repeat = Store(self.row, self._at(middle, same), pivot)
        give_back = Store(self.row, self._at(upper, back), other)
        return [
            Loop(each, tuple(divide), self._vectors(length), rolled=True),
            Loop(same, (repeat,), self._vectors(alike), rolled=True),
            Loop(back, (give_back,), self._vectors(behind), rolled=True),
        ]

    def _waits(self, start: Value, length: Value) -> list[Statement]:
        """A part waits, or is a piece; one element alone is neither. Each is written, and counted
        where it is."""
        wide = binary("lt", const(PIECE, uint64), length)
        some = binary("lt", const(1, uint64), length)
        narrow = binary("and", some, binary("le", length, const(PIECE, uint64)))
        steps: list[Statement] = []
        for number, memories, counts in (
            (COUNT, self.waiting, wide),
            (PIECES, self.pieces, narrow),
        ):
            place = lookup(load(number, ZERO), memories[0].count)
            steps += [
                Store(memory, place, each)
                for memory, each in zip(memories, (start, length), strict=True)
            ]
            more = binary("add", load(number, ZERO), cast(counts, uint64))
            steps.append(Store(number, ZERO, more))
        return steps

    # ---- pieces --------------------------------------------------------------------------------

    def _sorted(self) -> list[Statement]:
        """Sort the pieces, a row of the network each."""
        unused, none = self._range(self.lanes), const(0, uint64)
        known = binary("lt", value("index", uint64, (), unused.index()), load(PIECES, ZERO))
        emptied = [
            Store(memory, unused.index(),
                  value("where", uint64, (known, load(memory, unused.index()), none)))
            for memory in self.pieces
        ]  # fmt: skip
        return [
            Loop(unused, tuple(emptied)),
            self._taken(),
            *self.network.sorted_rows(),
            self._given(),
            Store(PIECES, ZERO, none),
        ]

    def _taken(self) -> Statement:
        """Copy keys of pieces, with the largest key behind them."""
        lanes, keys = self.lanes, self.keys
        piece, each = self._range(lanes), self._range(PIECE // lanes)
        start, length = (load(memory, piece.index()) for memory in self.pieces)
        kind = int32 if keys.key.itemsize == 4 else int64
        place = each.index() * lanes
        left = binary("sub", cast(length, kind), value("index", kind, (), place))
        lane = value("pack", kind, [const(i, kind) for i in range(lanes)], lanes=lanes)
        inside = binary("lt", lane, broadcast(left, lanes))
        key = keys.of(self._vector(self.row, self.first + self._place(start) + place))
        most = broadcast(const(keys.most, keys.key), lanes)
        filled = value("where", keys.key, (inside, key, most), lanes=lanes)
        take = Store(self.network.rows, piece.index() * PIECE + place, filled)
        return Loop(piece, (Loop(each, (take,)),), rolled=True)

    def _given(self) -> Statement:
        """Write the elements of sorted keys, without changing what is behind a piece."""
        piece, each = self._range(self.lanes), self._range(PIECE // self.lanes)
        start, length = (load(memory, piece.index()) for memory in self.pieces)
        place = each.index() * self.lanes
        end = self.first + self._place(binary("add", start, length))
        key = self._vector(self.network.rows, piece.index() * PIECE + place)
        to = self.first + self._place(start) + place
        give = Store(self.row, to, self.keys.element(key))
        steps = (
            Store(self.kept, ZERO, self._vector(self.row, end)),
            Loop(each, (give,), self._vectors(length), rolled=True),
            Store(self.row, end, self._vector(self.kept)),
        )
        return Loop(piece, steps, rolled=True)

    # ---- places --------------------------------------------------------------------------------

    def _place(self, number: Value) -> Index:
        """Return a place of the row, or its end."""
        return lookup(number, self.size + 1)

    def _at(self, number: Value, vector: Range) -> Index:
        """Return the place of a vector of the row, counted from a place on."""
        steps = vector.index() * self.lanes
        if self.row.space == "global":
            return self.first + self._place(number) + steps
        return self._place(binary("add", number, value("index", uint64, (), steps)))

    def _vectors(self, count: Value) -> Index:
        """Return how many vectors have a number of elements."""
        return (self._place(count) + (self.lanes - 1)) // self.lanes

    def _vector(self, memory: Memory, place: Index = ZERO) -> Value:
        return load(memory, place, (), self.lanes)


def _when(condition: Value) -> Validity:
    return holds(cast(condition, int32))
