"""Tensor: running totals, and what is made of whole rows."""

from __future__ import annotations

import math
from typing import Any, Self

from compiler import dtype as dtypes
from compiler.dtype import DType, bool_, float32
from compiler.expression.elementary import is_narrow
from compiler.graph import node as graph
from compiler.graph.node import Node
from compiler.methods.operations import Operations
from compiler.methods.reductions import Axis
from hcq.errors import BadArgument

BLOCK = 64  # elements of a running total that are looked at for each element
PIECE = 16384  # elements of a piece of a long row, on a host


class Scans(Operations):
    """axis: counted from either end."""

    __slots__ = ()

    def cumsum(self, axis: int = 0) -> Self:
        """The sum of all elements up to each one, along an axis; in the type of `sum`."""
        if not self.ndim:
            return self.reshape(1).cumsum(axis).reshape(())
        place = self._axis("cumsum", axis)
        wide = self.cast(dtypes.sum_dtype(self.dtype))
        return wide._running("sum", place, 0)

    def cumprod(self, axis: int = 0) -> Self:
        """The product of all elements up to each one, along an axis; in the type of `prod`."""
        if not self.ndim:
            return self.reshape(1).cumprod(axis).reshape(())
        place = self._axis("cumprod", axis)
        wide = self.cast(dtypes.sum_dtype(self.dtype))
        return wide._running("prod", place, 1)

    def cummax(self, axis: int = 0) -> Self:
        """The largest element up to each one, along an axis."""
        if not self.ndim:
            return self.reshape(1).cummax(axis).reshape(())
        return self._running("max", self._axis("cummax", axis), dtypes.lowest(self.dtype))

    def cummin(self, axis: int = 0) -> Self:
        """The smallest element up to each one, along an axis."""
        if not self.ndim:
            return self.reshape(1).cummin(axis).reshape(())
        return self._running("min", self._axis("cummin", axis), dtypes.highest(self.dtype))

    def _running(self, operation: str, place: int, start: int | float) -> Self:
        """On a host element by element. Elsewhere in blocks: each element looks at its own, and
        blocks add up the totals of those before, likewise. 16-bit floats are joined in float32 and
        rounded once."""
        dtype, size = self.dtype, self.shape[place] if self.ndim else 0
        if not self.numel() or size == 1:
            return self
        wide = self.cast(float32) if is_narrow(dtype) else self
        if self._serial:
            return self._new(wide._in_turn(operation, place, start, dtype))
        order = [axis for axis in range(self.ndim) if axis != place]
        last = wide.permute(*order, place)
        found = last._along_last(operation, start).cast(dtype)
        back = [*range(place), self.ndim - 1, *range(place, self.ndim - 1)]
        return found.permute(*back)

    @property
    def _serial(self) -> bool:
        """Whether the device's kernels may go along an axis element by element."""
        return self.device.target.abi == "host"

    def _in_turn(self, operation: str, place: int, start: int | float, dtype: DType) -> Node:
        """Element by element. Long rows that leave processors without work are cut in pieces, to
        whose totals those of the pieces before are added."""
        size, units = self.shape[place], self.device.target.compute_units
        whole = operation == "prod" and self.dtype.is_float  # zero by infinity is not zero
        if whole or self.numel() // size >= units or size < 2 * PIECE:
            return graph.scan(operation, self.node, place, dtype)
        pieces = size // PIECE
        length = -(-size // pieces)
        pairs = [(0, 0)] * self.ndim
        pairs[place] = (0, pieces * length - size)
        before, behind = self.shape[:place], self.shape[place + 1 :]
        cut = self.pad(pairs, start).reshape((*before, pieces, length, *behind))
        totals = cut[(*[slice(None)] * place, slice(pieces - 1))]
        kept = graph.reduce(operation, totals.node, (place + 1,))
        kept = graph.reshape(kept, (*before, pieces - 1, *behind))
        totals = self._new(self._new(kept)._in_turn(operation, place, start, self.dtype))
        totals = totals.reshape((*before, pieces - 1, 1, *behind))
        pairs = [(0, 0)] * (self.ndim + 1)
        pairs[place] = (1, 0)
        begin = totals.pad(pairs, start)
        found = self._new(graph.scan(operation, cut.node, place + 1, dtype, begin.node))
        joined = found.reshape((*before, pieces * length, *behind))
        return joined[(*[slice(None)] * place, slice(size))].node

    def _along_last(self, operation: str, start: int | float) -> Self:
        size = self.shape[-1]
        if size <= 2 * BLOCK:
            # [..., element, what it looks at]
            seen = self.unsqueeze(-2).expand((*self.shape[:-1], size, size))
            seen = seen._triangle_or(start)
            node = seen._reduce(operation, seen.node, (seen.ndim - 1,), False).node
            return self._new(graph.cast(node, self.dtype))
        blocks = -(-size // BLOCK)
        pairs = [(0, 0)] * (self.ndim - 1) + [(0, blocks * BLOCK - size)]
        cut = self.pad(pairs, start).reshape((*self.shape[:-1], blocks, BLOCK))
        inner = cut._along_last(operation, start).contiguous()
        totals = inner[..., BLOCK - 1]._along_last(operation, start)
        before = totals[..., :-1].pad([(0, 0)] * (self.ndim - 1) + [(1, 0)], start).unsqueeze(-1)
        join = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[operation]
        joined: Self = getattr(inner, join)(before)
        return joined.reshape((*self.shape[:-1], blocks * BLOCK))[..., :size]

    def _triangle_or(self, start: int | float) -> Self:
        """What is on or below the diagonal of the last two axes, else `start`."""
        down = self._counted(self.shape[-2], self.ndim - 2)
        across = self._counted(self.shape[-1], self.ndim - 1)
        return (across <= down).where(self, self._filled(start))

    # ---- rows ----------------------------------------------------------------------------------

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """log(sum(exp(x))) without overflow; over nothing it is minus infinity."""
        axes = self._axes("logsumexp", axis)
        wide = self.cast(float32)
        if any(not self.shape[place] for place in axes):
            return wide.sum(axes, keepdims).log().cast(dtypes.float_dtype(self.dtype))
        most = wide.max(axes, keepdims=True)
        most = most.isinf().where(0, most)
        found = (wide - most).exp().sum(axes, keepdims=True).log() + most
        found = found.cast(dtypes.float_dtype(self.dtype))
        return found if keepdims else found.squeeze(axes)

    def softmin(self, axis: int = -1) -> Self:
        """`softmax` of -x."""
        return (-self).softmax(axis)

    def layernorm(self, axis: Axis = -1, epsilon: float = 1e-5) -> Self:
        """Centred, and of variance 1, along axes; 16-bit floats by way of float32."""
        wide = self.cast(float32)
        apart = wide - wide.mean(axis, keepdims=True)
        scale = (apart.square().mean(axis, keepdims=True) + epsilon).rsqrt()
        return (apart * scale).cast(dtypes.float_dtype(self.dtype))

    def normalize(self, axis: int = 1, epsilon: float = 1e-12) -> Self:
        """Divided by the root of the sum of squares along an axis, at least epsilon."""
        wide = self.cast(float32)
        length = wide.square().sum(axis, keepdims=True).sqrt().maximum(epsilon)
        return (wide / length).cast(dtypes.float_dtype(self.dtype))

    def linear(self, weight: Any, bias: Any = None) -> Self:
        """self @ weight (of [inputs, outputs]) + bias."""
        result = self.matmul(weight)
        return result if bias is None else result + bias

    def dot(self, other: Any) -> Self:
        """Matrix product; the same as `@`."""
        return self.matmul(other)

    def scaled_dot_product_attention(
        self, key: Self, value: Self, mask: Any = None, is_causal: bool = False
    ) -> Self:
        """softmax(self @ key^T / sqrt(depth) + mask) @ value; a mask of bools says what is seen.
        is_causal: row i sees columns up to i. A row that sees nothing gives zeros."""
        name = "scaled_dot_product_attention"
        for given in (self, key, value):
            if not isinstance(given, Scans) or given.ndim < 2:
                raise BadArgument(f"{name}: expected Tensors of two axes or more, got {given!r}")
        if not key.shape[-2]:
            return self.matmul(key.transpose(-2, -1)).matmul(value)  # sums over nothing
        scores = self.matmul(key.transpose(-2, -1)) * (1 / math.sqrt(max(1, self.shape[-1])))
        seen: Any = None
        if is_causal:
            if mask is not None:
                raise BadArgument(f"{name}: a mask besides is_causal")
            scores = scores._triangle_or(float("-inf"))
        elif mask is not None:
            lifted = self._lift(name, mask)
            if isinstance(lifted, Scans) and lifted.dtype is bool_:
                seen = self._new(lifted.node)
                scores = seen.where(scores, float("-inf"))
            else:
                scores = scores + mask
                if isinstance(lifted, Scans):
                    seen = self._new(lifted.node)._compare("ne", float("-inf"))
        result = scores.softmax(-1).matmul(value)
        if seen is None or not seen.ndim:
            return result
        answered: Self = seen.any(-1, keepdims=True).where(result, 0)
        return answered
