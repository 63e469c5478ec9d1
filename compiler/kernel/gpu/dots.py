"""Products with few results and a long depth, on a GPU: a group computes a block of the results.

The threads of a group go along the depth. At each step a thread reads an element of every row and
of every column of the block, and adds all their products to totals in registers: rows x columns
products for rows + columns elements. Then the totals are put into local memory, and some threads
join those of each result.

    for step of depth: for row: for column: total[row][column] += left[row] * right[column]
    shared[row, column][thread] = total[row][column]
    barrier
    out = epilogue(sum of shared[row, column])
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.compiler.expression.accumulate import multiply_add
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant
from ugpu.compiler.expression.computation import Computation, elements, places_at
from ugpu.compiler.expression.value import Memory, Value, load, substitute
from ugpu.compiler.kernel.choices import Dots, Space
from ugpu.compiler.kernel.gpu.cut import cleared
from ugpu.compiler.kernel.gpu.join import READ, join_lanes, total_of
from ugpu.compiler.kernel.gpu.loops import blocks
from ugpu.compiler.kernel.gpu.tiles import SIDES
from ugpu.compiler.kernel.ir import (
    Barrier,
    Kernel,
    Loop,
    Statement,
    Store,
    group_range,
    guarded,
    thread_range,
)
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over, result
from ugpu.compiler.kernel.shared.spread import spread
from ugpu.compiler.pattern.contraction import Sides
from ugpu.hcq.state.target import TargetSpec

BLOCK = 16  # results of a group
STEPS = 8  # steps of the depth for a thread, before a group has more waves
DEPTH = 64  # from here on blocks are faster than a thread or a group for each result,
TILED_DEPTH = 256  # and from here on faster than tiles that are at most half full
LANES = 256  # maximum threads of a group
PADDING = 4  # totals between rows in local memory, against bank conflicts


def pays(sides: Sides, tiled: bool) -> bool:
    """Return whether blocks are expected to be faster than a thread or a group for each result, or,
    where the sides are long enough for tiles, than these."""
    block = _sides(sides)
    if block[0] * block[1] < READ or elements(sides.depths) < (TILED_DEPTH if tiled else DEPTH):
        return False
    return not tiled or min(sides.rows[-1].size, sides.columns[-1].size) < SIDES[0]


def _sides(sides: Sides) -> tuple[int, int]:
    """Return rows and columns of a block: powers of two that divide both sides, columns first up to
    4, then rows."""
    counts = []
    for ranges in (sides.columns, sides.rows):
        size = elements(ranges)
        counts.append(size & -size)
    columns = min(counts[0], READ)
    rows = min(counts[1], BLOCK // columns, 2 * READ)
    return rows, min(counts[0], BLOCK // rows, 2 * READ)


def default_dots(sides: Sides, target: TargetSpec) -> Dots:
    """Use a wave for a block; more of them as long as each thread has STEPS steps."""
    lanes, depth = target.wave_size, elements(sides.over)
    most = min(LANES, target.max_threads_per_group)
    rows, columns = _sides(sides)
    most = min(most, rows * columns * target.wave_size)
    while lanes * 2 <= most and depth >= 2 * lanes * STEPS:
        lanes *= 2
    return Dots((rows, columns), lanes)


def space(sides: Sides, target: TargetSpec) -> Space:
    """Return the space of blocks that divide the results, and of groups."""
    down, across = (elements(ranges) for ranges in (sides.rows, sides.columns))
    counts = (1, 2, 4, 8)
    width = sides.reduce.dtype.itemsize

    def fits(dots: Dots) -> bool:
        rows, columns = dots.block
        memory = rows * columns * (dots.lanes + PADDING) * width
        return (
            not down % rows
            and not across % columns
            and rows * columns <= dots.lanes <= rows * columns * target.wave_size
            and memory <= target.local_memory
        )

    options = {
        "block": tuple((rows, columns) for rows in counts for columns in counts),
        "lanes": blocks(target),
    }
    return Space(default_dots(sides, target), options, fits)


@dataclass(frozen=True)
class _Block:
    """A block of results. row, column: its first ones, as positions among all ranges of a side."""

    sides: Sides
    row: Index
    column: Index
    batch: dict[Range, Index]

    def places(self, row: Index, column: Index) -> dict[Range, Index]:
        """Return the value of each output range of a result of the block."""
        return {
            **self.batch,
            **places_at(self.sides.rows, self.row + row),
            **places_at(self.sides.columns, self.column + column),
        }

    def read(self, step: Index, rows: int, columns: int) -> tuple[list[Value], list[Value]]:
        """Return the elements of the block's rows and columns at a position of the depth."""
        zero, lane = constant(0), Range("lane", max(rows, columns))
        depth = places_at(self.sides.over, step)
        left = substitute(self.sides.left, {**self.places(lane.index(), zero), **depth})
        right = substitute(self.sides.right, {**self.places(zero, lane.index()), **depth})
        return spread(left, lane, zero, rows), spread(right, lane, zero, columns)


def multiply(
    computation: Computation, sides: Sides, target: TargetSpec, dots: Dots | None = None
) -> Kernel:
    """Return the kernel; its grid is (blocks of columns, blocks of rows, batch)."""
    dots = dots or default_dots(sides, target)
    (rows, columns), lanes = dots.block, dots.lanes
    grid = (
        elements(sides.columns) // columns,
        elements(sides.rows) // rows,
        elements(sides.batch),
    )
    block = _Block(
        sides,
        group_range(1, grid[1]).index() * rows,
        group_range(0, grid[0]).index() * columns,
        groups_at(sides.batch, 2),
    )
    totals = Memory("totals", sides.reduce.dtype, rows * columns, "register")
    thread = thread_range(lanes).index()
    depth = elements(sides.over)
    counter = Range("step", -(-depth // lanes))
    step = counter.index() * lanes + thread
    left, right = block.read(step, rows, columns)
    added = (
        Store(totals, at, multiply_add(row, column, load(totals, at)))
        for number, row in enumerate(left)
        for at, column in (
            (constant(number * columns + place), column) for place, column in enumerate(right)
        )
    )
    inside = at_least_zero(constant(depth - 1) - step)
    shared = Memory("shared", totals.dtype, totals.count * (lanes + PADDING), "local")
    total = Memory("total", totals.dtype, 1, "register")
    body: tuple[Statement, ...] = (
        *cleared(totals),
        Loop(counter, guarded(inside, *added)),
        *_joined(computation, block, dots, totals, shared, total),
    )
    return kernel_over(computation, grid, lanes, body)


def _joined(
    computation: Computation,
    block: _Block,
    dots: Dots,
    totals: Memory,
    shared: Memory,
    total: Memory,
) -> list[Statement]:
    """Join the totals of all threads, `sharers` threads for each result, and store the results."""
    (_, columns), lanes = dots.block, dots.lanes
    thread = thread_range(lanes).index()
    pitch = lanes + PADDING
    statements: list[Statement] = [
        Store(shared, thread + i * pitch, load(totals, constant(i))) for i in range(totals.count)
    ]
    statements.append(Barrier())
    sharers = lanes // totals.count
    each = lanes // sharers
    number, start = thread // sharers, thread % sharers * each
    whole = total_of("sum", shared, number * pitch + start, each)
    statements.append(Store(total, constant(0), whole))
    statements += join_lanes("sum", total, sharers)
    places = block.places(number // columns, number % columns)
    store = result(computation, places, load(total, constant(0)), block.sides.reduce)
    return [*statements, *guarded(at_least_zero(-(thread % sharers)), store)]
