"""Matrix product on the matrix units of a GPU: 16-bit floats and TensorFloat-32 summed in float32,
int8 in int32.

A group of waves computes a tile. For each slice of the depth its threads copy a slice of both
factors into local memory, with the depth fastest, so that a lane's part of a row is one vector. The
elements that a lane holds are described by data (matrix_units). Elements outside the factors are
zero, so any size works.

With one buffer, each slice is copied, multiplied, and only then the next one copied. With two, the
next slice is on its way from memory to registers while this one is multiplied:

    copy slice 0 to buffer 0; barrier
    for each other slice:
        registers = next slice
        totals += buffer[this]
        buffer[other] = registers; barrier
    totals += last buffer

Fragments may stand for any columns. The assignment is chosen so that a lane ends up with
neighbouring columns: the epilogue works on whole vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, const, load, substitute, value
from ugpu.compiler.kernel.choices import MatrixTiles, Space
from ugpu.compiler.kernel.gpu.matmul import finish_run, padded_factor
from ugpu.compiler.kernel.ir import (
    Barrier,
    Kernel,
    Loop,
    Statement,
    Store,
    group_range,
    nested,
    thread_range,
)
from ugpu.compiler.kernel.matrix_units import MatrixUnit, find_unit
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over
from ugpu.compiler.kernel.shared.spread import pack, spread, unit_stride
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

VECTOR = 16  # bytes that a thread moves at once
TURNED = 4  # steps of the depth that a thread joins if memory runs across
LONGEST = 8  # columns that a lane stores at once
SHARE = 40 << 10  # bytes of local memory that a group should not exceed: other groups need some


def suits(parts: Contraction, target: TargetSpec) -> MatrixUnit | None:
    """Return the unit that computes a product, if both factors have one type that it supports."""
    sides = [narrow(side) for side in (parts.left, parts.right)]
    if sides[0] is None or sides[1] is None or sides[0].dtype is not sides[1].dtype:
        return None
    unit = find_unit(target.matrix, sides[0].dtype, parts.reduce.dtype)
    return unit if unit is not None and unit.wave == target.wave_size else None


def narrow(side: Value) -> Value | None:
    """Return a factor as the units take it: the value it is cast from, or a float32 whose 13 lowest
    bits are cleared, which is a TensorFloat-32; None for others."""
    if side.op == "cast":
        return side.sources[0]
    if side.op == "bitcast" and side.dtype is float32 and side.sources[0].op == "and":
        mask = side.sources[0].sources[1]
        if mask.op == "const" and mask.arg & 0x1FFF == 0:
            return side
    return None


def default_tiles(parts: Contraction, unit: MatrixUnit, target: TargetSpec) -> MatrixTiles:
    """Return the largest tiles, and parts of a wave, that leave work for all compute units."""

    def groups(side: int) -> int:
        tiles = -(-parts.rows.size // side) * -(-parts.columns.size // side)
        return tiles * elements(parts.batch)

    if groups(128) >= target.compute_units:
        waves, part = (2, 2), (64, 64)
    elif 2 * groups(64) >= target.compute_units:
        waves, part = (1, 2), (64, 32)
    elif min(parts.rows.size, parts.columns.size) > 32:
        waves, part = (2, 2), (32, 32)
    else:
        waves, part = (2, 2), (16, 16)
    fragments = (part[0] // unit.rows, part[1] // unit.columns)
    depth = 64 // unit.element.itemsize
    tiles = MatrixTiles(unit.name, waves, fragments, 2 * depth, 2)
    if parts.depth.size >= 4 * depth and local_bytes(unit, tiles) <= SHARE:
        return tiles
    return replace(tiles, depth=depth)


def space(parts: Contraction, unit: MatrixUnit, target: TargetSpec) -> Space:
    """Return the space of all tiles that a group can hold; totals take at most 128 registers of a
    lane."""
    step = 32 // unit.element.itemsize
    span = max(unit.held, VECTOR // unit.element.itemsize) * unit.depth_parts

    def fits(tiles: MatrixTiles) -> bool:
        threads = tiles.waves[0] * tiles.waves[1] * unit.wave
        held = tiles.fragments[0] * tiles.fragments[1] * unit.total_lanes
        return (
            threads <= target.max_threads_per_group
            and held <= 128
            and tiles.depth % span == 0
            and local_bytes(unit, tiles) <= target.local_memory
            and all(side * tiles.depth % (threads * TURNED) == 0 for side in _sides(unit, tiles))
        )

    counts = (1, 2, 4)
    wide = tuple(count * 16 // unit.columns for count in counts)
    options = {
        "waves": tuple((down, across) for down in counts for across in counts),
        "fragments": tuple((down, across) for down in counts for across in wide),
        "depth": (step, 2 * step, 4 * step),
        "buffers": (1, 2),
    }
    return Space(default_tiles(parts, unit, target), options, fits)


def local_bytes(unit: MatrixUnit, tiles: MatrixTiles) -> int:
    """Return the bytes of local memory that a kernel with these tiles takes."""
    tall, wide = _sides(unit, tiles)
    return tiles.buffers * (tall + wide) * _pitch(unit, tiles) * unit.element.itemsize


def _sides(unit: MatrixUnit, tiles: MatrixTiles) -> tuple[int, int]:
    return (
        tiles.waves[0] * tiles.fragments[0] * unit.rows,
        tiles.waves[1] * tiles.fragments[1] * unit.columns,
    )


def _pitch(unit: MatrixUnit, tiles: MatrixTiles) -> int:
    """Return the elements of a row in local memory: a vector more than needed, to spread the
    banks."""
    return tiles.depth + VECTOR // unit.element.itemsize


@dataclass(frozen=True)
class _Slice:
    """One factor's slices in local memory: [buffers][size][pitch]."""

    memory: Memory
    factor: Value  # over `across` and `depth`, both padded to whole tiles, guarded
    across: Range
    depth: Range
    size: int
    start: Index  # start of the tile in `across`
    deep: bool  # whether the factor's memory runs along the depth
    length: int  # of a slice, along the depth
    pitch: int
    threads: int

    def pieces(self, slice_start: Index) -> list[tuple[Index, Value]]:
        """Return the part of a slice that this thread copies: places in a buffer, and vectors."""
        return self._straight(slice_start) if self.deep else self._turned(slice_start)

    def _straight(self, slice_start: Index) -> list[tuple[Index, Value]]:
        thread = thread_range(self.threads).index()
        width = VECTOR // self.memory.dtype.itemsize
        while self.size * self.length % (self.threads * width):
            width //= 2
        found = []
        for piece in range(self.size * self.length // (self.threads * width)):
            number = thread + piece * self.threads
            across, step = number // (self.length // width), number % (self.length // width) * width
            source = substitute(self.factor, {self.across: self.start + across})
            values = spread(source, self.depth, slice_start + step, width)
            found.append((across * self.pitch + step, pack(values)))
        return found

    def _turned(self, slice_start: Index) -> list[tuple[Index, Value]]:
        """Transpose, in each thread's registers, blocks of TURNED steps by a few elements."""
        thread = thread_range(self.threads).index()
        width = VECTOR // self.memory.dtype.itemsize
        while self.size * self.length % (self.threads * TURNED * width) or self.size % width:
            width //= 2
        found = []
        for piece in range(self.size * self.length // (self.threads * TURNED * width)):
            number = thread + piece * self.threads
            step = number // (self.size // width) * TURNED
            across = number % (self.size // width) * width
            lines = []
            for line in range(TURNED):
                source = substitute(self.factor, {self.depth: slice_start + step + line})
                lines.append(spread(source, self.across, self.start + across, width))
            found += [
                ((across + i) * self.pitch + step, pack([line[i] for line in lines]))
                for i in range(width)
            ]
        return found

    def buffer(self, number: Index) -> Index:
        """Return where a buffer begins."""
        return number * (self.size * self.pitch)

    def fill(self, slice_start: Index, buffer: Index) -> list[Statement]:
        base = self.buffer(buffer)
        return [Store(self.memory, base + at, v) for at, v in self.pieces(slice_start)]


@dataclass(frozen=True)
class _Plan:
    """A product cut into tiles. wave_row, wave_column: where a wave's part of the tile begins."""

    unit: MatrixUnit
    tiles: MatrixTiles
    left: _Slice
    right: _Slice
    totals: Memory
    lane: Index
    wave_row: Index
    wave_column: Index
    joined: int  # column fragments whose columns are assigned together

    @property
    def vector(self) -> int:
        """Number of elements along the depth that a lane reads at once."""
        return max(self.unit.held, VECTOR // self.unit.element.itemsize)

    def column(self, fragment: int, number: Index) -> Index:
        """Return the column of the wave's part that column `number` of a fragment stands for."""
        unit, joined = self.unit, self.joined
        part, place = unit.column_part(number)
        base = fragment // joined * (joined * unit.columns)
        return part * (unit.run * joined) + place + (base + fragment % joined * unit.run)

    def multiply(self, buffer: Index) -> list[Statement]:
        """Add the products of the slices in a buffer to the totals."""
        unit, (tall, wide) = self.unit, self.tiles.fragments
        position = unit.position(self.lane)
        span = self.vector * unit.depth_parts
        statements: list[Statement] = []
        for group in range(self.tiles.depth // span):
            step = unit.depth_part(self.lane) * self.vector + group * span
            rows = [
                [self.read(self.left, buffer, self.row(i, block) + position, step)
                 for block in range(unit.row_blocks)]
                for i in range(tall)
            ]  # fmt: skip
            columns = [
                self.read(self.right, buffer, self.wave_column + self.column(j, position), step)
                for j in range(wide)
            ]
            for turn in range(self.vector // unit.held):
                ours = [self.left_operand(blocks, turn) for blocks in rows]
                theirs = [_part(vector, turn * unit.held, unit.held) for vector in columns]
                for i in range(tall):
                    for j in range(wide):
                        statements.append(self.product(i * wide + j, ours[i], theirs[j]))
        return statements

    def row(self, fragment: int, block: int) -> Index:
        return self.wave_row + (fragment * self.unit.rows + block * self.unit.positions)

    def read(self, part: _Slice, buffer: Index, row: Index, step: Index) -> Value:
        return load(part.memory, part.buffer(buffer) + row * part.pitch + step, lanes=self.vector)

    def left_operand(self, blocks: list[Value], turn: int) -> Value:
        """Return a left fragment in its instruction's order."""
        unit = self.unit
        if unit.row_blocks == 1:
            return _part(blocks[0], turn * unit.held, unit.held)
        length = unit.held // unit.chunks
        taken: list[Value] = []
        for chunk in range(unit.chunks):
            for block in blocks:
                first = turn * unit.held + chunk * length
                taken += [_lane(block, first + i) for i in range(length)]
        return pack(taken)

    def product(self, total: int, left: Value, right: Value) -> Statement:
        unit, at = self.unit, constant(total)
        sources = (left, right, load(self.totals, at, lanes=unit.total_lanes))
        made = value("matrix", unit.total, sources, unit.name, unit.total_lanes)
        return Store(self.totals, at, made)


def _lane(vector: Value, lane: int) -> Value:
    return value("extract", vector.dtype, (vector,), lane)


def _part(vector: Value, first: int, count: int) -> Value:
    return pack([_lane(vector, first + i) for i in range(count)])


def matmul(
    computation: Computation,
    parts: Contraction,
    target: TargetSpec,
    unit: MatrixUnit,
    tiles: MatrixTiles,
) -> Kernel:
    """Return the tiled kernel; its grid is (column tiles, row tiles, batch)."""
    rows, columns = parts.rows, parts.columns
    tall, wide = _sides(unit, tiles)
    threads = tiles.waves[0] * tiles.waves[1] * unit.wave
    grid = (-(-columns.size // wide), -(-rows.size // tall), elements(parts.batch))
    batch = groups_at(parts.batch, 2)
    row_start = group_range(1, grid[1]).index() * tall
    column_start = group_range(0, grid[0]).index() * wide
    slices = -(-parts.depth.size // tiles.depth)
    depth = Range("depth", slices * tiles.depth)

    def slice_of(name: str, side: Value, across: Range, size: int, start: Index) -> _Slice:
        thin, deep = narrow(side), unit_stride(side, parts.depth)
        assert thin is not None
        factor, long = padded_factor(name, thin, across, parts, batch, depth, size)
        pitch = _pitch(unit, tiles)
        memory = Memory(name, factor.dtype, tiles.buffers * size * pitch, "local")
        return _Slice(memory, factor, long, depth, size, start, deep, tiles.depth, pitch, threads)

    thread = thread_range(threads).index()
    wave, lane = thread // unit.wave, thread % unit.wave
    count = tiles.fragments[0] * tiles.fragments[1]
    plan = _Plan(
        unit,
        tiles,
        slice_of("left", parts.left, rows, tall, row_start),
        slice_of("right", parts.right, columns, wide, column_start),
        Memory("totals", unit.total, count, "register", unit.total_lanes),
        lane,
        wave // tiles.waves[1] * (tiles.fragments[0] * unit.rows),
        wave % tiles.waves[1] * (tiles.fragments[1] * unit.columns),
        min(tiles.fragments[1], max(1, LONGEST // unit.run)),
    )
    if tiles.buffers == 2:
        accumulate = _overlapped(plan, slices, bool(parts.outer))
    else:
        accumulate = _in_turn(plan, slices)
    zero = value("broadcast", unit.total, (const(0, unit.total),), lanes=unit.total_lanes)
    statements: list[Statement] = [Store(plan.totals, constant(i), zero) for i in range(count)]
    statements += nested(parts.outer, *accumulate)
    statements += _finish(plan, computation, parts, batch, row_start, column_start)
    return kernel_over(computation, grid, threads, statements)


def _in_turn(plan: _Plan, slices: int) -> list[Statement]:
    start, first = Range("slice", slices).index() * plan.tiles.depth, constant(0)
    body = (
        *plan.left.fill(start, first),
        *plan.right.fill(start, first),
        Barrier(),
        *plan.multiply(first),
        Barrier(),
    )
    return [Loop(Range("slice", slices), body)]


def _overlapped(plan: _Plan, slices: int, again: bool) -> list[Statement]:
    """Process all slices with two buffers. again: whether an outer loop runs this more than
    once."""
    first, counter = constant(0), Range("slice", slices - 1)
    this = counter.index()
    statements: list[Statement] = [
        *plan.left.fill(first, first),
        *plan.right.fill(first, first),
        Barrier(),
    ]
    if slices > 1:
        fetch: list[Statement] = []
        keep: list[Statement] = []
        for part in (plan.left, plan.right):
            pieces = part.pieces((this + 1) * plan.tiles.depth)
            lanes = pieces[0][1].lanes
            memory = Memory(
                f"next_{part.memory.name}", part.memory.dtype, len(pieces), "register", lanes
            )
            other = part.buffer(constant(1) - this % 2)
            for number, (at, moved) in enumerate(pieces):
                place = constant(number)
                fetch.append(Store(memory, place, moved))
                keep.append(Store(part.memory, other + at, load(memory, place, lanes=lanes)))
        body = (*fetch, *plan.multiply(this % 2), *keep, Barrier())
        statements.append(Loop(counter, body))
    statements += plan.multiply(constant((slices - 1) % 2))
    if again:
        statements.append(Barrier())
    return statements


def _finish(
    plan: _Plan,
    computation: Computation,
    parts: Contraction,
    batch: dict[Range, Index],
    row_start: Index,
    column_start: Index,
) -> list[Statement]:
    """Return epilogue and stores for the part of the tile inside the output."""
    unit, (tall, wide) = plan.unit, plan.tiles.fragments
    joined, lanes = plan.joined, unit.total_lanes
    position, part = unit.position(plan.lane), unit.part(plan.lane)
    statements: list[Statement] = []
    for i in range(tall):
        for block in range(unit.row_blocks):
            row = row_start + plan.row(i, block) + position
            for j in range(0, wide, joined):
                column = plan.wave_column + part * (unit.run * joined) + j * unit.columns
                taken = [
                    _lane(load(plan.totals, constant(i * wide + j + k), lanes=lanes), place)
                    for k in range(joined)
                    for place in range(block * unit.run, (block + 1) * unit.run)
                ]
                here = column_start + column
                statements += finish_run(computation, parts, batch, row, here, taken)
    return statements
