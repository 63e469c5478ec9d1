"""Matrix product of packed factors on Hopper: bulk copies feed `wgmma`.

Both factors are packed in memory (kernel.nvidia.packed): the part of a slice that a tile needs is
one contiguous piece, fetched by one instruction of one thread. One wave of the group therefore only
requests slices, as long as the ring has room, and groups of four waves only multiply. They
synchronise at barrier objects, two for each stage of the ring:

    producer, one thread                          consumers
        for each tile, each slice:                    for each tile:
            wait until the stage is empty                 for each slice:
            expect its bytes at `full`                        wait until the stage is full
            begin the copies                                  begin totals += left x right
                                                              await the previous product
                                                              signal that its stage is empty
                                                          epilogue, stores

No step waits for all threads of the group. If there are more tiles than multiprocessors, a group
processes several tiles: while the consumers store one, the first slices of the next one arrive.

The totals take 128 registers of a thread. A producer of one wave leaves 224 for each thread, so
moving registers between waves (`setmaxnreg`) would gain nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ugpu.compiler.dtype import uint64
from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, constant, unflatten
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import Memory
from ugpu.compiler.expression.value import Value as IrValue
from ugpu.compiler.kernel.choices import BulkTiles, Space
from ugpu.compiler.kernel.gpu.cut import cleared, finish_run
from ugpu.compiler.kernel.gpu.fragments import totals_of
from ugpu.compiler.kernel.gpu.matrix import narrow_factors
from ugpu.compiler.kernel.ir import (
    Barrier,
    Bulk,
    GroupProduct,
    If,
    Kernel,
    Loop,
    Settle,
    Signal,
    Statement,
    group_range,
    guarded,
    thread_range,
)
from ugpu.compiler.kernel.matrix_units import ROW, GroupUnit, find_group_unit
from ugpu.compiler.kernel.nvidia.packed import BLOCK, Packed, recognise
from ugpu.compiler.kernel.nvidia.ring import (
    BESIDE_TOTALS,
    GROUP_TILES,
    MOST_TOTALS,
    REGISTERS,
    WAVE,
    local_bytes,
    sides_of,
    threads_of,
)
from ugpu.compiler.kernel.nvidia.totals import finish_group, room_for
from ugpu.compiler.kernel.shared.kernels import kernel_of
from ugpu.compiler.pattern.contraction import Contraction, find_contraction
from ugpu.hcq.state.target import TargetSpec

BANDS = (16, 8, 4, 2, 1)  # tiles down before going across: nearby tiles share what they read
SIGNALS = 2 * 8  # bytes of the barrier objects of a stage


@dataclass(frozen=True)
class Factor:
    """One factor in memory. start: where the array of the batch begins."""

    layout: Packed
    memory: Memory
    start: Index


def factors(parts: Contraction, target: TargetSpec) -> tuple[GroupUnit, Factor, Factor] | None:
    """Return the unit and both factors if they are packed for it; otherwise None."""
    found: list[Factor] = []
    sides = narrow_factors(parts)
    if target.abi != "ptx" or parts.outer or sides is None:
        return None
    unit = find_group_unit(target.matrix, sides[0].dtype, parts.reduce.dtype)
    if unit is None:
        return None
    for side, across in zip(sides, (parts.rows, parts.columns), strict=True):
        known = recognise(side, across, parts.depth, unit.turns)
        if known is None:
            return None
        layout, access, start = known
        found.append(Factor(layout, access.memory, start))
    return unit, found[0], found[1]


def packed_layouts(computation: Computation, target: TargetSpec) -> dict[Memory, Packed]:
    """Return the layouts of the arrays that are packed factors of a computation's product."""
    if computation.pieces or computation.chosen is not None:
        return {}
    parts = find_contraction(computation.plain)
    known = None if parts is None else factors(parts, target)
    return {} if known is None else {factor.memory: factor.layout for factor in known[1:]}


