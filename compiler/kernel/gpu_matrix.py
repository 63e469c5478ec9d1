"""Matrix product on the matrix units of a GPU: 16-bit floats, summed in float32.

One instruction of a wave adds the product of two 16 x 16 fragments to a third (RDNA3 ISA document,
"Wave Matrix Multiply Accumulate"; wave32):

    left    lane l holds row l % 16, 16 elements along the depth
    right   lane l holds column l % 16, 16 elements along the depth
    total   lane l holds column l % 16; its element e is row 2 * e + l / 16

A group of four waves computes a tile; both slices lie in local memory with the depth running
fastest, so that a lane's fragment is one row of it. Any size works: what lies outside is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.dtype import bfloat16, float16, float32
from compiler.index.algebra import Index, Range, at_least_zero, both, constant, unflatten
from compiler.index.ranges import Computation, elements
from compiler.kernel.accumulate import replace
from compiler.kernel.contraction import Contraction
from compiler.kernel.gpu_matmul import padded_factor
from compiler.kernel.ir import (
    Barrier,
    If,
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
    thread_range,
    value,
)
from compiler.kernel.spread import spread, store, unit_stride
from hcq.target import TargetSpec

FRAGMENT = 16  # rows, columns and depth of one instruction
HELD = 8  # elements of a total that a lane holds
WAVE = 32
WAVES = 2  # of a group, in each direction
THREADS = WAVE * WAVES * WAVES
SLICE = 32  # depth of a tile
PITCH = SLICE + 8  # of a row in local memory; keeps vectors of 8 aligned and spreads the banks
MOVED = 8  # elements that a thread copies at once
TURNED = 4  # steps of the depth that a thread joins where memory runs across


def suits(parts: Contraction, target: TargetSpec) -> bool:
    """Whether both factors are values of one 16-bit float type, and the target has the units."""
    kinds = [side.sources[0].dtype for side in (parts.left, parts.right) if side.op == "cast"]
    return (
        target.has_matrix_f16
        and target.wave_size == WAVE
        and parts.reduce.dtype is float32
        and len(kinds) == 2
        and kinds[0] is kinds[1]
        and kinds[0] in (float16, bfloat16)
    )


@dataclass(frozen=True)
class _Slice:
    """One factor's slice in local memory: [size][PITCH]."""

    memory: Memory
    factor: Value  # over `across` and `depth`, both padded to whole tiles, guarded
    across: Range
    depth: Range
    size: int
    start: Index  # of the tile in `across`
    deep: bool  # whether the factor's memory runs along the depth

    def fill(self, slice_start: Index) -> list[Statement]:
        thread = thread_range(THREADS).index()
        if not self.deep:
            return self.fill_turned(slice_start, thread)
        statements: list[Statement] = []
        for piece in range(self.size * SLICE // (THREADS * MOVED)):
            number = thread + piece * THREADS
            across, step = number // (SLICE // MOVED), number % (SLICE // MOVED) * MOVED
            source = substitute(self.factor, {self.across: self.start + across})
            values = spread(source, self.depth, slice_start + step, MOVED)
            statements.append(store(self.memory, across * PITCH + step, values))
        return statements

    def fill_turned(self, slice_start: Index, thread: Index) -> list[Statement]:
        """Each thread turns a block of TURNED steps by a few elements in its registers."""
        width = self.size * SLICE // (THREADS * TURNED)
        step, across = (
            thread // (self.size // width) * TURNED,
            thread % (self.size // width) * width,
        )
        lines = []
        for line in range(TURNED):
            source = substitute(self.factor, {self.depth: slice_start + step + line})
            lines.append(spread(source, self.across, self.start + across, width))
        return [
            store(self.memory, (across + i) * PITCH + step, [line[i] for line in lines])
            for i in range(width)
        ]

    def fragment(self, row: Index, step: int) -> Value:
        return load(self.memory, row * PITCH + step * FRAGMENT, lanes=FRAGMENT)


def matmul(computation: Computation, parts: Contraction, target: TargetSpec) -> Kernel:
    """The tiled kernel; its grid is (column tiles, row tiles, batch)."""
    rows, columns = parts.rows, parts.columns
    count = _fragments(parts, target)
    size = WAVES * count * FRAGMENT
    grid = (-(-columns.size // size), -(-rows.size // size), elements(parts.batch))
    group = group_range(2, grid[2]).index()
    places = unflatten(group, tuple(r.size for r in parts.batch))
    batch = dict(zip(parts.batch, places, strict=True))
    row_start = group_range(1, grid[1]).index() * size
    column_start = group_range(0, grid[0]).index() * size
    slices = -(-parts.depth.size // SLICE)
    depth = Range("depth", slices * SLICE)
    left = _slice("left", parts.left.sources[0], rows, parts, batch, depth, size, row_start)
    right = _slice(
        "right", parts.right.sources[0], columns, parts, batch, depth, size, column_start
    )

    thread = thread_range(THREADS).index()
    wave, lane = thread // WAVE, thread % WAVE
    wave_row = wave // WAVES * (count * FRAGMENT)
    wave_column = wave % WAVES * (count * FRAGMENT)
    totals = Memory("totals", float32, count * count, "register", HELD)
    slice_start = Range("slice", slices).index() * SLICE
    body: tuple[Statement, ...] = (
        *left.fill(slice_start),
        *right.fill(slice_start),
        Barrier(),
        *_multiply(left, right, wave_row + lane % 16, wave_column + lane % 16, totals, count),
        Barrier(),
    )
    accumulate: Statement = Loop(Range("slice", slices), body)
    for counter in reversed(parts.outer):
        accumulate = Loop(counter, (accumulate,))
    zero = value("broadcast", float32, (const(0, float32),), lanes=HELD)
    statements: list[Statement] = [Store(totals, constant(i), zero) for i in range(totals.count)]
    statements.append(accumulate)
    first = row_start + wave_row + lane // FRAGMENT
    column = column_start + wave_column + lane % FRAGMENT
    statements += _finish(computation, parts, batch, totals, first, column, count)
    return Kernel(
        "kernel",
        (computation.output, *computation.inputs),
        (left.memory, right.memory, totals),
        grid,
        THREADS,
        tuple(statements),
    )


def _fragments(parts: Contraction, target: TargetSpec) -> int:
    """Fragments of a wave in each direction: 4 where that leaves work for all compute units."""
    size = WAVES * 4 * FRAGMENT
    groups = -(-parts.rows.size // size) * -(-parts.columns.size // size) * elements(parts.batch)
    if groups >= target.compute_units:
        return 4
    return 2 if min(parts.rows.size, parts.columns.size) > 32 else 1


def _slice(
    name: str, factor: Value, across: Range, parts: Contraction, batch: dict[Range, Index],
    depth: Range, size: int, start: Index,
) -> _Slice:  # fmt: skip
    deep = unit_stride(factor, parts.depth)
    factor, wide = padded_factor(name, factor, across, parts, batch, depth, size)
    memory = Memory(name, factor.dtype, size * PITCH, "local")
    return _Slice(memory, factor, wide, depth, size, start, deep)


def _multiply(
    left: _Slice, right: _Slice, row: Index, column: Index, totals: Memory, count: int
) -> list[Statement]:
    statements: list[Statement] = []
    for step in range(SLICE // FRAGMENT):
        ours = [left.fragment(row + i * FRAGMENT, step) for i in range(count)]
        theirs = [right.fragment(column + j * FRAGMENT, step) for j in range(count)]
        for i in range(count):
            for j in range(count):
                at = constant(i * count + j)
                sources = (ours[i], theirs[j], load(totals, at, lanes=HELD))
                total = value("matrix", float32, sources, lanes=HELD)
                statements.append(Store(totals, at, total))
    return statements


def _finish(
    computation: Computation, parts: Contraction, batch: dict[Range, Index], totals: Memory,
    first: Index, column_start: Index, count: int,
) -> list[Statement]:  # fmt: skip
    """Epilogue and stores, as far as the tile lies inside the output."""
    statements: list[Statement] = []
    rows, columns = parts.rows, parts.columns
    for i in range(count):
        for j in range(count):
            column = column_start + j * FRAGMENT
            held = load(totals, constant(i * count + j), lanes=HELD)
            for element in range(HELD):
                row = first + (i * FRAGMENT + 2 * element)
                here = {**batch, rows: row, columns: column}
                total = value("extract", float32, (held,), element)
                root = substitute(computation.value, here)
                result = replace(root, substitute(parts.reduce, here), total)
                position = computation.position.substitute(here)
                statement: Statement = Store(computation.output, position, result)
                inside = both(
                    at_least_zero(constant(rows.size - 1) - row),
                    at_least_zero(constant(columns.size - 1) - column),
                )
                statements.append(If(inside, (statement,)) if inside else statement)
    return statements
