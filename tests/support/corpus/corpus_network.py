"""Cases of the operation corpus that networks are made of: equations, images of other sizes,
losses, pieces of many lengths, long rows in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.support.corpus.corpus_case import Array, Case, in_float64, numbers
from ugpu.compiler import Tensor

Cases = list[tuple[str, tuple[Array, ...], Callable[..., Any], Callable[..., Any]]]


def network() -> Iterator[Case]:
    """All of them."""
    a, b = numbers("ein_a", (3, 18, 5, 8), "float32"), numbers("ein_b", (3, 11, 5, 8), "float32")
    square, line = numbers("ein_s", (4, 7, 7), "float32"), numbers("ein_l", (7,), "float32")
    for equation, given in (
        ("bqhd,bkhd->bhqk", (a, b)),
        ("bii,i->bi", (square, line)),
        ("bij,i,j->b", (square, line, line)),
        ("...ij->...ji", (square,)),
    ):
        yield Case(f"einsum_{equation}", given, _einsum(equation), in_float64(_numpy(equation)),
                   1e-4, 1e-4)  # fmt: skip
    image, weight = numbers("up", (2, 3, 6, 5), "float32"), numbers("upw", (3, 4, 3, 2), "float32")
    small = numbers("resize", (1, 2, 5, 9), "float32")
    rows = numbers("rows", (9, 13), "float32")
    labels = np.arange(9, dtype=np.int32) * 5 % 13
    labels[4] = -100
    chances = 1 / (1 + np.exp(-rows))
    truth = (numbers("truth", (9, 13), "float32") > 0).astype(np.float32)
    ragged = [numbers(f"ragged{i}", (3, 2 + i * i % 11), "float32") for i in range(12)]
    cases: Cases = [
        ("conv_transpose2d", (image, weight), lambda x, w: x.conv_transpose2d(w, stride=2,
         padding=1), _spread),
        ("interpolate_nearest", (small,), lambda t: t.interpolate((8, 4)),
         lambda x: x[:, :, np.arange(8) * 5 // 8][..., np.arange(4) * 9 // 4]),
        ("interpolate_bilinear", (small,), lambda t: t.interpolate((8, 4), mode="bilinear"),
         lambda x: _linear(_linear(x, 2, 8, False), 3, 4, False)),
        ("interpolate_corners", (small,),
         lambda t: t.interpolate((8, 4), mode="bilinear", align_corners=True),
         lambda x: _linear(_linear(x, 2, 8, True), 3, 4, True)),
        ("cross_entropy", (rows, labels), lambda x, y: x.cross_entropy(y, label_smoothing=0.1),
         lambda x, y: _cross_entropy(x, y, 0.1)),
        ("nll_loss", (rows, labels), lambda x, y: x.log_softmax(1).nll_loss(y),
         lambda x, y: _cross_entropy(x, y, 0)),
        ("cross_entropy_chances", (rows, chances), lambda x, y: x.cross_entropy(y),
         lambda x, y: -(_logs(x) * y).sum(1).mean()),
        ("binary_cross_entropy", (chances, truth),
         lambda p, t: p.binary_cross_entropy(t, reduction="none"),
         lambda p, t: -(t * np.log(p) + (1 - t) * np.log(1 - p))),
        ("binary_cross_entropy_with_logits", (rows, truth),
         lambda x, t: x.binary_cross_entropy_with_logits(t),
         lambda x, t: (t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)).mean()),
        ("mse_loss", (rows, truth), lambda x, t: x.mse_loss(t), lambda x, t: ((x - t) ** 2).mean()),
    ]  # fmt: skip
    for name, inputs, ours, theirs in cases:
        yield Case(name, inputs, ours, in_float64(theirs), 2e-5, 2e-5)
    long = numbers("long_row", (8192,), "int8", -100, 100)
    yield Case("argsort_of_many", (long,), lambda t: t.argsort(),
               lambda a: np.argsort(a, kind="stable"))  # fmt: skip
    yield Case(
        "cat_of_many_lengths",
        tuple(ragged),
        lambda *t: Tensor.cat(t, 1),
        lambda *x: np.concatenate(x, 1),
    )


def _einsum(equation: str) -> Callable[..., Any]:
    return lambda *tensors: Tensor.einsum(equation, *tensors) + 0


def _numpy(equation: str) -> Callable[..., Any]:
    return lambda *arrays: np.einsum(equation, *arrays)


def _spread(image: Array, weight: Array) -> Array:
    """A transposed convolution of stride 2, one element cut off at each side."""
    result = np.zeros((2, 4, 13, 10))
    for y, x in np.ndindex(6, 5):
        added = np.einsum("bc,cohw->bohw", image[:, :, y, x], weight)
        result[:, :, 2 * y : 2 * y + 3, 2 * x : 2 * x + 2] += added
    return result[:, :, 1:-1, 1:-1]


def _linear(array: Array, axis: int, count: int, corners: bool) -> Array:
    have = array.shape[axis]
    places = np.arange(count) * (have - 1) / (count - 1)
    if not corners:
        places = np.clip((np.arange(count) + 0.5) * have / count - 0.5, 0, have - 1)
    return np.apply_along_axis(lambda row: np.interp(places, np.arange(have), row), axis, array)


def _logs(logits: Array) -> Array:
    return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def _cross_entropy(logits: Array, labels: Array, smoothing: float) -> Any:
    logs, counted = _logs(logits), labels >= 0
    hit = -logs[np.arange(len(labels)), np.maximum(labels, 0)]
    loss = hit * (1 - smoothing) - logs.mean(1) * smoothing
    return loss[counted].mean()
