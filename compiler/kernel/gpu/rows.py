"""Reductions over rows on a GPU, one or a chain of them: some lanes of a wave or a group of waves
per row, or a thread per row where memory runs across rows.

The threads of a row take every n-th piece of it. A small share of a thread stays in registers from
one pass to the next; a larger one is read and computed again. Totals are joined by
compiler.kernel.gpu.join.

If a row's length is not a multiple of a vector, rows start at any alignment. The vectors of a row
are then those aligned in memory, and the elements left at both ends are processed one per thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import combine, identity
from ugpu.compiler.expression.algebra import (
    Index,
    Range,
    Validity,
    at_least_zero,
    both,
    constant,
    unflatten,
)
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import Memory, Value, load, rebuild, substitute, walk
from ugpu.compiler.kernel.choices import Rows, Space
from ugpu.compiler.kernel.gpu.join import join, waves_memory
from ugpu.compiler.kernel.gpu.loops import BLOCK, blocks, threads_along
from ugpu.compiler.kernel.ir import (
    Kernel,
    Loop,
    Statement,
    Store,
    group_range,
    guarded,
    nested,
    thread_range,
)
from ugpu.compiler.kernel.shared.kernels import kernel_over, stores
from ugpu.compiler.kernel.shared.spread import spread, store, unit_stride, vector_width
from ugpu.compiler.pattern.chain import Chain, held_values
from ugpu.hcq.state.target import TargetSpec

HELD = 32  # maximum elements of a row that a thread holds
ODD = 16  # vectors of a row from which on its ends are processed separately
STEPS = 8  # maximum pieces of a row that a thread takes one after the other without a loop
SHARE = 16  # elements of a row for a thread, if there are enough rows: fewer joins for each
FULL = 512  # threads that keep a compute unit busy


def default_rows(computation: Computation, chain: Chain, target: TargetSpec) -> Rows:
    """Use as many threads for a row as it has vectors, up to a group; fewer, with more elements
    each, if there are more rows than the machine needs. One if memory runs across the rows."""
    if _across(chain) or chain.rows >= 1 << 31:
        return Rows(1, BLOCK, 1, 0)
    width = _widths(computation, chain, target)[-1]
    units = chain.length // width
    lanes = 1
    while lanes < min(BLOCK, target.max_threads_per_group) and lanes < units:
        lanes *= 2
    enough = FULL * target.compute_units
    while lanes > 1 and chain.length * 2 <= SHARE * lanes and chain.rows * lanes > enough:
        lanes //= 2
    block = max(lanes, target.wave_size)
    while block < BLOCK and block < chain.rows * lanes:
        block *= 2
    if lanes > target.wave_size:
        block = lanes
    return Rows(lanes, block, width, HELD)


def _across(chain: Chain) -> bool:
    """Return whether memory runs from row to row rather than along rows."""
    across = chain.outer[-1:]
    along = {ranges[-1] for ranges, _ in chain.passes() if ranges}
    values = [root for _, root in chain.passes()]
    strided = across and any(unit_stride(root, across[0]) for root in values)
    return bool(strided) and not any(unit_stride(root, r) for root in values for r in along)


def _widths(computation: Computation, chain: Chain, target: TargetSpec) -> tuple[int, ...]:
    """Return the numbers of elements that a thread may move at once; the last is the largest that
    is worthwhile."""
    memories = [*computation.inputs, *computation.outputs]
    most = vector_width([m.dtype for m in memories], target.vector_bytes)
    passes = [ranges for ranges, _ in chain.passes() if ranges]

    def fits(width: int) -> bool:
        return all(
            not ranges[-1].size % width
            or (ranges[-1].size >= ODD * width and _start(computation, chain, ranges) is not None)
            for ranges in passes
        )

    return tuple(width for width in (1, 2, 4, 8) if width <= most and fits(width))


def _odd(chain: Chain, width: int) -> bool:
    """Return whether vectors do not divide the rows of some pass."""
    return any(ranges[-1].size % width for ranges, _ in chain.passes() if ranges)


def _start(computation: Computation, chain: Chain, ranges: tuple[Range, ...]) -> Index | None:
    """Return where passes over these ranges start in memory: that of the first unit-stride load, or
    of the output. None if no memory runs along them, or there are several ranges."""
    if len(ranges) != 1:
        return None
    (along,) = ranges
    bodies = [root for each, root in chain.passes() if each == ranges]
    read = [node.arg.index for root in bodies for node in walk(root) if node.op == "load"]
    for place in (*read, computation.position):
        start: Index = place - along.index()
        if place.coefficient(along) == 1 and along not in start.ranges():
            return start
    return None


def lane_counts(target: TargetSpec) -> tuple[int, ...]:
    """Return the numbers of threads that may share a row."""
    counts = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    return tuple(count for count in counts if count <= target.max_threads_per_group)


def rows_space(computation: Computation, chain: Chain, target: TargetSpec) -> Space:
    """Return the space: parts of waves and groups of up to 16 waves; vectors of all widths;
    registers."""
    options = {
        "lanes": lane_counts(target),
        "block": blocks(target),
        "width": _widths(computation, chain, target),
        "held": (0, 16, 32, 64),
    }

    def fits(wanted: Rows) -> bool:
        """With whole waves a group has only one row, and enough threads for a row's ends."""
        if wanted.lanes < wanted.width - 1 and _odd(chain, wanted.width):
            return False
        if wanted.lanes > target.wave_size:
            return wanted.lanes == wanted.block
        return wanted.lanes <= wanted.block

    return Space(default_rows(computation, chain, target), options, fits)


