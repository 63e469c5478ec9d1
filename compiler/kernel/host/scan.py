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

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import combine, identity, is_keyed, key, of_key
from ugpu.compiler.expression.algebra import Index, Range, constant, flatten
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
from ugpu.compiler.kernel.host.loops import rows_of
from ugpu.compiler.kernel.host.nest import Nest, Walk, round_up
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store, group_range
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.hcq.state.target import TargetSpec

CHUNK = 16384  # elements that justify a separate group
ABREAST = (4, 2)  # rows processed together: an addition takes four cycles, and two begin in each
COLUMNS = 1024  # columns whose totals a group holds
LINE = 64  # minimum of these
LANES = 4  # minimum of a vector whose totals are doubled
STRETCH = 1024  # elements after which a total of floats starts again; those of `doubled` at a time


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation of running totals."""
    if computation.ranges[-1] not in computation.value.arg[2]:
        return _across(computation, target)
    parts = _Parts(computation)
    lanes = target.vector_bytes // parts.body.dtype.itemsize
    if parts.doubles and LANES <= lanes < parts.along.size:
        return _doubled(computation, parts, lanes)
    return _along(computation, target)


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

    def next(self, total: Value, places: dict[Range, Index]) -> Value:
        """Return the total with one more element."""
        return combine(self.operation, total, substitute(self.body, places))

    def result(self, total: Value, base: Value) -> Value:
        """Return the stored value."""
        return self.ended(combine(self.operation, base, total) if self.based else total)

    def ended(self, total: Value) -> Value:
        """Return the stored value of a total of all elements up to one."""
        return cast(of_key(total) if self.keyed else total, self.dtype)


def _along(computation: Computation, target: TargetSpec) -> Kernel:
    parts = _Parts(computation)
    outer, size = computation.ranges[:-1], parts.along.size
    count = elements(outer)
    fitting = [n for n in ABREAST if count % n == 0 and count // n >= target.compute_units]
    abreast = fitting[0] if fitting else 1
    rows = max(1, CHUNK // (size * abreast))
    grid, row, bound = rows_of(count // abreast, rows)
    totals = Memory("total", parts.body.dtype, abreast, "register")
    bases = Memory("base", parts.body.dtype, abreast, "register")
    stretch, step = Range("s", -(-size // parts.stretch)), Range("k", parts.stretch)
    element = stretch.index() * parts.stretch + step.index()
    first: list[Statement] = []
    before: list[Statement] = []
    steps: list[Statement] = []
    after: list[Statement] = []
    for stream in range(abreast):
        at, number = constant(stream), row * abreast + stream
        places = places_at(outer, number) | {parts.along: element}
        total, base = load(totals, at), load(bases, at)
        before.append(Store(totals, at, parts.identity))
        steps.append(Store(totals, at, parts.next(total, places)))
        found = parts.result(total, base)
        steps.append(Store(computation.output, number * size + element, found))
        if parts.based:
            first.append(Store(bases, at, substitute(parts.start, places)))
            after.append(Store(bases, at, combine(parts.operation, base, total)))
    left = constant(size) - stretch.index() * parts.stretch
    inner = Loop(step, tuple(steps), left)
    body = (*first, Loop(stretch, (*before, inner, *after)))
    memories = (totals, bases) if parts.based else (totals,)
    return kernel_of(computation, memories, grid, 1, (Loop(Range("r", rows), body, bound),))


def _doubled(computation: Computation, parts: _Parts, lanes: int) -> Kernel:
    """Compute totals along memory. Elements beyond a row's end are undefined: no total before them
    depends on them."""
    outer, size, dtype = computation.ranges[:-1], parts.along.size, parts.body.dtype
    block = min(STRETCH, round_up(size, lanes))
    rows = max(1, CHUNK // size)
    grid, row, bound = rows_of(elements(outer), rows)
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
    body = (Store(carried, zero, start), Loop(stretch, loops))
    memories = (totals, held, carried)
    return kernel_of(computation, memories, grid, 1, (Loop(Range("r", rows), body, bound),))


def _across(computation: Computation, target: TargetSpec) -> Kernel:
    parts = _Parts(computation)
    along, size = parts.along, parts.along.size
    place = computation.ranges.index(along)
    outer, inner = computation.ranges[:place], computation.ranges[place + 1 :]
    rows, columns = elements(outer), elements(inner)
    chunk = min(COLUMNS, columns)
    if rows < 2 * target.compute_units:
        share = -(-columns // (2 * target.compute_units))
        chunk = min(chunk, -(-share // LINE) * LINE)
    nest = Nest(computation, outer, (Range("column", columns), chunk))
    row, (side,) = group_range(1, rows).index(), nest.sides
    totals = Memory("totals", parts.body.dtype, chunk, "local")
    bases = Memory("bases", parts.body.dtype, chunk, "local")
    stretch, step = Range("s", -(-size // parts.stretch)), Range("k", parts.stretch)
    element = stretch.index() * parts.stretch + step.index()

    def each(name: str, memory: Memory, result: Value | None = None) -> Statement:
        """Set all of a memory: to the identity, or to the base with the total added."""
        walk = side.steps(name)
        at = walk.position
        if result is None:
            result = combine(parts.operation, load(bases, at), load(totals, at))
        return walk.around(Store(memory, at, result))

    def places(walk: Walk) -> dict[Range, Index]:
        column = walk.places[side.axis.main]
        return nest.batch | places_at(inner, column) | {along: element}

    walk = side.steps("j")
    at = walk.position
    total = parts.next(load(totals, at), places(walk))
    to = flatten((row, element, walk.places[side.axis.main]), (rows, size, columns))
    left = constant(size) - stretch.index() * parts.stretch
    added = walk.around(
        Store(computation.output, to, parts.result(total, load(bases, at))),
        Store(totals, at, total),
    )
    steps = Loop(step, (added,), left)
    clear = each("j0", totals, parts.identity)
    if not parts.based:
        return nest.kernel((clear, Loop(stretch, (steps,))))
    walk = side.steps("j1")
    first = walk.around(Store(bases, walk.position, substitute(parts.start, places(walk))))
    body = (first, Loop(stretch, (clear, steps, each("j2", bases))))
    return nest.kernel(body)
