"""Operators that make tensors of numbers, and random ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ugpu.compiler.dtype import DType, float32
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators.registry import operator

Sizes = Sequence[int]


@operator("full", places=True)
def full(size: Sizes, fill_value: Any, dtype: DType | None = None, *, device: Any) -> Tensor:
    return Tensor.full(tuple(size), fill_value, device=device, dtype=dtype)


@operator("full_like")
def full_like(self: Tensor, fill_value: Any, dtype: DType | None = None) -> Tensor:
    kind = dtype or self.dtype
    value = fill_value if kind.is_float else bool(fill_value) if kind.name == "bool" else int(
        fill_value)  # fmt: skip
    return Tensor.full(self.shape, value, device=self.device, dtype=kind)


@operator("scalar_tensor", places=True)
def scalar_tensor(s: Any, dtype: DType | None = None, *, device: Any) -> Tensor:
    return Tensor(s, device=device, dtype=dtype or float32)


@operator("empty.memory_format", "zeros", places=True)
def zeros(size: Any, dtype: DType | None = None, *others: Any, device: Any) -> Tensor:
    """Elements that PyTorch leaves open are zero."""
    return Tensor.zeros(*size, device=device, dtype=dtype or float32)


@operator("empty_strided", places=True)
def empty_strided(size: Sizes, stride: Sizes, dtype: DType | None = None, *, device: Any) -> Tensor:
    return Tensor.zeros(*size, device=device, dtype=dtype or float32)


@operator("empty_permuted", places=True)
def empty_permuted(
    size: Sizes, physical_layout: Sizes, dtype: DType | None = None, *, device: Any
) -> Tensor:
    return Tensor.zeros(*size, device=device, dtype=dtype or float32)


@operator("new_empty", "new_zeros")
def new_zeros(self: Tensor, size: Sizes, dtype: DType | None = None) -> Tensor:
    return Tensor.zeros(*size, device=self.device, dtype=dtype or self.dtype)


@operator("new_ones")
def new_ones(self: Tensor, size: Sizes, dtype: DType | None = None) -> Tensor:
    return Tensor.ones(*size, device=self.device, dtype=dtype or self.dtype)


@operator("new_empty_strided")
def new_empty_strided(
    self: Tensor, size: Sizes, stride: Sizes, dtype: DType | None = None
) -> Tensor:
    return new_zeros(self, size, dtype)


@operator("ones", places=True)
def ones(size: Sizes, dtype: DType | None = None, *, device: Any) -> Tensor:
    return Tensor.ones(*size, device=device, dtype=dtype or float32)


@operator("zeros_like", "empty_like")
def zeros_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return full_like(self, 0, dtype)


@operator("ones_like")
def ones_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return full_like(self, 1, dtype)


@operator("new_full")
def new_full(self: Tensor, size: Sizes, fill_value: Any, dtype: DType | None = None) -> Tensor:
    kind = dtype or self.dtype
    return Tensor.full(tuple(size), fill_value, device=self.device, dtype=kind)


@operator("arange.start_step", places=True)
def arange(start: Any, end: Any, step: Any = 1, dtype: DType | None = None, *, device: Any) -> Any:
    count = max(0, math.ceil((end - start) / step))
    places = Tensor.arange(count, device=device)
    if all(isinstance(each, int) for each in (start, end, step)):
        return places * step + start
    return places.cast(float32) * float(step) + float(start)


@operator("iota", places=True)
def iota(
    length: int, start: int = 0, step: int = 1, dtype: DType | None = None,
    requires_grad: bool = False, *, device: Any,
) -> Tensor:  # fmt: skip
    return Tensor.arange(length, device=device) * step + start


@operator("rand", places=True)
def rand(size: Sizes, dtype: DType | None = None, *, device: Any) -> Tensor:
    return Tensor.rand(*size, device=device, dtype=dtype or float32)


@operator("randn", places=True)
def randn(size: Sizes, dtype: DType | None = None, *, device: Any) -> Tensor:
    return Tensor.randn(*size, device=device, dtype=dtype or float32)


@operator("rand_like")
def rand_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return Tensor.rand(*self.shape, device=self.device, dtype=dtype or self.dtype)


@operator("randn_like")
def randn_like(self: Tensor, dtype: DType | None = None) -> Tensor:
    return Tensor.randn(*self.shape, device=self.device, dtype=dtype or self.dtype)


@operator("bernoulli.p")
def bernoulli(self: Tensor, p: float = 0.5) -> Tensor:
    return Tensor.rand(*self.shape, device=self.device) < p


@operator("randint", places=True)
def randint(high: int, size: Sizes, dtype: DType | None = None, *, device: Any) -> Tensor:
    return Tensor.randint(*size, high=high, device=device)


@operator("randint.low", places=True)
def randint_between(
    low: int, high: int, size: Sizes, dtype: DType | None = None, *, device: Any
) -> Tensor:
    return Tensor.randint(*size, low=low, high=high, device=device)


@operator("randperm", places=True)
def randperm(n: int, dtype: DType | None = None, *, device: Any) -> Tensor:
    return Tensor.randperm(n, device=device)


@operator("native_dropout")
def native_dropout(input: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return input, full_like(input, 1).cast("bool")
    keep = Tensor.rand(*input.shape, device=input.device) >= p
    return input * keep * (0.0 if p == 1 else 1 / (1 - p)), keep


@operator("sym_size.int")
def sym_size(self: Tensor, dim: int) -> int:
    return self.shape[dim]


@operator("sym_numel")
def sym_numel(self: Tensor) -> int:
    return self.numel()
