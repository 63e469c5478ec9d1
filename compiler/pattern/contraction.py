"""Recognise matrix products: sums of products where each factor has its own output range.

    out[batch, rows, columns] =
        sum over depth (and others) of left[batch, rows, depth] * right[batch, depth, columns]

The permutations, broadcasts and reshapes of the source are gone by now: only the ranges that occur
in each factor count. Small products are left to the ordinary reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@once
def find_contraction(computation: Computation, joint: bool = False) -> Contraction | None:
    """Return the matrix product inside a computation, or None. joint: several ranges may together
    form a side that is long enough, and one side may be short: then the rows are the short one."""
    reduce = computation.reduction
    if reduce is None or reduce.arg[0] != "sum" or reduce.sources[0].op != "mul":
        return None
    left, right = reduce.sources[0].sources
    in_left, in_right = ranges_of(left), ranges_of(right)
    outputs = computation.ranges
    left_only = [r for r in outputs if r in in_left and r not in in_right]
    right_only = [r for r in outputs if r in in_right and r not in in_left]
    depths = [r for r in reduce.arg[1] if r in in_left and r in in_right]
    if not left_only or not right_only or not depths:
        return None
    short = joint and min(elements(left_only), elements(right_only)) < SMALLEST
    swapped = outputs.index(left_only[-1]) > outputs.index(right_only[-1])
    if short:
        swapped = elements(left_only) > elements(right_only)
    if swapped:
        left, right, left_only, right_only = right, left, right_only, left_only
    rows, columns = left_only[-1], right_only[-1]
    depth = max(depths, key=lambda r: r.size)
    sides = [left_only, right_only, depths] if joint else [[rows], [columns], [depth]]
    leasts = (FEWEST, SMALLEST, LONGER) if short else (SMALLEST, SMALLEST, SHORTEST)
    if any(elements(side) < least for side, least in zip(sides, leasts, strict=True)):
        return None
    batch = tuple(r for r in outputs if r not in (rows, columns))
    outer = tuple(r for r in reduce.arg[1] if r is not depth)
    every = tuple(left_only), tuple(right_only), tuple(depths)
    return Contraction(reduce, left, right, rows, columns, depth, batch, outer, *every)


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