def default_tiles(parts: Contraction, unit: GroupUnit, target: TargetSpec) -> BulkTiles:
    """Return the largest tiles that leave work for all multiprocessors."""
    chosen = BulkTiles(unit.name, *GROUP_TILES[-1])
    for shape in GROUP_TILES:
        tiles = BulkTiles(unit.name, *shape)
        tall, wide = sides_of(tiles)
        groups = -(-parts.rows.size // tall) * -(-parts.columns.size // wide)
        enough = groups * elements(parts.batch) >= target.compute_units
        if enough and holds(tiles, target):
            return tiles
    return chosen


def space(parts: Contraction, unit: GroupUnit, target: TargetSpec) -> Space:
    """Return the space of all tiles that a multiprocessor can hold."""

    def fits(tiles: BulkTiles) -> bool:
        return tiles.unit == unit.name and holds(tiles, target) and _pairs(parts, tiles, target)

    options = {
        "waves": tuple((down, beside) for down in (1, 2) for beside in (1, 2)),
        "fragments": tuple((down, beside) for down in (1, 2) for beside in (8, 16, 32)),
        "stages": (2, 3, 4, 5, 6),
        "cluster": (1, 2),
    }
    return Space(default_tiles(parts, unit, target), options, fits)


def holds(tiles: BulkTiles, target: TargetSpec) -> bool:
    """Return whether a multiprocessor can run a kernel with these tiles."""
    threads, wide = threads_of(tiles) + WAVE, tiles.fragments[1]
    held = tiles.fragments[0] * wide * 4
    most = target.dynamic_local_memory or target.local_memory
    return (
        threads <= target.max_threads_per_group
        and held <= MOST_TOTALS
        and threads * (held + BESIDE_TOTALS) <= REGISTERS
        and tiles.stages >= 2
        and wide % 8 == 0
        and all(side % BLOCK == 0 and side <= 256 for side in sides_of(tiles))
        and local_bytes(tiles) + SIGNALS * tiles.stages <= most
    )


def _pairs(parts: Contraction, tiles: BulkTiles, target: TargetSpec) -> bool:
    """Return whether, if clusters are wanted, every tile has a neighbour below that shares its
    columns."""
    tall, wide = sides_of(tiles)
    even = -(-parts.rows.size // tall) % tiles.cluster == 0
    return tiles.cluster == 1 or (
        even and wide % (tiles.cluster * BLOCK) == 0 and target.max_cluster >= tiles.cluster
    )


@dataclass(frozen=True)
class _Plan:
    """A product cut into tiles. groups: number that run; each: maximum tiles of a group."""

    unit: GroupUnit
    tiles: BulkTiles
    factors: tuple[Factor, Factor]
    rings: tuple[Memory, Memory]
    full: Memory
    empty: Memory
    totals: Memory
    batch: tuple[Range, ...]
    counts: tuple[int, int]  # number of tiles, down and across
    groups: int
    each: int

    @property
    def cluster(self) -> int:
        return self.tiles.cluster

    @property
    def rank(self) -> Index:
        """The group's number in its cluster."""
        return group_range(0, self.groups).index() % self.cluster

    @property
    def slices(self) -> int:
        return self.factors[0].layout.slices

    @property
    def length(self) -> int:
        return self.factors[0].layout.length

    @property
    def count(self) -> int:
        """Number of tiles in all, with those of a cluster counted once."""
        return self.counts[0] // self.cluster * self.counts[1] * elements(self.batch)

    @property
    def turn(self) -> Range:
        return Range("turn", self.each)

    @property
    def tile(self) -> Index:
        number = group_range(0, self.groups).index() // self.cluster
        return self.turn.index() * (self.groups // self.cluster) + number

    def place(self) -> tuple[dict[Range, Index], Index, Index]:
        """Return the tile's batch, first row and first column. Tiles go down a band of rows before
        they go on across."""
        down, across = self.counts[0] // self.cluster, self.counts[1]
        tall, wide = sides_of(self.tiles)
        band = next(size for size in BANDS if down % size == 0)
        shape = (*(r.size for r in self.batch), down // band, across, band)
        inside = self.tile % self.count  # no change in value; lets the algebra know the bound
        *batch, number, column, row = unflatten(inside, shape)
        row = (number * band + row) * self.cluster + self.rank
        starts = row * tall, column * wide
        return dict(zip(self.batch, batch, strict=True)), *starts

    def number(self, slice_number: Index) -> Index:
        """Return how many slices the group has taken before this one."""
        return self.turn.index() * self.slices + slice_number

    def stage(self, number: Index) -> Index:
        return number % self.tiles.stages

    def parity(self, number: Index) -> Index:
        """Return the parity of the phase in which a stage is full with this slice."""
        return number // self.tiles.stages % 2

    def tiles_of_group(self, body: list[Statement]) -> Statement:
        """Run the body for each of the group's tiles."""
        inside = at_least_zero(constant(self.count - 1) - self.tile)
        return Loop(self.turn, guarded(inside, *body))

    # ---- producer ------------------------------------------------------------------------------

    def produce(self) -> Statement:
        batch, *starts = self.place()
        counter = Range("fetched", self.slices)
        number = self.number(counter.index())
        stage, free = self.stage(number), (number // self.tiles.stages + 1) % 2
        sizes = [side * self.length for side in sides_of(self.tiles)]
        wanted = constant(sum(sizes) * self.unit.element.itemsize)
        body: list[Statement] = [
            Signal("wait", self.empty, stage, free),
            Signal("expect", self.full, stage, wanted),
        ]
        for factor, ring, start, size in zip(self.factors, self.rings, starts, sizes, strict=True):
            first, at, groups = factor.start.substitute(batch), stage * size, 1
            if ring is self.rings[1] and self.cluster > 1:
                # each group fetches a part for all: the groups have the same columns
                groups, share = self.cluster, size // self.length // self.cluster
                start, at = start + self.rank * share, at + self.rank * (share * self.length)
                size = share * self.length
            source = first + factor.layout.slice_start(constant(0), counter.index(), start)
            body.append(Bulk(ring, at, factor.memory, source, size, self.full, stage, groups))
        return self.tiles_of_group([Loop(counter, tuple(body))])

    # ---- consumers -----------------------------------------------------------------------------

    def consume(self, thread: Index, finish: list[Statement]) -> Statement:
        counter = Range("slice", self.slices - 1)
        first, last = self.number(constant(0)), self.number(constant(self.slices - 1))
        following = self.number(counter.index() + 1)
        body = [*cleared(self.totals), *self.take(thread, first)]
        if self.slices > 1:
            turn = [*self.take(thread, following), Settle(self.totals, 1)]
            turn.append(self.give_back(thread, self.number(counter.index())))
            body.append(Loop(counter, tuple(turn)))
        body += [Settle(self.totals, 0), self.give_back(thread, last), *finish]
        return self.tiles_of_group(body)

    def take(self, thread: Index, number: Index) -> list[Statement]:
        """Begin the products of a slice as soon as it has arrived."""
        stage = self.stage(number)
        return [Signal("wait", self.full, stage, self.parity(number)), self.product(thread, stage)]

    def give_back(self, thread: Index, number: Index) -> Statement:
        """One lane of each wave signals that the wave has finished reading a slice."""
        done = Signal("arrive", self.empty, self.stage(number), constant(1))
        told: tuple[Signal, ...] = (done,)
        if self.cluster > 1:  # any group of the cluster may fetch for the stage
            told = tuple(replace(done, group=constant(rank)) for rank in range(self.cluster))
        return If(at_least_zero(-(thread % WAVE)), told)

    def part(self, thread: Index) -> tuple[Index, Index]:
        """Return where the part of a group of four waves begins in the tile."""
        (down, across), (tall, wide) = self.tiles.waves, self.tiles.fragments
        wave = thread // self.unit.wave % (down * across)  # the producer never gets here
        row = wave // across * (tall * self.unit.rows)
        return row, wave % across * (wide * self.unit.columns)

    def product(self, thread: Index, stage: Index) -> GroupProduct:
        unit, (tall, wide) = self.unit, self.tiles.fragments
        row, column = self.part(thread)
        left, right = (factor.layout for factor in self.factors)
        sizes = [side * self.length for side in sides_of(self.tiles)]
        steps = []
        for step in range(0, self.length, unit.depth):
            theirs = stage * sizes[1] + right.inside(column, constant(step))
            for i in range(tall):
                ours = left.inside(row + i * unit.rows, constant(step))
                steps.append((i, stage * sizes[0] + ours, theirs))
        turned = left.turned, right.turned
        columns = wide * unit.columns
        return GroupProduct(unit.name, self.totals, columns, *self.rings, turned, tuple(steps))


def matmul(
    computation: Computation, parts: Contraction, target: TargetSpec, tiles: BulkTiles
) -> Kernel:
    """Return the kernel; its groups are along x, at most one for each multiprocessor."""
    known = factors(parts, target)
    assert known is not None, "factors that are not packed"
    unit, left, right = known
    plan = _plan(parts, target, tiles, unit, (left, right))
    waves = threads_of(tiles)
    thread = thread_range(waves + WAVE).index()
    room = room_for(unit.total)
    batch, row_start, column_start = plan.place()

    def finish(row: Index, column: Index, taken: list[IrValue]) -> list[Statement]:
        at = row_start + row, column_start + column
        return finish_run(computation, parts, batch, *at, taken)

    lane = thread % unit.wave
    part = plan.part(thread)
    finishing = finish_group(
        plan.totals, tiles.fragments, lane, *part, room, finish, parts.columns.size
    )
    consumers, producer = at_least_zero(constant(waves - 1) - thread), thread - waves
    arrivals = constant(waves // WAVE * tiles.cluster)
    together = tiles.cluster > 1
    none = constant(0)
    begin: tuple[Statement, ...] = (
        Signal("begin", plan.full, none, constant(1)),
        Signal("begin", plan.empty, none, arrivals),
    )
    return kernel_of(
        computation,
        (*plan.rings, plan.full, plan.empty, plan.totals, room),
        (plan.groups, 1, 1),
        waves + WAVE,
        (
            If(at_least_zero(-thread), begin),
            Barrier(cluster=together),
            If((*at_least_zero(producer), *at_least_zero(-producer)), (plan.produce(),)),
            If(consumers, (plan.consume(thread, finishing),)),
            # no group ends while others copy to it or signal it
            *((Barrier(cluster=True),) if together else ()),
        ),
        cluster=tiles.cluster,
    )


def _plan(
    parts: Contraction,
    target: TargetSpec,
    tiles: BulkTiles,
    unit: GroupUnit,
    sides: tuple[Factor, Factor],
) -> _Plan:
    tall, wide = sides_of(tiles)
    counts = -(-parts.rows.size // tall), -(-parts.columns.size // wide)
    count = counts[0] * counts[1] * elements(parts.batch)
    groups = min(count, target.compute_units) // tiles.cluster * tiles.cluster
    length = ROW // unit.element.itemsize
    rings = [
        Memory(name, unit.element, tiles.stages * side * length, "local", ring=True)
        for name, side in (("left", tall), ("right", wide))
    ]
    signal = Memory("full", uint64, tiles.stages, "local", ring=True)
    return _Plan(
        unit, tiles, sides, (rings[0], rings[1]), signal, replace(signal, name="empty"),
        totals_of(unit, tiles.fragments), parts.batch, counts, groups,
        -(-count // groups),
    )  # fmt: skip
