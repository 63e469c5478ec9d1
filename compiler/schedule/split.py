"""Split reductions to few results into two steps, so that the whole device has work.

before: reduce over n elements into at most FEW results.
after: reduce pieces of about PIECE elements each, then the pieces' results. Elements that do not
fill the pieces evenly are reduced separately and joined at the end.

Rows that keep all threads of a host busy stay whole where a later pass over them gains by it: those
whose largest or smallest element is found, and whose weights, exp(x - largest), are summed.

A matrix product with a long depth and an output too small for the whole device is split along its
depth likewise: the pieces are a batch of products, whose results are added.
"""

from __future__ import annotations

import functools
from math import prod

from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node, Shape

FEW = 64  # results; from this number on there is a group for each
PIECE = 16384  # elements one group reduces
LONG = 4 * PIECE  # below this, one group is faster than two kernels
MOST = 1024  # pieces per result
EVEN = 4  # whole rows for each thread of a host, from which on they end nearly together

SIDE = 64  # approximate side of a product's output that one group computes
SHORTEST = 8  # a side of a product below this is not a matrix (compiler.pattern.contraction)
DEPTH = 2048  # minimum depth of a product that one group multiplies
WORK = 1 << 20  # minimum multiplications of a piece: fewer end before a kernel has started
SHARES = 2  # groups for each part of a device that runs one, so that they end together

_JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "or": "or", "and": "and"}


def reduce(
    op: str, source: Node, axes: tuple[int, ...], units: int = 1, threads: bool = False
) -> Node:
    """Reduce as graph.reduce, in two steps if that pays. units: groups that run at a time. threads:
    whether these are a host's threads."""
    found = decide(source.shape, axes)
    if found is not None and threads and _stays_whole(op, source, axes, units):
        return graph.reduce(op, source, axes)
    if found is None:
        factors = [each for each in source.sources if each.op == "expand"]
        if op == "sum" and source.op == "mul" and len(factors) == 2:
            shapes = [each.sources[0].shape for each in factors]
            found = _decide_product(source.shape, shapes[0], shapes[1], axes, units)
        if found is not None:
            return _in_pieces(op, source, *found, first=True)
        return graph.reduce(op, source, axes)
    used, axis, pieces = found
    size = source.shape[axis]
    even = size // pieces * pieces
    total = _in_pieces(op, _part(source, axis, 0, even), used, axis, pieces)
    if even == size:
        return total
    rest = graph.reduce(op, _part(source, axis, even, size), used)
    return graph.elementwise(_JOIN[op], source.dtype, total, rest)


def is_long(rows: int, length: int) -> bool:
    """Return whether few rows are so long that they are split, unless they must stay whole."""
    return length >= LONG and rows < FEW


def keep_busy(rows: int, units: int) -> bool:
    """Return whether whole rows keep all threads of a host busy."""
    return rows % units == 0 or rows >= EVEN * units


def _stays_whole(op: str, source: Node, axes: tuple[int, ...], units: int) -> bool:
    rows = prod(size for axis, size in enumerate(source.shape) if axis not in axes)
    if not keep_busy(rows, units):
        return False
    if op != "sum" or source.op != "exp":
        return op in ("max", "min")
    below = source.sources[0]
    if below.op != "sub" or below.sources[1].op != "expand":
        return False
    largest = below.sources[1].sources[0]
    return largest.op == "reduce" and largest.arg == ("max", tuple(sorted(axes)))


@functools.lru_cache(1024)
def decide(shape: Shape, axes: tuple[int, ...]) -> tuple[tuple[int, ...], int, int] | None:
    """Return the reduced axes, the axis to cut and the number of pieces; or None."""
    used = tuple(axis for axis in sorted(axes) if shape[axis] != 1)
    length = prod(shape[axis] for axis in used)
    if length < LONG or not is_long(prod(shape) // length, length):
        return None
    axis = max(used, key=lambda each: (min(shape[each], MOST), -each))
    return used, axis, _pieces(shape[axis], min(MOST, length // PIECE))


@functools.lru_cache(1024)
def _decide_product(
    shape: Shape, left: Shape, right: Shape, axes: tuple[int, ...], units: int
) -> tuple[tuple[int, ...], int, int] | None:
    """Decide as `decide`, for the product of two factors that are repeated to `shape`."""
    used = tuple(axis for axis in sorted(axes) if shape[axis] != 1)
    kept = [place for place in range(len(shape)) if place not in axes and shape[place] != 1]
    rows = prod(shape[place] for place in kept if right[place] == 1)
    columns = prod(shape[place] for place in kept if left[place] == 1)
    batch = prod(shape[place] for place in kept if left[place] == right[place])
    length = prod(shape[axis] for axis in used)
    groups = batch * -(-rows // SIDE) * -(-columns // SIDE)
    if min(rows, columns) < SHORTEST or groups >= units or length < 2 * DEPTH:
        return None
    axis = max(used, key=lambda each: shape[each])
    most = min(length // DEPTH, batch * rows * columns * length // WORK)
    pieces = _pieces(shape[axis], max(1, min(most, -(-SHARES * units // groups))))
    return (used, axis, pieces) if pieces > 1 and shape[axis] % pieces == 0 else None


def _pieces(size: int, wanted: int) -> int:
    """Return a number of pieces near `wanted` that divides `size`, or the wanted number."""
    wanted = min(wanted, size)
    for pieces in range(wanted, wanted // 2, -1):
        if size % pieces == 0:
            return pieces
    return wanted


def _part(source: Node, axis: int, start: int, stop: int) -> Node:
    box = [(0, size) for size in source.shape]
    box[axis] = (start, stop)
    return graph.shrink(source, box)


def _in_pieces(
    op: str, source: Node, axes: tuple[int, ...], axis: int, pieces: int, first: bool = False
) -> Node:
    """Reduce in pieces. first: results of a piece are adjacent; otherwise pieces of a result
    are."""
    shape = source.shape
    each = shape[axis] // pieces
    cut = graph.reshape(source, (*shape[:axis], pieces, each, *shape[axis + 1 :]))
    inner = [place + (place >= axis) for place in axes]
    if first:
        order = (axis, *(place for place in range(len(shape) + 1) if place != axis))
        back = tuple(order.index(place) for place in range(len(shape) + 1))
        places = [order.index(place) for place in inner]
        parts = graph.reduce(op, graph.permute(cut, order), places)
        total = graph.permute(graph.reduce(op, parts, (0,)), back)
    else:
        total = graph.reduce(op, graph.reduce(op, cut, inner), (axis,))
    kept = tuple(1 if place in axes else size for place, size in enumerate(shape))
    return graph.reshape(total, kept)
