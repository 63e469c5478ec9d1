"""Operations that move elements: reshape, permute, expand, pad, shrink, flip, stride, cat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from operator import itemgetter

from ugpu.compiler.expression.algebra import (
    NEVER,
    Index,
    Validity,
    at_least_zero,
    both,
    constant,
    flatten,
    unflatten,
    within,
)
from ugpu.compiler.expression.value import Value, const, gate
from ugpu.compiler.graph.node import Express, Kind, Node, Repeated, Shape, Trace


def moving(places: Callable[[Node, tuple[Index, ...]], tuple[Index, ...]]) -> Express:
    """Return how an operation is expressed whose elements are its source's at other places."""
    return lambda trace, node, at, valid: trace.value(node.sources[0], places(node, at), valid)


def detached(source: Node) -> Node:
    """Return a node with the same elements, through which no gradient flows."""
    made = Node("reshape", source.dtype, source.shape, (source,))
    made.tracked = False
    return made


def _merges(source: Node) -> bool:
    """Return whether a movement of a movement may skip the node between: not if gradients see that
    one as something else, or end there."""
    return source.history is None and source.tracked is source.sources[0].tracked


def reshape(source: Node, shape: Shape) -> Node:
    """Return the same elements, in row-major order, in another shape of the same size."""
    if shape == source.shape:
        return source
    if source.op == "reshape" and _merges(source):
        return reshape(source.sources[0], shape)
    if source.op == "const":
        return Node("const", source.dtype, shape, (), source.arg)
    return Node("reshape", source.dtype, shape, (source,))


def _reshaped(node: Node, at: tuple[Index, ...]) -> tuple[Index, ...]:
    """Axes that stay as they are, or become others together, keep their own indices: those of a pad
    around the node may lie outside, where divisions of the whole position would not cancel."""
    found: list[Index] = []
    for axes, others in _regrouped(node.shape, node.sources[0].shape):
        found += unflatten(flatten(at[axes], node.shape[axes]), node.sources[0].shape[others])
    return tuple(found)


@lru_cache(4096)
def _regrouped(shape: Shape, other: Shape) -> tuple[tuple[slice, slice], ...]:
    """Return the shortest parts of two shapes with equal numbers of elements, pair by pair."""
    if not prod(shape):
        return ((slice(None), slice(None)),)
    pairs, first, second = [], 0, 0
    while first < len(shape) or second < len(other):
        here, there = first + 1, second + 1
        while (count := prod(shape[first:here])) != (more := prod(other[second:there])):
            here, there = here + (count < more), there + (count > more)
        pairs.append((slice(first, here), slice(second, there)))
        first, second = here, there
    return tuple(pairs)


Kind("reshape", moving(_reshaped), moves=True, once=True)


def permute(source: Node, axes: tuple[int, ...]) -> Node:
    """Reorder the axes: axis n of the result is axis `axes[n]` of the source."""
    if axes == tuple(range(len(axes))):
        return source
    if source.op == "permute" and _merges(source):
        return permute(source.sources[0], tuple(source.arg[axis] for axis in axes))
    shape = tuple(source.shape[axis] for axis in axes)
    return Node("permute", source.dtype, shape, (source,), axes)


def _permuted(node: Node, at: tuple[Index, ...]) -> tuple[Index, ...]:
    return tuple(index for _, index in sorted(zip(node.arg, at, strict=True), key=itemgetter(0)))


Kind("permute", moving(_permuted), moves=True, once=True)


def expand(source: Node, shape: Shape) -> Node:
    """Repeat the axes of length 1 that are longer in `shape`."""
    if shape == source.shape:
        return source
    if source.op == "expand" and _merges(source):
        return expand(source.sources[0], shape)
    if source.op == "const":
        return Node("const", source.dtype, shape, (), source.arg)
    return Node("expand", source.dtype, shape, (source,))


def _expanded(node: Node, at: tuple[Index, ...]) -> tuple[Index, ...]:
    sizes = node.sources[0].shape
    return tuple(constant(0) if size == 1 else i for i, size in zip(at, sizes, strict=True))


Kind("expand", moving(_expanded), moves=True, repeats=True)


def pad(source: Node, pairs: Sequence[tuple[int, int]], number: bool | int | float) -> Node:
    """Put `number` before and after each axis, as many times as the axis's pair gives."""
    if not any(before or after for before, after in pairs):
        return source
    shape = tuple(
        size + before + after for size, (before, after) in zip(source.shape, pairs, strict=True)
    )
    return Node("pad", source.dtype, shape, (source,), (tuple(pairs), number))


