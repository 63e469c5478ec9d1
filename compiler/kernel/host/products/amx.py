"""Products of bfloat16, float16 and bytes on processors with tile registers (AMX).

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

A float16 is the exact sum of two bfloat16 (`halves`), so its product is that of four pairs of
tiles, each loaded when it changes: high x high, low x high, low x low, high x low. All products of
two halves are float32 that are not denormal. An infinity's lower half is NaN, as is a NaN's, and no
total of finite float16 overflows: where a total is NaN, a factor is infinite or NaN, and the panel
is computed again in float32 (compiler.kernel.host.products.matmul).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ugpu.compiler.dtype import DType, bfloat16, float16, float32, int8, int16, int32, uint8
from ugpu.compiler.expression.algebra import Index, Range
from ugpu.compiler.expression.computation import elements
from ugpu.compiler.expression.functions import as_bits, as_float, sub
from ugpu.compiler.expression.value import Memory, Value, binary, cast, const, value
from ugpu.compiler.kernel.host.nest import Axis
from ugpu.compiler.kernel.host.products.packing import Packed
from ugpu.compiler.kernel.host.products.rates import Rates
from ugpu.compiler.kernel.ir import TILE_BYTES, TILE_ROWS, Loop, Statement, TileStep
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

HEIGHT = 2 * TILE_ROWS  # rows of a panel
VECTORS = 2  # vectors of 16 totals: columns of a panel
PANEL = HEIGHT, VECTORS
SLICE = 2048  # about the bytes of a slice of the depth
ONCE = 4096  # bytes of a depth that is one slice, whose totals stay in tiles
FEWEST, SHORTEST = 64, 128  # rows and depth of float16 from which on tiles are faster than float32
LEAST = 16  # steps of a depth from which on a block may be incomplete
UPPER = -1 << 16  # bits of a float32 that a bfloat16 has
KINDS = {
    (bfloat16, bfloat16, float32): "bf16ps", (float16, float16, float32): "bf16ps",
    (int8, int8, int32): "bssd", (int8, uint8, int32): "bsud",
    (uint8, int8, int32): "busd", (uint8, uint8, int32): "buud",
}  # fmt: skip


@dataclass(frozen=True)
class Tiles:
    """How a product is computed. kind: as in TILE_PRODUCTS; first: bytes of the first-level cache;
    halves: numbers that an element is the sum of, each in tiles of its own; group: neighbouring
    steps of the right factor; steps: of a block of the depth; once, slice: ONCE and SLICE in
    steps."""

    kind: str
    itemsize: int
    first: int
    halves: int = 1

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

    def parted(self, factor: Value) -> tuple[Value, ...]:
        """Return the numbers that an element of a factor is the sum of."""
        return (factor,) if self.halves == 1 else halves(factor)

    def rates(self, rates: Rates) -> Rates:
        """Return the costs of a product with these tiles."""
        tile, pack = rates.tile * self.halves**2, rates.pack * self.halves
        return replace(rates, tile=tile, pack=pack, pack_one=rates.pack_one * self.halves)

    def multiply(
        self, left: Sequence[Packed], right: Sequence[Packed], total: Memory, at: Index, pitch: int,
        fresh: bool, panels: tuple[Index, Index], block: Range,
        loop: Callable[[tuple[Statement, ...]], Loop],
    ) -> tuple[Statement, ...]:  # fmt: skip
        """Multiply a panel into totals [row][column] from `at` on, rows `pitch` apart. left, right:
        the halves of both factors. fresh: totals start from zero. panels: numbers of the row panel
        and the column panel. loop: over `block`, the blocks of the depth. If the first-level cache
        can hold the left panel, which the next column panel reads again, it shall keep it."""
        (row, column), groups = panels, self.steps // self.group
        kept = block.size * TILE_BYTES * HEIGHT * self.halves <= self.first * 3 // 4
        near = "stream" if kept else "load"

        def load_row(down: int, half: Packed) -> TileStep:
            place = row * half.panel_step + block.index() * (groups * half.step_step)
            place += down * TILE_ROWS * half.element_step
            return TileStep("load", 4 + down, half.memory, place, half.element_step)

        def load_column(across: int, half: Packed) -> TileStep:
            place = column * half.panel_step + block.index() * (groups * half.step_step)
            place += across * TILE_ROWS * half.element_step
            return TileStep(near, 6 + across, half.memory, place, half.step_step)

        def multiplied(down: int, across: int) -> TileStep:
            factors = 4 + down, 6 + across
            return TileStep("multiply", 2 * down + across, factors=factors, kind=self.kind)

        places = {2 * down + across: at + (down * pitch + across) * TILE_ROWS
                  for down in range(2) for across in range(2)}  # fmt: skip
        before = [
            TileStep("zero", tile) if fresh else TileStep("load", tile, total, place, pitch)
            for tile, place in places.items()
        ]
        after = [TileStep("store", tile, total, place, pitch) for tile, place in places.items()]
        inner = _in_turn(left, right, load_row, load_column, multiplied)
        return (*before, loop(tuple(inner)), *after)


def _in_turn(
    left: Sequence[Packed], right: Sequence[Packed], load_row: Callable[[int, Packed], TileStep],
    load_column: Callable[[int, Packed], TileStep], multiplied: Callable[[int, int], TileStep],
) -> Iterator[TileStep]:  # fmt: skip
    """Yield the products of each half of the left factor by each of the right, of which one changes
    at a time, and the loads of tiles before the first product that needs them."""
    rows = columns = None  # in the tiles
    for one, two in ((0, 0), (1, 0), (1, 1), (0, 1))[: len(left) * len(right)]:
        new_rows, new_columns = rows is not left[one], columns is not right[two]
        rows, columns = left[one], right[two]
        for down, across in ((0, 0), (0, 1), (1, 0), (1, 1)):
            if new_rows and across == 0:
                yield load_row(down, rows)
            if new_columns and down == 0:
                yield load_column(across, columns)
            yield multiplied(down, across)


def halves(number: Value) -> tuple[Value, Value]:
    """Return two bfloat16 whose sum is a float16: its first eight bits, and the others."""
    wide = cast(number, float32)
    upper = binary("and", as_bits(wide), const(UPPER, int32))
    rest = as_bits(sub(wide, as_float(upper)))
    return _upper(as_bits(wide)), _upper(rest)


def _upper(bits: Value) -> Value:
    """Return the bfloat16 of which a float32 has the bits, and zeros below."""
    return value("bitcast", bfloat16, (cast(binary("shr", bits, const(16, int32)), int16),))


def find_tiles(parts: Contraction, depth: Axis, plain: bool, target: TargetSpec) -> Tiles | None:
    """Return how a product is computed in tiles, or None. plain: each side is one range."""
    sides, features = (parts.left, parts.right), target.features.split(",")
    if not plain or "+amx-tile" not in features or not all(side.op == "cast" for side in sides):
        return None
    left, right = (side.sources[0].dtype for side in sides)
    types: tuple[DType, DType, DType] = left, right, parts.reduce.dtype
    kind = KINDS.get(types)
    needed = {"+amx-bf16", "+avx512bf16"} if left.is_float else {"+amx-int8"}
    if kind is None or not needed <= set(features) or target.vector_bytes != TILE_BYTES:
        return None
    tiles = Tiles(kind, left.itemsize, target.caches.first, 2 if left is float16 else 1)
    if left is float16 and (elements(parts.all_rows) < FEWEST or depth.size < SHORTEST):
        return None
    enough = depth.size % tiles.steps == 0 or depth.size >= LEAST
    return tiles if enough and set(parts.reduce.arg[1]) == set(depth.ranges) else None
