"""Operators of neural networks: products, convolutions, pooling, normalisation, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ugpu.compiler.dtype import DType, bool_, float32
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators.registry import operator
from ugpu.hcq.errors import NotSupported

Sizes = Sequence[int]

# ---- products ------------------------------------------------------------------------------------


@operator("mm", "bmm", "matmul", "dot", "mv")
def product(self: Tensor, mat2: Tensor) -> Tensor:
    return self @ mat2


@operator("addmm", "addmv", "baddbmm")
def product_and_sum(
    self: Tensor, mat1: Tensor, mat2: Tensor, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    whole = mat1 @ mat2
    whole = whole if alpha == 1 else whole * alpha
    if beta == 0:
        return whole
    return whole + (self if beta == 1 else self * beta)


@operator("_scaled_mm")
def scaled_product(
    self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: DType | None = None,
    use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """Of float8 factors, summed in float32. A scale has one element, or one for each row or
    column."""
    whole = (self.cast(float32) @ mat2.cast(float32)) * scale_a * scale_b
    whole = whole if bias is None else whole + bias
    return whole if scale_result is None else whole * scale_result


@operator("linear")
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return input.linear(weight.transpose(0, 1), bias) if weight.ndim == 2 else input @ weight


@operator("scaled_dot_product_attention")
def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    if dropout_p:
        raise NotSupported("attention with dropout")
    if scale is not None:
        query = query * (scale * math.sqrt(query.shape[-1]))
    return query.scaled_dot_product_attention(key, value, attn_mask, is_causal, enable_gqa)


@operator("_scaled_dot_product_flash_attention_for_cpu")
def attention_for_cpu(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    result = attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    scores = (query @ key.transpose(-2, -1)) * (scale or query.shape[-1] ** -0.5)
    if is_causal:
        ones = Tensor.ones(*scores.shape[-2:], device=query.device, dtype="bool")
        scores = ones.tril().where(scores, float("-inf"))
    if attn_mask is not None:
        whole = attn_mask.dtype is bool_
        scores = attn_mask.where(scores, float("-inf")) if whole else scores + attn_mask
    return result, scores.cast(float32).logsumexp(-1)


# ---- convolutions --------------------------------------------------------------------------------


@operator("convolution")
def convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
) -> Tensor:  # fmt: skip
    axes = weight.ndim - 2
    single = input.ndim == axes + 1
    x = input.unsqueeze(0) if single else input

    def each(sizes: Sizes) -> Any:
        whole = tuple(sizes) if len(sizes) == axes else tuple(sizes) * axes
        return whole[0] if axes == 1 else whole

    options: dict[str, Any] = {
        "stride": each(stride), "padding": each(padding), "dilation": each(dilation),
        "groups": groups,
    }  # fmt: skip
    if transposed:
        options["output_padding"] = each(output_padding)
    name = f"conv{'_transpose' if transposed else ''}{axes}d"
    result: Tensor = getattr(x, name)(weight, bias, **options)
    return result.squeeze(0) if single else result


@operator("im2col")
def im2col(
    self: Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Tensor:
    return self.im2col(
        _pair(kernel_size), dilation=_pair(dilation), padding=_pair(padding), stride=_pair(stride)
    )


@operator("col2im")
def col2im(
    self: Tensor, output_size: Sizes, kernel_size: Sizes, dilation: Sizes, padding: Sizes,
    stride: Sizes,
) -> Tensor:  # fmt: skip
    return self.fold(_pair(output_size), _pair(kernel_size), dilation=_pair(dilation),
                     padding=_pair(padding), stride=_pair(stride))  # fmt: skip


def _pair(sizes: Sizes) -> tuple[int, int]:
    return (sizes[0], sizes[-1])


# ---- pooling -------------------------------------------------------------------------------------


def _pooled(self: Tensor, axes: int, name: str, size: Sizes, **options: Any) -> Any:
    """Pool [batch, channels, ...] or [channels, ...]. Options of no elements are left out."""
    given: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            if value:
                given[key] = tuple(value) if len(value) == axes else tuple(value) * axes
        else:
            given[key] = value
    whole = tuple(size) if len(size) == axes else tuple(size) * axes
    x = self if self.ndim == axes + 2 else self.unsqueeze(0)
    result = getattr(x, f"{name}{axes}d")(whole, **given)
    if self.ndim == axes + 2:
        return result
    return tuple([r.squeeze(0) for r in result]) if isinstance(result, tuple) else result.squeeze(0)


def _maximum(axes: int) -> None:
    @operator(f"max_pool{axes}d_with_indices")
    def pool(
        self: Tensor, kernel_size: Sizes, stride: Sizes = (), padding: Any = (0,),
        dilation: Any = (1,), ceil_mode: bool = False,
    ) -> Any:  # fmt: skip
        return _pooled(self, axes, "max_pool", kernel_size, stride=stride, padding=_many(padding),
                       dilation=_many(dilation), ceil_mode=ceil_mode,
                       return_indices=True)  # fmt: skip


def _many(sizes: Any) -> Sizes:
    return (sizes,) if isinstance(sizes, int) else sizes


def _average(axes: int) -> None:
    @operator(f"avg_pool{axes}d")
    def pool(
        self: Tensor, kernel_size: Sizes, stride: Sizes = (), padding: Any = (0,),
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        return _pooled(self, axes, "avg_pool", kernel_size, stride=stride, padding=_many(padding),
                       ceil_mode=ceil_mode, count_include_pad=count_include_pad,
                       divisor_override=divisor_override)  # fmt: skip


for _axes in (1, 2, 3):
    _average(_axes)
for _axes in (2, 3):
    _maximum(_axes)


@operator("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_average(self: Tensor, output_size: Sizes) -> Tensor:
    extra = len(output_size) + 2 - self.ndim
    x = self.unsqueeze(0) if extra else self
    if not x.numel():
        return Tensor.zeros(*self.shape[: -len(output_size)], *output_size, device=self.device)
    result = x.interpolate(tuple(output_size), mode="area")
    return result.squeeze(0) if extra else result


# ---- resampling ----------------------------------------------------------------------------------


def _resized(mode: str, aligns: bool) -> None:
    name = {"linear": "linear1d", "bilinear": "bilinear2d", "trilinear": "trilinear3d",
            "bicubic": "bicubic2d"}.get(mode)  # fmt: skip
    names = [name] if name else [f"nearest{n}d" for n in (1, 2, 3)]

    @operator(*[f"upsample_{each}.vec" for each in names])
    def resize(input: Tensor, output_size: Sizes | None, *others: Any) -> Tensor:
        align = bool(others[0]) if aligns else False
        scales = others[1] if aligns else others[0]
        size = None if output_size is None else tuple(output_size)
        scale = None if size is not None else tuple(scales)
        return input.interpolate(size, scale=scale, mode=mode, align_corners=align)


for _mode in ("linear", "bilinear", "trilinear", "bicubic"):
    _resized(_mode, True)
_resized("nearest", False)


@operator("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    modes: Any = ("bilinear", "nearest", "bicubic")
    outside: Any = ("zeros", "border", "reflection")
    return input.grid_sample(grid, modes[interpolation_mode], outside[padding_mode], align_corners)


# ---- normalisation -------------------------------------------------------------------------------


def _channels(value: Tensor | None, like: Tensor) -> Any:
    return None if value is None else value.reshape((-1, *[1] * (like.ndim - 2)))


def _scaled(x: Tensor, weight: Any, bias: Any) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@operator("_native_batch_norm_legit_no_training", "cudnn_batch_norm_no_training")
def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    scale = (running_var.cast(float32) + eps).rsqrt()
    mean = _channels(running_mean, input)
    normal = (input.cast(float32) - mean) * _channels(scale, input)
    result = _scaled(normal, _channels(weight, input), _channels(bias, input))
    empty = Tensor.zeros(0, device=input.device)
    return result.cast(input.dtype), empty, empty


def _batch(input: Tensor, weight: Any, bias: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    axes = (0, *range(2, input.ndim))
    wide = input.cast(float32)
    mean, spread = wide.mean(axes), wide.var(axes, correction=0)
    scale = (spread + eps).rsqrt()
    normal = (wide - _channels(mean, input)) * _channels(scale, input)
    result = _scaled(normal, _channels(weight, input), _channels(bias, input))
    return result.cast(input.dtype), mean, scale


@operator("_native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _batch(input, weight, bias, eps)


@operator("_native_batch_norm_legit_functional")
def batch_norm_training(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor,
    running_var: Tensor, training: bool, momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the new running statistics last."""
    if not training:
        kept = batch_norm(input, weight, bias, running_mean, running_var, momentum, eps)
        return (*kept, running_mean, running_var)
    result, mean, scale = _batch(input, weight, bias, eps)
    count = input.numel() // input.shape[1]
    spread = (1 / scale.square() - eps) * (count / max(1, count - 1))
    new_mean = running_mean * (1 - momentum) + mean * momentum
    return result, mean, scale, new_mean, running_var * (1 - momentum) + spread * momentum


@operator("native_layer_norm")
def layer_norm(
    input: Tensor, normalized_shape: Sizes, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(range(-len(normalized_shape), 0))
    result = _scaled(input.layernorm(axes, eps), weight, bias)
    wide = input.cast(float32)
    scale = (wide.var(axes, keepdims=True, correction=0) + eps).rsqrt()
    return result, wide.mean(axes, keepdims=True), scale


@operator("native_group_norm")
def group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int,
    group: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows = input.reshape(N, group, -1)
    normal = rows.layernorm(-1, eps).reshape(input.shape)
    result = _scaled(normal, _channels(weight, input), _channels(bias, input))
    wide = rows.cast(float32)
    return result, wide.mean(-1), (wide.var(-1, correction=0) + eps).rsqrt()


@operator("_fused_rms_norm")
def rms_norm(
    input: Tensor, normalized_shape: Sizes, weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    axes = tuple(range(-len(normalized_shape), 0))
    wide = input.cast(float32)
    small = 2.0**-23 if eps is None else eps
    scale = (wide.square().mean(axes, keepdims=True) + small).rsqrt()
    return _scaled((wide * scale).cast(input.dtype), weight, None), scale
