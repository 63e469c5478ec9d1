"""The cost model of matrix products on the host: which tile, of which panels, a group computes.

Costs are in the time of one vector multiplication. tests/bench/bench_compiler_tiles.py holds the
choice against a search over all tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compiler.kernel.choices import Tile
from compiler.kernel.host.axis import Axis
from hcq.target import TargetSpec

LEFT_BYTES = 256 << 10  # a packed left slice, at most: it stays in the second-level cache
DIRECT_BYTES = 352 << 10  # a left slice that is not packed
RIGHT_BYTES = 576 << 10  # a packed right slice; it is read in order, from the third level at worst
TILE_BYTES = 384 << 10
COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
PACK = 0.2  # to pack an element of a factor: a vector load and a store, memory not in cache
DIRECT = 0.05  # to fetch an element that is not packed
PACK_ONE = 1.0  # the same where elements come one by one, or few at a time
FINISH = 0.3  # to clear an element of the tile, to load it once more and to store it
UNEVEN = 0.4  # of a tile: what threads wait for each other at the end


@dataclass(frozen=True)
class Problem:
    """steps: of the depth, in all; slice_steps: that are packed at a time. left_pack, right_pack:
    costs of packing an element. registers: vector registers; threads: that share the work.
    direct_height: of panels up to which the left factor is not packed."""

    rows: Axis
    columns: Axis
    batch: int
    steps: int
    slice_steps: int
    itemsize: int
    lanes: int
    registers: int
    threads: int
    left_pack: float = PACK
    right_pack: float = PACK
    direct_height: int = 0

    def cost(self, tile: Tile) -> float:
        """Of the whole product, by the thread that ends last."""
        tall, wide = tile.rows * self.rows.unit, tile.columns * self.columns.unit
        down, across = _ceil(self.rows.main.size, tile.rows), _ceil(
            self.columns.main.size, tile.columns
        )  # fmt: skip
        width = tile.vectors * self.lanes
        panels = _panels(self.rows, tile.rows, tile.height)
        panels *= _panels(self.columns, tile.columns, width)
        each = step_cost(tile.height, tile.vectors)
        multiply = panels * each
        left_pack = DIRECT if tile.height <= self.direct_height else self.left_pack
        pack = across * self.rows.size * left_pack + down * self.columns.size * self.right_pack
        store = self.rows.size * self.columns.size * FINISH
        total = self.batch * (self.steps * (multiply + pack) + store)
        inside = _ceil(tall, tile.height) * _ceil(wide, width) * each
        inside += tall * left_pack + wide * self.right_pack
        one = self.steps * inside + tall * wide * FINISH
        if self.threads == 1:
            return total
        return max(total / self.threads, one) + UNEVEN * one

    def fits(self, tile: Tile) -> bool:
        """Whether a tile's memories stay in the caches that they are meant for."""
        width = tile.vectors * self.lanes
        tall = _ceil(tile.rows * self.rows.unit, tile.height) * tile.height
        wide = _ceil(tile.columns * self.columns.unit, width) * width
        slice_bytes = self.slice_steps * self.itemsize
        left_bytes = DIRECT_BYTES if tile.height <= self.direct_height else LEFT_BYTES
        return (
            tall * slice_bytes <= left_bytes
            and wide * slice_bytes <= RIGHT_BYTES
            and tall * wide * self.itemsize <= TILE_BYTES
        )

    def tiles(self) -> Iterator[Tile]:
        """Those worth looking at: for each number of vectors the best height, and shares of the
        axes that are even."""
        for vectors in (1, 2, 3, 4):
            least = min(4, self.rows.size)
            heights = range(least, (self.registers - 2 - vectors) // vectors + 1)
            if not heights:
                continue
            height = min(heights, key=lambda h: _ceil(self.rows.size, h) * step_cost(h, vectors))
            for rows in shares(self.rows, height):
                for columns in shares(self.columns, vectors * self.lanes):
                    yield Tile(height, vectors, rows, columns)

    def best(self) -> Tile:
        """The cheapest that fits, or the smallest."""
        tiles = list(self.tiles())
        fitting = [tile for tile in tiles if self.fits(tile)]
        if not fitting:
            return min(tiles, key=lambda tile: (tile.rows * tile.columns, self.cost(tile)))
        return min(fitting, key=self.cost)


def vector_registers(target: TargetSpec) -> int:
    """How many vector registers a host has."""
    return 32 if target.vector_bytes >= 64 or target.triple.startswith("aarch64") else 16


def step_cost(height: int, vectors: int) -> float:
    """Of one step of a panel: a multiplication for each pair, or as many loads as they need."""
    loads = height + vectors
    return max(height * vectors, 0.8 * loads) + 0.1 * loads + 0.3


def shares(axis: Axis, panel: int) -> list[int]:
    """Steps of the main range that split it evenly into more and more tiles of whole panels."""
    if axis.unit > 1:
        counts = {_ceil(axis.main.size, n) for n in COUNTS}
    else:
        panels = _ceil(axis.main.size, panel)
        counts = {_ceil(panels, n) * panel for n in COUNTS if n <= panels}
    return sorted(counts)


def _panels(axis: Axis, count: int, panel: int) -> int:
    """Panels in all tiles."""
    full, rest = divmod(axis.main.size, count)
    return full * _ceil(count * axis.unit, panel) + _ceil(rest * axis.unit, panel)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
