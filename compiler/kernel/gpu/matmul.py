"""Tiled matrix product for GPUs.

A group computes a tile of the output. For each slice of the depth, its threads copy a slice of both
factors into local memory; elements outside the factors are zero, so any size works. Then each
thread adds the products for its own block (4 x 4 to 8 x 8), held in registers. The left slice is
kept transposed, so that both reads are whole vectors; rows are padded by 4 elements against bank
conflicts.

    for slice of depth:
        left_tile[k][row], right_tile[k][column] = ...
        barrier
        for k: block += left_tile[k][4 rows] x right_tile[k][4 columns]
        barrier
    out = epilogue(block)
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.compiler.expression.accumulate import multiply_add
from ugpu.compiler.expression.algebra import Index, Range, Validity, at_least_zero, both, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.lookup import guard
from ugpu.compiler.expression.value import Memory, Value, const, gate, load, substitute, value
from ugpu.compiler.kernel.choices import Space, Tiles
from ugpu.compiler.kernel.gpu.tiles import (
    BLOCKS,
    MOVED,
    PADDING,
    SIDES,
    Product,
    best_tiles,
    tiles_fit,
)
from ugpu.compiler.kernel.ir import (
    Barrier,
    If,
    Kernel,
    Loop,
    Statement,
    Store,
    group_range,
    nested,
    thread_range,
)
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over
from ugpu.compiler.kernel.shared.spread import spread, store, unit_stride
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec


def default_tiles(parts: Contraction, target: TargetSpec) -> Tiles:
    """Return the tiles that compiler.kernel.gpu.tiles expects to be fastest."""
    problem = Product(
        parts.rows.size, parts.columns.size, parts.depth.size * elements(parts.outer),
        elements(parts.batch), parts.reduce.dtype.itemsize,
    )  # fmt: skip
    return best_tiles(problem, target)


def space(parts: Contraction, target: TargetSpec) -> Space:
    """Return the space of all tiles that a group can hold."""
    width = parts.reduce.dtype.itemsize

    def fits(tiles: Tiles) -> bool:
        return tiles_fit(tiles, width, target)

    options = {
        "size": tuple((tall, wide) for tall in SIDES for wide in SIDES),
        "block": tuple((rows, columns) for rows in BLOCKS for columns in BLOCKS),
        "depth": (8, 16, 32),
        "unroll": (2, 4, 8),
    }
    return Space(default_tiles(parts, target), options, fits)


@dataclass(frozen=True)
class _Tile:
    """One factor's slice in local memory: [length][size + PADDING]."""

    memory: Memory
    factor: Value  # over `across` and `depth`, both padded to whole tiles, guarded
    across: Range  # the output range of this factor
    depth: Range
    size: int
    start: Index  # start of the tile in `across`
    deep: bool  # whether the factor's memory runs along the depth
    length: int  # of a slice, along the depth

    @property
    def pitch(self) -> int:
        return self.size + PADDING

    def fill(self, slice_start: Index, threads: int) -> list[Statement]:
        """Copy the slice; each thread moves MOVED neighbouring elements at a time."""
        thread = thread_range(threads).index()
        statements: list[Statement] = []
        for piece in range(self.size * self.length // (threads * MOVED)):
            number = thread + piece * threads
            if self.deep:
                line = self.length // MOVED
                across, step = number // line, number % line * MOVED
                source = substitute(self.factor, {self.across: self.start + across})
                values = spread(source, self.depth, slice_start + step, MOVED)
                for lane, element in enumerate(values):
                    at = (step + lane) * self.pitch + across
                    statements.append(Store(self.memory, at, element))
            else:
                line = self.size // MOVED
                step, across = number // line, number % line * MOVED
                source = substitute(self.factor, {self.depth: slice_start + step})
                values = spread(source, self.across, self.start + across, MOVED)
                statements.append(store(self.memory, step * self.pitch + across, values))
        return statements

    def read(self, step: Index, block: Index, count: int) -> list[Value]:
        """`count` elements of a row, from block number `block`."""
        found: list[Value] = []
        for first in range(0, count, MOVED):
            at = step * self.pitch + block * count + first
            vector = load(self.memory, at, lanes=MOVED)
            found += [value("extract", vector.dtype, (vector,), lane) for lane in range(MOVED)]
        return found


def matmul(
    computation: Computation, parts: Contraction, target: TargetSpec, tiles: Tiles | None = None
) -> Kernel:
    """Return the tiled kernel; its grid is (column tiles, row tiles, batch)."""
    tiles = tiles or default_tiles(parts, target)
    rows, columns, depth = parts.rows, parts.columns, parts.depth
    tall, wide = tiles.size
    down, across = tiles.block
    threads = (tall // down) * (wide // across)
    slices = -(-depth.size // tiles.depth)
    grid = (-(-columns.size // wide), -(-rows.size // tall), elements(parts.batch))
    row_start = group_range(1, grid[1]).index() * tall
    column_start = group_range(0, grid[0]).index() * wide
    batch = groups_at(parts.batch, 2)
    long_depth = Range("depth", slices * tiles.depth)
    length = tiles.depth
    left = _tile("left", parts.left, rows, parts, batch, long_depth, tall, row_start, length)
    right = _tile(
        "right", parts.right, columns, parts, batch, long_depth, wide, column_start, length
    )

    thread = thread_range(threads).index()
    row_block, column_block = thread // (wide // across), thread % (wide // across)
    totals = Memory("totals", parts.reduce.dtype, down * across, "register")
    start = Range("slice", slices).index() * length
    body: tuple[Statement, ...] = (
        *left.fill(start, threads),
        *right.fill(start, threads),
        Barrier(),
        _multiply(left, right, row_block, column_block, totals, tiles),
        Barrier(),
    )
    accumulate: Statement = Loop(Range("slice", slices), body)
    zero = const(0, parts.reduce.dtype)
    statements: list[Statement] = [Store(totals, constant(i), zero) for i in range(totals.count)]
    statements += nested(parts.outer, accumulate)
    column_start = column_start + column_block * across
    for i in range(down):
        row = row_start + row_block * down + i
        taken = [load(totals, constant(i * across + lane)) for lane in range(across)]
        statements += finish_run(computation, parts, batch, row, column_start, taken)
    return kernel_over(computation, grid, threads, statements)


def _tile(
    name: str,
    factor: Value,
    across: Range,
    parts: Contraction,
    batch: dict[Range, Index],
    depth: Range,
    size: int,
    start: Index,
    length: int,
) -> _Tile:
    deep = unit_stride(factor, parts.depth) and not unit_stride(factor, across)
    factor, wide = padded_factor(name, factor, across, parts, batch, depth, size)
    memory = Memory(name, factor.dtype, length * (size + PADDING), "local")
    return _Tile(memory, factor, wide, depth, size, start, deep, length)


def padded_factor(
    name: str,
    factor: Value,
    across: Range,
    parts: Contraction,
    batch: dict[Range, Index],
    depth: Range,
    size: int,
) -> tuple[Value, Range]:
    """Return a factor over whole tiles of `size`, and its range; outside the factor it is zero and
    nothing is read."""
    wide = Range(name + "_across", -(-across.size // size) * size)
    factor = substitute(factor, {across: wide.index(), parts.depth: depth.index(), **batch})
    in_depth = at_least_zero(constant(parts.depth.size - 1) - depth.index())
    in_across = at_least_zero(constant(across.size - 1) - wide.index())
    factor = guard(factor, both(in_depth, in_across))
    return gate(in_depth, factor, const(0, factor.dtype)), wide


def _multiply(
    left: _Tile, right: _Tile, row_block: Index, column_block: Index, totals: Memory, tiles: Tiles
) -> Loop:
    """Add the products of one slice to the thread's block."""
    counter = Range("step", tiles.depth // tiles.unroll)
    down, across = tiles.block
    statements: list[Statement] = []
    for part in range(tiles.unroll):
        step = counter.index() * tiles.unroll + part
        ours, theirs = left.read(step, row_block, down), right.read(step, column_block, across)
        for i, row in enumerate(ours):
            for j, column in enumerate(theirs):
                at = constant(i * across + j)
                statements.append(Store(totals, at, multiply_add(row, column, load(totals, at))))
    return Loop(counter, tuple(statements))


def finish_run(
    computation: Computation,
    parts: Contraction,
    batch: dict[Range, Index],
    row: Index,
    column: Index,
    taken: list[Value],
) -> list[Statement]:
    """Return epilogue and stores of neighbouring totals of a row, for those inside the output."""
    rows, columns = parts.rows, parts.columns
    width = len(taken)
    while columns.size % width:
        width //= 2
    here = {**batch, rows: row}
    root = substitute(computation.value, here)
    reduce = substitute(parts.reduce, here)
    in_rows = at_least_zero(constant(rows.size - 1) - row)
    statements: list[Statement] = []
    for first in range(0, len(taken), width):
        start = column + first
        values = spread(root, columns, start, width, {reduce: taken[first : first + width]})
        position = computation.position.substitute({**here, columns: start})
        inside: Validity = both(in_rows, at_least_zero(constant(columns.size - width) - start))
        statement: Statement = store(computation.output, position, values)
        statements.append(If(inside, (statement,)) if inside else statement)
    return statements
