"""MultiheadAttention and the layers of a transformer that are built on it."""

from __future__ import annotations

from typing import Any

from ugpu.compiler.dtype import bool_
from ugpu.compiler.nn import init
from ugpu.compiler.nn.linear import Linear, empty
from ugpu.compiler.nn.module import Module
from ugpu.compiler.nn.normalization import LayerNorm
from ugpu.compiler.sharding.placing import beside
from ugpu.hcq.errors import BadArgument


class MultiheadAttention(Module):
    """Attention by several heads. in_proj_weight [3 * size, size] (queries, keys, values),
    in_proj_bias [3 * size], out_proj; with other sizes of keys or values q_proj_weight,
    k_proj_weight, v_proj_weight. Returns the result, and None for the weights, which are not
    stored."""

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
        kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if embed_dim % num_heads:
            raise BadArgument(
                f"MultiheadAttention: size {embed_dim} does not divide among {num_heads} heads"
            )
        self.size, self.heads, self.dropout = embed_dim, num_heads, dropout
        self.batch_first = batch_first
        sizes = (embed_dim, kdim or embed_dim, vdim or embed_dim)
        self.joined = len(set(sizes)) == 1
        if self.joined:
            self.in_proj_weight = init.xavier_uniform_(
                empty(3 * embed_dim, embed_dim, device=device)
            )
        else:
            for name, inputs in zip("qkv", sizes, strict=True):
                made = init.xavier_uniform_(empty(embed_dim, inputs, device=device))
                setattr(self, f"{name}_proj_weight", made)
        self.in_proj_bias = empty(3 * embed_dim, device=device) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, device)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)

    def forward(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any = None, attn_mask: Any = None,
        is_causal: bool = False, need_weights: bool = False,
    ) -> tuple[Any, None]:  # fmt: skip
        """Attend to the keys. Inputs [length, batch, size], or the batch first.

        key_padding_mask: [batch, keys], true for keys to leave out. attn_mask: [queries, keys] or
        [batch * heads, queries, keys]; bools are true for what is left out, floats are added.
        """
        if need_weights:
            raise BadArgument("MultiheadAttention: the weights are not stored; need_weights=False")
        given = [query, key, value]
        if any(each.ndim != 3 for each in given):
            raise BadArgument("MultiheadAttention: expected inputs of three axes")
        if not self.batch_first:
            given = [each.transpose(0, 1) for each in given]
        heads = [self._heads(each, place) for place, each in enumerate(given)]
        mask = self._mask(key_padding_mask, attn_mask, heads[0].shape[0])
        if mask is not None and is_causal and attn_mask is not None:
            is_causal = False  # the mask contains it, as in PyTorch
        made = self._attended(heads, mask, is_causal)
        made = made.transpose(1, 2).reshape(*given[0].shape[:2], self.size)
        made = self.out_proj(made)
        return (made if self.batch_first else made.transpose(0, 1)), None

    def _attended(self, heads: list[Any], mask: Any, is_causal: bool) -> Any:
        query, key, value = heads
        if not (self.training and self.dropout):
            return query.scaled_dot_product_attention(key, value, mask, is_causal)
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5)
        if is_causal:
            mask = beside(key, "ones", query.shape[-2], key.shape[-2]).tril() > 0
        if mask is not None:
            scores = mask.where(scores, float("-inf")) if mask.dtype is bool_ else scores + mask
        return scores.softmax(-1).dropout(self.dropout, training=True) @ value

    def _heads(self, x: Any, place: int) -> Any:
        """Return [batch, heads, length, size / heads]."""
        rows = slice(place * self.size, (place + 1) * self.size)
        weight = (
            self.in_proj_weight[rows]
            if self.joined
            else getattr(self, f"{'qkv'[place]}_proj_weight")
        )
        made = x @ weight.transpose(0, 1)
        if self.in_proj_bias is not None:
            made = made + self.in_proj_bias[rows]
        return made.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def _mask(self, padding: Any, mask: Any, batch: int) -> Any:
        """Return a mask for attention: true for what is seen, or floats to add."""
        found: Any = None
        for given, padded in ((padding, True), (mask, False)):
            if given is None:
                continue
            if padded:
                given = given.reshape(batch, 1, 1, -1)
            elif given.ndim == 3:
                given = given.reshape(batch, self.heads, *given.shape[1:])
            seen = ~given if given.dtype is bool_ else given
            if found is None:
                found = seen
            elif found.dtype is bool_ and seen.dtype is bool_:
                found = found & seen
            else:
                found = _added(found) + _added(seen)
        return found


def _added(mask: Any) -> Any:
    return mask.where(0.0, float("-inf")) if mask.dtype is bool_ else mask


class TransformerEncoderLayer(Module):
    """Attention and two linear layers, each with a residual and a layer norm."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: str = "relu", layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, batch_first=batch_first, device=device
        )
        self.linear1 = Linear(d_model, dim_feedforward, device=device)
        self.linear2 = Linear(dim_feedforward, d_model, device=device)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, device=device)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, device=device)
        if activation not in ("relu", "gelu"):
            raise BadArgument(f"activation must be 'relu' or 'gelu', got {activation!r}")
        self.activation, self.dropout, self.norm_first = activation, dropout, norm_first

    def forward(self, x: Any, mask: Any = None, padding: Any = None, causal: bool = False) -> Any:
        """Return the layer's result, of the shape of x."""
        if self.norm_first:
            x = x + self._attention(self.norm1(x), mask, padding, causal)
            return x + self._between(self.norm2(x))
        x = self.norm1(x + self._attention(x, mask, padding, causal))
        return self.norm2(x + self._between(x))

    def _attention(self, x: Any, mask: Any, padding: Any, causal: bool) -> Any:
        made, _ = self.self_attn(x, x, x, padding, mask, causal)
        return made.dropout(self.dropout, training=self.training)

    def _between(self, x: Any) -> Any:
        inner = self.linear1(x)
        inner = inner.relu() if self.activation == "relu" else inner.gelu("none")
        inner = inner.dropout(self.dropout, training=self.training)
        return self.linear2(inner).dropout(self.dropout, training=self.training)
