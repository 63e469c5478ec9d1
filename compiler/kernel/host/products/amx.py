"""Products of bfloat16 on processors with tile registers (AMX, `tdpbf16ps`).

A panel is 32 rows by 32 columns of totals, four tiles. Sixteen pairs of steps of the depth are
multiplied at once: two tiles of the left factor, whose rows run along the depth, by two of the
right, whose rows are pairs of steps ([pair][column][2], see compiler.kernel.host.products.packing):

    for each 32 steps:    4, 5 = left    6, 7 = right
                          0 += 4 x 6     1 += 4 x 7      2 += 5 x 6      3 += 5 x 7

Used only if the whole depth is a multiple of 32 steps, since data behind the end of a slice would
be multiplied too. Numbers: Intel's manual (TDPBF16PS): denormal inputs and results count as zero,
each product of a pair is added to the total in turn and rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from ugpu.compiler.expression.algebra import Index
from ugpu.compiler.expression.value import Memory
from ugpu.compiler.kernel.host.products.packing import PAIR, Packed
from ugpu.compiler.kernel.ir import TILE_ROWS, Loop, Statement, TileStep
from ugpu.hcq.state.target import TargetSpec

HEIGHT = 2 * TILE_ROWS  # rows of a panel
VECTORS = 2  # vectors of 16 totals: columns of a panel
PANEL = HEIGHT, VECTORS
STEPS = 32  # steps of the depth that one instruction multiplies
SLICE = 1024  # about the steps of a slice of the depth
ONCE = 2048  # steps of a depth that is one slice, whose totals stay in tiles


def in_tiles(depth: int, target: TargetSpec) -> bool:
    """Return whether a product that can be computed in pairs can be computed in tiles."""
    features = target.features.split(",")
    return "+amx-tile" in features and "+amx-bf16" in features and depth % STEPS == 0


def multiply(
    left: Packed, right: Packed, total: Memory, at: Index, pitch: int, fresh: bool,
    panels: tuple[Index, Index], block: Index, loop: Callable[[tuple[Statement, ...]], Loop],
) -> tuple[Statement, ...]:  # fmt: skip
    """Multiply a panel into totals [row][column] from `at` on, rows `pitch` apart. fresh: they
    start from zero. panels: numbers of the row panel and the column panel. loop: over the blocks of
    STEPS, of which `block` is one."""
    before: list[Statement] = []
    inner: list[Statement] = []
    after: list[Statement] = []
    row, column = panels
    for down in range(2):
        rows = row * left.panel_step + block * (STEPS // PAIR * left.step_step)
        rows = rows + down * TILE_ROWS * left.element_step
        inner.append(TileStep("load", 4 + down, left.memory, rows, left.element_step))
    for across in range(2):
        pairs = column * right.panel_step + block * (STEPS // PAIR * right.step_step)
        pairs = pairs + across * TILE_ROWS * PAIR
        inner.append(TileStep("load", 6 + across, right.memory, pairs, right.step_step))
    for down, across in product(range(2), range(2)):
        tile, place = 2 * down + across, at + (down * pitch + across) * TILE_ROWS
        start = TileStep("load", tile, total, place, pitch)
        before.append(TileStep("zero", tile) if fresh else start)
        inner.append(TileStep("multiply", tile, factors=(4 + down, 6 + across)))
        after.append(TileStep("store", tile, total, place, pitch))
    return (*before, loop(tuple(inner)), *after)
