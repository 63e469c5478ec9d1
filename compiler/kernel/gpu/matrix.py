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
from functools import partial

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, load
from ugpu.compiler.kernel.choices import MatrixTiles, Space
from ugpu.compiler.kernel.gpu.cut import Cut, Side, cleared, waiting
from ugpu.compiler.kernel.gpu.fragments import Waves, finish_wave, operand, product, totals_of
from ugpu.compiler.kernel.ir import Barrier, Kernel, Loop, Statement, Store, nested, thread_range
from ugpu.compiler.kernel.matrix_units import MatrixUnit, find_unit
from ugpu.compiler.kernel.shared.kernels import kernel_over
from ugpu.compiler.kernel.shared.spread import lanes_of, pack
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

VECTOR = 16  # bytes that a thread moves at once
TURNED = 4  # steps of the depth that a thread joins if memory runs across
LONGEST = 8  # columns that a lane stores at once
SHARE = 40 << 10  # bytes of local memory that a group should not exceed: other groups need some


def suits(parts: Contraction, target: TargetSpec) -> MatrixUnit | None:
    """Return the unit that computes a product, if both factors have one type that it supports."""
    sides = narrow_factors(parts)
    unit = find_unit(target.matrix, sides[0].dtype, parts.reduce.dtype) if sides else None
    return unit if unit is not None and unit.wave == target.wave_size else None