def rows(
    computation: Computation, chain: Chain, target: TargetSpec, wanted: Rows | None = None
) -> Kernel:
    """Return a kernel of whole rows."""
    wanted = wanted or default_rows(computation, chain, target)
    if wanted.lanes < wanted.width - 1 and _odd(chain, wanted.width):
        wanted = replace(wanted, width=1)
    if wanted.lanes == 1 and wanted.width == 1:
        return by_threads(computation, chain, target, wanted.block)
    return _ByLanes(computation, chain, target, wanted).kernel()


def by_threads(computation: Computation, chain: Chain, target: TargetSpec, most: int) -> Kernel:
    """Return a kernel of a thread for each row, in groups of at most so many."""
    unit, conditions, groups, block = threads_along(chain.rows, target, most)
    places = places_at(chain.outer, unit)
    body: list[Statement] = []
    for number, (ranges, root) in enumerate(chain.passes()):
        if number < len(chain.stages):
            stage = chain.stages[number]
            first = identity(stage.operation, stage.total.dtype)
            body.append(Store(stage.total, constant(0), first))
            value = substitute(ops.expand(root), places)
            value = combine(stage.operation, load(stage.total, constant(0)), value)
            inside: tuple[Statement, ...] = (Store(stage.total, constant(0), value),)
        else:
            inside = stores(computation, ops.expand(root), places)
        body += nested(ranges, *inside)
    return kernel_over(computation, (groups, 1, 1), block, guarded(conditions, *body))


