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

from ugpu.compiler.expression.algebra import Index, Range, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory, Value, const, load, value
from ugpu.compiler.kernel.choices import RingTiles, Space
from ugpu.compiler.kernel.gpu.matmul import finish_run, padded_factor
from ugpu.compiler.kernel.gpu.matrix import narrow
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
    group_range,
    nested,
    thread_range,
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
from ugpu.compiler.kernel.nvidia.slices import CHUNKS, Slices, element, part
from ugpu.compiler.kernel.nvidia.totals import Finish, finish_group, room_for
from ugpu.compiler.kernel.shared.kernels import groups_at, kernel_over
from ugpu.compiler.kernel.shared.spread import unit_stride
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
    sides = [narrow(side) for side in (parts.left, parts.right)]
    if target.abi != "ptx" or sides[0] is None or sides[1] is None:
        return []
    if sides[0].dtype is not sides[1].dtype:
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
    sides = _cut(parts, tiles).sides
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
    """A product cut into tiles. wave_row, wave_column: where the part of a wave, or of four,
    begins. waiting: for each factor that goes through registers, the registers of its next
    slice."""

    unit: Unit
    tiles: RingTiles
    sides: tuple[Slices, Slices]
    totals: Memory
    lane: Index
    wave_row: Index
    wave_column: Index
    waiting: dict[str, Memory]
    room: Memory

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

    def begin(self, slice_number: Index) -> list[Statement]:
        """Begin to bring a slice: fetch it, or load it into registers."""
        statements: list[Statement] = []
        start = slice_number * self.sides[0].length
        for side in self.sides:
            if side.direct:
                statements += side.fetches(start, side.stage(self.stage(slice_number)))
                continue
            for number, (_, moved) in enumerate(side.pieces(start)):
                statements.append(Store(self.waiting[side.memory.name], constant(number), moved))
        return [*statements, Close()]

    def end(self, slice_number: Index) -> list[Statement]:
        """Store the data that was loaded into registers."""
        statements: list[Statement] = []
        start = slice_number * self.sides[0].length
        for side in self.sides:
            if side.direct:
                continue
            base, memory = side.stage(self.stage(slice_number)), self.waiting[side.memory.name]
            for number, (at, _) in enumerate(side.pieces(start)):
                moved = load(memory, constant(number), lanes=memory.lanes)
                statements.append(Store(side.memory, base + at, moved))
        return statements

    # ---- multiplying ---------------------------------------------------------------------------

    def turn(self, slice_number: Index, fetching: bool) -> list[Statement]:
        """Process one slice. fetching: whether to bring another one, `ahead` further on."""
        following = slice_number + self.ahead
        begin = self.begin(following) if fetching else []
        end = self.end(following) if fetching else []
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
            theirs = right.stage(stage) + right.place(self.wave_column, constant(step))
            for i in range(tall):
                ours = left.place(self.wave_row + i * unit.rows, constant(step))
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
                theirs += [part(both, 0, unit.held), part(both, unit.held, unit.held)]
            for i in range(tall):
                for j in range(wide):
                    at = constant(i * wide + j)
                    sources = (ours[i], theirs[j], load(self.totals, at, lanes=unit.total_lanes))
                    made = value("matrix", unit.total, sources, unit.name, unit.total_lanes)
                    statements.append(Store(self.totals, at, made))
        return statements

    def _left(self, stage: Index, fragment: int, step: int) -> Value:
        """Return a left fragment: rows 0-7 and 8-15, then both further along the depth."""
        side, lane = self.sides[0], self.lane
        row = self.wave_row + fragment * self.unit.rows
        first = step * self.unit.depth
        if side.turned:
            across, at = row + lane // 8 % 2 * 8, lane % 8 + lane // 16 * 8 + first
        else:
            across, at = row + lane % 16, lane // 16 * side.width + first
        return side.matrices(side.stage(stage), across, at)

    def _right(self, stage: Index, fragment: int, step: int) -> Value:
        """Return two neighbouring right fragments, each with both halves of the depth."""
        side, lane = self.sides[1], self.lane
        column = self.wave_column + fragment * self.unit.columns + lane // 16 * 8
        first = step * self.unit.depth
        if side.turned:
            return side.matrices(side.stage(stage), column, lane % 16 + first)
        at = lane // 8 % 2 * side.width + first
        return side.matrices(side.stage(stage), column + lane % 8, at)

    # ---- results -------------------------------------------------------------------------------

    def clear(self) -> list[Statement]:
        zero = const(0, self.totals.dtype)
        if self.totals.lanes > 1:
            zero = value("broadcast", zero.dtype, (zero,), lanes=self.totals.lanes)
        return [Store(self.totals, constant(i), zero) for i in range(self.totals.count)]

    def total(self, i: int, j: int, place: int) -> Value:
        """Return the lane's part of a fragment, 8 columns wide: rows l / 4 and 8 below, two columns
        of each."""
        at = i * self.tiles.fragments[1] + j
        return element(load(self.totals, constant(at), lanes=self.totals.lanes), place)

    def finish(self, finish_run: Finish, columns: int) -> list[Statement]:
        """Return epilogue and stores for the part of the tile inside the output. finish_run: makes
        them for the totals from a row and column on."""
        if self.grouped:
            place = self.lane, self.wave_row, self.wave_column
            totals, fragments = self.totals, self.tiles.fragments
            return finish_group(totals, fragments, *place, self.room, finish_run, columns)
        tall, wide = self.tiles.fragments
        row = self.wave_row + self.lane // 4
        column = self.wave_column + self.lane % 4 * 2
        statements: list[Statement] = []
        for i in range(tall):
            for below in range(2):
                for j in range(wide):
                    taken = [self.total(i, j, 2 * below + place) for place in range(2)]
                    at = row + (i * self.unit.rows + 8 * below)
                    statements += finish_run(at, column + 8 * j, taken)
        return statements


