"""Tensor: running totals, and functions of whole rows."""

from __future__ import annotations

import math
from typing import Any, Literal, Self, overload

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import bool_, int32, int64
from ugpu.compiler.methods.core import number_of
from ugpu.compiler.methods.order.running import Running
from ugpu.compiler.methods.reductions import Axis
from ugpu.hcq.errors import BadArgument


class Scans(Running):
    """Running totals and functions of rows. axis: counted from either end."""

    __slots__ = ()

    def cumsum(self, axis: int = 0, *, dtype: Any = None) -> Self:
        """Return the sum of all elements up to each one along an axis, in the type of `sum`. dtype:
        convert to this type first, and return it."""
        if dtype is not None:
            return self.cast(dtype).cumsum(axis).cast(dtype)
        if not self.ndim:
            return self.reshape(1).cumsum(axis).reshape(())
        place = self._axis("cumsum", axis)
        wide = self.cast(dtypes.sum_dtype(self.dtype))
        return wide._running("sum", place, 0)._ruled("cumsum", [wide], place)

    def cumprod(self, axis: int = 0, *, dtype: Any = None) -> Self:
        """Return the product of all elements up to each one along an axis, in the type of `prod`.
        dtype: convert to this type first, and return it."""
        if dtype is not None:
            return self.cast(dtype).cumprod(axis).cast(dtype)
        if not self.ndim:
            return self.reshape(1).cumprod(axis).reshape(())
        place = self._axis("cumprod", axis)
        wide = self.cast(dtypes.sum_dtype(self.dtype))
        return wide._running("prod", place, 1)._ruled("cumprod", [wide], place)

    @overload
    def cummax(self, axis: int = 0, *, indices: Literal[False] = False) -> Self: ...

    @overload
    def cummax(self, axis: int = 0, *, indices: Literal[True]) -> tuple[Self, Self]: ...

    def cummax(self, axis: int = 0, *, indices: bool = False) -> Self | tuple[Self, Self]:
        """Return the largest element up to each one along an axis. indices: return also its place,
        of the last of equals, as int64, as PyTorch's `cummax` does."""
        return self._extreme_so_far("cummax", axis, dtypes.lowest(self.dtype), indices)

    @overload
    def cummin(self, axis: int = 0, *, indices: Literal[False] = False) -> Self: ...

    @overload
    def cummin(self, axis: int = 0, *, indices: Literal[True]) -> tuple[Self, Self]: ...

    def cummin(self, axis: int = 0, *, indices: bool = False) -> Self | tuple[Self, Self]:
        """Return the smallest element up to each one along an axis. indices: return also its place,
        of the last of equals, as int64, as PyTorch's `cummin` does."""
        return self._extreme_so_far("cummin", axis, dtypes.highest(self.dtype), indices)

    def _extreme_so_far(
        self, name: str, axis: int, start: int | float, indices: bool
    ) -> Self | tuple[Self, Self]:
        flat = self if self.ndim else self.reshape(1)
        place = flat._axis(name, axis)
        extremes = flat._running(name.removeprefix("cum"), place, start)
        values = extremes._ruled(name, [flat], place).reshape(self.shape)
        return (
            (values, flat._places_so_far(extremes, place).reshape(self.shape))
            if indices
            else values
        )

    def _places_so_far(self, extremes: Self, axis: int) -> Self:
        """Return where the latest element that is the extreme so far is; of NaN the latest."""
        size = self.shape[axis]
        counted = self._counted(size, axis).cast(int32 if size < 1 << 31 else int64)
        met = self._compare("eq", extremes)
        if self.dtype.is_float:
            met = met | self.isnan()
        return met.where(counted, 0)._running("max", axis, 0, int64)

    # ---- rows ----------------------------------------------------------------------------------

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Return log(sum(exp(x))) without overflow; minus infinity for empty axes."""
        axes = self._axes("logsumexp", axis)
        wide = self._real()
        if any(not self.shape[place] for place in axes):
            return wide.sum(axes, keepdims).log().cast(dtypes.float_dtype(self.dtype))
        most = wide.detach().max(axes, keepdims=True)
        most = most.isinf().where(0, most)
        found = (wide - most).exp().sum(axes, keepdims=True).log() + most
        found = found.cast(dtypes.float_dtype(self.dtype))
        return found if keepdims else found.squeeze(axes)

    def softmin(self, axis: int = -1, *, dtype: Any = None) -> Self:
        """Return `softmax` of -x. dtype: convert to this type first."""
        return (-(self if dtype is None else self.cast(dtype))).softmax(axis)

    def layernorm(self, axis: Axis = -1, epsilon: float = 1e-5) -> Self:
        """Normalise to mean 0 and variance 1 along axes; 16-bit floats are computed in float32."""
        wide = self._real()
        apart = wide - wide.mean(axis, keepdims=True)
        scale = (apart.square().mean(axis, keepdims=True) + epsilon).rsqrt()
        return (apart * scale).cast(dtypes.float_dtype(self.dtype))

    def linear(self, weight: Any, bias: Any = None) -> Self:
        """Return self @ weight (of [inputs, outputs]) + bias."""
        result = self.matmul(weight)
        return result if bias is None else result + bias

    def dot(self, other: Any) -> Self:
        """Return the matrix product; the same as `@`."""
        return self.matmul(other)

    def _is_mask(self, operation: str, given: Any) -> bool:
        lifted = self._lift(operation, given)
        return isinstance(lifted, Scans) and lifted.dtype is bool_

    def scaled_dot_product_attention(
        self, key: Self, value: Self, mask: Any = None, is_causal: bool = False,
        enable_gqa: bool = False, *, dropout_p: float = 0.0, scale: float | None = None,
    ) -> Self:  # fmt: skip
        """Return softmax(self @ key^T * scale + mask) @ value; a bool mask selects the visible
        columns. scale: by default 1 / sqrt(depth). dropout_p: of the weights, always, as in
        PyTorch.

        is_causal: columns up to i are visible to row i. A row without visible columns gives zeros.
        enable_gqa: keys and values have fewer heads (the third axis from the end); each serves
        as many heads of the queries.
        """
        name = "scaled_dot_product_attention"
        for given in (self, key, value):
            if not isinstance(given, Scans) or given.ndim < 2:
                raise BadArgument(f"{name}: expected Tensors of two axes or more, got {given!r}")
        if enable_gqa:
            key, value = self._shared_heads(key), self._shared_heads(value)
        additive = mask is not None and not self._is_mask(name, mask)
        kind = self._float_common(name, key, value, mask if additive else None)
        query, key, value = self.cast(kind), key.cast(kind), value.cast(kind)
        if not key.shape[-2]:
            return query.matmul(key.transpose(-2, -1)).matmul(value)  # sums over no elements
        factor = 1 / math.sqrt(max(1, self.shape[-1]))
        usual = (scale is None or scale == factor) and not dropout_p
        factor = factor if scale is None else number_of(name, "scale", scale)
        scores = query._matmul(key.transpose(-2, -1), wide=True) * factor
        seen: Any = None
        if is_causal:
            if mask is not None:
                raise BadArgument(f"{name}: a mask cannot be combined with is_causal")
            scores = scores._triangle_or(float("-inf"))
        elif additive:
            scores = scores + mask
            lifted = self._lift(name, mask)
            if isinstance(lifted, Scans):
                seen = self._new(lifted.node)._compare("ne", float("-inf"))
        elif mask is not None:
            seen = self._tensor(name, mask)
            scores = seen.where(scores, float("-inf"))
        weights = scores.softmax(-1).cast(kind)
        kept = weights._dropped(dropout_p) if dropout_p else weights
        result: Self = kept._matmul(value, wide=True)  # gradients need it unrounded
        if seen is not None and seen.ndim:
            result = seen.any(-1, keepdims=True).where(result, 0)
        if usual and not additive:  # otherwise the gradients follow from the operations
            result = result._ruled("attention", [query, key, value], (is_causal, seen))
        elif usual and isinstance(mask, Scans):
            result = result._ruled("attention", [query, key, value, mask], (False, None))
        return result.cast(kind)

    def _dropped(self, probability: float) -> Self:
        """Zero elements with a probability and scale the others, see `dropout`."""
        raise NotImplementedError

    def _shared_heads(self, given: Self) -> Self:
        """Repeat the heads of keys or values for groups of these queries' heads."""
        if min(self.ndim, given.ndim) < 3 or self.shape[-3] % max(1, given.shape[-3]):
            raise BadArgument(
                f"scaled_dot_product_attention: heads of shape {given._shown} do not divide those "
                f"of shape {self._shown}"
            )
        count = self.shape[-3] // max(1, given.shape[-3])
        *batch, heads, rows, depth = given.shape
        spread = given.unsqueeze(-3).expand((*batch, heads, count, rows, depth))
        return spread.reshape((*batch, heads * count, rows, depth))
