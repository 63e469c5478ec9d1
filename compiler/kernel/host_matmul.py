"""Blocked matrix product for the host.

A group computes a tile of the output. Slices of both factors are packed so that the inner loop
reads memory in order: the left one as panels of ROWS rows, the right one as panels of a few
vectors of columns. The inner loop multiplies two panels into ROWS x panel totals that stay in
registers. Packing evaluates whatever was fused into a factor once per element and tile; what lies
outside is zero.
"""

from __future__ import annotations

from compiler.index.algebra import Index, Range, constant, unflatten
from compiler.index.ranges import Computation, elements
from compiler.kernel.accumulate import replace
from compiler.kernel.contraction import Contraction
from compiler.kernel.gpu_matmul import multiply_add
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
from compiler.kernel.spread import unit_stride
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
        # registers: with 512-bit vectors there are 32, else 16, and totals may take most of them
        self.vectors = 2
        self.panel_rows = _panel_rows(parts.rows.size, 14 if target.vector_bytes >= 64 else 6)
        self.panel_columns = self.vectors * self.lanes
        self.depth = -(-parts.depth.size // -(-parts.depth.size // DEPTH))
        self.row_panels, self.column_panels = self.tile_shape(target.compute_units)
        self.tall = self.row_panels * self.panel_rows
        self.wide = self.column_panels * self.panel_columns
        self.slices = -(-parts.depth.size // self.depth)
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
        self.left = Memory("left", self.dtype, self.tall * self.depth, "local")
        self.right = Memory("right", self.dtype, self.wide * self.depth, "local")
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
        parts = self.parts
        slice_start = Range("slice", self.slices).index() * self.depth
        rows, columns = parts.rows, parts.columns
        body: tuple[Statement, ...] = (
            *self.pack(
                "a", self.left, parts.left, rows, self.row_start, self.panel_rows,
                self.row_panels, slice_start,
            ),
            *self.pack(
                "b", self.right, parts.right, columns, self.column_start, self.panel_columns,
                self.column_panels, slice_start,
            ),
            self.multiply(),
        )  # fmt: skip
        accumulate: Statement = Loop(Range("slice", self.slices), body)
        for counter in reversed(parts.outer):
            accumulate = Loop(counter, (accumulate,))
        return Kernel(
            "kernel",
            (self.computation.output, *self.computation.inputs),
            (self.left, self.right, self.tile, self.totals),
            self.grid,
            1,
            (self.clear("clear", self.tile), accumulate, self.finish()),
        )

    def clear(self, name: str, memory: Memory) -> Loop:
        """Zero a local memory, a vector at a time where that divides."""
        lanes = self.lanes if memory.count % self.lanes == 0 else 1
        counter = Range(name, memory.count // lanes)
        return Loop(counter, (Store(memory, counter.index() * lanes, self.zero(lanes)),))

    def zero(self, lanes: int) -> Value:
        number = const(0, self.dtype)
        return number if lanes == 1 else value("broadcast", self.dtype, (number,), lanes=lanes)

    def pack(
        self, name: str, memory: Memory, factor: Value, across: Range, start: Index,
        width: int, panels: int, slice_start: Index,
    ) -> list[Statement]:  # fmt: skip
        """memory[panel][k][i] = factor(start + panel * width + i, slice_start + k)."""
        depth = self.parts.depth
        panel, step = Range(name + "_panel", panels), Range(name + "_step", self.depth)
        element = Range(name + "_element", width)
        first = start + panel.index() * width
        places = {
            **self.batch,
            across: first + element.index(),
            depth: slice_start + step.index(),
        }
        at = (panel.index() * self.depth + step.index()) * width + element.index()
        body: Statement = Store(memory, at, substitute(factor, places))
        across_bound = _bound(across.size, first, panels * width)
        depth_bound = _bound(depth.size, slice_start, self.depth)
        deep = unit_stride(factor, depth) and not unit_stride(factor, across)
        # either way memory is read in order: along the depth of one row, or along a whole row
        order = [(step, depth_bound), (element, across_bound), (panel, None)]
        if not deep:
            order = [(element, across_bound), (panel, None), (step, depth_bound)]
        for counter, bound in order:
            body = Loop(counter, (body,), bound)
        statements: list[Statement] = [body]
        if across.size % (panels * width) or depth.size % self.depth:
            statements.insert(0, self.clear(name + "_clear", memory))
        return statements

    def multiply(self) -> Statement:
        """tile += left slice * right slice, panel by panel."""
        columns, rows = (
            Range("column_panel", self.column_panels),
            Range("row_panel", self.row_panels),
        )
        step = Range("step", self.depth)
        lanes, height, vectors = self.lanes, self.panel_rows, self.vectors
        left_at = (rows.index() * self.depth + step.index()) * height
        right_at = (columns.index() * self.depth + step.index()) * self.panel_columns
        inner: list[Statement] = []
        right = [load(self.right, right_at + v * lanes, lanes=lanes) for v in range(vectors)]
        for row in range(height):
            number = load(self.left, left_at + row)
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
                before.append(Store(self.totals, at, load(self.tile, place, lanes=lanes)))
                after.append(Store(self.tile, place, load(self.totals, at, lanes=lanes)))
        panel = (*before, Loop(step, tuple(inner)), *after)
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
        inner = Loop(column, (store,), _bound(parts.columns.size, self.column_start, self.wide))
        return Loop(row, (inner,), _bound(parts.rows.size, self.row_start, self.tall))


def _panel_rows(rows: int, most: int) -> int:
    """Rows of a panel that cost the least in all: a step of a panel takes two multiplications a row
    and what it takes to load the right factor, and the last panel may be filled in part."""
    heights = range(min(4, most), most + 1)
    return min(heights, key=lambda height: (-(-rows // height) * (2 * height + 1.5), height))


def _panels(size: int, start: Index, width: int, panels: int) -> Index | None:
    """The bound of a loop over panels that begin below `size`."""
    if size % (panels * width) == 0:
        return None
    return (constant(size + width - 1) - start) // width


def _share(count: int, most: int) -> int:
    """Split `count` into the fewest equal shares of at most `most`."""
    return -(-count // -(-count // most))


def _bound(size: int, start: Index, step: int) -> Index | None:
    """The loop bound that keeps start + counter below `size`, where steps do not divide it."""
    return constant(size) - start if size % step else None
