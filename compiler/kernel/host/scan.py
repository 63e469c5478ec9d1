"""Running totals on the host: one element after the other, with the total carried along.

    across   memory runs across the scanned range: totals of many columns side by side, in vectors
    along    memory runs along it: a total waits for the one before, so several rows are interleaved

Sums of floats start again after 1,024 elements, and the sum of the elements before is added to
each, so that far fewer roundings accumulate in one. Products do not: zero times infinity is not
zero.
"""

from __future__ import annotations

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import combine, identity, is_keyed, key, of_key
from ugpu.compiler.expression.algebra import Index, Range, constant, flatten
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import Memory, Value, cast, load, substitute
from ugpu.compiler.kernel.host.loops import rows_of
from ugpu.compiler.kernel.host.nest import Nest, Walk
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store, group_range
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.hcq.state.target import TargetSpec

CHUNK = 16384  # elements that justify a separate group
ABREAST = (4, 2)  # rows processed together: an addition takes four cycles, and two begin in each
COLUMNS = 1024  # columns whose totals a group holds
LINE = 64  # minimum of these
STRETCH = 1024  # elements after which a total of floats starts again


def lower(computation: Computation, target: TargetSpec) -> Kernel:
    """Lower a computation of running totals."""
    if computation.ranges[-1] in computation.value.arg[2]:
        return _along(computation, target)
    return _across(computation, target)


class _Parts:
    """Operands of a running total, and how they are combined. based: whether a base is added to
    each total."""

    def __init__(self, computation: Computation) -> None:
        _, self.operation, (self.along,) = computation.value.arg
        self.body, *start = [ops.expand(source) for source in computation.value.sources]
        self.dtype = computation.output.dtype
        self.keyed = is_keyed(self.operation, self.body.dtype)
        rounded = self.operation == "sum" and self.body.dtype.is_float
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
        if self.based:
            total = combine(self.operation, base, total)
        if self.keyed:
            total = of_key(total)
        return cast(total, self.dtype)


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
