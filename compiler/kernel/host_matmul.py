"""Blocked matrix product for the host.

A group computes a tile of the output. Slices of both factors are packed so that the inner loop
reads memory in order: the right one as panels of a few vectors of columns, the left one row by row
where its memory runs along the depth, else as panels of a few rows. The inner loop multiplies two
panels into totals that stay in registers. Packing (compiler.kernel.host_packing) evaluates whatever
was fused into a factor once per element and tile. What lies outside of a factor is not written;
the totals made of it are not stored.
"""

from __future__ import annotations

from compiler.index.algebra import Index, Range, constant, unflatten
from compiler.index.ranges import Computation, elements
from compiler.kernel.accumulate import replace
from compiler.kernel.contraction import Contraction
from compiler.kernel.gpu_matmul import multiply_add
from compiler.kernel.host_packing import Packing, bound
from compiler.kernel.ir import (
    Kernel,
    Loop,
    Memory,
    Statement,
    Store,
    Value,
    const,
    group_range,
    load,
    substitute,
    value,
)
from hcq.target import TargetSpec

DEPTH = 256  # of a slice: a panel of the right factor then fits the first-level cache
LEFT_BYTES = 256 << 10  # a packed left slice, at most: it stays in the second-level cache
TILE_COLUMNS = 512  # of a tile, at most
GROUPS = 12  # for each thread, so that the last ones to finish are waited for briefly


def matmul(computation: Computation, parts: Contraction, target: TargetSpec) -> Kernel:
    """The blocked kernel; its grid is (column tiles, row tiles, batch)."""
    return _Blocked(computation, parts, target).kernel()


