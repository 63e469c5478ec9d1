"""Matrix product on NVIDIA's matrix units: a ring of slices in swizzled local memory (gpu_slices).

While one slice is multiplied, the next ones are on their way. The threads of a group need only one
barrier a slice:

    fetch the first slices
    for each slice:
        await it; barrier              the stage that the ring fills next is now free
        fetch the next slice of the ring
        totals += left x right

Two kinds of unit read the slices. A wave's own unit (`mma.sync`, sm_80 on) takes fragments that
`ldmatrix` brings from the swizzled rows to registers. The unit of four waves (`wgmma`, sm_90a) is
asynchronous and reads local memory itself: one product is begun before the previous one is awaited,
so that the unit is never idle while threads fetch. A slice is therefore free one turn later, and
the ring is one stage longer. That unit sees memory by another path than threads do, hence
`Await.units`.

Why `cp.async`: it clips ragged edges, exchanges chunks, and needs no preceding kernel. One bulk
copy moves contiguous bytes and keeps their order. For that, factors are packed first, which pays
for large products (gpu_bulk, compiler.plan.packing). 16 bytes a thread cost 12 instructions a
slice, for which `wgmma` leaves time: a slice of 128 x 256 x 64 occupies the unit for
1024 cycles, and the schedulers for a tenth of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value
from ugpu.compiler.kernel.choices import RingTiles, Space
from ugpu.compiler.kernel.gpu.cut import Cut, Side, cleared, waiting
from ugpu.compiler.kernel.gpu.fragments import Finish, Waves, finish_wave, product, totals_of
from ugpu.compiler.kernel.gpu.matrix import narrow_factors
from ugpu.compiler.kernel.ir import (
    Await,
    Barrier,
    Close,
    GroupProduct,
    Kernel,
    Loop,
    Settle,
    Statement,
    Store,
    nested,
)
from ugpu.compiler.kernel.matrix_units import (
    GROUP_UNITS,
    ROW,
    UNITS,
    GroupUnit,
    MatrixUnit,
    find_group_unit,
    find_unit,
)
from ugpu.compiler.kernel.nvidia.slices import CHUNKS, Slices
from ugpu.compiler.kernel.nvidia.totals import finish_group, room_for
from ugpu.compiler.kernel.shared.kernels import kernel_over
from ugpu.compiler.kernel.shared.spread import lanes_of, pack
from ugpu.compiler.pattern.contraction import Contraction
from ugpu.hcq.state.target import TargetSpec

WAVE = 32
MOST_TOTALS = 128  # registers of a lane
REGISTERS = 64 << 10  # of a multiprocessor: CUDA C++ Programming Guide, "Compute Capabilities"
BESIDE_TOTALS = 64  # minimum registers of a lane for everything else
# Tiles to try, largest first: waves (or groups of four), fragments, stages
GROUP_TILES = (
    ((2, 1), (1, 32), 4),  # 128 x 256
    ((2, 1), (1, 16), 4),  # 128 x 128
    ((2, 1), (1, 8), 4),  # 128 x 64
    ((1, 1), (1, 8), 4),  # 64 x 64
)
WAVE_TILES = (
    ((2, 2), (4, 8), 2),  # 128 x 128
    ((2, 2), (4, 4), 3),  # 128 x 64
    ((2, 2), (2, 4), 3),  # 64 x 64
    ((2, 2), (1, 2), 4),  # 32 x 32
)
Unit = MatrixUnit | GroupUnit


def suits(parts: Contraction, target: TargetSpec) -> list[Unit]:
    """Return the units that compute a product, the better first. Empty if its factors are not
    values of one type that a unit supports, or the target's local memory is not NVIDIA's."""
    sides = narrow_factors(parts)
    if target.abi != "ptx" or sides is None:
        return []
    kinds = target.matrix, sides[0].dtype, parts.reduce.dtype
    return [unit for unit in (find_group_unit(*kinds), find_unit(*kinds)) if unit is not None]


def pays(parts: Contraction, unit: Unit) -> bool:
    """Return whether a product is large enough for a ring; smaller ones use gpu_matrix's small
    tiles."""
    deep = parts.depth.size * unit.element.itemsize >= ROW // 2
    return deep and min(parts.rows.size, parts.columns.size) >= 32


def default_tiles(parts: Contraction, units: list[Unit], target: TargetSpec) -> RingTiles:
    """Return the largest tiles that leave work for all multiprocessors, on the best unit for which
    the product is large enough: a group's unit takes 64 rows and columns at once, and needs slices
    to overlap."""
    rows, columns = parts.rows.size, parts.columns.size
    first = units[0]
    small = min(rows, columns) < 48 or parts.depth.size < ROW // first.element.itemsize
    unit = units[-1] if small else first
    known = GROUP_TILES if isinstance(unit, GroupUnit) else WAVE_TILES
    chosen = RingTiles(unit.name, *known[-1])
    for shape in known:
        tiles = RingTiles(unit.name, *shape)
        tall, wide = sides_of(tiles)
        groups = -(-rows // tall) * -(-columns // wide) * elements(parts.batch)
        # two groups share a multiprocessor if waves wait for their own units
        share = 1 if isinstance(unit, GroupUnit) else 2
        busy = groups >= target.compute_units
        if busy and share * local_bytes(tiles) <= _most_local(target) and _is_light(parts, tiles):
            chosen = tiles
            break
    return chosen


def _is_light(parts: Contraction, tiles: RingTiles) -> bool:
    """Return whether registers suffice. With the most totals, they suffice for fetched factors
    and, in a group of waves, whose unit takes no fragments, for factors loaded without checks for
    edges."""
    if _held_totals(tiles) < MOST_TOTALS:
        return True
    sides = _slices(_cut(parts, tiles), tiles)
    if isinstance(unit_of(tiles.unit), GroupUnit):
        return not any(side.is_rough for side in sides)
    return all(side.direct for side in sides)


def _held_totals(tiles: RingTiles) -> int:
    """Return the number of totals of a lane."""
    unit, (tall, wide) = unit_of(tiles.unit), tiles.fragments
    return tall * wide * unit.rows * unit.columns // unit.wave


def space(parts: Contraction, unit: Unit, target: TargetSpec) -> Space:
    """Return the space of all tiles of one unit that a multiprocessor can hold."""

    def fits(tiles: RingTiles) -> bool:
        return tiles.unit == unit.name and holds(tiles, target) and _is_light(parts, tiles)

    grouped = isinstance(unit, GroupUnit)
    downs = (1, 2) if grouped else (1, 2, 4)
    across = (8, 16, 32) if grouped else (2, 4, 8)
    options = {
        "waves": tuple((down, beside) for down in downs for beside in (1, 2, 4)),
        "fragments": tuple((down, beside) for down in (1, 2, 4) for beside in across),
        "stages": (3, 4, 5) if grouped else (2, 3, 4, 5),
    }
    return Space(default_tiles(parts, [unit], target), options, fits)


def holds(tiles: RingTiles, target: TargetSpec) -> bool:
    """Return whether a multiprocessor can run a kernel with these tiles."""
    unit = unit_of(tiles.unit)
    threads, grouped = threads_of(tiles), isinstance(unit, GroupUnit)
    wide, totals = tiles.fragments[1], _held_totals(tiles)
    return (
        threads <= target.max_threads_per_group
        and totals <= MOST_TOTALS
        and threads * (totals + BESIDE_TOTALS) <= REGISTERS
        and tiles.stages >= (3 if grouped else 2)
        and wide % (8 if grouped else 2) == 0
        and wide * unit.columns <= 256
        and local_bytes(tiles) <= _most_local(target)
        and all(side * CHUNKS % threads == 0 for side in sides_of(tiles))
        # a thread that transposes a factor in registers takes a word by four steps
        and all(side * ROW // 16 % threads == 0 for side in sides_of(tiles))
    )


def _most_local(target: TargetSpec) -> int:
    return target.dynamic_local_memory or target.local_memory


def unit_of(name: str) -> Unit:
    return GROUP_UNITS[name] if name in GROUP_UNITS else UNITS[name]


def threads_of(tiles: RingTiles) -> int:
    return tiles.waves[0] * tiles.waves[1] * unit_of(tiles.unit).wave


def sides_of(tiles: RingTiles) -> tuple[int, int]:
    """Return the rows and columns of a group's tile."""
    unit, (tall, wide) = unit_of(tiles.unit), tiles.fragments
    return tiles.waves[0] * tall * unit.rows, tiles.waves[1] * wide * unit.columns