class _ByLanes:
    """Some neighbouring threads per row."""

    def __init__(
        self, computation: Computation, chain: Chain, target: TargetSpec, wanted: Rows
    ) -> None:
        self.computation = computation
        self.chain = chain
        self.wave = target.wave_size
        self.lanes, self.block, self.width = wanted.lanes, wanted.block, wanted.width
        thread = thread_range(self.block).index()
        self.lane = thread % self.lanes
        beside = self.block // self.lanes  # rows of a group
        self.groups = -(-chain.rows // beside)
        row = group_range(0, self.groups).index() * beside + thread // self.lanes
        self.exists = at_least_zero(constant(chain.rows - 1) - row)
        self.places = places_at(chain.outer, row)
        self.ends: dict[tuple[Range, ...], tuple[Index, Index]] = {}
        for ranges, _ in chain.passes():
            if ranges and ranges[-1].size % self.width:
                self.ends[ranges] = self.aligned(ranges)
        self.held: dict[Value, tuple[int, Memory]] = {}
        self.hold(wanted.held)

    def aligned(self, ranges: tuple[Range, ...]) -> tuple[Index, Index]:
        """Return the first element of this thread's row that starts a vector in memory, and the one
        after the last vector."""
        start = _start(self.computation, self.chain, ranges)
        assert start is not None
        start, width = start.substitute(self.places), self.width
        first = (start + (width - 1)) // width * width - start
        return first, (start + ranges[-1].size) // width * width - start

    def steps(self, ranges: tuple[Range, ...]) -> int:
        """Return the number of pieces of a pass that each thread processes."""
        return -(-(elements(ranges) // self.width) // self.lanes)

    def hold(self, left: int) -> None:
        """Choose what stays in registers: element number step * width + lane of each thread."""
        for held in held_values(self.chain, loads=True):
            ranges = self.chain.passes()[held.made][0]
            count = self.steps(ranges) * self.width + (2 if ranges in self.ends else 0)
            if self.steps(ranges) <= STEPS and count <= left:
                left -= count
                memory = Memory(f"held{len(self.held)}", held.value.dtype, count, "register")
                self.held[held.value] = held.made, memory

    def kernel(self) -> Kernel:
        computation, chain = self.computation, self.chain
        body: list[Statement] = []
        for number, stage in enumerate(chain.stages):
            total = stage.total
            first = identity(stage.operation, total.dtype)
            body.append(Store(total, constant(0), first))
            body += self.over(stage.ranges, number)
            memory = waves_memory(f"shared{number}", total, self.lanes, self.wave)
            body += join(stage.operation, total, self.lanes, self.block, self.wave, memory)
        body += self.over(chain.inner, len(chain.stages))
        return kernel_over(computation, (self.groups, 1, 1), self.block, body)

    def over(self, ranges: tuple[Range, ...], number: int) -> Sequence[Statement]:
        """Return the statements of one pass over the row."""
        if not ranges:
            taken = self.piece(ranges, number, 0, [], 1)
            return self.where(at_least_zero(-self.lane), taken)
        width, steps, units = self.width, self.steps(ranges), elements(ranges) // self.width
        counter = Range("step", steps)
        written_out = steps <= STEPS
        statements: list[Statement] = []
        for step in range(steps if written_out else 1):
            at = constant(step) if written_out else counter.index()
            unit = at * self.lanes + self.lane
            if ranges in self.ends:
                first, stop = self.ends[ranges]
                sure = (ranges[-1].size - width + 1) // width  # vectors that every row has
                place = [first + unit * width]
                inside = () if unit.high < sure else at_least_zero(stop - place[0] - width)
            else:
                shape = (*(r.size for r in ranges[:-1]), ranges[-1].size // width)
                place = unflatten(unit, shape)
                place[-1] = place[-1] * width
                inside = at_least_zero(constant(units - 1) - unit)
            taken = self.piece(ranges, number, step * width, place, width)
            statements += self.where(inside, taken)
        whole: list[Statement] = statements if written_out else [Loop(counter, tuple(statements))]
        if ranges in self.ends:
            whole += self.at_ends(ranges, number, steps * width)
        return whole

    def where(self, inside: Validity, statements: Sequence[Statement]) -> tuple[Statement, ...]:
        """Guard statements: the row must exist and `inside` must hold."""
        return guarded(both(self.exists, inside), *statements)

    def at_ends(self, ranges: tuple[Range, ...], number: int, slot: int) -> list[Statement]:
        """Return statements for the elements before a row's first vector and after its last, one
        element per thread."""
        first, stop = self.ends[ranges]
        before, after = self.lane, stop + self.lane
        few = at_least_zero(constant(self.width - 2) - self.lane)
        head = self.piece(ranges, number, slot, [before], 1)
        tail = self.piece(ranges, number, slot + 1, [after], 1)
        last = at_least_zero(constant(ranges[-1].size - 1) - after)
        return [
            *self.where(both(few, at_least_zero(first - before - 1)), head),
            *self.where(both(few, last), tail),
        ]

    def piece(
        self, ranges: tuple[Range, ...], number: int, slot: int, at: list[Index], width: int
    ) -> list[Statement]:
        """Process a thread's next `width` elements of a pass, held from `slot` on. at: the first's
        indices."""
        lane = Range("lane", width)
        places = dict(self.places)
        if ranges:
            places |= zip(ranges, (*at[:-1], at[-1] + lane.index()), strict=True)
        held = constant(slot) + lane.index()

        def values(root: Value, whole: bool) -> list[Value]:
            """Return a value for each lane, reading held values; whole: but compute a value that is
            to be held itself."""

            def change(node: Value, _: tuple[Value, ...]) -> Value | None:
                found = self.held.get(node)
                if found is None or (whole and node is root):
                    return None
                return load(found[1], held)

            finished = substitute(ops.expand(rebuild(root, change)), places)
            return spread(finished, lane, constant(0), width)

        statements: list[Statement] = []
        # values that an expensive one is made of may be held too: the cheaper come first
        for root, (made, memory) in reversed(self.held.items()):
            if made == number:
                for index, value in enumerate(values(root, True)):
                    statements.append(Store(memory, constant(slot + index), value))
        root = self.chain.passes()[number][1]
        if number < len(self.chain.stages):
            stage = self.chain.stages[number]
            joined = load(stage.total, constant(0))
            for value in values(root, False):
                joined = combine(stage.operation, joined, value)
            return [*statements, Store(stage.total, constant(0), joined)]
        position = self.computation.position.substitute(places)
        for output, part in self.computation.results(root):
            results = values(part, False)
            if width > 1 and position.coefficient(lane) == 1:
                first = position.substitute({lane: constant(0)})
                statements.append(store(output, first, results))
                continue
            for index, value in enumerate(results):
                here = position.substitute({lane: constant(index)})
                statements.append(Store(output, here, value))
        return statements
