"""Rules of movement: each is undone, and repeated elements are summed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.gradients.table import rule
from ugpu.compiler.gradients.values import Values
from ugpu.compiler.graph import operations as graph

Given = Sequence[Values]
Results = Sequence[Values | None]


@rule("reshape")
def _reshape(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return (g.reshape(xs[0].shape),)


@rule("permute")
def _permute(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    back = [0] * len(arg)
    for place, axis in enumerate(arg):
        back[axis] = place
    return (g.permute(back),)


@rule("flip")
def _flip(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return (g._new(graph.flip(g.node, arg)),)


@rule("expand")
def _expand(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    sizes = zip(xs[0].shape, y.shape, strict=True)
    axes = [axis for axis, (own, size) in enumerate(sizes) if own != size]
    return (g.sum(axes, keepdims=True),)


@rule("pad")
def _pad(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    pairs, _ = arg
    sizes = zip(pairs, xs[0].shape, strict=True)
    return (g.shrink([(before, before + size) for (before, _), size in sizes]),)


@rule("shrink")
def _shrink(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    sizes = zip(arg, xs[0].shape, strict=True)
    return (g.pad([(start, size - stop) for (start, stop), size in sizes]),)


@rule("stride")
def _stride(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return (spaced(g, arg, xs[0].shape),)


def spaced(g: Values, steps: Sequence[int], shape: Sequence[int]) -> Values:
    """Return an array of `shape` with the elements of g `steps` apart and zeros between."""
    for axis, (step, size) in enumerate(zip(steps, shape, strict=True)):
        if step == 1:
            continue
        count = g.shape[axis]
        pairs = [(0, 0)] * (g.ndim + 1)
        pairs[axis + 1] = (0, step - 1)
        wide = g.unsqueeze(axis + 1).pad(pairs)
        wide = wide.reshape((*g.shape[:axis], count * step, *g.shape[axis + 1 :]))
        more = size - count * step
        whole = [(0, each) for each in wide.shape]
        if more < 0:
            whole[axis] = (0, size)
            g = wide.shrink(whole)
        else:
            g = wide.pad([(0, more if place == axis else 0) for place in range(g.ndim)])
    return g


@rule("cat")
def _cat(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    parts, start = [], 0
    for x in xs:
        box = [(0, size) for size in g.shape]
        box[arg] = (start, start + x.shape[arg])
        start = box[arg][1]
        parts.append(g.shrink(box))
    return parts


@rule("to")
def _to(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """Of a copy from another device. arg: that device, and the copy back."""
    _, back = arg
    return (back(g),)