@dataclass(frozen=True)
class _Cut:
    """A product in tiles. row_start, column_start: where the group's tile starts."""

    grid: tuple[int, int, int]
    batch: dict[Range, Index]
    row_start: Index
    column_start: Index
    slices: int
    sides: tuple[Slices, Slices]


def _cut(parts: Contraction, tiles: RingTiles) -> _Cut:
    unit, (tall, wide) = unit_of(tiles.unit), sides_of(tiles)
    rows, columns = parts.rows, parts.columns
    grid = (-(-columns.size // wide), -(-rows.size // tall), elements(parts.batch))
    batch = groups_at(parts.batch, 2)
    row_start = group_range(1, grid[1]).index() * tall
    column_start = group_range(0, grid[0]).index() * wide
    length = ROW // unit.element.itemsize
    slices = -(-parts.depth.size // length)
    depth = Range("depth", slices * length)
    turns = unit.turns if isinstance(unit, GroupUnit) else unit.element.itemsize == 2

    def slices_of(name: str, side: Value, across: Range, size: int, start: Index) -> Slices:
        thin = narrow(side)
        assert thin is not None
        deep = unit_stride(side, parts.depth) or not unit_stride(side, across)
        factor, long = padded_factor(name, thin, across, parts, batch, depth, size)
        count = tiles.stages * size * length
        memory = Memory(name, factor.dtype, count, "local", swizzled=True)
        turned = turns and not deep and size % length == 0
        return Slices(memory, factor, long, depth, size, start, deep, turned, threads_of(tiles))

    left = slices_of("left", parts.left, rows, tall, row_start)
    right = slices_of("right", parts.right, columns, wide, column_start)
    return _Cut(grid, batch, row_start, column_start, slices, (left, right))


def matmul(
    computation: Computation, parts: Contraction, target: TargetSpec, tiles: RingTiles
) -> Kernel:
    """Return the tiled kernel; its grid is (column tiles, row tiles, batch)."""
    unit, cut, threads = unit_of(tiles.unit), _cut(parts, tiles), threads_of(tiles)
    sides = cut.sides
    thread = thread_range(threads).index()
    wave, lane = thread // unit.wave, thread % unit.wave
    fragments = tiles.fragments[0] * tiles.fragments[1]
    totals = Memory("totals", unit.total, 4 * fragments, "register")
    if isinstance(unit, MatrixUnit):
        totals = Memory("totals", unit.total, fragments, "register", unit.total_lanes)
    waiting = {side.memory.name: _waiting(side) for side in sides if not side.direct}
    ring = _Ring(
        unit,
        tiles,
        sides,
        totals,
        lane,
        wave // tiles.waves[1] * (tiles.fragments[0] * unit.rows),
        wave % tiles.waves[1] * (tiles.fragments[1] * unit.columns),
        waiting,
        room_for(unit.total),
    )
    accumulate = _turns(ring, cut.slices, bool(parts.outer))

    def finish(row: Index, column: Index, taken: list[Value]) -> list[Statement]:
        at = cut.row_start + row, cut.column_start + column
        return finish_run(computation, parts, cut.batch, *at, taken)

    ends = ring.finish(finish, parts.columns.size)
    body = (*ring.clear(), *nested(parts.outer, *accumulate), *ends)
    return kernel_over(computation, cut.grid, threads, body)


def _waiting(side: Slices) -> Memory:
    """Return the registers in which a slice waits for its stage."""
    pieces = side.pieces(constant(0))
    name, lanes = f"next_{side.memory.name}", pieces[0][1].lanes
    return Memory(name, side.memory.dtype, len(pieces), "register", lanes)


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
