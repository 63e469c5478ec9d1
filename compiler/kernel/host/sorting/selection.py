"""Elements of rows by their rank on the host, without sorting the rows.

Keys are unsigned integers. The key of a rank is found bit by bit: a key with the next bit set is
compared with all of the row, in vectors, and the bit is kept if at most as many keys as the rank
are below. This ends as soon as one key is left in question. Keys of a longer row than KEPT are read
from memory until so few are left, which are copied.

    low, mask    the keys in question are those from low to low + mask
    less, upper  how many keys of the row are below them, and below their end
    outside      how many keys below them were not copied
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce

from ugpu.compiler.dtype import int32, int64
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
from ugpu.compiler.graph.along import KEPT
from ugpu.compiler.kernel.host.loops import rows_of
from ugpu.compiler.kernel.host.nest import round_up
from ugpu.compiler.kernel.ir import If, Kernel, Loop, Statement, Store
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.hcq.state.target import TargetSpec

CHUNK = 16384  # keys that justify a separate group
ZERO = constant(0)
NAMES = (
    "wanted",
    "less",
    "upper",
    "outside",
    "held",
    "below",
    "seen",
    "found",
    "left",
    "start",
    "step",
)
NUMBERS = tuple([Memory(name, int64, 1, "register") for name in NAMES])
WANTED, LESS, UPPER, OUTSIDE, HELD, BELOW, SEEN, FOUND, LEFT, START, STEP = NUMBERS


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation that selects elements of rows."""
    return _Selection(computation, target).kernel()


