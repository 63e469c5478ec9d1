"""The judge: tensors computed by NumPy in float64, with our rules of types and an error bound.

An Array has the methods of Tensor that random programs use, so that one text runs on both. Types
follow docs/compiler.md, written again here. Each float array knows how far a correct computation in
its type may be from the judge's: 0 as long as all numbers on the way are representable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = {"float16": 11, "bfloat16": 8, "float32": 24}  # bits of the significand
TINY = {"float16": -24, "bfloat16": -133, "float32": -149}  # exponent of the least number
LARGEST = {"float16": 65504.0, "bfloat16": 3.3e38, "float32": 3.4e38}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
KINDS = ("bool", *INTEGERS, *WIDTH)
GRAIN = 12  # bits after the point of numbers that count as exact


class Unjudged(Exception):
    """The judge has no certain answer: a step on inexact numbers, an overflow, a wrong shape."""


def promote(one: str, two: str) -> str:
    """Return the type of an operation on two types."""
    if one == two or two == "bool":
        return one
    if one == "bool":
        return two
    floats = [kind for kind in (one, two) if kind in WIDTH]
    if floats:
        return floats[0] if len(floats) == 1 else "float32"
    if one[0] == two[0]:
        return max(one, two, key=_bits)
    signed, unsigned = (one, two) if one[0] == "i" else (two, one)
    wide = max(_bits(signed), 2 * _bits(unsigned))
    return f"int{wide}" if wide <= 64 else "float32"


def _bits(kind: str) -> int:
    return int(kind.lstrip("uint"))


def rounded(kind: str, data: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to the nearest number of a float type, ties to even."""
    _, exponent = np.frexp(data)
    scale = np.ldexp(1.0, np.maximum(exponent - WIDTH[kind], TINY[kind]))
    return np.asarray(np.rint(data / scale) * scale)


def _largest(data: NDArray[Any]) -> float:
    return float(np.abs(data).max()) if data.size else 0.0


