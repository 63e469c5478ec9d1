"""Convolutions, pooling, normalisation."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.operators.shapes import ints
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument, NotSupported

Pairs = list[tuple[int, int]]


def padding(
    size: tuple[int, ...], window: list[int], strides: list[int], dilations: list[int],
    auto_pad: str, pads: list[int] | None,
) -> Pairs:  # fmt: skip
    """Return (before, after) for each axis, as the attributes give them."""
    axes = len(size)
    if auto_pad in ("NOTSET", "") and pads is not None:
        return list(zip(pads[:axes], pads[axes:], strict=True))
    if auto_pad in ("NOTSET", "", "VALID"):
        return [(0, 0)] * axes
    pairs = []
    for n in range(axes):
        count = -(-size[n] // strides[n])
        total = max(0, (count - 1) * strides[n] + (window[n] - 1) * dilations[n] + 1 - size[n])
        less = total // 2
        pairs.append((less, total - less) if auto_pad == "SAME_UPPER" else (total - less, less))
    return pairs


def _convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, strides: list[int], pairs: Pairs,
    dilations: list[int], group: int,
) -> Tensor:  # fmt: skip
    axes = len(pairs)
    around: tuple[int, ...] = tuple(before for before, _ in pairs)
    if any(before != after for before, after in pairs):
        x = x.pad([(0, 0), (0, 0), *pairs]).contiguous()
        around = (0,) * axes
    if axes == 1:
        return x.conv1d(weight, bias, stride=strides[0], padding=around[0],
                        dilation=dilations[0], groups=group)  # fmt: skip
    options: dict[str, Any] = {
        "stride": tuple(strides), "padding": around, "dilation": tuple(dilations), "groups": group,
    }  # fmt: skip
    if axes == 2:
        return x.conv2d(weight, bias, **options)
    if axes == 3:
        return x.conv3d(weight, bias, **options)
    raise NotSupported(f"ONNX operator Conv: {axes} axes")


@operator("Conv")
def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    axes = x.ndim - 2
    steps, gaps = strides or [1] * axes, dilations or [1] * axes
    pairs = padding(x.shape[2:], list(weight.shape[2:]), steps, gaps, auto_pad, pads)
    return _convolved(x, weight, bias, steps, pairs, gaps, group)


def _from_zero(x: Tensor, zero: Tensor | None, channels: bool = False) -> Tensor:
    wide = x.cast("int32")
    if zero is None:
        return wide
    around = zero.cast("int32")
    if channels and around.numel() > 1:
        around = around.reshape([-1] + [1] * (x.ndim - 1))
    return wide - (around if around.numel() > 1 else around.reshape(()))


@operator("ConvInteger")
def conv_integer(
    x: Tensor, weight: Tensor, zero_x: Tensor | None = None, zero_w: Tensor | None = None,
    *, auto_pad: str = "NOTSET", dilations: list[int] | None = None, group: int = 1,
    kernel_shape: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    result: Tensor = conv(
        _from_zero(x, zero_x), _from_zero(weight, zero_w, True), auto_pad=auto_pad,
        dilations=dilations, group=group, pads=pads, strides=strides,
    )  # fmt: skip
    return result


@operator("QLinearConv")
def q_linear_conv(
    x: Tensor, scale_x: Tensor, zero_x: Tensor, weight: Tensor, scale_w: Tensor, zero_w: Tensor,
    scale: Tensor, zero: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    total = conv(
        _from_zero(x, zero_x), _from_zero(weight, zero_w, True), bias, auto_pad=auto_pad,
        dilations=dilations, group=group, pads=pads, strides=strides,
    )  # fmt: skip
    factor = (scale_x.float() * scale_w.float() / scale.float()).reshape(-1)
    factor = factor.reshape([-1] + [1] * (x.ndim - 2)) if factor.numel() > 1 else factor.reshape(())
    steps = (total.float() * factor).round() + zero.float().reshape(())
    low, high = dtypes.lowest(zero.dtype), dtypes.highest(zero.dtype)
    result: Tensor = steps.clamp(float(low), float(high)).cast(zero.dtype)
    return result


@operator("ConvTranspose")
def conv_transpose(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: list[int] | None = None, group: int = 1, kernel_shape: list[int] | None = None,
    output_padding: list[int] | None = None, output_shape: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    axes = x.ndim - 2
    steps, gaps = strides or [1] * axes, dilations or [1] * axes
    more = output_padding or [0] * axes
    methods = (Tensor.conv_transpose1d, Tensor.conv_transpose2d, Tensor.conv_transpose3d)
    if not 1 <= axes <= 3:
        raise NotSupported(f"ONNX operator ConvTranspose: {axes} axes")
    step: Any = steps[0] if axes == 1 else tuple(steps)
    gap: Any = gaps[0] if axes == 1 else tuple(gaps)
    method: Any = methods[axes - 1]
    full = method(x, weight, bias, stride=step, dilation=gap, groups=group)
    pairs = list(zip(pads[:axes], pads[axes:], strict=True)) if pads else [(0, 0)] * axes
    if output_shape or auto_pad.startswith("SAME"):
        wanted = output_shape[-axes:] if output_shape else [
            size * s for size, s in zip(x.shape[2:], steps, strict=True)
        ]  # fmt: skip
        pairs = []
        for n in range(axes):
            total = max(0, full.shape[n + 2] + more[n] - wanted[n])
            less = total // 2
            pairs.append((less, total - less) if auto_pad != "SAME_LOWER" else (total - less, less))
            if total == 0 and wanted[n] > full.shape[n + 2]:
                more = [*more[:n], wanted[n] - full.shape[n + 2], *more[n + 1 :]]
    result = full
    if any(more):
        added = full.pad([(0, 0), (0, 0), *((0, m) for m in more)])
        result = added if bias is None else _biased_edges(added, full, bias)
    box = [(0, result.shape[0]), (0, result.shape[1])]
    box += [(a, size - b) for (a, b), size in zip(pairs, result.shape[2:], strict=True)]
    cut: Tensor = result.shrink(box)
    return cut


def _biased_edges(added: Tensor, full: Tensor, bias: Tensor) -> Tensor:
    """Return the padded result with the bias in the padding too."""
    ones = Tensor.ones(full.shape, device=full.device)
    pairs = [(0, a - f) for a, f in zip(added.shape, full.shape, strict=True)]
    outside: Any = ones.pad(pairs) == 0
    result: Tensor = outside.where(bias.reshape([1, -1] + [1] * (full.ndim - 2)), added)
    return result


# ---- pooling -------------------------------------------------------------------------------------


@operator("MaxPool")
def max_pool(
    x: Tensor, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, pads: list[int] | None = None, storage_order: int = 0,
    strides: list[int] | None = None, outputs: int,
) -> Any:  # fmt: skip
    axes = len(kernel_shape)
    steps, gaps = strides or [1] * axes, dilations or [1] * axes
    pairs = padding(x.shape[2:], kernel_shape, steps, gaps, auto_pad, pads)
    found = x._maxima("MaxPool", kernel_shape, steps, pairs, gaps, bool(ceil_mode), outputs > 1)
    if outputs < 2:
        return found
    maxima, place = found
    size = x.shape[2:]
    if storage_order:  # columns first
        moved, rest = place * 0, place
        for n in reversed(range(axes)):
            moved = moved + rest % size[n] * prod(size[:n])
            rest = rest // size[n]
        place = moved
    channel = Tensor.arange(x.shape[0] * x.shape[1], device=x.device)
    channel = channel.reshape([x.shape[0], x.shape[1]] + [1] * axes)
    return maxima, place + channel * prod(size)


@operator("AveragePool")
def average_pool(
    x: Tensor, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: list[int] | None = None, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    axes = len(kernel_shape)
    steps, gaps = strides or [1] * axes, dilations or [1] * axes
    pairs = padding(x.shape[2:], kernel_shape, steps, gaps, auto_pad, pads)
    return x._means(
        "AveragePool", kernel_shape, steps, pairs, gaps, bool(ceil_mode), bool(count_include_pad)
    )


@operator("LpPool")
def lp_pool(
    x: Tensor, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: list[int] | None = None, p: int = 2, pads: list[int] | None = None,
    strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    axes = len(kernel_shape)
    steps, gaps = strides or [1] * axes, dilations or [1] * axes
    pairs = padding(x.shape[2:], kernel_shape, steps, gaps, auto_pad, pads)
    powers = x.abs().pow(p)
    windows = powers._over("LpPool", kernel_shape, steps, pairs, gaps, 0, bool(ceil_mode))
    return windows.sum(tuple(range(x.ndim, windows.ndim))).pow(1 / p)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(_spatial(x), True)


@operator("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.max(_spatial(x), True)


@operator("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return x.abs().pow(p).sum(_spatial(x), True).pow(1 / p)


@operator("MaxUnpool", host=(2,))
def max_unpool(
    x: Tensor, index: Tensor, shape: Any = None, *, kernel_shape: list[int],
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    axes = len(kernel_shape)
    steps, around = strides or [1] * axes, pads or [0] * 2 * axes
    natural = [
        (x.shape[n + 2] - 1) * steps[n] - around[n] - around[n + axes] + kernel_shape[n]
        for n in range(axes)
    ]
    inferred = [x.shape[0], x.shape[1], *natural]
    flat = Tensor.zeros(prod(inferred), device=x.device, dtype=x.dtype)
    placed = flat.scatter(0, index.reshape(-1), x.reshape(-1)).reshape(inferred)
    if shape is None or ints(shape) == inferred:
        return placed
    return placed.pad([(0, w - have) for w, have in zip(ints(shape), inferred, strict=True)])


# ---- normalisation -------------------------------------------------------------------------------


def _channels(x: Tensor, rank: int) -> Tensor:
    return x.reshape([1, -1] + [1] * (rank - 2)) if rank > 1 else x


@operator("BatchNormalization")
def batch_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5,
    momentum: float = 0.9, training_mode: int = 0, spatial: int = 1,
) -> Any:  # fmt: skip
    if training_mode:
        axes = (0, *range(2, x.ndim))
        own_mean, own_var = x.float().mean(axes), x.float().var(axes, correction=0)
        kept = mean * momentum + own_mean.cast(mean.dtype) * (1 - momentum)
        varied = var * momentum + own_var.cast(var.dtype) * (1 - momentum)
        mean, var = own_mean, own_var
    factor = scale.float() * (var.float() + epsilon).rsqrt()
    offset = bias.float() - mean.float() * factor
    y = (x.float() * _channels(factor, x.ndim) + _channels(offset, x.ndim)).cast(x.dtype)
    return (y, kept, varied) if training_mode else y


@operator("LayerNormalization")
def layer_normalization(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1,
    epsilon: float = 1e-5, stash_type: int = 1, outputs: int,
) -> Any:  # fmt: skip
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.float()
    mean = wide.mean(axes, True)
    apart = wide - mean
    inverse = (apart.square().mean(axes, True) + epsilon).rsqrt()
    y = (apart * inverse).cast(x.dtype) * scale
    y = y if bias is None else y + bias
    return (y, mean, inverse)[:outputs]


@operator("RMSNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.float()
    root = (wide.square().mean(axes, True) + epsilon).rsqrt()
    return ((wide * root).cast(x.dtype) * scale).cast(scale.dtype)


@operator("InstanceNormalization")
def instance_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5
) -> Tensor:
    y = x.layernorm(_spatial(x), epsilon)
    return y * _channels(scale, x.ndim) + _channels(bias, x.ndim)


@operator("GroupNormalization")
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5,
    stash_type: int = 1, opset: int,
) -> Tensor:  # fmt: skip
    """Scale and bias are per channel; before opset 21 per group."""
    grouped = x.reshape(x.shape[0], num_groups, -1)
    if opset < 21:
        y = grouped.layernorm(-1, epsilon) * scale.reshape(1, -1, 1) + bias.reshape(1, -1, 1)
        return y.reshape(x.shape)
    y = grouped.layernorm(-1, epsilon).reshape(x.shape)
    return y * _channels(scale, x.ndim) + _channels(bias, x.ndim)


@operator("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    length = x.abs().sum(axis, True) if p == 1 else x.square().sum(axis, True).sqrt()
    zero: Any = length == 0
    result: Tensor = zero.where(0, x / length).cast(x.dtype)
    return result


@operator("LRN")
def lrn(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    before = (size - 1) // 2
    squares = x.square().pad([(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
    total: Tensor = squares[:, : x.shape[1]]
    for n in range(1, size):
        total = total + squares[:, n : n + x.shape[1]]
    return x / (total * (alpha / size) + bias).pow(beta)


@operator("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: list[int] | None = None) -> Tensor:
    places = tuple(axes or (0, 2, 3))
    apart = x - x.mean(places, True)
    return apart / ((apart.square().mean(places, True)).sqrt() + 1e-9)


@operator("Dropout", host=(1, 2))
def dropout(
    x: Tensor, ratio: Any = None, training: Any = None, *, seed: int | None = None, outputs: int
) -> Any:
    chance = 0.5 if ratio is None else float(np.asarray(ratio))
    active = training is not None and bool(np.asarray(training)) and chance > 0
    if not active:
        ones = Tensor.full(x.shape, True, device=x.device)
        return (x, ones) if outputs > 1 else x
    if seed is not None:
        raise NotSupported("ONNX operator Dropout: seed in training mode")
    if chance >= 1:
        raise BadArgument(f"ONNX operator Dropout: ratio must be below 1, got {chance}")
    kept = Tensor.rand(x.shape, device=x.device) >= chance
    y = kept.where(x * (1 / (1 - chance)), 0)
    return (y, kept) if outputs > 1 else y


@operator("Col2Im", host=(1, 2))
def col2im(
    x: Tensor, image_shape: Any, block_shape: Any, *, dilations: list[int] | None = None,
    pads: list[int] | None = None, strides: list[int] | None = None,
) -> Tensor:  # fmt: skip
    """The transposed convolution of columns, with one weight of 1 for each place of the block."""
    image, block = ints(image_shape), ints(block_shape)
    axes = len(image)
    steps, gaps = strides or [1] * axes, dilations or [1] * axes
    around = pads or [0] * 2 * axes
    size = [
        (image[n] + around[n] + around[n + axes] - (block[n] - 1) * gaps[n] - 1) // steps[n] + 1
        for n in range(axes)
    ]
    batch, channels = x.shape[0], x.shape[1] // prod(block)
    columns = x.reshape(batch * channels, prod(block), *size)
    one_hot = Tensor.eye(prod(block), device=x.device).reshape(prod(block), 1, *block)
    spread = conv_transpose(columns, one_hot.cast(x.dtype), strides=steps, dilations=gaps)
    padded = [image[n] + around[n] + around[n + axes] for n in range(axes)]
    spread = spread.pad(
        [(0, 0), (0, 0), *((0, p - s) for p, s in zip(padded, spread.shape[2:], strict=True))]
    )
    box = [(0, spread.shape[0]), (0, 1)] + [(around[n], around[n] + image[n]) for n in range(axes)]
    result: Tensor = spread.shrink(box).reshape(batch, channels, *image)
    return result
