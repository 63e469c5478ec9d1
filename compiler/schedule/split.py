"""Reductions to few results, in two steps, so that the whole device has work.

before: reduce over n elements into at most FEW results.
after: reduce pieces of about PIECE elements each, then the pieces' results. What does not fill the
pieces evenly is reduced apart and joined at the end.
"""

from __future__ import annotations

import functools
from math import prod

from compiler.graph import node as graph
from compiler.graph.node import Node, Shape

FEW = 64  # results; from here on there is a group for each
PIECE = 16384  # elements one group reduces
LONG = 4 * PIECE  # below this, one group is faster than two kernels
MOST = 1024  # pieces per result

_JOIN = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "or": "or", "and": "and"}


def reduce(op: str, source: Node, axes: tuple[int, ...]) -> Node:
    """graph.reduce, in two steps where that pays."""
    found = _decide(source.shape, axes)
    if found is None:
        return graph.reduce(op, source, axes)
    used, axis, pieces = found
    size = source.shape[axis]
    even = size // pieces * pieces
    total = _in_pieces(op, _part(source, axis, 0, even), used, axis, pieces)
    if even == size:
        return total
    rest = graph.reduce(op, _part(source, axis, even, size), used)
    return graph.elementwise(_JOIN[op], source.dtype, total, rest)


@functools.lru_cache(1024)
def _decide(shape: Shape, axes: tuple[int, ...]) -> tuple[tuple[int, ...], int, int] | None:
    """The axes that are reduced, the one that is cut and into how many pieces; or None."""
    used = tuple(axis for axis in sorted(axes) if shape[axis] != 1)
    length = prod(shape[axis] for axis in used)
    if length < LONG or prod(shape) // length >= FEW:
        return None
    axis = max(used, key=lambda each: (min(shape[each], MOST), -each))
    return used, axis, _pieces(shape[axis], min(MOST, length // PIECE))


def _pieces(size: int, wanted: int) -> int:
    """A number of pieces near `wanted` that divides `size`, or the wanted number."""
    wanted = min(wanted, size)
    for pieces in range(wanted, wanted // 2, -1):
        if size % pieces == 0:
            return pieces
    return wanted


def _part(source: Node, axis: int, start: int, stop: int) -> Node:
    box = [(0, size) for size in source.shape]
    box[axis] = (start, stop)
    return graph.shrink(source, box)


def _in_pieces(op: str, source: Node, axes: tuple[int, ...], axis: int, pieces: int) -> Node:
    shape = source.shape
    each = shape[axis] // pieces
    cut = graph.reshape(source, (*shape[:axis], pieces, each, *shape[axis + 1 :]))
    inner = [place + (place >= axis) for place in axes]
    parts = graph.reduce(op, cut, inner)
    total = graph.reduce(op, parts, (axis,))
    kept = tuple(1 if place in axes else size for place, size in enumerate(shape))
    return graph.reshape(total, kept)
