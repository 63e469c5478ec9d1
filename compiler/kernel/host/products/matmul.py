"""Blocked matrix product for the host.

A group computes a tile of the output. Slices of both factors are packed so that the inner loop
reads memory in order (compiler.kernel.host.products.packing). Packing evaluates operations fused
into a factor once per element and tile. A left factor with a suitable layout is read in place. The
inner loop multiplies a panel of a few rows by one of a few vectors of columns into totals that stay
in registers. Elements outside a factor are not written, and totals made of them are not stored.

Rows, columns and depth may each be several ranges walked as one
(compiler.kernel.host.products.axis): a convolution is the product of its weights and of windows
that are laid out during packing. The sizes of tiles and panels come from a cost model
(compiler.kernel.host.products.tiles).
"""

from __future__ import annotations

from collections.abc import Mapping

from ugpu.compiler.dtype import int8
from ugpu.compiler.expression.accumulate import multiply_add, replace
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, const, load, substitute, value
from ugpu.compiler.kernel.choices import Space, Tile
from ugpu.compiler.kernel.host.loops import ROWS
from ugpu.compiler.kernel.host.products.amx import HEIGHT, STEPS, VECTORS, Panels, in_tiles
from ugpu.compiler.kernel.host.products.amx import best as amx_tile
from ugpu.compiler.kernel.host.products.axis import Axis, Part, deep, joined
from ugpu.compiler.kernel.host.products.grouped import (
    Correction,
    is_plain,
    narrowed,
    steps_together,
    unsigned,
)
from ugpu.compiler.kernel.host.products.packing import (
    PAIR,
    QUAD,
    Packed,
    Packing,
    along_depth,
    direct_height,
    limit,
)
from ugpu.compiler.kernel.host.products.rates import rates_of
from ugpu.compiler.kernel.host.products.tiles import Problem, shares, slice_steps, vector_registers
from ugpu.compiler.kernel.ir import Kernel, Loop, Statement, Store, group_range
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_of
from ugpu.compiler.kernel.shared.spread import runs_along, unit_stride
from ugpu.compiler.pattern.contraction import LONGER, SMALLEST, Contraction
from ugpu.hcq.state.target import TargetSpec

DOTS = 4  # rows up to which sums along both factors' memory are as fast as tiles
SIDE = 384  # elements of a side from which on one range is enough


def matmul(
    computation: Computation, parts: Contraction, target: TargetSpec, tile: Tile | None = None
) -> Kernel:
    """Return the blocked kernel; its grid is (column tiles, row tiles, batch). tile: of a group, by
    default the best by the cost model."""
    return _Blocked(computation, parts, target, tile).kernel()


def problem(computation: Computation, parts: Contraction, target: TargetSpec) -> Problem:
    """Return the cost model's description of a product."""
    return _Blocked(computation, parts, target, None).problem


def space(computation: Computation, parts: Contraction, target: TargetSpec) -> Space:
    """Return the space of all tiles that fit the caches and leave registers for the totals."""
    blocked = _Blocked(computation, parts, target, None)
    asked = blocked.problem
    if blocked.tiles:
        start = amx_tile(asked)
        options: dict[str, tuple[int, ...]] = {
            "rows": tuple(shares(asked.rows, HEIGHT)),
            "columns": tuple(shares(asked.columns, VECTORS * asked.lanes)),
        }
        return Space(start, options, asked.fits)
    tiles = list(asked.tiles())

    def fits(tile: Tile) -> bool:
        return tile.vectors * (tile.height + 1) + 2 <= asked.registers and asked.fits(tile)

    options = {
        "height": tuple(sorted({*range(4, 29, 2), *(tile.height for tile in tiles)})),
        "vectors": (1, 2, 3, 4),
        "rows": tuple(sorted({tile.rows for tile in tiles})),
        "columns": tuple(sorted({tile.columns for tile in tiles})),
    }
    return Space(asked.best(), options, fits)


def pays(parts: Contraction) -> bool:
    """Return whether tiles are faster for a short side. They are not if plain loops read long
    factors in order, each element once for all rows (compiler.kernel.host.loops)."""
    rows, column, depth = elements(parts.all_rows), parts.all_columns[-1], parts.all_depths[-1]
    if rows >= SMALLEST:
        return True
    if runs_along([parts.right], column, depth):
        return rows > ROWS
    deep = depth.size >= LONGER and runs_along([parts.left], depth, parts.all_rows[-1])
    return not deep or rows > DOTS


