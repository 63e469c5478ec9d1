"""Running totals on the host: one element after the other, with the total carried along.

    across   memory runs across the scanned range: totals of many columns side by side, in vectors
    along    memory runs along it: a total waits for the one before, so several rows are interleaved
    doubled  along, for extremes: in a vector, totals of 2, 4, 8 .. neighbours, then that of all
             vectors before (W. Hillis and G. Steele, 1986)

Sums of floats start again after 1,024 elements, and the sum of the elements before is added to
each, so that far fewer roundings accumulate in one. Products do not: zero times infinity is not
zero.
"""

from __future__ import annotations

from collections.abc import Iterator

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import combine, identity, is_keyed, key, of_key
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    broadcast,
    cast,
    load,
    substitute,
    value,
)
from ugpu.compiler.kernel.host.nest import Columns, Rows, Streams, round_up
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store
from ugpu.hcq.state.target import TargetSpec

ABREAST = (4, 2)  # rows processed together: an addition takes four cycles, and two begin in each
LANES = 4  # minimum of a vector whose totals are doubled
STRETCH = 1024  # elements after which a total of floats starts again; those of `doubled` at a time


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation of running totals."""
    parts = _Parts(computation)
    lanes = target.vector_bytes // parts.body.dtype.itemsize
    along_memory = parts.along == computation.ranges[-1]
    if along_memory and parts.doubles and LANES <= lanes < parts.along.size:
        return _doubled(computation, parts, lanes)
    return _carried(computation, parts, target)


class _Parts:
    """Operands of a running total, and how they are combined. based: whether a base is added to
    each total."""

    def __init__(self, computation: Computation) -> None:
        _, self.operation, (self.along,) = computation.value.arg
        self.body, *start = [ops.expand(source) for source in computation.value.sources]
        self.dtype = computation.output.dtype
        self.keyed = is_keyed(self.operation, self.body.dtype)
        rounded = self.operation == "sum" and self.body.dtype.is_float
        slow = self.body.dtype.is_float or self.body.dtype.itemsize == 4  # others gain nothing
        self.doubles = slow and self.operation in ("max", "min")
        if self.keyed:
            self.body = key(self.body, self.operation)
            start = [key(each, self.operation) for each in start]
        self.identity = identity(self.operation, self.body.dtype)
        self.stretch = min(STRETCH, self.along.size) if rounded else self.along.size
        self.based = bool(start) or self.stretch < self.along.size
        self.start = start[0] if start else self.identity

    def ended(self, total: Value) -> Value:
        """Return the stored value of a total of all elements up to one."""
        return cast(of_key(total) if self.keyed else total, self.dtype)


def _carried(computation: Computation, parts: _Parts, target: TargetSpec) -> Kernel:
    """Compute totals of some rows or columns, element by element."""
    along, size = parts.along, parts.along.size
    place = computation.ranges.index(along)
    outer, inner = computation.ranges[:place], computation.ranges[place + 1 :]
    together: Columns | Streams
    if inner:
        together = Columns(computation, outer, inner, target.compute_units)
    else:
        count, units = elements(outer), target.compute_units
        fitting = (n for n in ABREAST if count % n == 0 and count // n >= units)
        abreast = next(fitting, 1)
        together = Streams(computation, outer, size * abreast, abreast=abreast, neighbours=True)
    totals, bases = (
        Memory(name, parts.body.dtype, together.totals, together.space)
        for name in ("totals", "bases")
    )
    stretch, step = Range("s", -(-size // parts.stretch)), Range("k", parts.stretch)
    first = stretch.index() * parts.stretch
    Places = dict[Range, Index]

    def begin(at: Index, places: Places) -> Iterator[Statement]:
        yield Store(bases, at, substitute(parts.start, places))

    def clear(at: Index, _: Places) -> Iterator[Statement]:
        yield Store(totals, at, parts.identity)

    def add(at: Index, places: Places) -> Iterator[Statement]:
        here = places | {along: first + step.index()}
        element, total = substitute(parts.body, here), load(totals, at)
        yield Store(totals, at, combine(parts.operation, total, element))
        total = combine(parts.operation, load(bases, at), total) if parts.based else total
        yield Store(computation.output, computation.position.substitute(here), parts.ended(total))

    def restart(at: Index, _: Places) -> Iterator[Statement]:
        yield Store(bases, at, combine(parts.operation, load(bases, at), load(totals, at)))

    steps = Loop(step, tuple(together.each("j", add)), constant(size) - first)
    body = [*together.each("j0", clear), steps]
    if not parts.based:
        return together.kernel((Loop(stretch, tuple(body)),))
    body += together.each("j2", restart)
    return together.kernel((*together.each("j1", begin), Loop(stretch, tuple(body))))


def _doubled(computation: Computation, parts: _Parts, lanes: int) -> Kernel:
    """Compute totals along memory. Elements beyond a row's end are undefined: no total before them
    depends on them."""
    outer, size, dtype = computation.ranges[:-1], parts.along.size, parts.body.dtype
    block = min(STRETCH, round_up(size, lanes))
    nest = Rows(computation, elements(outer), size)
    row = nest.number
    totals = Memory("totals", dtype, block, "local")
    held, carried = (Memory(name, dtype, 1, "register", lanes) for name in ("held", "carried"))
    zero, stretch = constant(0), Range("s", -(-size // block))
    now, before = (load(memory, zero, (), lanes) for memory in (held, carried))
    left = None if size % block == 0 else constant(size) - stretch.index() * block
    vectors = None if left is None else (left + (lanes - 1)) // lanes
    taken, vector, given = Range("k", block), Range("v", block // lanes), Range("l", block)

    def places(step: Range) -> dict[Range, Index]:
        return places_at(outer, row) | {parts.along: stretch.index() * block + step.index()}

    at = vector.index() * lanes
    steps = [Store(held, zero, load(totals, at, (), lanes))]
    none = broadcast(parts.identity, lanes)
    for apart in (1 << step for step in range(lanes.bit_length() - 1)):
        mask = tuple(i - apart if i >= apart else lanes + i for i in range(lanes))
        moved = value("shuffle", dtype, (now, none), mask, lanes)
        steps.append(Store(held, zero, combine(parts.operation, now, moved)))
    last = value("shuffle", dtype, (now, now), (lanes - 1,) * lanes, lanes)
    steps += [
        Store(held, zero, combine(parts.operation, before, now)),
        Store(totals, at, now),
        Store(carried, zero, last),
    ]
    element = substitute(parts.body, places(taken))
    to = row * size + stretch.index() * block + given.index()
    found = parts.ended(load(totals, given.index()))
    loops = (
        Loop(taken, (Store(totals, taken.index(), element),), left),
        Loop(vector, tuple(steps), vectors, rolled=True),
        Loop(given, (Store(computation.output, to, found),), left),
    )
    start = broadcast(substitute(parts.start, places_at(outer, row)), lanes)
    return nest.kernel((Store(carried, zero, start), Loop(stretch, loops)))