def _padded(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    pairs, number = node.arg
    source = node.sources[0]
    inside: Validity = ()
    inner = []
    for index, (before, _), size in zip(at, pairs, source.shape, strict=True):
        inner.append(index - before)
        inside = both(inside, within(index, before, before + size))
    outside = const(number, node.dtype)
    if inside == NEVER or source.size == 0:
        return outside
    return gate(inside, trace.value(source, tuple(inner), both(valid, inside)), outside)


Kind("pad", _padded, moves=True, numbers=True)


def shrink(source: Node, box: Sequence[tuple[int, int]]) -> Node:
    """Keep the indices start <= index < stop of each axis."""
    shape = tuple(stop - start for start, stop in box)
    if shape == source.shape:
        return source
    if source.op == "shrink" and _merges(source):
        outer = zip(source.arg, box, strict=True)
        return shrink(
            source.sources[0], [(o[0] + start, o[0] + stop) for o, (start, stop) in outer]
        )
    return Node("shrink", source.dtype, shape, (source,), tuple(box))


def _shrunk(node: Node, at: tuple[Index, ...]) -> tuple[Index, ...]:
    return tuple(index + start for index, (start, _) in zip(at, node.arg, strict=True))


Kind("shrink", moving(_shrunk), moves=True)


def flip(source: Node, axes: Sequence[int]) -> Node:
    """Reverse the order along the axes."""
    if not axes:
        return source
    return Node("flip", source.dtype, source.shape, (source,), tuple(sorted(axes)))


def _flipped(node: Node, at: tuple[Index, ...]) -> tuple[Index, ...]:
    return tuple(
        constant(size - 1) - index if axis in node.arg else index
        for axis, (index, size) in enumerate(zip(at, node.shape, strict=True))
    )


Kind("flip", moving(_flipped), moves=True, once=True)


def stride(source: Node, steps: tuple[int, ...]) -> Node:
    """Keep every `steps[n]`-th index of axis n, from the first."""
    if all(step == 1 for step in steps):
        return source
    shape = tuple(-(-size // step) for size, step in zip(source.shape, steps, strict=True))
    return Node("stride", source.dtype, shape, (source,), steps)


def _strided(node: Node, at: tuple[Index, ...]) -> tuple[Index, ...]:
    return tuple(index * step for index, step in zip(at, node.arg, strict=True))


Kind("stride", moving(_strided), moves=True)


def cat(sources: Sequence[Node], axis: int) -> Node:
    """Join the sources along an axis."""
    shape = list(sources[0].shape)
    shape[axis] = sum(source.shape[axis] for source in sources)
    return Node("cat", sources[0].dtype, tuple(shape), tuple(sources), axis)


def _joined(trace: Trace, node: Node, at: tuple[Index, ...], valid: Validity) -> Value:
    axis = node.arg
    stop = node.shape[axis]
    result: Value | None = None
    for source in reversed(node.sources):
        start = stop - source.shape[axis]
        if start == stop:
            continue
        inner = (*at[:axis], at[axis] - start, *at[axis + 1 :])
        inside = within(at[axis], start, stop)
        piece = trace.value(source, inner, both(valid, inside))
        before_stop = at_least_zero(constant(stop - 1) - at[axis])
        result = piece if result is None else gate(before_stop, piece, result)
        stop = start
    assert result is not None, "cat of nothing"
    return result


Kind("cat", _joined)


def part_of_stored(
    node: Node, is_stored: Callable[[Node], bool] = lambda node: node.storage is not None
) -> tuple[Node, int] | None:
    """Return the stored node of which a node is one run of elements in row-major order, and the
    place of the first; None if it is not."""
    start = 0
    while not is_stored(node):
        if isinstance(node, Repeated) and not _moves_alone(node):
            return None  # and its graph is not built
        if node.op == "shrink":
            first = _run_in(node.arg, node.sources[0].shape)
            if first is None:
                return None
            start += first
        elif node.op != "reshape":
            return None
        node = node.sources[0]
    return node, start


def _moves_alone(node: Repeated) -> bool:
    """Return whether the graph of a recipe's result has movements of a source alone, or exists."""
    recipe, count = node.recipe, len(node.given)
    if not count or recipe is None:
        return True
    place = count + len(recipe.made) - 1
    while place >= count:
        op, _, _, _, places = recipe.made[place - count]
        if op not in ("shrink", "reshape"):
            return False
        place = places[0]
    return True


def _run_in(box: Sequence[tuple[int, int]], shape: Shape) -> int | None:
    """Return the place of a box's first element if its elements lie one after another."""
    start, single = 0, True
    for (low, high), size in zip(box, shape, strict=True):
        if not single and high - low != size:
            return None
        single = single and high - low == 1
        start = start * size + low
    return start
