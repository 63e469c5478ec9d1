"""Rules of reading and writing by indices: gather and scatter are each other's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ugpu.compiler.dtype import int32
from ugpu.compiler.gradients.table import rule
from ugpu.compiler.gradients.values import Values
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node, Shape
from ugpu.compiler.graph.region import Region, Scatter
from ugpu.compiler.graph.tracking import mode

Given = Sequence[Values]
Results = Sequence[Values | None]


@rule("gather")
def _gather(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    axes, checked = arg
    x, *indices = xs
    along = _only_axis(axes, [index.node for index in indices], x.shape)
    if along is not None:
        place = axes.index(along)
        made = _spread(g, indices[place], along, x.shape, checked)
    else:
        ordered = indices[0].ndim
        whole = _whole(x.shape)
        choice = Scatter(whole, axes, ordered if prod(indices[0].shape) > 1 else 0, "add", checked)
        ones = (1,) * (g.ndim - ordered)
        nodes = [index.reshape((*index.shape, *ones)).expand(g.shape).node for index in indices]
        made = _scattered(g._new(graph.full(0, g.dtype, x.shape)), choice, g.node, nodes)
    return (made, *(None for _ in indices))


def _whole(shape: Shape) -> Region:
    return Region(tuple((0, size) for size in shape), (1,) * len(shape), (), shape)


def _scattered(base: Values, choice: Scatter, values: Node, indices: Sequence[Node]) -> Values:
    return base._new(Node("scatter", base.dtype, base.shape, (base.node, values, *indices), choice))


def _only_axis(axes: Sequence[int], indices: Sequence[Node], shape: Shape) -> int | None:
    """Return the axis along which elements are chosen, where all axes are indexed and every other
    index counts along its own axis; None for other indices."""
    if list(axes) != list(range(len(shape))) or len(indices[0].shape) != len(shape):
        return None
    others = [axis for axis, index in enumerate(indices) if not _counts(index, axis)]
    return others[0] if len(others) == 1 else None


def _counts(index: Node, axis: int) -> bool:
    """Return whether an index is 0, 1 ... along one axis, the same along the others."""
    size = index.shape[axis]
    while index.op == "expand":
        index = index.sources[0]
    if any(own != 1 for each, own in enumerate(index.shape) if each != axis):
        return False
    while index.op == "reshape":
        index = index.sources[0]
    return index.op == "iota" and index.shape == (size,)


def _spread(g: Values, index: Values, axis: int, shape: Shape, checked: bool) -> Values:
    """Add g at the indices along an axis, where each element keeps its places on the others."""
    order = (axis, *(each for each in range(len(shape)) if each != axis))
    box = tuple((0, own if each == axis else g.shape[each]) for each, own in enumerate(shape))
    region = Region(box, (1,) * len(shape), (), tuple(stop for _, stop in box))
    choice = Scatter(region, (axis,), 0 if g.shape[axis] == 1 else 1, "add", checked)
    base = g._new(graph.full(0, g.dtype, shape))
    return _scattered(base, choice, g.permute(order).node, [index.permute(order).node])


@rule("assign")
def _assign(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    region: Region = arg
    masks = [mask.node for mask in xs[2:]]
    kept = Node("assign", g.dtype, g.shape, (g.node, *_zeros(g, region.counts), *masks), region)
    given = g._new(_inner(region, g.node))
    if masks:
        given = xs[2].where(given, 0)
    return (g._new(kept), given, *(None for _ in masks))


def _zeros(g: Values, shape: Shape) -> tuple[Node]:
    return (graph.full(0, g.dtype, shape),)


def _inner(region: Region, source: Node) -> Node:
    """Return the elements of a region with as many axes as the array."""
    node = graph.flip(graph.shrink(source, region.box), region.flipped)
    return graph.stride(node, region.steps)


@rule("scatter")
def _scatter(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    choice: Scatter = arg
    base, values, *indices = xs
    nodes = [index.node for index in indices]
    nothing = tuple(None for _ in indices)
    if choice.mode == "add":
        return (g, _read(g, choice, values.shape, indices), *nothing)
    if choice.mode == "set":
        kept = _scattered(g, choice, graph.full(0, g.dtype, values.shape), nodes)
        return (kept, _read(g, choice, values.shape, indices), *nothing)
    if choice.mode == "mul":
        return (*_of_factors(g, y, base, values, choice, indices), *nothing)
    at = _read(y, choice, values.shape, indices)
    chosen, own = values._compare("eq", at), base._compare("eq", y)
    adding = Scatter(choice.region, choice.axes, choice.ordered, "add", choice.checked,
                     choice.masked)  # fmt: skip
    count = _scattered(own.cast(int32), adding, chosen.cast(int32).node, nodes)
    share = g / count.cast(g.dtype)
    theirs = chosen.where(_read(share, choice, values.shape, indices), 0)
    return (own.where(share, 0), theirs, *nothing)


def _of_factors(
    g: Values, y: Values, base: Values, values: Values, choice: Scatter, indices: Given
) -> tuple[Values, Values]:
    """The products of the other factors: see the rule of a product."""
    nodes = [index.node for index in indices]
    adding = Scatter(choice.region, choice.axes, choice.ordered, "add", choice.checked,
                     choice.masked)  # fmt: skip
    zero, own = values._compare("eq", 0), base._compare("eq", 0)
    count = _scattered(own.cast(int32), adding, zero.cast(int32).node, nodes)
    rest = _scattered(own.where(1, base), choice, zero.where(1, values).node, nodes)
    others = g * rest
    if mode.on:
        total = _scattered(own.where(base, 0), adding, zero.where(values, 0).node, nodes)
        parts = (g * y, others, others * total, count)
        read = [_read(each, choice, values.shape, indices) for each in parts]
        return _again(base, own, *parts), _again(values, zero, *read)
    alone = count._compare("eq", 1)
    none = count._compare("eq", 0)

    def share(others: Values, x: Values, zero: Values, none: Values, alone: Values) -> Values:
        return none.where(others / zero.where(1, x), (alone & zero).where(others, 0))

    read = [_read(each, choice, values.shape, indices) for each in (others, none, alone)]
    return share(others, base, own, none, alone), share(read[0], values, zero, read[1], read[2])


def _again(
    x: Values, zero: Values, whole: Values, others: Values, times: Values, count: Values
) -> Values:
    """The products of the others, to be derived once more: of two zeros, each is the factor of the
    other's. whole: g times the product; others: without zeros; times: others times the sum of
    zeros."""
    one, two = count._compare("eq", 1), count._compare("eq", 2)
    at = one.where(others, two.where(times - others * x, 0))
    return zero.where(at, whole / zero.where(1, x))


def _read(source: Values, choice: Scatter, shape: Shape, indices: Given) -> Values:
    """Return the elements of `source` at the places that a scatter writes, in the shape of its
    values; zero where it writes nothing."""
    region = source._new(_inner(choice.region, source.node))
    mask = indices[-1] if choice.masked else None
    given = list(indices[:-1] if choice.masked else indices)
    ordered = len(shape) - (region.ndim - len(choice.axes))
    places: list[Node] = []
    rest = ordered
    for axis in range(region.ndim):
        if axis in choice.axes:
            places.append(given[choice.axes.index(axis)].node)
            continue
        counted = tuple(shape[rest] if each == rest else 1 for each in range(len(shape)))
        places.append(graph.expand(graph.reshape(graph.iota(shape[rest]), counted), shape))
        rest += 1
    axes = tuple(range(region.ndim))
    made = source._new(graph.gather(region.node, axes, places, choice.checked))
    return made if mask is None else mask.where(made, source._new(graph.full(
        0, source.dtype, ())))  # fmt: skip
