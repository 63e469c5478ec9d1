"""Fragments of matrix units: the parts of a tile that waves hold, and their products."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ugpu.compiler.expression.algebra import Index, constant
from ugpu.compiler.expression.value import Memory, Value, load, value
from ugpu.compiler.kernel.choices import MatrixTiles, RingTiles
from ugpu.compiler.kernel.ir import Statement, Store, thread_range
from ugpu.compiler.kernel.matrix_units import GroupUnit, MatrixUnit
from ugpu.compiler.kernel.shared.spread import lanes_of, pack

# (row of the tile, column of the tile, neighbouring totals from there on) to their epilogue
Finish = Callable[[Index, Index, list[Value]], Iterable[Statement]]


class Waves:
    """The waves of a group, or its groups of four waves, each with a part of the tile.

    Attributes:
        threads: of the group.
        lane: a thread's number in its wave.
        row, column: where the wave's part of the tile begins.
    """

    def __init__(self, unit: MatrixUnit | GroupUnit, tiles: MatrixTiles | RingTiles) -> None:
        (down, across), (tall, wide) = tiles.waves, tiles.fragments
        self.threads = down * across * unit.wave
        thread = thread_range(self.threads).index()
        self.lane, wave = thread % unit.wave, thread // unit.wave
        self.row = wave // across * (tall * unit.rows)
        self.column = wave % across * (wide * unit.columns)


def totals_of(unit: MatrixUnit | GroupUnit, fragments: tuple[int, int]) -> Memory:
    """Return the totals of a lane, for fragments down and across."""
    count = fragments[0] * fragments[1]
    if isinstance(unit, GroupUnit):
        each = unit.rows * unit.columns // unit.wave
        return Memory("totals", unit.total, count * each, "register")
    return Memory("totals", unit.total, count, "register", unit.total_lanes)


def operand(unit: MatrixUnit, blocks: Sequence[Sequence[Value]]) -> Value:
    """Return a left fragment in its instruction's order: `held` steps of each block of rows."""
    length = unit.held // unit.chunks
    starts = range(0, unit.held, length)
    return pack([step for at in starts for block in blocks for step in block[at : at + length]])


def product(unit: MatrixUnit, totals: Memory, number: int, left: Value, right: Value) -> Store:
    """Return the store that adds a product of fragments to a total."""
    at = constant(number)
    sources = (left, right, load(totals, at, lanes=unit.total_lanes))
    return Store(totals, at, value("matrix", unit.total, sources, unit.name, unit.total_lanes))


def finish_wave(
    unit: MatrixUnit, waves: Waves, fragments: tuple[int, int], totals: Memory,
    finish: Finish, joined: int = 1,
) -> list[Statement]:  # fmt: skip
    """Return epilogue and stores of the totals of a wave. joined: fragments whose columns are dealt
    together."""
    tall, wide = fragments
    row = waves.row + unit.position(waves.lane)
    statements: list[Statement] = []
    for i in range(tall):
        for block in range(unit.row_blocks):
            here = row + (i * unit.rows + block * unit.positions)
            for j in range(0, wide, joined):
                taken: list[Value] = []
                for number in range(i * wide + j, i * wide + j + joined):
                    total = load(totals, constant(number), lanes=unit.total_lanes)
                    taken += lanes_of(total, block * unit.run, unit.run)
                column = unit.dealt(j, unit.part(waves.lane), constant(0), joined)
                statements += finish(here, waves.column + column, taken)
    return statements
