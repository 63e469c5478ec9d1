"""Recognise matrix products: sums of products where each factor has its own output range.

    out[batch, rows, columns] =
        sum over depth (and others) of left[batch, rows, depth] * right[batch, depth, columns]

The permutations, broadcasts and reshapes of the source are gone by now: only the ranges that occur
in each factor count. Small products are left to the ordinary reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ugpu.compiler.expression.algebra import Range
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.once import once
from ugpu.compiler.expression.value import Value, indices_of, walk
from ugpu.compiler.pattern.cost import TILED

SMALLEST = 8  # rows and columns below this do not pay for tiles
FEWEST = 2  # minimum of one side, if the other is long
LONGER = 16  # the depth from which on a short side pays
SHORTEST = 4  # a smaller depth does not pay either


@dataclass(frozen=True)
class Contraction:
    """The parts of a matrix product. columns is the faster of the two in the output, or the longer
    if one is short.

    batch: all other output ranges; outer: all other ranges summed over. all_rows, all_columns: the
    output ranges that only the left, or only the right factor depends on; all_depths: the ranges
    summed over that both do.
    """

    reduce: Value
    left: Value
    right: Value
    rows: Range
    columns: Range
    depth: Range
    batch: tuple[Range, ...]
    outer: tuple[Range, ...]
    all_rows: tuple[Range, ...]
    all_columns: tuple[Range, ...]
    all_depths: tuple[Range, ...]


@dataclass(frozen=True)
class Sides:
    """The factors of a sum of products, and the ranges of their sides.

    rows, columns: the output ranges that only the left, or only the right factor depends on; the
    last range of the output is one of the columns, if it is one of either. batch: all other output
    ranges. over: all ranges summed over; depths: those that both factors depend on.
    """

    reduce: Value
    left: Value
    right: Value
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    batch: tuple[Range, ...]
    over: tuple[Range, ...]
    depths: tuple[Range, ...]

    def exchanged(self) -> Sides:
        return replace(self, left=self.right, right=self.left, rows=self.columns, columns=self.rows)


@once
def find_sides(computation: Computation) -> Sides | None:
    """Return the sides of the sum of products inside a computation; None if there is none, or a
    factor has no output range of its own, or both have no range of the sum in common."""
    reduce = computation.reduction
    if reduce is None or reduce.arg[0] != "sum" or reduce.sources[0].op != "mul":
        return None
    left, right = reduce.sources[0].sources
    in_left, in_right = ranges_of(left), ranges_of(right)
    outputs, over = computation.ranges, tuple(reduce.arg[1])
    rows = tuple(r for r in outputs if r in in_left and r not in in_right)
    columns = tuple(r for r in outputs if r in in_right and r not in in_left)
    depths = tuple(r for r in over if r in in_left and r in in_right)
    if not rows or not columns or not depths:
        return None
    batch = tuple(r for r in outputs if r not in rows and r not in columns)
    sides = Sides(reduce, left, right, rows, columns, batch, over, depths)
    swapped = outputs.index(rows[-1]) > outputs.index(columns[-1])
    return sides.exchanged() if swapped else sides


@once
def find_contraction(computation: Computation, joint: bool = False) -> Contraction | None:
    """Return the matrix product inside a computation, or None. joint: several ranges may together
    form a side that is long enough, and one side may be short: then the rows are the short one."""
    sides = find_sides(computation)
    if sides is None:
        return None
    short = joint and min(elements(sides.rows), elements(sides.columns)) < SMALLEST
    if short and elements(sides.rows) > elements(sides.columns):
        sides = sides.exchanged()
    rows, columns = sides.rows[-1], sides.columns[-1]
    depth = max(sides.depths, key=lambda r: r.size)
    every = sides.rows, sides.columns, sides.depths
    lengths = map(elements, every if joint else ([rows], [columns], [depth]))
    leasts = (FEWEST, SMALLEST, LONGER) if short else (SMALLEST, SMALLEST, SHORTEST)
    if any(length < least for length, least in zip(lengths, leasts, strict=True)):
        return None
    batch = tuple(r for r in computation.ranges if r not in (rows, columns))
    outer = tuple(r for r in sides.over if r is not depth)
    return Contraction(
        sides.reduce, sides.left, sides.right, rows, columns, depth, batch, outer, *every
    )


def is_product(reduce: Value, outputs: Sequence[Range]) -> bool:
    """Return whether a reduce is a matrix product worth a specialised kernel."""
    if reduce.arg[0] not in ("sum", TILED) or reduce.sources[0].op != "mul":
        return False
    in_left, in_right = (_walked(factor) for factor in reduce.sources[0].sources)
    left = elements([r for r in outputs if r in in_left and r not in in_right])
    right = elements([r for r in outputs if r in in_right and r not in in_left])
    return min(left, right) >= SMALLEST and any(r in in_left & in_right for r in reduce.arg[1])


def _walked(root: Value) -> frozenset[Range]:
    """Return every range along which a value reads memory or counts. Conditions of a pad do not
    count: all factors inside it have the same ones."""
    own = [node.arg for node in walk(root) if node.op == "index"]
    read = [node.arg.index for node in walk(root) if node.op == "load"]
    return frozenset().union(*(index.ranges() for index in (*own, *read)))


def ranges_of(root: Value) -> frozenset[Range]:
    """Return every range that a value depends on."""
    found: set[Range] = set()
    for index in indices_of(root):
        found |= index.ranges()
    return frozenset(found)