def narrow_factors(parts: Contraction) -> tuple[Value, Value] | None:
    """Return both factors as the units take them; None for others, or two types."""
    left, right = narrow(parts.left), narrow(parts.right)
    if left is None or right is None or left.dtype is not right.dtype:
        return None
    return left, right


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
    side: Side
    length: int  # of a slice, along the depth
    pitch: int
    threads: int

    def pieces(self, slice_start: Index) -> list[tuple[Index, Value]]:
        """Return the part of a slice that this thread copies: places in a buffer, and vectors."""
        return self._straight(slice_start) if self.side.deep else self._turned(slice_start)

    def _straight(self, slice_start: Index) -> list[tuple[Index, Value]]:
        thread, side = thread_range(self.threads).index(), self.side
        width = VECTOR // self.memory.dtype.itemsize
        while side.size * self.length % (self.threads * width):
            width //= 2
        found = []
        for piece in range(side.size * self.length // (self.threads * width)):
            number = thread + piece * self.threads
            across, step = number // (self.length // width), number % (self.length // width) * width
            values = side.factor.along(side.start + across, slice_start + step, width)
            found.append((across * self.pitch + step, pack(values)))
        return found

    def _turned(self, slice_start: Index) -> list[tuple[Index, Value]]:
        """Transpose, in each thread's registers, blocks of TURNED steps by a few elements."""
        thread, side = thread_range(self.threads).index(), self.side
        width = VECTOR // self.memory.dtype.itemsize
        while side.size * self.length % (self.threads * TURNED * width) or side.size % width:
            width //= 2
        found = []
        for piece in range(side.size * self.length // (self.threads * TURNED * width)):
            number = thread + piece * self.threads
            step = number // (side.size // width) * TURNED
            across = number % (side.size // width) * width
            place = slice_start + step, side.start + across
            for i, vector in enumerate(side.factor.turned(*place, TURNED, width)):
                found.append(((across + i) * self.pitch + step, vector))
        return found

    def buffer(self, number: Index) -> Index:
        """Return where a buffer begins."""
        return number * (self.side.size * self.pitch)

    def fill(self, slice_start: Index, buffer: Index) -> list[Statement]:
        base = self.buffer(buffer)
        return [Store(self.memory, base + at, v) for at, v in self.pieces(slice_start)]


class _Product:
    """A product cut into tiles. joined: column fragments whose columns are dealt together."""

    def __init__(self, parts: Contraction, unit: MatrixUnit, tiles: MatrixTiles) -> None:
        self.unit, self.tiles, self.waves = unit, tiles, Waves(unit, tiles)
        factors = narrow_factors(parts)
        assert factors is not None
        self.cut = Cut(parts, factors, _sides(unit, tiles), tiles.depth)
        self.left, self.right = map(self.slice_of, self.cut.sides)
        self.totals = totals_of(unit, tiles.fragments)
        self.joined = min(tiles.fragments[1], max(1, LONGEST // unit.run))
        # elements along the depth that a lane reads at once
        self.vector = max(unit.held, VECTOR // unit.element.itemsize)

    def slice_of(self, side: Side) -> _Slice:
        tiles, pitch = self.tiles, _pitch(self.unit, self.tiles)
        count = tiles.buffers * side.size * pitch
        memory = Memory(side.name, side.factor.root.dtype, count, "local")
        return _Slice(memory, side, tiles.depth, pitch, self.waves.threads)

    def fill(self, slice_start: Index, buffer: Index) -> list[Statement]:
        """Copy a slice of both factors to a buffer."""
        sides = (self.left, self.right)
        stores = [store for side in sides for store in side.fill(slice_start, buffer)]
        return [*stores, Barrier()]

    def multiply(self, buffer: Index) -> list[Statement]:
        """Add the products of the slices in a buffer to the totals."""
        unit, waves, (tall, wide) = self.unit, self.waves, self.tiles.fragments
        position = unit.position(waves.lane)
        span = self.vector * unit.depth_parts
        statements: list[Statement] = []
        for group in range(self.tiles.depth // span):
            step = unit.depth_part(waves.lane) * self.vector + group * span
            rows = [
                [self.read(self.left, buffer, waves.row + (i * unit.rows + down) + position, step)
                 for down in range(0, unit.rows, unit.positions)]
                for i in range(tall)
            ]  # fmt: skip
            places = [unit.dealt(j, *unit.column_part(position), self.joined) for j in range(wide)]
            columns = [self.read(self.right, buffer, waves.column + at, step) for at in places]
            for first in range(0, self.vector, unit.held):
                for i, blocks in enumerate(rows):
                    ours = operand(unit, [lanes_of(each, first, unit.held) for each in blocks])
                    for j, vector in enumerate(columns):
                        theirs = pack(lanes_of(vector, first, unit.held))
                        statements.append(product(unit, self.totals, i * wide + j, ours, theirs))
        return statements

    def read(self, part: _Slice, buffer: Index, row: Index, step: Index) -> Value:
        return load(part.memory, part.buffer(buffer) + row * part.pitch + step, lanes=self.vector)

    def in_turn(self) -> list[Statement]:
        counter, first = Range("slice", self.cut.slices), constant(0)
        start = counter.index() * self.tiles.depth
        return [Loop(counter, (*self.fill(start, first), *self.multiply(first), Barrier()))]

    def overlapped(self, again: bool) -> list[Statement]:
        """Process all slices with two buffers. again: whether an outer loop runs this more than
        once."""
        first, counter = constant(0), Range("slice", self.cut.slices - 1)
        this = counter.index()
        statements = self.fill(first, first)
        if counter.size:
            following, other = (this + 1) * self.tiles.depth, constant(1) - this % 2
            moved = [
                waiting(side.pieces(following), side.memory, side.buffer(other))
                for side in (self.left, self.right)
            ]
            fetch, keep = (
                [each for part in some for each in part] for some in zip(*moved, strict=True)
            )
            statements.append(Loop(counter, (*fetch, *self.multiply(this % 2), *keep, Barrier())))
        statements += self.multiply(constant(counter.size % 2))
        return [*statements, Barrier()] if again else statements


def matmul(
    computation: Computation,
    parts: Contraction,
    target: TargetSpec,
    unit: MatrixUnit,
    tiles: MatrixTiles,
) -> Kernel:
    """Return the tiled kernel; its grid is (column tiles, row tiles, batch)."""
    made = _Product(parts, unit, tiles)
    totals, cut = made.totals, made.cut
    accumulate = made.overlapped(bool(parts.outer)) if tiles.buffers == 2 else made.in_turn()
    finish = partial(cut.finished, computation)
    body = (
        *cleared(totals),
        *nested(parts.outer, *accumulate),
        *finish_wave(unit, made.waves, tiles.fragments, totals, finish, made.joined),
    )
    return kernel_over(computation, cut.grid, made.waves.threads, body)
