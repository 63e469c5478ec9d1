"""Operators of backward passes: gradients of the forward ones, as the compiler derives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ugpu.compiler.gradients.functional import grad
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators import networks
from ugpu.compiler.torch.operators.registry import operator

Sizes = Sequence[int]


def pulled(
    forward: Callable[..., Tensor], gradient: Tensor, wanted: Sequence[bool], *given: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return the gradients of a function of tensors, by those that are wanted, None by others."""
    places = [n for n, each in enumerate(given) if wanted[n] and each is not None]
    if not places:
        return (None,) * len(given)

    def weighed(*values: Any) -> Tensor:
        return (forward(*values) * gradient).sum()

    results = grad(weighed, places)(*given)
    by_place = dict(zip(places, results, strict=True))
    return tuple([by_place.get(n) for n in range(len(given))])


@operator("convolution_backward")
def convolution(
    grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: Any, stride: Sizes,
    padding: Sizes, dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return networks.convolution(
            x, w, None, stride, padding, dilation, transposed, output_padding, groups
        )

    result = pulled(forward, grad_output, output_mask, input, weight)
    axes = (0, *range(2, grad_output.ndim))
    return (*result, grad_output.sum(axes) if output_mask[2] else None)


def _normalised(gradient: Tensor, normal: Tensor, scale: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the gradient by what was normalised over axes. scale: one over its deviation."""
    both = (gradient * normal).mean(axes, keepdims=True)
    return (gradient - gradient.mean(axes, keepdims=True) - normal * both) * scale


@operator("native_layer_norm_backward")
def layer_norm(
    grad_out: Tensor, input: Tensor, normalized_shape: Sizes, mean: Tensor, rstd: Tensor,
    weight: Tensor | None, bias: Tensor | None, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    axes = tuple(range(-len(normalized_shape), 0))
    outer = tuple(range(input.ndim - len(normalized_shape)))
    normal = (input - mean) * rstd
    inner = grad_out if weight is None else grad_out * weight
    by_weight, by_bias = grad_out * normal, grad_out
    if outer:
        by_weight, by_bias = by_weight.sum(outer), by_bias.sum(outer)
    return (
        _normalised(inner, normal, rstd, axes) if output_mask[0] else None,
        by_weight if output_mask[1] and weight is not None else None,
        by_bias if output_mask[2] and bias is not None else None,
    )


@operator("native_group_norm_backward")
def group_norm(
    grad_out: Tensor, input: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, N: int,
    C: int, HxW: int, group: int, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    scale = rstd.reshape(N, group, 1)
    rows = input.reshape(N, group, -1)
    normal = (rows - mean.reshape(N, group, 1)) * scale
    inner = grad_out if weight is None else grad_out * networks._channels(weight, input)
    by_input = _normalised(inner.reshape(rows.shape), normal, scale, (-1,)).reshape(input.shape)
    axes = (0, *range(2, input.ndim))
    by_weight = (grad_out * normal.reshape(input.shape)).sum(axes)
    return (
        by_input if output_mask[0] else None,
        by_weight if output_mask[1] and weight is not None else None,
        grad_out.sum(axes) if output_mask[2] else None,
    )


@operator("avg_pool2d_backward")
def average(
    grad_output: Tensor, self: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor | None:  # fmt: skip
    def forward(x: Tensor) -> Tensor:
        result: Tensor = networks._pooled(
            x, 2, "avg_pool", kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode,
            count_include_pad=count_include_pad, divisor_override=divisor_override,
        )  # fmt: skip
        return result

    return pulled(forward, grad_output, [True], self)[0]


@operator("_adaptive_avg_pool2d_backward")
def adaptive_average(grad_output: Tensor, self: Tensor) -> Tensor | None:
    size = grad_output.shape[-2:]
    return pulled(lambda x: networks.adaptive_average(x, size), grad_output, [True], self)[0]


@operator("max_pool2d_with_indices_backward")
def maximum(
    grad_output: Tensor, self: Tensor, kernel_size: Sizes, stride: Sizes, padding: Sizes,
    dilation: Sizes, ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    rows = self.zeros_like().reshape(*self.shape[:-2], -1)
    places = indices.reshape(*self.shape[:-2], -1)
    return rows.scatter_add(-1, places, grad_output.reshape(places.shape)).reshape(self.shape)


@operator("embedding_dense_backward")
def embedding(
    grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    width = grad_output.shape[-1]
    flat, rows = indices.reshape(-1).cast("int64"), grad_output.reshape(-1, width)
    if padding_idx >= 0:
        rows = (flat == padding_idx).unsqueeze(1).where(0, rows)
    if scale_grad_by_freq:
        counts = Tensor.zeros(num_weights, device=flat.device).index_add(0, flat, flat * 0.0 + 1)
        rows = rows / counts[flat].unsqueeze(1)
    whole = Tensor.zeros(num_weights, width, device=flat.device, dtype=grad_output.dtype)
    return whole.index_add(0, flat, rows)


@operator("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor,
    dropout_p: float, is_causal: bool, attn_mask: Tensor | None = None, scale: float | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return networks.attention(q, k, v, attn_mask, dropout_p, is_causal, scale)

    return pulled(forward, grad_out, [True] * 3, query, key, value)
