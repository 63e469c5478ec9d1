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
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, load
from ugpu.compiler.kernel.choices import Space, Tiles
from ugpu.compiler.kernel.gpu.cut import Cut, Side, cleared
from ugpu.compiler.kernel.gpu.tiles import (
    BLOCKS,
    MOVED,
    PADDING,
    SIDES,
    Product,
    best_tiles,
    tiles_fit,
)
from ugpu.compiler.kernel.ir import Barrier, Kernel, Loop, Statement, Store, nested, thread_range
from ugpu.compiler.kernel.shared.kernels import kernel_over
from ugpu.compiler.kernel.shared.spread import lanes_of, store
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
    side: Side
    length: int  # of a slice, along the depth

    @property
    def pitch(self) -> int:
        return self.side.size + PADDING

    def fill(self, slice_start: Index, threads: int) -> list[Statement]:
        """Copy the slice; each thread moves MOVED neighbouring elements at a time."""
        thread, side = thread_range(threads).index(), self.side
        statements: list[Statement] = []
        for piece in range(side.size * self.length // (threads * MOVED)):
            number = thread + piece * threads
            if side.deep and not side.wide:
                line = self.length // MOVED
                across, step = number // line, number % line * MOVED
                values = side.factor.along(side.start + across, slice_start + step, MOVED)
                for lane, element in enumerate(values):
                    at = (step + lane) * self.pitch + across
                    statements.append(Store(self.memory, at, element))
            else:
                line = side.size // MOVED
                step, across = number // line, number % line * MOVED
                values = side.factor.across(slice_start + step, side.start + across, MOVED)
                statements.append(store(self.memory, step * self.pitch + across, values))
        return statements

    def read(self, step: Index, block: Index, count: int) -> list[Value]:
        """`count` elements of a row, from block number `block`."""
        found: list[Value] = []
        for first in range(0, count, MOVED):
            at = step * self.pitch + block * count + first
            found += lanes_of(load(self.memory, at, lanes=MOVED))
        return found


def matmul(
    computation: Computation, parts: Contraction, target: TargetSpec, tiles: Tiles | None = None
) -> Kernel:
    """Return the tiled kernel; its grid is (column tiles, row tiles, batch)."""
    tiles = tiles or default_tiles(parts, target)
    (tall, wide), (down, across) = tiles.size, tiles.block
    threads = (tall // down) * (wide // across)
    cut = Cut(parts, (parts.left, parts.right), tiles.size, tiles.depth)

    def tile(side: Side) -> _Tile:
        count = tiles.depth * (side.size + PADDING)
        memory = Memory(side.name, side.factor.root.dtype, count, "local")
        return _Tile(memory, side, tiles.depth)

    left, right = map(tile, cut.sides)
    thread = thread_range(threads).index()
    row_block, column_block = thread // (wide // across), thread % (wide // across)
    totals = Memory("totals", parts.reduce.dtype, down * across, "register")
    number = Range("slice", cut.slices)
    start = number.index() * tiles.depth
    body = (
        *left.fill(start, threads),
        *right.fill(start, threads),
        Barrier(),
        _multiply(left, right, row_block, column_block, totals, tiles),
        Barrier(),
    )
    statements = [*cleared(totals), *nested(parts.outer, Loop(number, body))]
    for i in range(down):
        taken = [load(totals, constant(i * across + lane)) for lane in range(across)]
        place = row_block * down + i, column_block * across
        statements += cut.finished(computation, *place, taken)
    return kernel_over(computation, cut.grid, threads, statements)


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
