"""Products of bfloat16 and of bytes on processors with tile registers (AMX).

A panel is 32 rows by 32 columns of totals, four tiles. A block of the depth, 64 bytes of a row, is
multiplied at once: two tiles of the left factor, whose rows run along the depth, by two of the
right, whose rows have groups of 4 bytes ([group][column][2 or 4], see
compiler.kernel.host.products.packing):

    for each block:    4 = left   6 = right   0 += 4 x 6      7 = right   1 += 4 x 7
                       5 = left               2 += 5 x 6                  3 += 5 x 7

A depth that ends inside a block is packed with zeros behind its end. Numbers: Intel's manual.
TDPBF16PS: denormal inputs and results count as zero, each product of a pair is added to the total
in turn and rounded to nearest. TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD: bytes of the left and the right
factor are signed or not; sums wrap as all int32 sums do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ugpu.compiler.dtype import DType, bfloat16, float32, int8, int32, uint8
from ugpu.compiler.expression.algebra import Index, Range
from ugpu.compiler.expression.value import Memory
from ugpu.compiler.kernel.host.nest import Axis
from ugpu.compiler.kernel.host.products.packing import Packed
from ugpu.compiler.kernel.ir import TILE_BYTES, TILE_ROWS, Loop, Statement, TileStep
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

HEIGHT = 2 * TILE_ROWS  # rows of a panel
VECTORS = 2  # vectors of 16 totals: columns of a panel
PANEL = HEIGHT, VECTORS
SLICE = 2048  # about the bytes of a slice of the depth
ONCE = 4096  # bytes of a depth that is one slice, whose totals stay in tiles
LEAST = 16  # steps of a depth from which on a block may be incomplete
KINDS = {
    (bfloat16, bfloat16, float32): "bf16ps",
    (int8, int8, int32): "bssd", (int8, uint8, int32): "bsud",
    (uint8, int8, int32): "busd", (uint8, uint8, int32): "buud",
}  # fmt: skip


@dataclass(frozen=True)
class Tiles:
    """How a product is computed. kind: as in TILE_PRODUCTS; first: bytes of the first-level cache;
    group: neighbouring steps of the right factor; steps: of a block of the depth; once, slice: ONCE
    and SLICE in steps."""

    kind: str
    itemsize: int
    first: int

    @property
    def group(self) -> int:
        return 4 // self.itemsize

    @property
    def steps(self) -> int:
        return TILE_BYTES // self.itemsize

    @property
    def once(self) -> int:
        return ONCE // self.itemsize

    @property
    def slice(self) -> int:
        return SLICE // self.itemsize

    def multiply(
        self, left: Packed, right: Packed, total: Memory, at: Index, pitch: int, fresh: bool,
        panels: tuple[Index, Index], block: Range, loop: Callable[[tuple[Statement, ...]], Loop],
    ) -> tuple[Statement, ...]:  # fmt: skip
        """Multiply a panel into totals [row][column] from `at` on, rows `pitch` apart. fresh: they
        start from zero. panels: numbers of the row panel and the column panel. loop: over `block`,
        the blocks of the depth. If the first-level cache can hold the left panel, which the next
        column panel reads again, it shall keep it."""
        (row, column), groups = panels, self.steps // self.group
        kept = block.size * TILE_BYTES * HEIGHT <= self.first * 3 // 4
        near = "stream" if kept else "load"
        rows = row * left.panel_step + block.index() * (groups * left.step_step)
        columns = column * right.panel_step + block.index() * (groups * right.step_step)

        def load_row(down: int) -> TileStep:
            place = rows + down * TILE_ROWS * left.element_step
            return TileStep("load", 4 + down, left.memory, place, left.element_step)

        def load_column(across: int) -> TileStep:
            place = columns + across * TILE_ROWS * right.element_step
            return TileStep(near, 6 + across, right.memory, place, right.step_step)

        def multiplied(down: int, across: int) -> TileStep:
            factors = 4 + down, 6 + across
            return TileStep("multiply", 2 * down + across, factors=factors, kind=self.kind)

        inner = (
            load_row(0), load_column(0), multiplied(0, 0), load_column(1), multiplied(0, 1),
            load_row(1), multiplied(1, 0), multiplied(1, 1),
        )  # fmt: skip
        places = {2 * down + across: at + (down * pitch + across) * TILE_ROWS
                  for down in range(2) for across in range(2)}  # fmt: skip
        before = [
            TileStep("zero", tile) if fresh else TileStep("load", tile, total, place, pitch)
            for tile, place in places.items()
        ]
        after = [TileStep("store", tile, total, place, pitch) for tile, place in places.items()]
        return (*before, loop(inner), *after)


def find_tiles(parts: Contraction, depth: Axis, plain: bool, target: TargetSpec) -> Tiles | None:
    """Return how a product is computed in tiles, or None. plain: each side is one range."""
    sides, features = (parts.left, parts.right), target.features.split(",")
    if not plain or "+amx-tile" not in features or not all(side.op == "cast" for side in sides):
        return None
    left, right = (side.sources[0].dtype for side in sides)
    types: tuple[DType, DType, DType] = left, right, parts.reduce.dtype
    kind = KINDS.get(types)
    needed = {"+amx-bf16", "+avx512bf16"} if left is bfloat16 else {"+amx-int8"}
    if kind is None or not needed <= set(features) or target.vector_bytes != TILE_BYTES:
        return None
    tiles = Tiles(kind, left.itemsize, target.caches.first)
    enough = depth.size % tiles.steps == 0 or depth.size >= LEAST
    return tiles if enough and set(parts.reduce.arg[1]) == set(depth.ranges) else None
