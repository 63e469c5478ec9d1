"""Reductions, running totals and differences."""

from __future__ import annotations

from ugpu.compiler.array_api.operands import array_of
from ugpu.compiler.dtype import DType
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Axes = int | tuple[int, ...] | None


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return `Tensor.all`."""
    return array_of("all", x).all(axis, keepdims)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return `Tensor.any`."""
    return array_of("any", x).any(axis, keepdims)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:  # fmt: skip
    """Return `Tensor.cumprod`. include_initial: with a 1 in front."""
    given, place = _along("cumulative_prod", x, axis)
    return _with_initial(given.cumprod(place, dtype=dtype), place, 1, include_initial)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:  # fmt: skip
    """Return `Tensor.cumsum`. include_initial: with a 0 in front."""
    given, place = _along("cumulative_sum", x, axis)
    return _with_initial(given.cumsum(place, dtype=dtype), place, 0, include_initial)


def _along(operation: str, x: Tensor, axis: int | None) -> tuple[Tensor, int]:
    given = array_of(operation, x)
    if axis is None and given.ndim > 1:
        raise BadArgument(f"{operation}: expected an axis for shape {list(given.shape)}, got None")
    flat = given if given.ndim else given.reshape(1)
    return flat, flat._axis(operation, 0 if axis is None else axis)


def _with_initial(totals: Tensor, place: int, value: int, wanted: bool) -> Tensor:
    pairs = [(int(wanted and axis == place), 0) for axis in range(totals.ndim)]
    return totals.pad(pairs, value) if wanted else totals


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return `Tensor.diff`."""
    return array_of("diff", x).diff(n, axis, prepend, append)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return `Tensor.max`."""
    return array_of("max", x).max(axis, keepdims)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return `Tensor.mean`."""
    return array_of("mean", x).mean(axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return `Tensor.min`."""
    return array_of("min", x).min(axis, keepdims)


def prod(
    x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """Return `Tensor.prod`."""
    return array_of("prod", x).prod(axis, keepdims, dtype=dtype)


def std(
    x: Tensor, /, *, axis: Axes = None, correction: int | float = 0.0, keepdims: bool = False
) -> Tensor:
    """Return `Tensor.std`."""
    return array_of("std", x).std(axis, keepdims, correction)


def sum(
    x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False
) -> Tensor:
    """Return `Tensor.sum`."""
    return array_of("sum", x).sum(axis, keepdims, dtype=dtype)


def var(
    x: Tensor, /, *, axis: Axes = None, correction: int | float = 0.0, keepdims: bool = False
) -> Tensor:
    """Return `Tensor.var`."""
    return array_of("var", x).var(axis, keepdims, correction)
