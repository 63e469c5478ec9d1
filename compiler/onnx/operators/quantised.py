"""Operators that convert element types: Cast, and quantised numbers."""

from __future__ import annotations

import math

from ugpu.compiler import dtype as dtypes
from ugpu.compiler import float8
from ugpu.compiler.dtype import DType
from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.package import DTYPES
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import NotSupported


def _cast(x: Tensor, kind: DType, saturate: int) -> Tensor:
    """Convert; saturate concerns float8 alone: whether a number out of range, infinity too, becomes
    the largest one, or else infinity or NaN. As in the package's node tests; the specification
    ("Float stored in 8 bits") makes infinity NaN in the fnuz forms."""
    if not kind.is_float8:
        return x.cast(kind)
    form, wide = float8.FORMATS[kind.name], x.float()
    largest = float(float8.numbers(kind.name)[form.largest])
    if saturate:
        return wide.clamp(-largest, largest).cast(kind)
    if form.overflow == form.largest:  # a cast would make it the largest number
        # half of the last step above it still rounds down
        limit = largest + 2.0 ** (math.floor(math.log2(largest)) - form.mantissa - 1)
        wide = (wide.abs() > limit).where(math.nan, wide)
    return wide.cast(kind)


@operator("Cast")
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up") -> Tensor:
    """round_mode concerns float8e8m0 alone."""
    if to not in DTYPES:
        raise NotSupported(f"ONNX operator Cast: element type {to}")
    return _cast(x, dtypes.as_dtype(DTYPES[to]), saturate)


@operator("CastLike")
def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    return _cast(x, like.dtype, saturate)


def along(x: Tensor, rank: int, axis: int) -> Tensor:
    """Return a tensor of one axis, or none, with its elements along `axis` of `rank`."""
    if x.ndim != 1 or rank <= 1:
        return x if x.ndim else x.reshape((1,) * rank)
    shape = [1] * rank
    shape[axis] = x.numel()
    return x.reshape(shape)


def _per_block(x: Tensor, like: Tensor, axis: int, block: int) -> Tensor:
    if not block:
        return along(x, like.ndim, axis)
    return x.repeat_interleave(block, axis).shrink([(0, size) for size in like.shape])


@operator("QuantizeLinear")
def quantize_linear(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0, saturate: int = 1, precision: int = 0,
) -> Tensor:  # fmt: skip
    kind = zero.dtype if zero is not None else dtypes.as_dtype(DTYPES[output_dtype or 2])
    if not kind.is_integer and not kind.is_float8:
        raise NotSupported(f"ONNX operator QuantizeLinear: {kind.name}")
    ratio = x.float() / _per_block(scale, x, axis, block_size).float()
    if kind.is_float8:
        if zero is not None:
            ratio = ratio + _per_block(zero, x, axis, block_size).float()
        return _cast(ratio, kind, saturate)
    steps = ratio.round()
    if zero is not None:
        steps = steps + _per_block(zero, x, axis, block_size).float()
    return steps.clamp(float(dtypes.lowest(kind)), float(dtypes.highest(kind))).cast(kind)


@operator("DequantizeLinear")
def dequantize_linear(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:  # fmt: skip
    kind = DTYPES[output_dtype] if output_dtype else scale.dtype
    exact = "float32" if x.dtype.is_float8 else "int32"
    wide: Tensor = x.cast(exact)
    if zero is not None:
        wide = wide - _per_block(zero, x, axis, block_size).cast(exact)
    return (wide.float() * _per_block(scale, x, axis, block_size).float()).cast(kind)


@operator("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.min().minimum(0.0), x.max().maximum(0.0)
    scale = (high - low) / 255
    zero = (-low / scale).clamp(0.0, 255.0).round()
    zero = zero.isnan().where(0.0, zero)  # of zeros alone
    steps = (x / scale).round() + zero
    return steps.clamp(0.0, 255.0).cast("uint8"), scale, zero.cast("uint8")