class _Blocked:
    """Sizes and memories of one kernel."""

    def __init__(self, computation: Computation, parts: Contraction, target: TargetSpec) -> None:
        self.computation = computation
        self.parts = parts
        self.dtype = parts.reduce.dtype
        self.lanes = max(2, target.vector_bytes // self.dtype.itemsize)
        registers = 32 if target.vector_bytes >= 64 else 16
        self.panel_rows, self.vectors = _panel_shape(
            parts.rows.size, parts.columns.size, self.lanes, registers
        )
        self.panel_columns = self.vectors * self.lanes
        self.depth = _share(parts.depth.size, DEPTH)
        self.row_panels, self.column_panels = self.tile_shape(target.compute_units)
        self.tall = self.row_panels * self.panel_rows
        self.wide = self.column_panels * self.panel_columns
        self.slices = -(-parts.depth.size // self.depth)
        self.once = self.slices == 1 and not parts.outer
        self.grid = (
            -(-parts.columns.size // self.wide),
            -(-parts.rows.size // self.tall),
            elements(parts.batch),
        )
        self.row_start = group_range(1, self.grid[1]).index() * self.tall
        self.column_start = group_range(0, self.grid[0]).index() * self.wide
        group = group_range(2, self.grid[2]).index()
        sizes = tuple(r.size for r in parts.batch)
        self.batch = dict(zip(parts.batch, unflatten(group, sizes), strict=True))
        slice_start = Range("slice", self.slices).index() * self.depth
        self.depth_bound = bound(parts.depth.size, slice_start, self.depth)
        packing = Packing(self.dtype, self.lanes, parts.depth, self.depth, slice_start, self.batch)
        self.left = packing.left(parts.left, parts.rows, self.row_start, self.panel_rows, self.tall)
        self.right = packing.right(
            parts.right, parts.columns, self.column_start, self.panel_columns, self.wide
        )
        self.tile = Memory("tile", self.dtype, self.tall * self.wide, "local")
        count = self.panel_rows * self.vectors
        self.totals = Memory("totals", self.dtype, count, "register", self.lanes)

    def tile_shape(self, threads: int) -> tuple[int, int]:
        """Panels of a tile: as many as the caches hold, but enough groups for all threads."""
        row_panels = -(-self.parts.rows.size // self.panel_rows)
        column_panels = -(-self.parts.columns.size // self.panel_columns)
        panel_bytes = self.panel_rows * self.depth * self.dtype.itemsize
        tall = max(1, LEFT_BYTES // panel_bytes)
        wide = max(1, TILE_COLUMNS // self.panel_columns)
        batch = elements(self.parts.batch)

        def groups() -> int:
            return -(-row_panels // tall) * -(-column_panels // wide) * batch

        while groups() < GROUPS * threads and max(tall, wide) > 4:
            if wide > 4 and wide * self.panel_columns >= tall * self.panel_rows:
                wide //= 2
            elif tall > 4:
                tall //= 2
            else:
                wide //= 2
        return _share(row_panels, tall), _share(column_panels, wide)

    def kernel(self) -> Kernel:
        body = (*self.left.statements, *self.right.statements, self.multiply())
        accumulate: Statement = Loop(Range("slice", self.slices), body)
        for counter in reversed(self.parts.outer):
            accumulate = Loop(counter, (accumulate,))
        memories = (*self.left.memories, *self.right.memories, self.tile, self.totals)
        cleared = () if self.once else (self.clear(),)
        return Kernel(
            "kernel",
            (self.computation.output, *self.computation.inputs),
            memories,
            self.grid,
            1,
            (*cleared, accumulate, self.finish()),
        )

    def clear(self) -> Loop:
        counter = Range("clear", self.tile.count // self.lanes)
        return Loop(counter, (Store(self.tile, counter.index() * self.lanes, self.zero()),))

    def zero(self) -> Value:
        return value("broadcast", self.dtype, (const(0, self.dtype),), lanes=self.lanes)

    def multiply(self) -> Statement:
        """tile += left slice * right slice, panel by panel."""
        columns, rows = (
            Range("column_panel", self.column_panels),
            Range("row_panel", self.row_panels),
        )
        step = Range("step", self.depth)
        lanes, height, vectors = self.lanes, self.panel_rows, self.vectors
        inner: list[Statement] = []
        right = [
            self.right.load(columns.index(), step.index(), v * lanes, lanes) for v in range(vectors)
        ]
        for row in range(height):
            number = self.left.load(rows.index(), step.index(), row, 1)
            left = value("broadcast", self.dtype, (number,), lanes=lanes)
            for v in range(vectors):
                at = constant(row * vectors + v)
                total = load(self.totals, at, lanes=lanes)
                inner.append(Store(self.totals, at, multiply_add(left, right[v], total)))
        before: list[Statement] = []
        after: list[Statement] = []
        for row in range(height):
            for v in range(vectors):
                at = constant(row * vectors + v)
                place = (rows.index() * height + row) * self.wide
                place = place + columns.index() * self.panel_columns + v * lanes
                start = self.zero() if self.once else load(self.tile, place, lanes=lanes)
                before.append(Store(self.totals, at, start))
                after.append(Store(self.tile, place, load(self.totals, at, lanes=lanes)))
        panel = (*before, Loop(step, tuple(inner), self.depth_bound), *after)
        # a panel that lies wholly outside the output is not computed
        row_bound = _panels(self.parts.rows.size, self.row_start, self.panel_rows, self.row_panels)
        column_bound = _panels(
            self.parts.columns.size, self.column_start, self.panel_columns, self.column_panels
        )
        return Loop(columns, (Loop(rows, panel, row_bound),), column_bound)

    def finish(self) -> Statement:
        """Epilogue and stores, as far as the tile lies inside the output."""
        parts, computation = self.parts, self.computation
        row, column = Range("row", self.tall), Range("column", self.wide)
        places = {
            **self.batch,
            parts.rows: self.row_start + row.index(),
            parts.columns: self.column_start + column.index(),
        }
        total = load(self.tile, row.index() * self.wide + column.index())
        root = substitute(computation.value, places)
        result = replace(root, substitute(parts.reduce, places), total)
        position = computation.position.substitute(places)
        store = Store(computation.output, position, result)
        inner = Loop(column, (store,), bound(parts.columns.size, self.column_start, self.wide))
        return Loop(row, (inner,), bound(parts.rows.size, self.row_start, self.tall))


def _panel_shape(rows: int, columns: int, lanes: int, registers: int) -> tuple[int, int]:
    """Rows, and vectors of columns, of the panels that cost the least in all. A step of a panel
    takes a multiplication for each pair and what it takes to load, and the last panels may be
    filled in part; totals may take all registers but those for a row of the right factor and two.
    """
    shapes = [
        (height, vectors)
        for vectors in (1, 2, 3, 4)
        for height in range(4, (registers - 2 - vectors) // vectors + 1)
    ] or [(4, 2)]

    def cost(shape: tuple[int, int]) -> float:
        height, vectors = shape
        panels = -(-rows // height) * -(-columns // (vectors * lanes))
        loads = height + vectors
        return panels * (max(height * vectors, 0.8 * loads) + 0.1 * loads + 0.3)

    return min(shapes, key=lambda shape: (cost(shape), abs(shape[1] - 2), shape[0]))


def _panels(size: int, start: Index, width: int, panels: int) -> Index | None:
    """The bound of a loop over panels that begin below `size`."""
    if size % (panels * width) == 0:
        return None
    return (constant(size + width - 1) - start) // width


def _share(count: int, most: int) -> int:
    """Split `count` into the fewest equal shares of at most `most`."""
    return -(-count // -(-count // most))
