"""PyTorch's fused layers of transformers, which its modules use in inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators.registry import operator
from ugpu.hcq.errors import NotSupported

SOURCE, PADDING = 0, 1  # mask_type: [rows, keys] of all, [batch, keys]; else [batch, heads, ...]


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _mask(mask: Tensor | None, kind: int | None) -> Tensor | None:
    """Return what is added to scores, or a bool where keys count (True: the key is left out)."""
    if mask is None:
        return None
    wide = mask[:, None, None, :] if kind == PADDING else mask
    return ~wide if wide.dtype.name == "bool" else wide


def _attention(
    sources: Sequence[Tensor], heads: int, weight: Tensor, bias: Tensor | None,
    mask: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the output before its projection [batch, rows, width], and the weights."""
    weights = weight.chunk(3, 0)
    biases = (None,) * 3 if bias is None else bias.chunk(3, 0)
    q, k, v = [_heads(x.linear(w.transpose(0, 1), b), heads)
               for x, w, b in zip(sources, weights, biases, strict=True)]  # fmt: skip
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is not None and mask.dtype.name == "bool":
        scores = mask.where(scores, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    result = q.scaled_dot_product_attention(k, v, mask)
    return result.transpose(1, 2).reshape(sources[0].shape), scores.softmax(-1)


@operator("_native_multi_head_attention")
def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int, qkv_weight: Tensor,
    qkv_bias: Tensor | None, proj_weight: Tensor, proj_bias: Tensor | None,
    mask: Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Any]:  # fmt: skip
    whole, weights = _attention(
        (query, key, value), num_head, qkv_weight, qkv_bias, _mask(mask, mask_type)
    )
    result = whole.linear(proj_weight.transpose(0, 1), proj_bias)
    if not need_weights:
        return result, Tensor.zeros(0, device=query.device)
    return result, weights.mean(1) if average_attn_weights else weights


@operator("_transformer_encoder_layer_fwd")
def encoder_layer(
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> Tensor:  # fmt: skip
    if src.ndim != 3:
        raise NotSupported(f"a layer of an encoder of shape {list(src.shape)}; expected 3 axes")

    def attended(x: Tensor) -> Tensor:
        whole, _ = _attention((x, x, x), num_heads, qkv_weight, qkv_bias, _mask(mask, mask_type))
        return whole.linear(proj_weight.transpose(0, 1), proj_bias)

    def fed(x: Tensor) -> Tensor:
        inner = x.linear(ffn_weight_1.transpose(0, 1), ffn_bias_1)
        inner = inner.gelu() if use_gelu else inner.relu()
        return inner.linear(ffn_weight_2.transpose(0, 1), ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return x.layernorm(-1, eps) * norm_weight_1 + norm_bias_1

    def second(x: Tensor) -> Tensor:
        return x.layernorm(-1, eps) * norm_weight_2 + norm_bias_2

    if norm_first:
        src = src + attended(first(src))
        return src + fed(second(src))
    src = first(src + attended(src))
    return second(src + fed(src))
