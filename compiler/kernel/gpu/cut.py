"""A matrix product on a GPU, cut into tiles: a group computes one, in slices of the depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ugpu.compiler.expression.algebra import Index, Range, at_least_zero, both, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.lookup import guard
from ugpu.compiler.expression.value import Memory, Value, broadcast, const, gate, load, substitute
from ugpu.compiler.kernel.ir import Statement, Store, group_range, guarded
from ugpu.compiler.kernel.shared.kernels import groups_at
from ugpu.compiler.kernel.shared.spread import pack, spread, store, unit_stride
from ugpu.compiler.pattern.contraction import Contraction


@dataclass(frozen=True)
class Factor:
    """A factor of a product, over its rows (or columns) and the depth."""

    root: Value
    wide: Range
    deep: Range

    def along(self, row: Index, step: Index, count: int) -> list[Value]:
        """Return elements of a row, along the depth."""
        return spread(substitute(self.root, {self.wide: row}), self.deep, step, count)

    def across(self, step: Index, row: Index, count: int) -> list[Value]:
        """Return elements at a step, of neighbouring rows."""
        return spread(substitute(self.root, {self.deep: step}), self.wide, row, count)

    def turned(self, step: Index, row: Index, steps: int, count: int) -> list[Value]:
        """Return a vector of `steps` steps of each of some neighbouring rows: where memory runs
        across, a thread transposes such a block in its registers."""
        lines = [self.across(step + line, row, count) for line in range(steps)]
        return [pack(list(each)) for each in zip(*lines, strict=True)]


@dataclass(frozen=True)
class Side:
    """A factor padded to whole tiles, beyond its ends zero. size: of a tile; start: of the tile;
    deep, wide: whether its memory runs along the depth, and along the other range."""

    name: str
    factor: Factor
    size: int
    start: Index
    deep: bool
    wide: bool


class Cut:
    """A product in tiles.

    Attributes:
        grid: (column tiles, row tiles, batch).
        batch: the values of the batch's ranges.
        row, column: where the group's tile begins.
        slices: of so many steps of the depth.
        sides: the left factor and the right one.
    """

    def __init__(
        self, parts: Contraction, factors: tuple[Value, Value], tile: tuple[int, int], length: int
    ) -> None:
        self._parts = parts
        rows, columns, (tall, wide) = parts.rows, parts.columns, tile
        self.grid = (-(-columns.size // wide), -(-rows.size // tall), elements(parts.batch))
        self.batch = groups_at(parts.batch, 2)
        self.row = group_range(1, self.grid[1]).index() * tall
        self.column = group_range(0, self.grid[0]).index() * wide
        self.slices = -(-parts.depth.size // length)
        self._depth = Range("depth", self.slices * length)
        left, right = factors
        self.sides = (
            self._side("left", left, rows, tall, self.row),
            self._side("right", right, columns, wide, self.column),
        )

    def _side(self, name: str, factor: Value, across: Range, size: int, start: Index) -> Side:
        depth, deep = self._parts.depth, self._depth
        wide = Range(name + "_across", -(-across.size // size) * size)
        runs = unit_stride(factor, depth), unit_stride(factor, across)
        factor = substitute(factor, {across: wide.index(), depth: deep.index(), **self.batch})
        in_depth = at_least_zero(constant(depth.size - 1) - deep.index())
        in_across = at_least_zero(constant(across.size - 1) - wide.index())
        factor = guard(factor, both(in_depth, in_across))
        root = gate(in_depth, factor, const(0, factor.dtype))
        return Side(name, Factor(root, wide, deep), size, start, *runs)

    def finished(
        self, computation: Computation, row: Index, column: Index, taken: list[Value]
    ) -> list[Statement]:
        """Return the results of neighbouring totals of a row, from a place of the tile on."""
        at = self.row + row, self.column + column
        return finish_run(computation, self._parts, self.batch, *at, taken)


def finish_run(
    computation: Computation, parts: Contraction, batch: Mapping[Range, Index],
    row: Index, column: Index, taken: list[Value],
) -> list[Statement]:  # fmt: skip
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
        inside = both(in_rows, at_least_zero(constant(columns.size - width) - start))
        statements += guarded(inside, store(computation.output, position, values))
    return statements


def cleared(totals: Memory) -> list[Statement]:
    """Return the stores of zero to all totals of a thread."""
    zero = broadcast(const(0, totals.dtype), totals.lanes)
    return [Store(totals, constant(number), zero) for number in range(totals.count)]


def waiting(
    pieces: Sequence[tuple[Index, Value]], memory: Memory, start: Index
) -> tuple[list[Store], list[Store]]:
    """Return the stores of a thread's pieces of a slice to registers, and from there to their
    places in a memory, which begin at `start`."""
    lanes = pieces[0][1].lanes
    held = Memory(f"next_{memory.name}", memory.dtype, len(pieces), "register", lanes)
    fetched = [Store(held, constant(number), moved) for number, (_, moved) in enumerate(pieces)]
    moved = [load(held, constant(number), lanes=lanes) for number in range(len(pieces))]
    kept = [Store(memory, start + at, each) for (at, _), each in zip(pieces, moved, strict=True)]
    return fetched, kept
