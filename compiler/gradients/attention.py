"""The rule of attention: scores are computed again, block by block of rows, and never all stored.

With S the scores, P = softmax(S), O = P V and D the sum of g * O of each row: dV = P' g,
dS = P (g V' - D), dQ = scale dS K, dK = scale dS' Q, and a mask that is added gets dS (Dao et al.,
arXiv:2205.14135). Each block of rows is complete: its softmax needs no other block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ugpu.compiler.dtype import bool_, float32, float64
from ugpu.compiler.gradients.table import rule
from ugpu.compiler.gradients.values import Values
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.tracking import mode

Given = Sequence[Values]
Results = Sequence[Values | None]
KEYS = 8192  # most that one kernel takes: it keeps the weights of a block of rows
WIDEST = 512  # its most columns of keys and values
SCORES = 1 << 22  # of a block, at most, if it has more than one row


@rule("attention")
def _attention(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """arg: whether it is causal, and a mask of bools, or None. A fourth source is a mask that is
    added."""
    causal, seen = arg
    query, key, value = xs[:3]
    g = g.cast(query.dtype)  # from which it came; y is not rounded to it
    added = xs[3] if len(xs) > 3 else None
    if _in_one_kernel(g, xs):
        return _together(g, y, xs, causal, seen if added is None else added)
    rows, columns = g.shape[-2], key.shape[-2]
    height = max(1, min(rows, SCORES // max(1, math.prod(g.shape[:-2]) * columns)))
    parts: list[list[Values]] = [[], []]
    sums: list[Any] = [None, None]
    for start in range(0, rows, height):
        stop = min(rows, start + height)
        q, gb, yb = (_rows(each, start, stop) for each in (query, g, y))
        scores = q._matmul(key.transpose(-2, -1), wide=True) * _scale(query)
        visible = _visible(seen, added, causal, start, stop, scores)
        if added is not None:
            scores = scores + _rows(added, start, stop)
        if visible is not None:
            scores = visible.where(scores, -math.inf)
        weights = scores.softmax(-1)
        weights = weights if visible is None else visible.where(weights, 0)
        apart = gb._matmul(value.transpose(-2, -1), wide=True)
        apart = apart - (gb._real() * yb).sum(-1, keepdims=True)
        weights, of_scores = weights.cast(query.dtype), (weights * apart).cast(query.dtype)
        of_scores = of_scores.contiguous()
        parts[0].append(of_scores.matmul(key) * _scale(query))
        parts[1].append(of_scores)
        more = (
            of_scores.transpose(-2, -1).matmul(q) * _scale(query),
            weights.transpose(-2, -1).matmul(gb),
        )
        sums = [
            new if known is None else (known + new).contiguous()
            for known, new in zip(sums, more, strict=True)
        ]
    axis = g.ndim - 2
    of_query, of_mask = (
        part[0] if len(part) == 1 else g._new(graph.cat([each.node for each in part], axis))
        for part in parts
    )
    found = [fitted(of_query, query), fitted(sums[0], key), fitted(sums[1], value)]
    return found if added is None else [*found, fitted(of_mask, added)]


def _in_one_kernel(g: Values, xs: Given) -> bool:
    """Return whether a host computes all gradients in one kernel: not that of a mask, nor what has
    gradients itself, nor float64, and only if there is work for all threads."""
    target = g.device.target
    query, key, value = xs[:3]
    batch = math.prod(g.shape[:-2])
    fits = key.shape[-2] <= KEYS and max(query.shape[-1], value.shape[-1]) <= WIDEST
    some = min(*g.shape, *query.shape, *key.shape, 1) > 0
    alone = len(xs) < 4 or not xs[3].node.tracked
    shared = batch >= max(1, target.compute_units)
    single = all(each.dtype is not float64 for each in (g, *xs))
    return target.abi == "host" and not mode.on and fits and some and alone and shared and single


def _together(g: Values, y: Values, xs: Given, causal: bool, mask: Values | None) -> Results:
    """The same by one kernel. mask: of bools, or floats to add."""
    batch = g.shape[:-2]
    whole = [each.cast(float32).expand((*batch, *each.shape[-2:])).node for each in (*xs[:3], y, g)]
    if mask is not None:
        mask = mask.expand((*batch, g.shape[-2], xs[1].shape[-2]))
        whole.append((mask if mask.dtype is bool_ else mask.cast(float32)).node)
    parts = graph.attention_gradients(whole, causal, _scale(xs[0]))
    found = [fitted(g._new(part), x) for part, x in zip(parts, xs, strict=False)]
    return found if len(xs) < 4 else [*found, None]


def _scale(query: Values) -> float:
    return 1 / math.sqrt(max(1, query.shape[-1]))


def _rows(x: Values, start: int, stop: int) -> Values:
    """Return rows of x; of a mask with one row, or none, that."""
    if x.ndim < 2 or x.shape[-2] == 1 or (start, stop) == (0, x.shape[-2]):
        return x
    box = [(0, size) for size in x.shape]
    box[-2] = (start, stop)
    return x.shrink(box)


def _visible(
    seen: Any, added: Values | None, causal: bool, start: int, stop: int, scores: Values
) -> Any:
    """Return which columns the rows see; None for all."""
    if causal:
        down = scores._counted(stop - start, scores.ndim - 2) + start
        return scores._counted(scores.shape[-1], scores.ndim - 1) <= down
    if seen is not None:
        return _rows(seen, start, stop)
    if added is None:
        return None
    return _rows(added, start, stop)._compare("ne", -math.inf)


def fitted(g: Values, like: Values) -> Values:
    """Return the sum over the axes along which `like` was broadcast."""
    more = g.ndim - like.ndim
    axes = [axis for axis in range(g.ndim)
            if axis < more or (like.shape[axis - more] == 1 and g.shape[axis] != 1)]  # fmt: skip
    return g.sum(axes, keepdims=True).reshape(like.shape) if axes else g
