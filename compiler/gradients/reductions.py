"""Rules of reductions, running totals and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ugpu.compiler.dtype import int32
from ugpu.compiler.gradients.table import rule
from ugpu.compiler.gradients.values import Values
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.tracking import mode
from ugpu.compiler.pattern.cost import TILED

Given = Sequence[Values]
Results = Sequence[Values | None]
OPPOSITE = {"": "", "forward": "back", "back": "forward"}  # kinds of real Fourier transforms


@rule("reduce")
def _reduce(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    operation, axes = arg
    (x,) = xs
    if operation in ("sum", TILED):
        return (g.expand(x.shape),)
    if operation == "prod":
        return (_of_product(g, x, axes),)
    chosen = x._compare("eq", y.expand(x.shape))
    count = chosen.cast(int32).sum(axes, keepdims=True).cast(g.dtype)
    return (chosen.where((g / count).expand(x.shape), 0),)


def _of_product(g: Values, x: Values, axes: Sequence[int]) -> Values:
    """The products of the others: with one zero only its own is not zero, with more none is."""
    if mode.on:
        return g * _others(x, axes)
    zero = x._compare("eq", 0)
    rest = zero.where(1, x)
    others = g * rest.prod(axes, keepdims=True)
    count = zero.cast(int32).sum(axes, keepdims=True)
    alone = (zero & count._compare("eq", 1)).where(others, 0)
    return count._compare("eq", 0).where(others / rest, alone)


def _others(x: Values, axes: Sequence[int]) -> Values:
    """The products of the others without a quotient, which a derivative at zeros needs: of those in
    front times of those behind."""
    order = [axis for axis in range(x.ndim) if axis not in axes] + list(axes)
    ordered = x.permute(order)
    kept = ordered.shape[: x.ndim - len(axes)]
    flat = ordered.reshape((*kept, math.prod(ordered.shape[len(kept) :])))
    last = flat.ndim - 1
    behind = _moved(flat.flip(last).cumprod(last), last, 1, 1).flip(last)
    others = (_moved(flat.cumprod(last), last, 1, 1) * behind).reshape(ordered.shape)
    return others.permute([order.index(axis) for axis in range(x.ndim)])


def _moved(x: Values, axis: int, places: int, value: int) -> Values:
    """The elements some places further along an axis (before, if negative), filled by `value`."""
    size, away = x.shape[axis], min(abs(places), x.shape[axis])
    pairs = [(0, 0)] * x.ndim
    pairs[axis] = (away, 0) if places > 0 else (0, away)
    start = 0 if places > 0 else away
    return x.narrow(axis, start, size - away).pad(pairs, value)


@rule("first extreme")
def _first_extreme(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """Of a maximum over the last axes: all to the first of equals, in row-major order."""
    (x,) = xs
    count = math.prod(x.shape[y.ndim :])
    flat = x.reshape((*y.shape, count))
    place = flat.argmax(-1, keepdims=True)
    chosen = flat._counted(count, flat.ndim - 1)._compare("eq", place)
    return (chosen.where(g.unsqueeze(-1), 0).reshape(x.shape),)


def _backwards(values: Values, axis: int, total: Callable[[Values, int], Values]) -> Values:
    return total(values.flip(axis), axis).flip(axis)


def _sums(values: Values, axis: int) -> Values:
    return values.cumsum(axis)


@rule("cumsum")
def _cumsum(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    return (_backwards(g, arg, _sums),)


@rule("cumprod")
def _cumprod(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    (x,) = xs
    if mode.on:
        return (_moved(x.cumprod(arg), arg, 1, 1) * _recurrence(g, x, arg),)
    zero = x._compare("eq", 0)
    met = zero.cast(int32).cumsum(arg)
    first = zero & met._compare("eq", 1)
    before = _backwards(g * y, arg, _sums) / zero.where(1, x)
    without = first.where(1, x).cumprod(arg)
    at = _backwards(g * without, arg, _sums)
    return (met._compare("eq", 0).where(before, first.where(at, 0)),)


def _recurrence(g: Values, x: Values, axis: int) -> Values:
    """s[i] = g[i] + x[i + 1] * s[i + 1], without a quotient, which a derivative at zeros needs:
    each step joins twice as many elements (W. Hillis, G. Steele, 1986)."""
    sums, factors, reach = g, _moved(x, axis, -1, 0), 1
    while reach < x.shape[axis]:
        sums = (sums + factors * _moved(sums, axis, -reach, 0)).contiguous()  # each is used twice
        factors = (factors * _moved(factors, axis, -reach, 0)).contiguous()
        reach *= 2
    return sums


@rule("cummax", "cummin")
def _cumextreme(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """To the latest element that is the extreme so far."""
    (x,) = xs
    return (g._filled(0).scatter_add(arg, x._places_so_far(y, arg), g),)


@rule("fourier")
def _fourier(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """Its transpose is such a transform again, of the other sign. Of real signals, the inverse
    counts each element twice but those at the ends."""
    signals = replace(arg, sign=-arg.sign, real=OPPOSITE[arg.real])
    if arg.real == "forward":
        g = g * _weights(g, arg.size, 0.5)
    found = g._new(graph.fourier(g.node, xs[1].node, signals))
    if arg.real == "back":
        found = found * _weights(found, arg.size, 2.0)
    return found, None


def _weights(near: Values, size: int, inside: float) -> Values:
    place = near._counted(size + 1, 1)
    ends = place._compare("eq", 0) | place._compare("eq", size)
    return ends.where(1.0, inside).cast(near.dtype)
