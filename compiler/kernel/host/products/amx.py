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

from dataclasses import dataclass

from ugpu.compiler.expression.algebra import Index, Range
from ugpu.compiler.expression.value import Memory
from ugpu.compiler.kernel.choices import Tile
from ugpu.compiler.kernel.host.products.packing import PAIR, Packed
from ugpu.compiler.kernel.host.products.tiles import Problem, shares
from ugpu.compiler.kernel.ir import TILE_ROWS, Loop, Statement, TileStep
from ugpu.hcq.state.target import TargetSpec

HEIGHT = 2 * TILE_ROWS  # rows of a panel
VECTORS = 2  # vectors of 16 totals: columns of a panel
STEPS = 32  # steps of the depth that one instruction multiplies


def in_tiles(depth: int, target: TargetSpec) -> bool:
    """Return whether a product that can be computed in pairs can be computed in tiles."""
    features = target.features.split(",")
    return "+amx-tile" in features and "+amx-bf16" in features and depth % STEPS == 0


def best(problem: Problem) -> Tile:
    """Return the cheapest tile of a group that fits, or the smallest."""
    found = [
        Tile(HEIGHT, VECTORS, rows, columns)
        for rows in shares(problem.rows, HEIGHT)
        for columns in shares(problem.columns, VECTORS * problem.lanes)
    ]
    fitting = [tile for tile in found if problem.fits(tile)]
    if not fitting:
        return min(found, key=lambda tile: tile.rows * tile.columns)
    return min(fitting, key=problem.cost)


@dataclass(frozen=True)
class Panels:
    """Panels multiplied by the loops. total: [row][column], rows `pitch` apart; blocks: of
    STEPS in a slice; bound: their number if it varies; fresh: totals start from zero."""

    left: Packed
    right: Packed
    total: Memory
    pitch: int
    blocks: int
    bound: Index | None
    fresh: bool

    def multiply(self, row: Index, column: Index) -> tuple[Statement, ...]:
        """Multiply one panel, given the numbers of its row panel and its column panel."""
        before: list[Statement] = []
        after: list[Statement] = []
        for down in range(2):
            for across in range(2):
                at = (row * HEIGHT + down * TILE_ROWS) * self.pitch
                at = at + column * (2 * TILE_ROWS) + across * TILE_ROWS
                tile = 2 * down + across
                start = TileStep("load", tile, self.total, at, self.pitch)
                before.append(TileStep("zero", tile) if self.fresh else start)
                after.append(TileStep("store", tile, self.total, at, self.pitch))
        return (*before, self.steps(row, column), *after)

    def steps(self, row: Index, column: Index) -> Loop:
        block, left, right = Range("block", self.blocks), self.left, self.right
        inner: list[Statement] = []
        for down in range(2):
            at = row * left.panel_step + down * TILE_ROWS * left.element_step
            at = at + block.index() * STEPS
            inner.append(TileStep("load", 4 + down, left.memory, at, left.element_step))
        for across in range(2):
            at = column * right.panel_step + block.index() * (STEPS // PAIR * right.step_step)
            at = at + across * TILE_ROWS * PAIR
            inner.append(TileStep("load", 6 + across, right.memory, at, right.step_step))
        for down in range(2):
            for across in range(2):
                factors = (4 + down, 6 + across)
                inner.append(TileStep("multiply", 2 * down + across, factors=factors))
        return Loop(block, tuple(inner), self.bound)