def local_bytes(tiles: RingTiles) -> int:
    """Return the bytes of local memory that a kernel with these tiles takes."""
    return sum(sides_of(tiles)) * ROW * tiles.stages


@dataclass(frozen=True)
class _Ring:
    """A product cut into tiles."""

    unit: Unit
    tiles: RingTiles
    waves: Waves
    sides: tuple[Slices, Slices]

    @property
    def totals(self) -> Memory:
        return totals_of(self.unit, self.tiles.fragments)

    @property
    def grouped(self) -> bool:
        return isinstance(self.unit, GroupUnit)

    @property
    def ahead(self) -> int:
        """Number of slices that are fetched ahead of use."""
        return self.tiles.stages - (2 if self.grouped else 1)

    def stage(self, slice_number: Index) -> Index:
        return slice_number % self.tiles.stages

    # ---- copying -------------------------------------------------------------------------------

    def first(self, number: int) -> list[Statement]:
        """Fetch one of the first slices."""
        statements: list[Statement] = []
        start, stage = constant(number * self.sides[0].length), constant(number)
        for side in self.sides:
            base = side.stage(stage)
            if side.direct:
                statements += side.fetches(start, base)
            else:
                statements += [Store(side.memory, base + at, v) for at, v in side.pieces(start)]
        return [*statements, Close()]

    def bring(self, slice_number: Index) -> tuple[list[Statement], list[Statement]]:
        """Return the statements that begin to bring a slice, by fetches or to registers, and those
        that store what is in registers."""
        begin: list[Statement] = []
        end: list[Statement] = []
        start = slice_number * self.sides[0].length
        for side in self.sides:
            base = side.stage(self.stage(slice_number))
            if side.direct:
                begin += side.fetches(start, base)
                continue
            fetched, kept = waiting(side.pieces(start), side.memory, base)
            begin += fetched
            end += kept
        return [*begin, Close()], end

    # ---- multiplying ---------------------------------------------------------------------------

    def turn(self, slice_number: Index, fetching: bool) -> list[Statement]:
        """Process one slice. fetching: whether to bring another one, `ahead` further on."""
        begin, end = self.bring(slice_number + self.ahead) if fetching else ([], [])
        product = self.multiply(self.stage(slice_number))
        pending = self.ahead - 1 if fetching else 0
        start: list[Statement] = [Await(pending, units=self.grouped), Barrier()]
        if self.grouped:
            return [*start, *product, *begin, *end, Settle(self.totals, 1)]
        return [*start, *begin, *product, *end]

    def multiply(self, stage: Index) -> list[Statement]:
        """Add the products of the slices in a stage to the totals."""
        if isinstance(self.unit, GroupUnit):
            return [self._group_product(self.unit, stage)]
        return self._wave_products(self.unit, stage)

    def _group_product(self, unit: GroupUnit, stage: Index) -> GroupProduct:
        left, right = self.sides
        tall, wide = self.tiles.fragments
        steps = []
        for step in range(0, left.length, unit.depth):
            theirs = right.stage(stage) + right.place(self.waves.column, constant(step))
            for i in range(tall):
                ours = left.place(self.waves.row + i * unit.rows, constant(step))
                steps.append((i, left.stage(stage) + ours, theirs))
        memories = left.memory, right.memory
        columns, turned = wide * unit.columns, (left.turned, right.turned)
        return GroupProduct(unit.name, self.totals, columns, *memories, turned, tuple(steps))

    def _wave_products(self, unit: MatrixUnit, stage: Index) -> list[Statement]:
        """For each step, load fragments of both factors by `ldmatrix`, two columns' at once, and
        multiply each with each."""
        tall, wide = self.tiles.fragments
        statements: list[Statement] = []
        for step in range(self.sides[0].length // unit.depth):
            ours = [self._left(stage, i, step) for i in range(tall)]
            theirs: list[Value] = []
            for pair in range(wide // 2):
                both = self._right(stage, 2 * pair, step)
                theirs += [pack(lanes_of(both, at, unit.held)) for at in (0, unit.held)]
            for i in range(tall):
                for j in range(wide):
                    statements.append(product(unit, self.totals, i * wide + j, ours[i], theirs[j]))
        return statements

    def _left(self, stage: Index, fragment: int, step: int) -> Value:
        """Return a left fragment: rows 0-7 and 8-15, then both further along the depth."""
        side, lane = self.sides[0], self.waves.lane
        row = self.waves.row + fragment * self.unit.rows
        first = step * self.unit.depth
        if side.turned:
            across, at = row + lane // 8 % 2 * 8, lane % 8 + lane // 16 * 8 + first
        else:
            across, at = row + lane % 16, lane // 16 * side.width + first
        return side.matrices(side.stage(stage), across, at)

    def _right(self, stage: Index, fragment: int, step: int) -> Value:
        """Return two neighbouring right fragments, each with both halves of the depth."""
        side, lane = self.sides[1], self.waves.lane
        column = self.waves.column + fragment * self.unit.columns + lane // 16 * 8
        first = step * self.unit.depth
        if side.turned:
            return side.matrices(side.stage(stage), column, lane % 16 + first)
        at = lane // 8 % 2 * side.width + first
        return side.matrices(side.stage(stage), column + lane % 8, at)

    # ---- results -------------------------------------------------------------------------------

    def finish(self, finish: Finish, columns: int) -> list[Statement]:
        """Return epilogue and stores for the part of the tile inside the output."""
        waves, totals, fragments = self.waves, self.totals, self.tiles.fragments
        if isinstance(self.unit, MatrixUnit):
            return finish_wave(self.unit, waves, fragments, totals, finish)
        place = waves.lane, waves.row, waves.column
        return finish_group(totals, fragments, *place, room_for(totals.dtype), finish, columns)


def _cut(parts: Contraction, tiles: RingTiles) -> Cut:
    factors = narrow_factors(parts)
    assert factors is not None
    return Cut(parts, factors, sides_of(tiles), ROW // unit_of(tiles.unit).element.itemsize)


def _slices(cut: Cut, tiles: RingTiles) -> tuple[Slices, Slices]:
    """Return the slices of both factors."""
    unit = unit_of(tiles.unit)
    length = ROW // unit.element.itemsize
    turns = unit.turns if isinstance(unit, GroupUnit) else unit.element.itemsize == 2

    def slices_of(side: Side) -> Slices:
        count = tiles.stages * side.size * length
        memory = Memory(side.name, side.factor.root.dtype, count, "local", swizzled=True)
        turned = turns and side.wide and not side.deep and side.size % length == 0
        return Slices(memory, side, turned, threads_of(tiles))

    left, right = map(slices_of, cut.sides)
    return left, right


def matmul(
    computation: Computation, parts: Contraction, target: TargetSpec, tiles: RingTiles
) -> Kernel:
    """Return the tiled kernel; its grid is (column tiles, row tiles, batch)."""
    unit, cut = unit_of(tiles.unit), _cut(parts, tiles)
    ring = _Ring(unit, tiles, Waves(unit, tiles), _slices(cut, tiles))
    accumulate = _turns(ring, cut.slices, bool(parts.outer))
    ends = ring.finish(partial(cut.finished, computation), parts.columns.size)
    body = (*cleared(ring.totals), *nested(parts.outer, *accumulate), *ends)
    return kernel_over(computation, cut.grid, ring.waves.threads, body)


def _turns(ring: _Ring, slices: int, again: bool) -> list[Statement]:
    """Process all slices; for the last ones there is nothing to fetch. again: whether an outer loop
    runs this more than once."""
    early = min(ring.ahead, slices)
    statements = [statement for number in range(early) for statement in ring.first(number)]
    if slices > early:
        counter = Range("slice", slices - early)
        statements.append(Loop(counter, tuple(ring.turn(counter.index(), fetching=True))))
    last = Range("last", early)
    body = ring.turn(last.index() + (slices - early), fetching=False)
    statements.append(Loop(last, tuple(body)))
    if ring.grouped:
        statements.append(Settle(ring.totals, 0))
    if again:
        statements.append(Barrier())
    return statements
