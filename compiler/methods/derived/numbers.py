"""Tensor: further functions of numbers and statistics, composed of other methods. Names and
meanings as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import bool_
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.methods.core import Scalar, TensorCore, integer_of, number_of
from ugpu.compiler.methods.groups import Groups
from ugpu.compiler.methods.reductions import Axis, correction_of
from ugpu.hcq.errors import BadArgument

INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")  # of quantiles


class Numbers(Groups):
    """Functions of numbers and statistics."""

    __slots__ = ()

    def _pair(self, operation: str, other: Any) -> tuple[Self, Self]:
        """Return both operands as floats of one type and shape."""
        kind = self._float_common(operation, other)
        _, (left, right) = self._operands(operation, other, common=kind)
        return self._new(left), self._new(right)

    def atan2(self, other: Any) -> Self:
        """Return the angle in radians, from -pi to pi, of the point with y `self` and x `other`;
        the signs of zeros count."""
        up, right = self._pair("atan2", other)
        y, x = up._real(), right._real()
        corner = y.isinf() & x.isinf()
        angle = (corner.where(y.sign(), y) / corner.where(x.sign(), x)).atan()
        half = self._new(self._constant("atan2", math.pi, y.dtype, ())).copysign(y)
        left = x.signbit()
        turned = left.where(angle + half, angle)
        origin = left.where(half, self._new(self._constant("atan2", 0, y.dtype, ())).copysign(y))
        upright = y._compare("eq", 0).where(origin, half / 2)
        upright = y.isnan().where(math.nan, upright)
        result = x._compare("eq", 0).where(upright, turned).cast(up.dtype)
        return result._ruled("atan2", [up, right])

    arctan2 = atan2

    def hypot(self, other: Any) -> Self:
        """Return the root of the sum of squares, without overflow; infinite if either is."""
        one, two = self._pair("hypot", other)
        left, right = one._real().abs(), two._real().abs()
        most, least = left.maximum(right), left.minimum(right)
        plain = most._compare("eq", 0) | most.isinf()
        part = plain.where(0, least / plain.where(1, most))
        length = most * (part * part + 1).sqrt()
        length = (left.isinf() | right.isinf()).where(math.inf, length)
        return length.cast(one.dtype)._ruled("hypot", [one, two])

    def signbit(self) -> Self:
        """Return whether the sign is negative, of zeros and NaN too."""
        if not self.dtype.is_float:
            return self._compare("lt", 0) if self.dtype is not bool_ else self._new(
                self._constant("signbit", False, bool_, self.shape)
            )  # fmt: skip
        return self._sign_bit()

    def nextafter(self, other: Any) -> Self:
        """Return the next number of the type towards `other`."""
        one, two = self._pair("nextafter", other)
        bits = one.bitcast(f"int{one.dtype.bits}")
        outwards = one._compare("lt", two)._compare("eq", one._compare("lt", 0, swap=True))
        moved = outwards.where(bits + 1, bits - 1).bitcast(one.dtype)
        smallest = (bits * 0 + 1).bitcast(one.dtype)
        moved = one._compare("eq", 0).where(smallest.copysign(two), moved)
        result = one._compare("eq", two).where(two, moved)
        result = (one.isnan() | two.isnan()).where(math.nan, result)
        return result._ruled("nextafter", [one, two])

    def frac(self) -> Self:
        """Return the part behind the point, with the sign of self."""
        return self - self.trunc()

    def xlogy(self, other: Any) -> Self:
        """Return self * log(other); zero where self is zero, unless other is NaN."""
        one, two = self._pair("xlogy", other)
        zero = one._compare("eq", 0) & ~two.isnan()
        return zero.where(0, one * zero.where(1, two).log())

    def isclose(
        self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Self:
        """Return whether |self - other| <= atol + rtol * |other|; infinities are close to
        themselves alone."""
        if number_of("isclose", "rtol", rtol) < 0 or number_of("isclose", "atol", atol) < 0:
            raise BadArgument(f"isclose: expected rtol and atol >= 0, got {rtol} and {atol}")
        same = self._compare("eq", other)
        one, two = self._pair("isclose", other)
        one, two = one._real(), two._real()
        near = (one - two).abs()._compare("le", two.abs() * rtol + atol)
        close = same | (near & one.isfinite() & two.isfinite())
        return close | (one.isnan() & two.isnan()) if equal_nan else close

    def allclose(
        self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Return whether all elements are close (see `isclose`). Waits for the device."""
        return bool(self.isclose(other, rtol, atol, equal_nan).all())

    def diff(
        self, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None
    ) -> Self:  # fmt: skip
        """Return the differences of neighbours along an axis, `n` times. prepend, append: tensors
        to join first, unless n is 0."""
        place = self._axis("diff", axis)
        if integer_of("diff", "n", n) < 0:
            raise BadArgument(f"diff: expected n >= 0, got {n}")
        parts = [each for each in (prepend, self, append) if each is not None]
        values = self._same()
        if n and len(parts) > 1:
            joined = [self._tensor("diff", each) for each in parts]
            values = joined[0]._joined_along(place, joined[1:])
        before = [slice(None)] * place
        for _ in range(min(n, values.shape[place])):
            later, earlier = values[(*before, slice(1, None))], values[(*before, slice(None, -1))]
            values = later ^ earlier if values.dtype is bool_ else later - earlier
        return values

    def _joined_along(self, place: int, others: Sequence[TensorCore]) -> Self:
        kind = self.dtype
        for other in others:
            kind = dtypes.promote(kind, other.dtype)
        nodes = [self.node, *(other.node for other in others)]
        return self._new(graph.cat([graph.cast(node, kind) for node in nodes], place))

    # ---- statistics ----------------------------------------------------------------------------

    def logcumsumexp(self, axis: int) -> Self:
        """Return log of the running total of exp(x) along an axis, without overflow. The number of
        steps is the logarithm of the axis's length."""
        if not self.ndim:
            self._axes("logcumsumexp", axis)
            return self.cast(dtypes.float_dtype(self.dtype))
        place = self._axis("logcumsumexp", axis)
        total, step, size = self._real(), 1, self.shape[place]
        while step < size:
            pairs = [(0, 0)] * self.ndim
            pairs[place] = (step, 0)
            cut = total[(*[slice(None)] * place, slice(None, size - step))]
            total = total.logaddexp(cut.pad(pairs, -math.inf))
            if step.bit_length() % 3 == 0:  # stored: each step reads the one before twice
                total = total.contiguous()
            step *= 2
        return self._rounded(total)

    def std_mean(
        self, axis: Axis = None, keepdims: bool = False, correction: float | None = None, *,
        unbiased: bool | None = None,
    ) -> tuple[Self, Self]:  # fmt: skip
        """Return `std` and `mean`."""
        axes, less = correction_of(axis, correction, unbiased)
        return self.std(axes, keepdims, less), self.mean(axes, keepdims)

    def var_mean(
        self, axis: Axis = None, keepdims: bool = False, correction: float | None = None, *,
        unbiased: bool | None = None,
    ) -> tuple[Self, Self]:  # fmt: skip
        """Return `var` and `mean`."""
        axes, less = correction_of(axis, correction, unbiased)
        return self.var(axes, keepdims, less), self.mean(axes, keepdims)

    def nansum(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Self:
        """Return `sum` with NaN counted as zero."""
        return self.isnan().where(0, self).cast(self.dtype).sum(axis, keepdims, dtype=dtype)

    def nanmean(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Self:
        """Return the mean of the elements that are not NaN."""
        values = self if dtype is None else self.cast(dtype)
        count = (~values.isnan()).sum(axis, keepdims)
        return (values.nansum(axis, keepdims) / count).cast(dtypes.float_dtype(values.dtype))

    def quantile(
        self,
        q: Any,
        axis: int | None = None,
        keepdims: bool = False,
        *,
        interpolation: Literal["linear", "lower", "higher", "nearest", "midpoint"] = "linear",
    ) -> Self:
        """Return quantiles along an axis (None: of all elements); NaN if any element is NaN.

        q: a number from 0 to 1, or a list or tensor of several, which gives the result a first axis
        of as many. interpolation: between the two nearest elements, as in NumPy.
        """
        if interpolation not in INTERPOLATIONS:
            raise BadArgument(
                f"quantile: interpolation must be one of {INTERPOLATIONS}, got {interpolation!r}"
            )
        if isinstance(q, TensorCore) and q.node.tracked:
            return self._quantiles_at("quantile", q, axis, keepdims, interpolation)
        whole = axis is None or not self.ndim
        values = self.reshape(self.numel()) if whole else self
        (place,) = values._some("quantile", 0 if axis is None or whole else axis)
        ordered = values._real().sort(place)[0].transpose(place, -1)
        wanted, single = _quantiles(q)
        size = ordered.shape[-1]
        results = []
        for part in wanted:
            at = part * (size - 1)
            low, high = math.floor(at), math.ceil(at)
            weight = {"linear": at - low, "lower": 0, "higher": 1, "midpoint": 0.5,
                      "nearest": float(round(at) - low)}[interpolation]  # fmt: skip
            below, above = ordered[..., low : low + 1], ordered[..., high : high + 1]
            between = below if low == high else below.lerp(above, weight)
            last = ordered[..., size - 1 :]
            results.append(last.isnan().where(math.nan, between).transpose(place, -1))
        shaped = [each if keepdims else each.squeeze(place) for each in results]
        if keepdims and whole:
            shaped = [each.reshape((1,) * self.ndim) for each in shaped]
        if not shaped:
            raise BadArgument("quantile: expected at least one q")
        found = [self._rounded(each) for each in shaped]
        return found[0] if single else found[0].unsqueeze(0)._joined_along(
            0, [each.unsqueeze(0) for each in found[1:]]
        )  # fmt: skip

    def nanquantile(
        self,
        q: Any,
        axis: int | None = None,
        keepdims: bool = False,
        *,
        interpolation: Literal["linear", "lower", "higher", "nearest", "midpoint"] = "linear",
    ) -> Self:
        """Return `quantile` of the elements that are not NaN; NaN where all are."""
        return self._quantiles_at("nanquantile", q, axis, keepdims, interpolation)

    def _quantiles_at(
        self, name: str, q: Any, axis: int | None, keepdims: bool, interpolation: str
    ) -> Self:
        """Return quantiles at places that are computed on the device: q may have a gradient, and
        rows may have different numbers of elements."""
        if not isinstance(q, TensorCore):
            q = np.asarray(_quantiles(q)[0] if isinstance(q, list | tuple) else q, np.float64)
        parts = self._tensor(name, q)._real()
        whole = axis is None or not self.ndim
        values = self.reshape(self.numel()) if whole else self
        (place,) = values._some(name, 0 if axis is None or whole else axis)
        ordered = values._real().sort(place)[0].transpose(place, -1).contiguous()
        size, nan = ordered.shape[-1], ordered.isnan()
        most: Any = size - 1
        if name == "nanquantile":
            most = ((~nan).sum(-1, keepdims=True) - 1).clamp(min=0)._real()
        at = parts.reshape((1,) * (ordered.ndim - 1) + (-1,)) * most
        low, high = at.floor(), at.ceil()
        weights = {"linear": at - low, "lower": 0.0, "higher": 1.0, "midpoint": 0.5,
                   "nearest": at.round() - low}  # fmt: skip
        if interpolation not in weights:
            raise BadArgument(
                f"{name}: interpolation must be one of {INTERPOLATIONS}, got {interpolation!r}"
            )
        shape = (*ordered.shape[:-1], at.shape[-1])
        below, above = (ordered.gather(-1, each.long().expand(shape)) for each in (low, high))
        found = low._compare("eq", high).where(below, below.lerp(above, weights[interpolation]))
        if name == "quantile":
            found = nan.any(-1, keepdims=True).where(math.nan, found)
        found = found.transpose(place, -1)
        if parts.ndim:
            found = found.unsqueeze(0).transpose(0, 1 + place)
        if keepdims and whole:
            found = found.reshape((*parts.shape, *[1] * self.ndim))
        return self._rounded(found if keepdims else found.squeeze(place + parts.ndim))

    def norm(
        self,
        p: float | Literal["fro", "nuc"] = 2,
        axis: Axis = None,
        keepdims: bool = False,
        *,
        dtype: Any = None,
    ) -> Self:
        """Return the norm of the elements along axes: (sum |x|^p)^(1/p); the largest or smallest
        magnitude for infinities, the count of elements that are not zero for p = 0."""
        if p == "nuc":
            raise BadArgument("norm: 'nuc' is a norm of matrices; write ugpu.linalg.norm(x, 'nuc')")
        values = (self if dtype is None else self.cast(dtype))._real()
        if p in ("fro", 2):
            squares = values.square().sum(axis, keepdims)
            found = squares.sqrt()._ruled("root", [squares])
        elif p == math.inf:
            found = values.abs().max(axis, keepdims)
        elif p == -math.inf:
            found = values.abs().min(axis, keepdims)
        elif number_of("norm", "p", p) == 0:
            found = values._compare("ne", 0).cast(values.dtype).sum(axis, keepdims)
        elif p == 1:
            found = values.abs().sum(axis, keepdims)
        else:
            found = values._of_powers(float(p), axis, keepdims)
        return found.cast(dtypes.float_dtype(self.dtype if dtype is None else values.dtype))

    def _of_powers(self, p: float, axis: Axis, keepdims: bool) -> Self:
        """Return (sum |x|^p)^(1/p). A power of zero has no slope: its gradient is zero."""
        sizes = self.abs()
        if not self.node.tracked:
            return sizes.pow(p).sum(axis, keepdims).pow(1 / p)
        still = self._compare("eq", 0)
        powers = (still.where(1, sizes) if p < 2 else sizes).pow(p)
        total = still.where(0.0 if p > 0 else math.inf, powers).sum(axis, keepdims)
        none = total._compare("eq", 0)
        return none.where(0, none.where(1, total).pow(1 / p))

    def normalize(self, axis: int = 1, epsilon: float = 1e-12, *, p: float = 2) -> Self:
        """Divide by the p-norm along an axis, or by epsilon if that is larger."""
        wide = self._real()
        length = wide.norm(p, axis, True).maximum(epsilon)
        return (wide / length).cast(dtypes.float_dtype(self.dtype))

    def dist(self, other: Any, p: float = 2) -> Self:
        """Return the norm of the difference."""
        return (self - self._tensor("dist", other)).norm(p)

    def renorm(self, p: float, axis: int, maxnorm: Scalar) -> Self:
        """Scale the parts along an axis whose p-norm is above maxnorm down to it."""
        place = self._axis("renorm", axis)
        rest = tuple(each for each in range(self.ndim) if each != place)
        most = number_of("renorm", "maxnorm", maxnorm)
        length = self.norm(p, rest, True)
        scale = (length > most).where(most / (length + 1e-7), 1.0)
        return (self * scale).cast(dtypes.float_dtype(self.dtype))

    def cov(self, correction: int = 1, *, fweights: Any = None, aweights: Any = None) -> Self:
        """Return the covariances of variables, one in each row, of observations, in columns.
        fweights: how often each observation counts (integers); aweights: its importance."""
        if self.ndim > 2:
            raise BadArgument(f"cov: expected at most two axes, got shape {self._shown}")
        rows = self._real().reshape((1, -1)) if self.ndim < 2 else self._real()
        less = integer_of("cov", "correction", correction)
        counts = [None if each is None else self._weights(each, rows.shape[1])
                  for each in (fweights, aweights)]  # fmt: skip
        weights = [each for each in counts if each is not None]
        if not weights:
            apart = rows - rows.mean(-1, keepdims=True)
            found = apart.matmul(apart.transpose(0, 1)) / max(0, rows.shape[1] - less)
        else:
            each = weights[0] if len(weights) == 1 else weights[0] * weights[1]
            total = each.sum()
            apart = rows - (rows * each).sum(-1, keepdims=True) / total
            among = total if counts[1] is None else (each * counts[1]).sum() / total
            divisor = total - less * among if counts[1] is not None else total - less
            found = (apart * each).matmul(apart.transpose(0, 1)) / divisor.clamp(min=0)
        kind = self.dtype
        if aweights is not None:
            kind = dtypes.promote(kind, self._tensor("cov", aweights).dtype)
        whole = found.reshape(()) if rows.shape[0] == 1 else found
        return whole.cast(dtypes.float_dtype(kind))

    def _weights(self, given: Any, count: int) -> Self:
        weights = self._tensor("cov", given)
        if weights.ndim > 1 or weights.numel() != count:
            raise BadArgument(f"cov: expected {count} weights, got shape {weights._shown}")
        return weights._real().reshape(count)

    def corrcoef(self) -> Self:
        """Return the correlations of variables, one in each row."""
        found = self.cov()
        if not found.ndim:
            return found / found
        spread = found.diagonal().sqrt()
        return (found / spread.unsqueeze(1) / spread.unsqueeze(0)).clamp(-1, 1)


def _quantiles(q: Any) -> tuple[list[float], bool]:
    """Return the parts to compute, and whether a single number was asked for."""
    listed = q.tolist() if isinstance(q, TensorCore) and hasattr(q, "tolist") else q
    single = isinstance(listed, int | float)
    numbers: list[Scalar] = [listed] if isinstance(listed, int | float) else list(listed)
    for number in numbers:
        if not 0 <= number_of("quantile", "q", number) <= 1:
            raise BadArgument(f"quantile: q must be from 0 to 1, got {number}")
    return [float(number) for number in numbers], single