class Array:
    """A tensor. data: float64 for every float type, else of the type itself. error: the bound."""

    def __init__(self, data: Any, kind: str, error: float = 0.0) -> None:
        self.kind = kind
        self.data: NDArray[Any] = np.asarray(data)
        self.error = error
        if kind in WIDTH:
            self.data = np.asarray(self.data, np.float64)
            if not np.isfinite(self.data).all() or _largest(self.data) > LARGEST[kind] / 4:
                raise Unjudged("overflow")
            if error or not np.array_equal(rounded(kind, self.data), self.data):
                self.error += 2.0 ** (1 - WIDTH[kind]) * _largest(self.data) + 2.0 ** TINY[kind]
        elif self.data.dtype.name != kind:
            raise AssertionError(f"{self.data.dtype} is not {kind}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def is_float(self) -> bool:
        return self.kind in WIDTH

    def _like(self, data: Any) -> Array:
        """Return moved elements."""
        made = Array.__new__(Array)
        made.kind, made.data, made.error = self.kind, np.array(data), self.error
        return made

    def _exact(self) -> Array:
        if self.error:
            raise Unjudged("a step on inexact numbers")
        return self

    def _grain(self) -> int | None:
        """Return the bits after the point, None if there are more than GRAIN."""
        return next(
            (bits for bits in range(GRAIN + 1) if not np.mod(self.data * 2.0**bits, 1).any()), None
        )

    def _float(self) -> Array:
        return self if self.is_float else self.cast("float32")

    # ---- types -------------------------------------------------------------------------------

    def cast(self, kind: str) -> Array:
        if kind == self.kind:
            return self._like(self.data)
        if kind in WIDTH:
            return Array(self.data.astype(np.float64), kind, self.error)
        if not self.is_float:
            return Array(self.data.astype(kind), kind)
        data = self._exact().data
        if kind == "bool":
            return Array(data != 0, kind)
        limits = np.iinfo(kind)
        whole = [min(max(int(each), int(limits.min)), int(limits.max)) for each in data.flat]
        return Array(np.array(whole, kind).reshape(data.shape), kind)

    def _pair(self, other: Any) -> tuple[Array, Array, str]:
        """Return both operands in their common type."""
        if isinstance(other, Array):
            kind = promote(self.kind, other.kind)
            return self.cast(kind), other.cast(kind), kind
        kind = self.kind
        if isinstance(other, float) and kind not in WIDTH:
            kind = "float32"
        elif kind == "bool" and not isinstance(other, bool):
            kind = "int64"
        made = np.asarray(other, np.float64 if kind in WIDTH else kind)
        return self.cast(kind), Array(made, kind), kind

    # ---- arithmetic --------------------------------------------------------------------------

    def __add__(self, other: Any) -> Array:
        one, two, kind = self._pair(other)
        return self._sum(one, two, kind, np.add)

    def __sub__(self, other: Any) -> Array:
        one, two, kind = self._pair(other)
        if kind == "bool":
            raise Unjudged("bools")
        return self._sum(one, two, kind, np.subtract)

    def _sum(self, one: Array, two: Array, kind: str, function: Any) -> Array:
        return Array(function(one.data, two.data), kind, one.error + two.error)

    def __mul__(self, other: Any) -> Array:
        one, two, kind = self._pair(other)
        error = 0.0
        if one.error or two.error:
            error = one.error * _largest(two.data) + two.error * _largest(one.data)
            error += one.error * two.error
        return Array(one.data * two.data, kind, error)

    def __neg__(self) -> Array:
        return Array(-self.data, self.kind, self.error)

    def abs(self) -> Array:
        return Array(np.abs(self.data), self.kind, self.error)

    def maximum(self, other: Any) -> Array:
        one, two, kind = self._pair(other)
        return Array(np.maximum(one.data, two.data), kind, max(one.error, two.error))

    def minimum(self, other: Any) -> Array:
        one, two, kind = self._pair(other)
        return Array(np.minimum(one.data, two.data), kind, max(one.error, two.error))

    def clamp(self, low: Any, high: Any) -> Array:
        return self.maximum(low).minimum(high)

    def relu(self) -> Array:
        return self.maximum(0)

    def square(self) -> Array:
        given = self.cast("int64") if self.kind == "bool" else self  # as in PyTorch
        return given * given

    def __floordiv__(self, other: Any) -> Array:
        return self._divided(other, np.floor_divide)

    def __mod__(self, other: Any) -> Array:
        return self._divided(other, np.remainder)

    def _divided(self, other: Any, function: Any) -> Array:
        one, two, kind = self._pair(other)
        if kind not in INTEGERS:
            raise Unjudged("integers only")
        if kind[0] == "i" and ((one.data == np.iinfo(kind).min) & (two.data == -1)).any():
            raise Unjudged("overflow")
        zero = two.data == 0
        found = function(one.data, np.where(zero, np.ones((), kind), two.data))
        return Array(np.where(zero, np.zeros((), kind), found), kind)

    def __truediv__(self, other: Any) -> Array:
        one, two, kind = self._pair(other)
        kind = kind if kind in WIDTH else "float32"
        one, two = one.cast(kind), two.cast(kind)
        least = float(np.abs(two.data).min()) - two.error if two.data.size else 1.0
        if least <= 0.25:
            raise Unjudged("a small divisor")
        found = one.data / two.data
        error = (one.error + two.error * _largest(found)) / least + 2.0**-22 * _largest(found)
        return Array(found, kind, error)

    # ---- functions ---------------------------------------------------------------------------

    def _smooth(self, function: Any, slope: float) -> Array:
        """Return a function whose derivative is at most `slope`, computed to some last bits."""
        given = self._float()
        found = function(given.data)
        return Array(found, given.kind, slope * given.error + 2.0**-20 * max(1.0, _largest(found)))

    def tanh(self) -> Array:
        return self._smooth(np.tanh, 1)

    def sigmoid(self) -> Array:
        return self._smooth(lambda x: 1 / (1 + np.exp(-x)), 1)

    def sin(self) -> Array:
        if _largest(self.data) > 1000:
            raise Unjudged("a large angle")
        return self._smooth(np.sin, 1)

    def exp(self) -> Array:
        if self.data.size and self.data.max() > 8:
            raise Unjudged("overflow")
        return self._smooth(np.exp, 3000.0)

    def softmax(self, axis: int) -> Array:
        given = self._float()
        raised = np.exp(given.data - given.data.max(axis, keepdims=True))
        found = raised / raised.sum(axis, keepdims=True)
        return Array(found, given.kind, 2 * given.error + 2.0**-18)

    # ---- comparisons, bits -------------------------------------------------------------------

    def _compared(self, other: Any, function: Any) -> Array:
        one, two, _ = self._pair(other)
        return Array(function(one._exact().data, two._exact().data), "bool")

    def __lt__(self, other: Any) -> Array:
        return self._compared(other, np.less)

    def __ge__(self, other: Any) -> Array:
        return self._compared(other, np.greater_equal)

    def __eq__(self, other: Any) -> Any:
        return self._compared(other, np.equal)

    __hash__ = object.__hash__

    def _bitwise(self, other: Any, function: Any) -> Array:
        one, two, kind = self._pair(other)
        if kind in WIDTH:
            raise Unjudged("bits of floats")
        return Array(function(one.data, two.data), kind)

    def __and__(self, other: Any) -> Array:
        return self._bitwise(other, np.bitwise_and)

    def __or__(self, other: Any) -> Array:
        return self._bitwise(other, np.bitwise_or)

    def __xor__(self, other: Any) -> Array:
        return self._bitwise(other, np.bitwise_xor)

    def __invert__(self) -> Array:
        if self.is_float:
            raise Unjudged("bits of floats")
        return Array(~self.data, self.kind)

    def __lshift__(self, count: int) -> Array:
        if self.kind not in INTEGERS:
            raise Unjudged("integers only")
        return Array(np.left_shift(self.data, np.asarray(count, self.kind)), self.kind)

    def __rshift__(self, count: int) -> Array:
        if self.kind not in INTEGERS:
            raise Unjudged("integers only")
        return Array(np.right_shift(self.data, np.asarray(count, self.kind)), self.kind)

    def where(self, yes: Any, no: Any) -> Array:
        if self.kind != "bool":
            raise Unjudged("no condition")
        one, two, kind = yes._pair(no)
        return Array(np.where(self.data, one.data, two.data), kind, max(one.error, two.error))

    # ---- reductions, scans, orders, products: sums of floats in any order ----------------------

    def _total(self, found: Any, absolute: Any, kind: str, count: int) -> Array:
        """Return sums of this array's elements, `count` each. absolute: of their magnitudes."""
        grain = self._grain()
        exact = grain is not None and _largest(absolute) * 2.0**grain < 2.0**24
        error = count * self.error
        if self.error or not exact:
            error += 2.0**-22 * _largest(absolute)
        return Array(found, kind, error)

    def _summed(self, axis: int | None, keepdims: bool, running: bool) -> Array:
        kind = self.kind
        if not self.is_float:
            kind = "uint64" if kind.startswith("u") else "int64"
        data = self.data if self.is_float else self.data.astype(kind)
        options: dict[str, Any] = {} if running else {"keepdims": keepdims}
        function = np.cumsum if running else np.sum
        if not self.shape:  # NumPy's running total has an axis then, PyTorch's and ours has none
            axis, function, options = None, np.sum, {}
        found = function(data, axis, **options)
        if not self.is_float:
            return Array(found, kind)
        count = data.size if axis is None else data.shape[axis]
        return self._total(found, function(np.abs(data), axis, **options), kind, count)

    def sum(self, axis: int | None = None, keepdims: bool = False) -> Array:
        return self._summed(axis, keepdims, False)

    def cumsum(self, axis: int) -> Array:
        return self._summed(axis, False, True)

    def mean(self, axis: int | None = None) -> Array:
        given = self._float()
        count = given.data.size if axis is None else given.data.shape[axis]
        if not count:
            raise Unjudged("a mean of nothing")
        total = given._summed(axis, False, False)
        return Array(total.data / count, given.kind, total.error / count + 2.0**-22 *
                     _largest(total.data))  # fmt: skip

    def max(self, axis: int | None = None, keepdims: bool = False) -> Array:
        return Array(self.data.max(axis, keepdims=keepdims), self.kind, self.error)

    def min(self, axis: int | None = None, keepdims: bool = False) -> Array:
        return Array(self.data.min(axis, keepdims=keepdims), self.kind, self.error)

    def any(self, axis: int | None = None) -> Array:
        return Array(np.asarray(self._exact().data.any(axis)), "bool")

    def argmax(self, axis: int) -> Array:
        return Array(self._exact().data.argmax(axis), "int64")

    def cummax(self, axis: int) -> Array:
        return Array(np.maximum.accumulate(self.data, axis), self.kind, self.error)

    def sort(self, axis: int) -> tuple[Array, Array]:
        order = np.argsort(self._exact().data, axis, kind="stable")
        found = np.take_along_axis(self.data, order, axis)
        return self._like(found), Array(order.astype(np.int64), "int64")

    def argsort(self, axis: int) -> Array:
        return self.sort(axis)[1]

    def __matmul__(self, other: Array) -> Array:
        one, two, kind = self._pair(other)
        if kind == "bool" or one.data.ndim < 1 or two.data.ndim < 1:
            raise Unjudged("no product")
        found = one.data @ two.data
        if kind not in WIDTH:
            return Array(found, kind)
        absolute = np.abs(one.data) @ np.abs(two.data)
        grains = one._grain(), two._grain()
        exact = None not in grains and _largest(absolute) * 2.0 ** sum(
            grain for grain in grains if grain is not None
        ) < 2.0**24  # fmt: skip
        count, error = one.data.shape[-1], 0.0
        if one.error or two.error or not exact:
            error = count * (one.error * _largest(two.data) + two.error * _largest(one.data))
            error += count * one.error * two.error + 2.0**-22 * _largest(absolute)
        return Array(found, kind, error)

    # ---- movement ----------------------------------------------------------------------------

    def reshape(self, *shape: int) -> Array:
        return self._like(self.data.reshape(shape))

    def permute(self, *axes: int) -> Array:
        return self._like(self.data.transpose(axes))

    def transpose(self, one: int, two: int) -> Array:
        return self._like(self.data.swapaxes(one, two))

    def flip(self, *axes: int) -> Array:
        return self._like(np.flip(self.data, axes))

    def roll(self, shift: int, axis: int) -> Array:
        return self._like(np.roll(self.data, shift, axis))

    def expand(self, *shape: int) -> Array:
        return self._like(np.broadcast_to(self.data, shape))

    def pad(self, pairs: Sequence[tuple[int, int]], value: Any = 0) -> Array:
        return self._like(np.pad(self.data, pairs, constant_values=value))

    def unsqueeze(self, axis: int) -> Array:
        return self._like(np.expand_dims(self.data, axis))

    def repeat(self, *counts: int) -> Array:
        return self._like(np.tile(self.data, counts))

    def tril(self, diagonal: int) -> Array:
        if self.data.ndim < 2:
            raise Unjudged("no triangle")
        return self._like(np.tril(self.data, diagonal))

    def contiguous(self) -> Array:
        return self._like(self.data)

    def realize(self) -> Array:
        return self

    # ---- indexing ----------------------------------------------------------------------------

    def _key(self, key: Any) -> Any:
        listed = key if isinstance(key, tuple) else (key,)
        return tuple(each._exact().data if isinstance(each, Array) else each for each in listed)

    def __getitem__(self, key: Any) -> Array:
        return self._like(self.data[self._key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.data, error = self.data.copy(), 0.0  # other arrays keep their values
        if isinstance(value, Array):
            value = value.cast(self.kind)
            value, error = value.data, value.error
        self.data[self._key(key)] = value
        self.error = max(self.error, error)

    def assign(self, value: Any) -> Array:
        self[...] = value
        return self

    def differs(self, found: NDArray[Any], other: NDArray[Any] | None = None) -> str | None:
        """Return how the result of a Tensor differs, or None. other: what another judge has, whose
        own error may be as large."""
        wanted, allowed = (self.data, 4) if other is None else (other, 8)
        kind = "float32" if self.kind == "bfloat16" else self.kind
        if found.dtype.name != kind or found.shape != self.shape:
            return f"{found.dtype.name}{list(found.shape)}, expected {kind}{list(self.shape)}"
        if not self.is_float:
            wrong = found != wanted
        else:
            distance = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
            wrong = ~(distance <= allowed * self.error)
        if not wrong.any():
            return None
        place = tuple(int(each[0]) for each in np.nonzero(np.atleast_1d(wrong)))
        got, right = np.atleast_1d(found)[place], np.atleast_1d(wanted)[place]
        return (
            f"{int(wrong.sum())} of {wrong.size} elements; at {list(place)}: {got}, expected "
            f"{right} within {allowed * self.error:.3g}"
        )


class Functions:
    """The class Tensor: its constructor and functions."""

    def __call__(self, data: Any, dtype: str) -> Array:
        return Array(data, dtype)

    @staticmethod
    def cat(arrays: Sequence[Array], axis: int) -> Array:
        kind = arrays[0].kind
        for each in arrays[1:]:
            kind = promote(kind, each.kind)
        moved = [each.cast(kind) for each in arrays]
        error = max(each.error for each in moved)
        return Array(np.concatenate([each.data for each in moved], axis), kind, error)

    @staticmethod
    def stack(arrays: Sequence[Array], axis: int) -> Array:
        return Functions.cat([each.unsqueeze(axis) for each in arrays], axis)
