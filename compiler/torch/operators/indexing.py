"""Operators that look elements up, and write them to places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.dtype import bool_, int64
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators.registry import operator

Indices = Sequence[Tensor | None]


def _key(self: Tensor, indices: Indices) -> tuple[Any, ...]:
    return tuple([slice(None) if each is None else _place(each) for each in indices])


def _place(index: Tensor) -> Tensor:
    return index if index.dtype is bool_ else index.cast(int64)


@operator("index.Tensor", "_unsafe_index")
def index(self: Tensor, indices: Indices) -> Tensor:
    return self[_key(self, indices)]


def _own(self: Tensor) -> Tensor:
    """Return a tensor of the same elements, which may be assigned to."""
    return self._same()


@operator("index_put", "_unsafe_index_put")
def index_put(self: Tensor, indices: Indices, values: Tensor, accumulate: bool = False) -> Tensor:
    if accumulate:
        return _accumulated(self, indices, values)
    result = _own(self)
    result[_key(self, indices)] = values.cast(self.dtype)
    return result


def _accumulated(self: Tensor, indices: Indices, values: Tensor) -> Tensor:
    places = Tensor.arange(self.numel(), device=self.device).reshape(self.shape)
    chosen = places[_key(self, indices)]
    flat = values.cast(self.dtype).expand(chosen.shape).reshape(-1)
    return self.reshape(-1).scatter_add(0, chosen.reshape(-1), flat).reshape(self.shape)


@operator("embedding")
def embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:  # fmt: skip
    return weight[indices.cast(int64)]


@operator("gather")
def gather(self: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    if not self.ndim:
        return self.reshape(1).gather(0, index.reshape(-1)).reshape(index.shape)
    return self.gather(dim, index)


@operator("index_select")
def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    if not self.ndim:
        return self
    return self.index_select(dim, index.reshape(-1))


@operator("scatter.src", "scatter.value")
def scatter(self: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    return _flat(self, index, src, lambda x, i, s: x.scatter(dim, i, s))


@operator("scatter_add")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    return _flat(self, index, src, lambda x, i, s: x.scatter_add(dim, i, s))


@operator("scatter_reduce.two")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Any, reduce: str, include_self: bool = True
) -> Tensor:
    return _flat(
        self, index, src, lambda x, i, s: x.scatter_reduce(dim, i, s, reduce, include_self)
    )


def _flat(self: Tensor, index: Tensor, src: Any, work: Any) -> Tensor:
    """Do work on a tensor with at least one axis."""
    if self.ndim and index.ndim:
        result: Tensor = work(self, index, src)
        return result
    source = src.reshape(-1) if isinstance(src, Tensor) else src
    changed: Tensor = work(self.reshape(-1), index.reshape(-1), source)
    return changed.reshape(self.shape)


@operator("index_add")
def index_add(self: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    return self.index_add(dim, index, source, alpha=alpha)


@operator("masked_fill")
def masked_fill(self: Tensor, mask: Tensor, value: Any) -> Tensor:
    return self.masked_fill(mask, value)


@operator("masked_scatter")
def masked_scatter(self: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    marks = mask.expand(self.shape).reshape(-1)
    places = (marks.cast(int64).cumsum(0) - 1).clamp(0, None)
    chosen = source.reshape(-1)[places]
    return marks.where(chosen, self.reshape(-1)).reshape(self.shape)


@operator("nonzero", reads=True)
def nonzero(self: Tensor) -> Any:
    return self.nonzero()


@operator("masked_select", reads=True)
def masked_select(self: Tensor, mask: Tensor) -> Any:
    return self.masked_select(mask)


@operator("_local_scalar_dense", reads=True)
def number(self: Tensor) -> Any:
    return self.item()


@operator("searchsorted.Tensor")
def searchsorted(
    sorted_sequence: Tensor, self: Tensor, out_int32: bool = False, right: bool = False,
    side: Any = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    ordered = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    return ordered.searchsorted(self, right=right, side=side, out_int32=out_int32)


@operator("bucketize.Tensor")
def bucketize(
    self: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False
) -> Tensor:
    return self.bucketize(boundaries, right=right, out_int32=out_int32)
