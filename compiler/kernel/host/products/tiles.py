"""The cost model of matrix products on the host: it chooses a group's tile, and its panels.

Costs are in the time of one vector multiplication. lab.bench's compiler_tiles compares the
choice with a search over all tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from ugpu.compiler.kernel.choices import Tile
from ugpu.compiler.kernel.host.nest import Axis, round_up
from ugpu.compiler.kernel.host.products.rates import BEGIN, DEFAULT, WIDEST, Rates, highest
from ugpu.hcq.state.target import TargetSpec

COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
HIDDEN = 0.7  # share of multiplication time in which loads from the second level cost nothing
FEW = 4  # columns that are computed without panels: a vector would mostly be empty
DOTS = 1.5  # cost of a vector of the depth of one row and one such column
HIDING = 12  # rows from which on multiplications hide loads that are not in order of memory
ONCE = 2  # panels of rows up to which a right factor is not packed
# Of a right factor from beyond the second-level cache: panels of all rows up to which it is read in
# place; share of the costs of reading it that is left where it is prefetched. Measured on Sapphire
# Rapids, whose third level gives a core 14 to 24 GB/s: of 32 and 64 rows by weights of 384 x 1536,
# 384 x 384, 1536 x 384 and 256 x 1024, packing and multiplying take 1.1 to 1.4 times as long as
# prefetched panels in place; of 128 rows 1.0, of 256 0.9 to 1.0 times.
FORESEEN, LEFT = 12, 0.2
UNEVEN = 0.4  # of a tile: time that threads wait for each other at the end


@dataclass(frozen=True)
class Problem:
    """A product for the cost model. steps: of the depth, in all; slice_steps: packed at a time.
    registers: vector registers; threads: that share the work. rates: of a core. left_in_order,
    right_in_order: whether a factor is packed in order of memory. direct_height: height of panels
    up to which the left factor is not packed. panel: the only height and vectors of panels.
    by_dots: whether a few last columns may be computed without panels. in_lines: whether complete
    panels of columns may be read in place. mirrored: whether panels below the diagonal are not
    computed. by_panels: whether a tile has the totals of one panel at a time. row: cost of
    beginning with the next row of the right factor if it comes from beyond the second-level
    cache: panels of rows that read it in place then begin to bring the next panel of columns near.
    """

    rows: Axis
    columns: Axis
    batch: int
    steps: int
    slice_steps: int
    itemsize: int
    lanes: int
    registers: int
    threads: int
    rates: Rates = DEFAULT
    left_in_order: bool = True
    right_in_order: bool = True
    direct_height: int = 0
    panel: tuple[int, int] | None = None
    by_dots: bool = False
    in_lines: bool = False
    mirrored: bool = False
    by_panels: bool = False
    row: float = 0.0

    def apart(self, tile: Tile) -> int:
        """Return the number of last columns that are computed without panels, which are complete
        without them: those of a tile that has all columns."""
        rest = self.columns.size % (tile.vectors * self.lanes)
        whole = tile.columns >= self.columns.main.size
        return rest if self.by_dots and whole and rest <= FEW else 0

    def again(self, tile: Tile) -> bool:
        """Return whether the left factor is read where the right one is packed: all of it, in
        panels of columns that are whole panels of rows, of which no group has one beyond them."""
        if not self.mirrored or self.in_place(tile):
            return False
        whole = tile.columns >= self.columns.main.size
        width, groups = tile.vectors * self.lanes, _ceil(self.rows.main.size, tile.rows)
        begins = groups == 1 or (
            tile.rows % tile.height == 0
            and groups * tile.rows <= round_up(self.columns.size, width)
        )
        return whole and begins and width % tile.height == 0

    def in_memory(self, tile: Tile) -> bool:
        """Return whether the left factor is read in place."""
        return tile.height <= self.direct_height and not self.again(tile)

    def pack_costs(self, tile: Tile) -> tuple[float, float]:
        """Return the cost of packing an element of the left factor, and of the right."""
        rates = self.rates
        left = rates.pack if self.left_in_order else rates.pack_one
        right = rates.pack if self.right_in_order else rates.pack_one
        return rates.direct if self.in_memory(tile) or self.again(tile) else left, right

    def cost(self, tile: Tile) -> float:
        """Return the cost of the whole product, for the thread that ends last."""
        tall, wide = tile.rows * self.rows.unit, tile.columns * self.columns.unit
        down, across = _ceil(self.rows.main.size, tile.rows), _ceil(
            self.columns.main.size, tile.columns
        )  # fmt: skip
        width = tile.vectors * self.lanes
        panels = _panels(self.rows, tile.rows, tile.height)
        apart = self.apart(tile)
        if apart:
            panels *= self.columns.size // width
        else:
            panels *= _panels(self.columns, tile.columns, width)
        each = self.step_cost(tile.height, tile.vectors) * self.computed(tile.height, width)
        vectors = _ceil(self.slice_steps, self.lanes) / self.slice_steps
        multiply = panels * each + self.rows.size * apart * (DOTS * vectors)
        left_pack, right_pack = self.pack_costs(tile)
        if self.in_place(tile):
            right_pack = self.rates.direct * _ceil(tile.rows * self.rows.unit, tile.height)
        run = width if self.in_place(tile) else min(wide, self.columns.size)
        right_pack += self.row / run
        right_pack *= LEFT if self.row and self.in_place(tile) else 1
        pack = across * self.rows.size * left_pack + down * self.columns.size * right_pack
        store = self.rows.size * self.columns.size * self.rates.finish
        total = self.batch * (self.steps * (multiply + pack) + store)
        inside = _ceil(tall, tile.height) * self.wide(tile) // width * each
        inside += tall * left_pack + wide * right_pack
        one = self.steps * inside + tall * wide * self.rates.finish
        if self.threads == 1:
            return total
        return max(total / self.threads, one) + UNEVEN * one

    def computed(self, height: int, width: int) -> float:
        """Return the share of all panels that are computed."""
        if not self.mirrored:
            return 1.0
        down, across = _ceil(self.rows.size, height), _ceil(self.columns.size, width)
        above = sum(min(down, _ceil((panel + 1) * width, height)) for panel in range(across))
        return above / (down * across)

    def in_place(self, tile: Tile) -> bool:
        """Return whether panels of the right factor are read in place: complete ones, which are
        read few times, or which come from beyond the second-level cache."""
        width, columns = tile.vectors * self.lanes, self.columns
        few = _ceil(tile.rows * self.rows.unit, tile.height) <= ONCE
        if self.row:
            few = _ceil(self.rows.size, tile.height) <= FORESEEN
        if not (self.in_lines and few and self.rows.size >= HIDING):
            return False
        if tile.columns >= columns.main.size:
            return self.apart(tile) > 0 or columns.size % width == 0
        return columns.main.size % tile.columns == tile.columns * columns.unit % width == 0

    def wide(self, tile: Tile) -> int:
        """Return the columns of a tile's panels."""
        width = tile.vectors * self.lanes
        if apart := self.apart(tile):
            return self.columns.size - apart
        return _ceil(tile.columns * self.columns.unit, width) * width

    def fits(self, tile: Tile) -> bool:
        """Return whether a tile's memories fit the caches for which they are intended, and a
        panel's totals the registers."""
        if self.panel is None and tile.height > highest(self.registers, tile.vectors):
            return False
        tall = _ceil(tile.rows * self.rows.unit, tile.height) * tile.height
        wide = self.wide(tile)
        slice_bytes = self.slice_steps * self.itemsize
        rates, direct = self.rates, self.in_memory(tile)
        alone = tile.columns >= self.columns.main.size and wide == tile.vectors * self.lanes
        # each element is read once, or one panel at a time is packed
        once = (direct and alone) or self.panel is not None
        return (
            (
                once
                or self.again(tile)
                or tall * slice_bytes <= (rates.direct_bytes if direct else rates.left_bytes)
            )
            and (self.in_place(tile) or wide * slice_bytes <= rates.right_bytes)
            and (self.by_panels or tall * wide * self.itemsize <= rates.tile_bytes)
        )

    def panels(self) -> Iterator[tuple[int, int]]:
        """Yield heights and vectors of panels: for each number of vectors the best height, and the
        best of those that read the left factor in place, if one panel has all columns, and of those
        that divide the columns of a symmetric product's."""
        if self.panel is not None:
            yield self.panel
            return
        for vectors in range(1, WIDEST + 1):
            least = min(4, self.rows.size)
            heights = range(least, highest(self.registers, vectors) + 1)
            alone = self.columns.size <= vectors * self.lanes + (FEW if self.by_dots else 0)
            in_place = range(least, min(heights.stop, self.direct_height + 1 if alone else 0))
            width = vectors * self.lanes
            again = [height for height in heights if self.mirrored and width % height == 0]
            for some in (heights, in_place, again):
                if some:
                    yield min(some, key=partial(self.panels_cost, vectors=vectors)), vectors

    def tiles(self) -> Iterator[Tile]:
        """Yield the candidates: panels, in shares that split the axes evenly."""
        for height, vectors in self.panels():
            for rows in shares(self.rows, height):
                for columns in shares(self.columns, vectors * self.lanes):
                    yield Tile(height, vectors, rows, columns)

    def step_cost(self, height: int, vectors: int) -> float:
        """Return the cost of one step of a panel: a multiplication for each pair, or the loads they
        need if more. Multiplications hide part of the loads from the second level."""
        loads, multiplies = height + vectors, height * vectors
        if self.panel is not None:
            return self.rates.tile * multiplies
        cost = self.rates.step(multiplies, loads)
        panel = self.slice_steps * vectors * self.lanes * self.itemsize
        if panel > self.rates.first:
            fetched = self.rates.load * loads + self.rates.spill * vectors
            cost = max(cost, multiplies + fetched - HIDDEN * multiplies + BEGIN)
        return cost + 0.1 * loads

    def panels_cost(self, height: int, vectors: int) -> float:
        """Return the cost of a step of all panels of rows."""
        return _ceil(self.rows.size, height) * self.step_cost(height, vectors)

    def best(self) -> Tile:
        """Return the cheapest tile that fits, or the smallest."""
        tiles = list(self.tiles())
        fitting = [tile for tile in tiles if self.fits(tile)]
        if not fitting:
            return min(tiles, key=lambda tile: (tile.rows * tile.columns, self.cost(tile)))
        return min(fitting, key=self.cost)


def slice_steps(target: TargetSpec) -> int:
    """Return the approximate steps of a slice of the depth: a panel of the right factor then stays
    in the first-level cache."""
    return max(128, min(512, target.caches.first // 128 // 64 * 64))


def vector_registers(target: TargetSpec) -> int:
    """Return the number of vector registers of a host."""
    return 32 if target.vector_bytes >= 64 or target.triple.startswith("aarch64") else 16


def shares(axis: Axis, panel: int) -> list[int]:
    """Return steps of the main range that split it evenly into more and more whole-panel tiles."""
    if axis.unit > 1:
        counts = {_ceil(axis.main.size, n) for n in COUNTS}
    else:
        panels = _ceil(axis.main.size, panel)
        counts = {_ceil(panels, n) * panel for n in COUNTS if n <= panels}
    return sorted(counts)


def _panels(axis: Axis, count: int, panel: int) -> int:
    """Return the number of panels in all tiles."""
    full, rest = divmod(axis.main.size, count)
    return full * _ceil(count * axis.unit, panel) + _ceil(rest * axis.unit, panel)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
