"""Operators that combine elements along axes, and order them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ugpu.compiler.dtype import DType, bool_
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators.registry import operator

Dims = int | Sequence[int] | None


def axes(dim: Dims) -> Any:
    """Return PyTorch's axes, of which an empty list means all."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None


@operator("sum")
def total(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return self.sum(axes(dim), keepdim, dtype=dtype)


@operator("mean")
def mean(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return self.mean(axes(dim), keepdim, dtype=dtype)


@operator("prod")
def prod(
    self: Tensor, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return self.prod(axes(dim), keepdim, dtype=dtype)


@operator("amax", "max.default")
def amax(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
    return self.max(axes(dim), keepdim)


@operator("amin", "min.default")
def amin(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
    return self.min(axes(dim), keepdim)


def _of_number(self: Tensor) -> tuple[Tensor, Tensor]:
    return self, self.zeros_like().cast("int64")


@operator("max.dim")
def max_along(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    return self.max(dim, keepdim, indices=True) if self.ndim else _of_number(self)


@operator("min.dim")
def min_along(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    return self.min(dim, keepdim, indices=True) if self.ndim else _of_number(self)


@operator("max.other")
def larger(self: Tensor, other: Tensor) -> Tensor:
    return self.maximum(other)


@operator("min.other")
def smaller(self: Tensor, other: Tensor) -> Tensor:
    return self.minimum(other)


@operator("argmax")
def argmax(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return self.argmax(dim, keepdim)


@operator("argmin")
def argmin(self: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return self.argmin(dim, keepdim)


@operator("any")
def any_of(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return self.cast(bool_).any(axes(dim), keepdim)


@operator("all")
def all_of(self: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return self.cast(bool_).all(axes(dim), keepdim)


@operator("var.dim")
def var(self: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Tensor:
    return var_of(self, dim, correction=int(unbiased), keepdim=keepdim)


@operator("var.correction")
def var_of(self: Tensor, dim: Dims = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    """correction: a number, not only a whole one."""
    wanted = axes(dim)
    if correction is None or float(correction).is_integer():
        return self.var(wanted, keepdim, 1 if correction is None else int(correction))
    listed = range(self.ndim) if wanted is None else [wanted] if isinstance(dim, int) else wanted
    count = math.prod(self.shape[axis] for axis in listed)
    return self.var(wanted, keepdim, 0) * (count / max(0.0, count - float(correction)))


@operator("var_mean.correction")
def var_mean(
    self: Tensor, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return var_of(self, dim, correction, keepdim), mean(self, dim, keepdim)


@operator("cumsum")
def cumsum(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    if not self.ndim:
        return self
    return (self if dtype is None else self.cast(dtype)).cumsum(dim)


@operator("cumprod")
def cumprod(self: Tensor, dim: int, dtype: DType | None = None) -> Tensor:
    if not self.ndim:
        return self
    return (self if dtype is None else self.cast(dtype)).cumprod(dim)


@operator("_softmax", "_safe_softmax")
def softmax(self: Tensor, dim: int, half_to_float: Any = False) -> Tensor:
    return _along(self, dim).softmax(dim).reshape(self.shape)


@operator("_log_softmax")
def log_softmax(self: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return _along(self, dim).log_softmax(dim).reshape(self.shape)


def _along(self: Tensor, dim: int) -> Tensor:
    return self if self.ndim else self.reshape(1)


@operator("sort")
def sort(self: Tensor, dim: int = -1, descending: bool = False, stable: Any = True) -> Any:
    return self.sort(dim, descending) if self.ndim else _of_number(self)


@operator("sort.stable")
def sort_stable(self: Tensor, stable: Any = True, dim: int = -1, descending: bool = False) -> Any:
    return sort(self, dim, descending)


@operator("topk")
def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return self.topk(k, dim, largest) if self.ndim else _of_number(self)


@operator("linalg_vector_norm")
def norm(
    self: Tensor, ord: Any = 2, dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    return self.norm(ord, axes(dim), keepdim, dtype=dtype)


@operator("logcumsumexp")
def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    return self.logcumsumexp(dim) if self.ndim else self


@operator("cummax")
def cummax(self: Tensor, dim: int) -> Any:
    return self.cummax(dim, indices=True) if self.ndim else _of_number(self)


@operator("cummin")
def cummin(self: Tensor, dim: int) -> Any:
    return self.cummin(dim, indices=True) if self.ndim else _of_number(self)


@operator("_cdist_forward")
def distances(x1: Tensor, x2: Tensor, p: float, compute_mode: Any = None) -> Tensor:
    return x1.cdist(x2, p)


@operator("_pdist_forward")
def distances_of_pairs(self: Tensor, p: float = 2.0) -> Tensor:
    rows = self.shape[0]
    whole = self.cdist(self, p).reshape(-1)
    places = [first * rows + second for first in range(rows) for second in range(first + 1, rows)]
    return whole[places] if places else Tensor.zeros(0, device=self.device)