class _Selection:
    """The steps for a row, of a kernel whose groups have some rows each."""

    def __init__(self, computation: Computation, target: TargetSpec) -> None:
        _, (bits, self.first, self.along), _ = computation.value.arg
        self.computation, self.size = computation, self.along.size
        outer, self.columns = computation.ranges[:-1], computation.ranges[-1].size
        self.rows = max(1, CHUNK // self.size)
        self.grid, self.row, self.bound = rows_of(elements(outer), self.rows)
        body, self.rank = (
            substitute(ops.expand(each), places_at(outer, self.row))
            for each in computation.value.sources
        )
        self.body, self.key, self.bits = body, body.dtype, bits
        self.lanes = lanes = target.vector_bytes // self.key.itemsize
        self.short = self.size <= KEPT
        room = round_up(min(self.size, KEPT), lanes) + lanes
        self.keys = Memory("keys", self.key, room, "local")
        self.low, self.mask = (Memory(name, self.key, 1, "register") for name in ("low", "mask"))
        self.total = Memory("total", self.key, 1, "register", lanes)
        self.loops = 0

    def kernel(self) -> Kernel:
        """Return the kernel."""
        computation = self.computation
        steps: list[Statement] = [Store(WANTED, ZERO, cast(self.rank, int64))]
        most = (1 << self.bits) - 1
        starts = ((LESS, 0), (UPPER, self.size), (OUTSIDE, 0), (HELD, self.size),
                  (SEEN, 0), (FOUND, 0), (self.low, 0), (self.mask, most))  # fmt: skip
        steps += [Store(memory, ZERO, const(number, memory.dtype)) for memory, number in starts]
        steps += self._copied() if self.short else self._narrowed()
        steps.append(self._halved(self._below_held, self._few(1, KEPT)))
        steps += self._found()
        if self.first:
            steps += self._first()
        else:
            steps.append(Store(computation.output, self.row * self.columns, load(FOUND, ZERO)))
        memories = (self.keys, self.low, self.mask, self.total, *NUMBERS)
        loop = Loop(Range("r", self.rows), tuple(steps), self.bound)
        return kernel_of(computation, memories, self.grid, 1, (loop,))

    def _range(self, size: int) -> Range:
        self.loops += 1
        return Range(f"i{self.loops}", size)

    def _key(self, place: Index) -> Value:
        """Return a key of the row."""
        if self.short:
            return load(self.keys, place)
        return substitute(self.body, {self.along: place})

    def _copied(self) -> list[Statement]:
        """Copy all keys; behind them there are some of the largest."""
        each = self._range(self.size)
        key = substitute(self.body, {self.along: each.index()})
        return [Loop(each, (Store(self.keys, each.index(), key),)), self._end(constant(self.size))]

    def _end(self, place: Index) -> Store:
        most = const((1 << self.key.bits) - 1, self.key)
        return Store(self.keys, place, broadcast(most, self.lanes))

    def _narrowed(self) -> list[Statement]:
        """Compare keys in memory until at most KEPT are in question, and copy these."""
        each = self._range(self.size)
        key = self._key(each.index())
        held = lookup(load(HELD, ZERO), KEPT)
        more = binary("add", load(HELD, ZERO), cast(self._inside(key), int64))
        copies = (
            Store(HELD, ZERO, const(0, int64)),
            Store(OUTSIDE, ZERO, load(LESS, ZERO)),
            Loop(each, (Store(self.keys, held, key), Store(HELD, ZERO, more))),
            self._end(lookup(load(HELD, ZERO), KEPT + 1)),
        )
        return [
            self._halved(self._below_all, self._few(KEPT, self.size)),
            If(self._few(0, KEPT), copies),
        ]

    def _few(self, over: int, most: int) -> Validity:
        """Return the validity that more than `over` and at most `most` keys are in question."""
        count = binary("sub", load(UPPER, ZERO), load(LESS, ZERO))
        more = binary("lt", const(over, int64), count)
        return _holds(binary("and", more, binary("le", count, const(most, int64))))

    def _inside(self, key: Value) -> Value:
        """Return whether a key is in question."""
        return binary("le", binary("sub", key, load(self.low, ZERO)), load(self.mask, ZERO))

    def _halved(self, below: Callable[[Value], list[Statement]], going: Validity) -> Statement:
        """Halve the keys in question, as often as there are bits. below: the steps that count keys
        below another; going: where to go on."""
        half = binary("shr", load(self.mask, ZERO), const(1, self.key))
        middle = binary("add", load(self.low, ZERO), binary("add", half, const(1, self.key)))
        count, less, upper = (load(memory, ZERO) for memory in (BELOW, LESS, UPPER))
        kept = binary("le", count, load(WANTED, ZERO))

        def chosen(one: Value, other: Value) -> Value:
            return value("where", one.dtype, (kept, one, other))

        steps = (
            *below(middle),
            Store(LESS, ZERO, chosen(count, less)),
            Store(UPPER, ZERO, chosen(upper, count)),
            Store(self.low, ZERO, chosen(middle, load(self.low, ZERO))),
            Store(self.mask, ZERO, half),
        )
        some = _holds(binary("ne", load(self.mask, ZERO), const(0, self.key)))
        return Loop(self._range(self.bits), (If((*some, *going), steps),), rolled=True)

    def _counted(
        self, at: Callable[[Index], Value], count: int, bound: Index | None,
        test: Callable[[Value], Value],
    ) -> list[Statement]:  # fmt: skip
        """Return the steps that count in BELOW the keys of vectors for which a test holds."""
        each, total = self._range(count), load(self.total, ZERO, (), self.lanes)
        lanes = [value("extract", self.key, (total,), lane) for lane in range(self.lanes)]
        more = binary("add", total, cast(test(at(each.index())), self.key))
        return [
            Store(self.total, ZERO, broadcast(const(0, self.key), self.lanes)),
            Loop(each, (Store(self.total, ZERO, more),), bound),
            Store(BELOW, ZERO, cast(reduce(partial(binary, "add"), lanes), int64)),
        ]

    def _vector(self, number: Index) -> Value:
        """Return some neighbouring keys of the row."""
        place = number * self.lanes
        if self.short:
            return load(self.keys, place, (), self.lanes)
        index = self.body.arg.index.substitute({self.along: place})
        return load(self.body.arg.memory, index, (), self.lanes)

    def _below_held(self, middle: Value) -> list[Statement]:
        """Count keys below another, of those that were copied."""
        most = min(self.size, KEPT)
        bound = (lookup(load(HELD, ZERO), most + 1) + (self.lanes - 1)) // self.lanes
        steps = self._counted(
            lambda number: load(self.keys, number * self.lanes, (), self.lanes),
            -(-most // self.lanes), None if self.short else bound,
            lambda keys: binary("lt", keys, broadcast(middle, self.lanes)),
        )  # fmt: skip
        return [*steps, Store(BELOW, ZERO, binary("add", load(BELOW, ZERO), load(OUTSIDE, ZERO)))]

    def _below_all(self, middle: Value) -> list[Statement]:
        """Count keys below another, of the row."""
        whole, rest = divmod(self.size, self.lanes)
        steps = self._counted(
            self._vector, whole, None,
            lambda keys: binary("lt", keys, broadcast(middle, self.lanes)),
        )  # fmt: skip
        each = self._range(rest)
        key = self._key(each.index() + whole * self.lanes)
        count = binary("add", load(BELOW, ZERO), cast(binary("lt", key, middle), int64))
        return [*steps, Loop(each, (Store(BELOW, ZERO, count),))] if rest else steps

    def _found(self) -> list[Statement]:
        """Find the place of the element with the rank, of several alike, as they follow each other:
        first the vector, by counting those in question in half of the vectors, a quarter .."""
        count = -(-self.size // self.lanes) if self.short else self.size // self.lanes
        most = count if self.short else count + 1  # vectors, and the rest of the row
        left, start, step = (load(memory, ZERO) for memory in (LEFT, START, STEP))
        end = binary("min", step, binary("sub", const(count, int64), start))
        low, mask = (broadcast(load(each, ZERO), self.lanes) for each in (self.low, self.mask))

        def at(number: Index) -> Value:
            here = binary("add", start, value("index", int64, (), number))
            return self._vector(lookup(here, count))

        below = load(BELOW, ZERO)
        beyond = binary("le", below, left)
        halved = (
            *self._counted(at, count, lookup(end, count + 1),
                           lambda keys: binary("le", binary("sub", keys, low), mask)),
            Store(START, ZERO, value("where", int64, (beyond, binary("add", start, end), start))),
            Store(LEFT, ZERO, value("where", int64, (beyond, binary("sub", left, below), left))),
            Store(STEP, ZERO, binary("shr", step, const(1, int64))),
        )  # fmt: skip
        levels = count.bit_length()
        each = self._range(self.lanes)
        first = lookup(start, most) * self.lanes
        here = first + each.index()
        seen, found = load(SEEN, ZERO), load(FOUND, ZERO)
        now = value(
            "where", int64, (binary("eq", seen, left), value("index", int64, (), here), found)
        )
        inside = (
            Store(FOUND, ZERO, now),
            Store(SEEN, ZERO, binary("add", seen, const(1, int64))),
        )
        test = If(_holds(self._inside(self._key(here))), inside)
        return [
            Store(LEFT, ZERO, binary("sub", load(WANTED, ZERO), load(LESS, ZERO))),
            Store(START, ZERO, const(0, int64)),
            Store(STEP, ZERO, const(1 << levels - 1, int64)),
            Loop(self._range(levels), halved, rolled=True),
            Loop(each, (test,), constant(self.size) - first),
        ]

    def _first(self) -> list[Statement]:
        """Store the places of all elements up to the one that was found. One that is not among them
        is stored as well, where the next one comes."""
        last = load(FOUND, ZERO)
        before, behind = self._range(self.size), self._range(self.size)
        low = load(self.low, ZERO)
        end = binary("add", low, load(self.mask, ZERO))
        start = binary("add", last, const(1, int64))
        at = binary("add", start, value("index", int64, (), behind.index()))
        others = binary("sub", const(self.size, int64), start)
        return [
            Store(SEEN, ZERO, const(0, int64)),
            Loop(before, self._stored(before.index(), lambda key: binary("le", key, end)),
                 lookup(start, self.size + 1)),
            Loop(behind, self._stored(lookup(at, self.size), lambda key: binary("lt", key, low)),
                 lookup(others, self.size)),
        ]  # fmt: skip

    def _stored(self, place: Index, test: Callable[[Value], Value]) -> tuple[Statement, ...]:
        seen = load(SEEN, ZERO)
        to = self.row * self.columns + lookup(seen, self.columns)
        more = binary("add", seen, cast(test(self._key(place)), int64))
        here = value("index", int64, (), place)
        return Store(self.computation.output, to, here), Store(SEEN, ZERO, more)


def _holds(flag: Value) -> Validity:
    """Return the validity of a bool."""
    return at_least_zero(lookup(cast(flag, int32), 2) - 1)