class _Blocked:
    """Sizes and memories of one kernel."""

    def __init__(
        self,
        computation: Computation,
        parts: Contraction,
        target: TargetSpec,
        tile: Tile | None,
    ) -> None:
        self.computation = computation
        self.parts = parts
        self.dtype = parts.reduce.dtype
        self.lanes = max(2, target.vector_bytes // self.dtype.itemsize)
        rows, columns = joined(parts.all_rows, SIDE), joined(parts.all_columns, SIDE)
        most = slice_steps(target)
        self.depth = deep(parts.all_depths, most)
        # steps of the depth that are multiplied at once
        plain = is_plain(parts, rows, columns)
        self.group = steps_together(parts, self.depth, plain, target)
        if self.group > 1:
            self.parts = parts = narrowed(parts)
        joint = {*rows.ranges, *columns.ranges}
        batch = tuple(r for r in computation.ranges if r not in joint)
        self.outer = tuple(r for r in parts.reduce.arg[1] if r not in self.depth.ranges)
        self.tiles = self.group == PAIR and plain and in_tiles(self.depth.size, target)
        most = max(1, most * self.group // self.depth.unit)
        multiple = STEPS if self.tiles else self.group
        slice_count = -(-_share(self.depth.main.size, most) // multiple) * multiple
        self.slices = -(-self.depth.main.size // slice_count)
        self.slice = Part(
            self.depth, Range("slice", self.slices).index() * slice_count, slice_count
        )
        self.once = self.slices == 1 and not self.outer
        self.problem = self.describe(rows, columns, elements(batch), target)
        tile = tile or (amx_tile(self.problem) if self.tiles else self.problem.best())
        assert not self.tiles or (tile.height, tile.vectors) == (HEIGHT, VECTORS), tile
        self.height, self.vectors = tile.height, tile.vectors
        self.width = tile.vectors * self.lanes
        self.grid = (
            -(-columns.main.size // tile.columns),
            -(-rows.main.size // tile.rows),
            elements(batch),
        )
        self.rows = Part(rows, group_range(1, self.grid[1]).index() * tile.rows, tile.rows)
        self.columns = Part(
            columns, group_range(0, self.grid[0]).index() * tile.columns, tile.columns
        )
        self.row_panels = -(-self.rows.whole // self.height)
        self.column_panels = -(-self.columns.whole // self.width)
        self.pitch = self.column_panels * self.width
        self.batch = groups_at(batch, 2)
        quads = self.group == QUAD
        packing = Packing(
            self.lanes, self.slice, self.batch, self.group, self.depth.main.size,
            (self.slices - 1) * slice_count, plain, in_rows=self.tiles or quads,
        )  # fmt: skip
        left = unsigned(parts.left) if quads else parts.left
        self.left = packing.left(left, self.rows, self.height)
        self.right = packing.right(parts.right, self.columns, self.width)
        self.excess: Correction | None = None
        if quads and parts.left.dtype is int8:
            count, bound = self.slice.whole // QUAD, self.steps_bound()
            self.excess = Correction(self.right, self.column_panels, self.vectors, count, bound)
        known = computation.value, computation.position
        flat = self.rows.is_flat(*known) and self.columns.is_flat(*known)
        # whether to compute results from a panel's totals while these are in the first-level cache
        self.by_panels = self.once and flat and not self.tiles
        if self.by_panels:
            self.pitch = self.width
        tall = self.height if self.by_panels else self.row_panels * self.height
        self.tile = Memory("tile", self.dtype, tall * self.pitch, "local")
        self.totals = Memory(
            "totals", self.dtype, self.height * self.vectors, "register", self.lanes
        )

    def describe(self, rows: Axis, columns: Axis, batch: int, target: TargetSpec) -> Problem:
        return Problem(
            rows,
            columns,
            batch,
            -(-self.depth.size // self.group) * elements(self.outer),
            self.slice.whole // self.group,
            self.dtype.itemsize,
            self.lanes,
            vector_registers(target),
            target.compute_units,
            rates_of(target),
            self.in_order(self.parts.left, rows),
            self.in_order(self.parts.right, columns),
            0 if self.group > 1 else direct_height(self.parts.left, rows, self.slice),
        )

    def in_order(self, factor: Value, axis: Axis) -> bool:
        """Return whether a factor is packed in order of memory, along the axis or the depth."""
        across = Part(axis, constant(0), axis.main.size)
        along = unit_stride(factor, axis.ranges[-1]) and (
            axis.ranges[-1].size >= 2 * self.lanes or across.is_flat(factor)
        )
        return along or along_depth(factor, across, self.slice)

    def kernel(self) -> Kernel:
        packed = (*self.left.statements, *self.right.statements)
        if self.excess is not None:
            packed = (*packed, self.excess.statement())
        body = (*packed, self.multiply())
        accumulate: Statement = Loop(Range("slice", self.slices), body)
        for counter in reversed(self.outer):
            accumulate = Loop(counter, (accumulate,))
        memories = (*self.left.memories, *self.right.memories, self.tile)
        memories = memories if self.tiles else (*memories, self.totals)
        if self.excess is not None:
            memories = (*memories, self.excess.sums, self.excess.registers)
        cleared = () if self.once else (self.clear(),)
        finish = () if self.by_panels else (self.finish(),)
        body = (*cleared, accumulate, *finish)
        return kernel_of(self.computation, memories, self.grid, 1, body)

    def clear(self) -> Loop:
        counter = Range("clear", self.tile.count // self.lanes)
        return Loop(counter, (Store(self.tile, counter.index() * self.lanes, self.zero()),))

    def zero(self) -> Value:
        return value("broadcast", self.dtype, (const(0, self.dtype),), lanes=self.lanes)

    def multiply(self) -> Statement:
        """Compute tile += left slice * right slice, panel by panel."""
        columns, rows = (
            Range("column_panel", self.column_panels),
            Range("row_panel", self.row_panels),
        )
        if self.tiles:
            panel = self.panels().multiply(rows.index(), columns.index())
            inside = Loop(rows, panel, _panels(self.rows, self.height))
            return Loop(columns, (inside,), _panels(self.columns, self.width))
        step = Range("step", self.slice.whole // self.group)
        lanes, height, vectors = self.lanes, self.height, self.vectors
        inner: list[Statement] = []
        right = [
            self.right.load(columns.index(), step.index(), v * lanes, lanes * self.group)
            for v in range(vectors)
        ]
        for row in range(height):
            left = self.repeated(self.left.load(rows.index(), step.index(), row, self.group))
            for v in range(vectors):
                at = constant(row * vectors + v)
                total = load(self.totals, at, lanes=lanes)
                inner.append(Store(self.totals, at, self.product(left, right[v], total)))
        before: list[Statement] = []
        after: list[Statement] = []
        for row in range(height):
            for v in range(vectors):
                at = constant(row * vectors + v)
                first, across = rows.index() * height, columns.index() * self.width
                if self.by_panels:
                    first = across = constant(0)
                place = self.total(first + row, across + v * lanes)
                start = self.zero() if self.once else load(self.tile, place, lanes=lanes)
                if self.excess is not None:
                    start = self.excess.taken_off(start, columns.index(), v)
                before.append(Store(self.totals, at, start))
                after.append(Store(self.tile, place, load(self.totals, at, lanes=lanes)))
        panel = (*before, Loop(step, tuple(inner), self.steps_bound()), *after)
        if self.by_panels:
            panel = (*panel, self.finish_panel(rows.index(), columns.index()))
        # a panel that lies wholly outside the output is not computed
        inside = Loop(rows, panel, _panels(self.rows, self.height))
        return Loop(columns, (inside,), _panels(self.columns, self.width))

    def panels(self) -> Panels:
        bound = self.slice.bound()
        assert isinstance(self.left, Packed)  # holds whenever tiles are used
        return Panels(
            self.left,
            self.right,
            self.tile,
            self.pitch,
            self.slice.whole // STEPS,
            None if bound is None else bound // STEPS,
            self.once,
        )

    def repeated(self, element: Value) -> Value:
        """Return an element of the left factor (or a pair) in all lanes."""
        if self.group == 1:
            return value("broadcast", self.dtype, (element,), lanes=self.lanes)
        lanes = self.lanes * self.group
        mask = tuple(lane % self.group for lane in range(lanes))
        return value("shuffle", element.dtype, (element, element), mask, lanes)

    def product(self, left: Value, right: Value, total: Value) -> Value:
        if self.group == 1:
            return multiply_add(left, right, total)
        kind = "dot2" if self.group == PAIR else "dot4"
        return value(kind, self.dtype, (left, right, total), lanes=self.lanes)

    def steps_bound(self) -> Index | None:
        if self.group == 1:
            return self.slice.bound()
        main = self.depth.main.size
        if main % self.slice.count == 0:
            return None
        return (constant(main + self.group - 1) - self.slice.start) // self.group * self.depth.unit

    def finish(self) -> Statement:
        """Return epilogue and stores for the part of the tile inside the output."""
        computation = self.computation
        known = computation.value, computation.position
        row, column = self.rows.walk("row", *known), self.columns.walk("column", *known)
        places = {**self.batch, **row.places, **column.places}
        store = self.result(places, self.total(row.position, column.position))
        return row.around(column.around(store))

    def finish_panel(self, row_panel: Index, column_panel: Index) -> Statement:
        """Return epilogue and stores of one panel."""
        height, width = self.height, self.width
        row, column = Range("row", height), Range("column", width)
        first_row, first_column = row_panel * height, column_panel * width
        places = {
            **self.batch,
            **self.rows.places(first_row + row.index()),
            **self.columns.places(first_column + column.index()),
        }
        store = self.result(places, self.total(row.index(), column.index()))
        below = limit(self.rows, first_row, self.row_panels * height)
        inside = limit(self.columns, first_column, self.column_panels * width)
        return Loop(row, (Loop(column, (store,), inside),), below)

    def total(self, row: Index, column: Index) -> Index:
        return row * self.pitch + column

    def result(self, places: Mapping[Range, Index], total: Index) -> Store:
        """Return the store of the total that the tile has at an index."""
        computation = self.computation
        known = load(self.tile, total)
        root = substitute(computation.value, places)
        result = replace(root, substitute(self.parts.reduce, places), known)
        return Store(computation.output, computation.position.substitute(places), result)


def _panels(part: Part, panel: int) -> Index | None:
    """Return the bound of a loop over panels that begin inside the part."""
    bound = part.bound()
    return None if bound is None else (bound + (panel - 1)) // panel


def _share(count: int, most: int) -> int:
    """Split `count` into the fewest equal shares of at most `most`."""
    return -(-count // -(-count // most))
