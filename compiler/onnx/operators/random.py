"""Random numbers, from the stream of `Tensor.manual_seed`; seeds of nodes are refused."""

from __future__ import annotations

from typing import Any

from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.package import DTYPES
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import NotSupported

RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli")
)


def _unseeded(seed: float | None) -> None:
    if seed is not None:
        raise NotSupported("ONNX random operators: seed; use Tensor.manual_seed")


@operator("RandomNormalLike")
def random_normal_like(
    x: Tensor, *, dtype: int = 0, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    _unseeded(seed)
    return _normal(x.shape, x.device, DTYPES[dtype] if dtype else x.dtype, mean, scale)


@operator("RandomUniformLike")
def random_uniform_like(
    x: Tensor, *, dtype: int = 0, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Tensor:
    _unseeded(seed)
    kind = DTYPES[dtype] if dtype else x.dtype
    return (Tensor.rand(x.shape, device=x.device) * (high - low) + low).cast(kind)


@operator("RandomNormal")
def random_normal(
    *, shape: list[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0,
    seed: float | None = None, device: Any,
) -> Tensor:  # fmt: skip
    _unseeded(seed)
    return _normal(shape, device, DTYPES[dtype], mean, scale)


@operator("RandomUniform")
def random_uniform(
    *, shape: list[int], dtype: int = 1, high: float = 1.0, low: float = 0.0,
    seed: float | None = None, device: Any,
) -> Tensor:  # fmt: skip
    _unseeded(seed)
    return (Tensor.rand(shape, device=device) * (high - low) + low).cast(DTYPES[dtype])


@operator("Bernoulli")
def bernoulli(x: Tensor, *, dtype: int = 0, seed: float | None = None) -> Tensor:
    _unseeded(seed)
    drawn = Tensor.rand(x.shape, device=x.device) < x
    return drawn.cast(DTYPES[dtype] if dtype else x.dtype)


def _normal(shape: Any, device: Any, dtype: Any, mean: float, scale: float) -> Tensor:
    return (Tensor.randn(shape, device=device) * scale + mean).cast(dtype)
