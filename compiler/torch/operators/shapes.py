"""Operators that move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators.registry import operator
from ugpu.hcq.errors import NotSupported


@operator("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy")
def view(self: Tensor, size: Sequence[int], stride: Any = None) -> Tensor:
    return self.reshape(tuple(size))


@operator("view.dtype")
def view_as_type(self: Tensor, dtype: Any) -> Tensor:
    return self.bitcast(dtype)


@operator("permute", "permute_copy")
def permute(self: Tensor, dims: Sequence[int]) -> Tensor:
    return self.permute(*dims)


@operator("transpose", "transpose_copy")
def transpose(self: Tensor, dim0: int, dim1: int) -> Tensor:
    return self.transpose(dim0, dim1)


@operator("t", "t_copy")
def turned(self: Tensor) -> Tensor:
    return self.transpose(0, 1) if self.ndim == 2 else self


@operator("expand", "expand_copy")
def expand(self: Tensor, size: Sequence[int], implicit: bool = False) -> Tensor:
    extra = len(size) - self.ndim
    whole = [self.shape[n - extra] if each == -1 else each for n, each in enumerate(size)]
    return self.reshape((1,) * extra + self.shape).expand(tuple(whole))


@operator("squeeze", "squeeze_copy")
def squeeze(self: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    if dim is None:
        return self.squeeze()
    axes = [dim] if isinstance(dim, int) else dim
    ones = {axis % self.ndim for axis in axes if self.ndim and self.shape[axis] == 1}
    return self.reshape(tuple(size for n, size in enumerate(self.shape) if n not in ones))


@operator("unsqueeze", "unsqueeze_copy")
def unsqueeze(self: Tensor, dim: int) -> Tensor:
    return self.unsqueeze(dim)


@operator("cat")
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    whole = [each for each in tensors if each.shape != (0,)] or list(tensors[:1])
    return Tensor.cat(whole, dim)


@operator("stack")
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return Tensor.stack(tensors, dim)


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


@operator("slice.Tensor", "slice_copy.Tensor")
def cut(
    self: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    first, last = _bounds(self.shape[dim], start, end)
    place = [slice(None)] * self.ndim
    place[dim] = slice(first, last, step)
    return self[tuple(place)]


@operator("select.int", "select_copy.int")
def select(self: Tensor, dim: int, index: int) -> Tensor:
    place: list[Any] = [slice(None)] * self.ndim
    place[dim] = index
    return self[tuple(place)]


@operator("slice_scatter")
def cut_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> Tensor:  # fmt: skip
    first, last = _bounds(self.shape[dim], start, end)
    result = self + 0 if self.dtype.name != "bool" else self | False
    place = [slice(None)] * self.ndim
    place[dim] = slice(first, last, step)
    result[tuple(place)] = src.cast(self.dtype)
    return result


@operator("select_scatter")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    at = index % self.shape[dim]
    return cut_scatter(self, src.unsqueeze(dim), dim, at, at + 1)


@operator("split_with_sizes", "split_with_sizes_copy")
def split(self: Tensor, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    return self.split(list(split_sizes), dim)


@operator("split.Tensor")
def split_evenly(self: Tensor, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    return self.split(split_size, dim)


@operator("unbind", "unbind_copy")
def unbind(self: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple([select(self, dim, n) for n in range(self.shape[dim])])


@operator("flip")
def flip(self: Tensor, dims: Sequence[int]) -> Tensor:
    return self.flip(*dims) if dims and self.ndim else self


@operator("roll")
def roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    return self.roll(list(shifts), list(dims)) if dims else self.roll(shifts[0])


@operator("repeat")
def repeat(self: Tensor, repeats: Sequence[int]) -> Tensor:
    return self.repeat(*repeats)


@operator("diagonal", "diagonal_copy")
def diagonal(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return self.diagonal(offset, dim1, dim2)


@operator("tril")
def tril(self: Tensor, diagonal: int = 0) -> Tensor:
    return self.tril(diagonal)


@operator("triu")
def triu(self: Tensor, diagonal: int = 0) -> Tensor:
    return self.triu(diagonal)


@operator("unfold", "unfold_copy")
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    return self.unfold(dimension, size, step)


def _pairs(self: Tensor, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Return the padding of each axis from PyTorch's list, which begins with the last axis."""
    listed = [(pad[n], pad[n + 1]) for n in range(0, len(pad), 2)][::-1]
    return [(0, 0)] * (self.ndim - len(listed)) + listed


@operator("constant_pad_nd")
def pad(self: Tensor, pad: Sequence[int], value: Any = 0) -> Tensor:
    pairs = _pairs(self, pad)
    whole = self.pad([(max(0, low), max(0, high)) for low, high in pairs], value)
    place = [slice(max(0, -low), size - max(0, -high))
             for (low, high), size in zip(pairs, whole.shape, strict=True)]  # fmt: skip
    return whole[tuple(place)] if min(pad, default=0) < 0 else whole


@operator("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflect(self: Tensor, padding: Sequence[int]) -> Tensor:
    return self.pad_with(_pairs(self, padding), "reflect")


@operator("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replicate(self: Tensor, padding: Sequence[int]) -> Tensor:
    return self.pad_with(_pairs(self, padding), "replicate")


@operator("as_strided", "as_strided_copy")
def as_strided(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Of a tensor whose memory is that of its elements, in order."""
    places = np.full((), storage_offset or 0, np.int64)
    for count, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(count, dtype=np.int64) * step
    if places.size and (places.min() < 0 or places.max() >= self.numel()):
        raise NotSupported("as_strided: elements outside of the tensor")
    total = Tensor.zeros(*size, device=self.device, dtype="int64")
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        shape = (1,) * axis + (count,) + (1,) * (len(size) - axis - 1)
        total = total + Tensor.arange(count, device=self.device).reshape(shape) * step
    return self.reshape(-1)[total + (storage_offset or 0)]
