"""Rules of convolutions and windows: products and sums of the forward pass's kind, no scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.gradients.table import rule
from ugpu.compiler.gradients.values import Values

Given = Sequence[Values]
Results = Sequence[Values | None]
Pair = tuple[int, int]


@rule("conv2d")
def _conv2d(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    image, weight = xs
    stride, padding, dilation, groups = arg
    return (
        of_image(g, weight, image.shape, stride, padding, dilation, groups),
        of_weight(g, image, weight.shape, stride, padding, dilation, groups),
    )


@rule("conv_transpose2d")
def _conv_transpose2d(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    image, weight = xs
    stride, padding, dilation, groups = arg
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    wide = [(0, size) for size in image.shape[2:]]
    found = g.conv2d(weight, **options, groups=groups)
    found = found.shrink([(0, size) for size in found.shape[:2]] + wide)
    return found, of_weight(image, g, weight.shape, stride, padding, dilation, groups)


def of_image(
    g: Values, weight: Values, shape: Sequence[int], stride: Pair, padding: Pair, dilation: Pair,
    groups: int,
) -> Values:  # fmt: skip
    """Return the gradient of an image: for a stride of 1 a convolution with the reversed kernel,
    otherwise a transposed convolution."""
    out, each, *window = weight.shape
    around = [
        gap * (length - 1) - pad for gap, length, pad in zip(dilation, window, padding, strict=True)
    ]
    if stride == (1, 1) and min(around) >= 0:
        turned = weight.reshape((groups, out // groups, each, *window)).flip((3, 4))
        turned = turned.transpose(1, 2).reshape((groups * each, out // groups, *window))
        return g.conv2d(turned, padding=tuple(around), dilation=dilation, groups=groups)
    more = [
        size - ((count - 1) * step + gap * (length - 1) + 1 - 2 * pad)
        for size, count, step, gap, length, pad in zip(
            shape[2:], g.shape[2:], stride, dilation, window, padding, strict=True
        )
    ]
    return g.conv_transpose2d(
        weight, stride=stride, padding=padding, output_padding=tuple(more), groups=groups,
        dilation=dilation,
    )  # fmt: skip


def of_weight(
    g: Values, image: Values, shape: Sequence[int], stride: Pair, padding: Pair, dilation: Pair,
    groups: int,
) -> Values:  # fmt: skip
    """Return the gradient of a weight: products of the image's windows with g, summed over places
    and images."""
    out, each, height, width = shape
    windows = image._new(image._windows("conv2d", (height, width), stride, padding, dilation, 0))
    batch, _, rows, columns = windows.shape[:4]
    rows, columns = g.shape[2:]
    box = [(0, size) for size in windows.shape]
    box[2:4] = [(0, rows), (0, columns)]
    split = windows.shrink(box).reshape((batch, groups, each, rows, columns, height, width))
    cotangent = g.reshape((batch, groups, out // groups, rows, columns))
    made = type(g).einsum("bgcyxij,bgoyx->gocij", split, cotangent)
    return made.reshape((out, each, height, width))


@rule("windows")
def _windows(g: Values, y: Values, xs: Given, arg: Any) -> Results:
    """arg: strides and dilations. The windows' gradients are summed where they overlap."""
    steps, gaps = arg
    (x,) = xs
    batch, channels, rows, columns, height, width = g.shape
    taps = g.permute((0, 1, 4, 5, 2, 3)).reshape((batch * channels, height, width, rows, columns))
    placed = taps._placed(x.shape[2:], steps, (0, 0), gaps)
    return (placed.reshape(x.shape),)
