"""What tinygrad computes in these tests, step by step, and what NumPy says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tinygrad import Tensor, TinyJit, dtypes

Step = tuple[str, Callable[[], Any], Any]  # name, what tinygrad computes, what NumPy says


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def operators(matrix_units: bool = True) -> Iterator[Step]:
    """Copies, elementwise operations, reductions, products, sorting, convolution, graphs.

    matrix_units: the GPU has them. Without them each product of halves is a half, which is cast to
    float before it is added: `(x * w).sum(dtype=float)`.
    """
    x, y = numbers(64, 48), numbers(64, 48, seed=1)
    square, halves = numbers(64, 64, seed=2), numbers(64, 64, seed=3).astype(np.float16)
    whole = np.arange(-60, 60, dtype=np.int32).reshape(10, 12)
    large = numbers(1 << 20, seed=4)
    yield "copy", lambda: Tensor(x).numpy(), x
    yield "copy of 4 MiB", lambda: (Tensor(large) + 0).numpy(), large
    yield "add", lambda: (Tensor(x) + Tensor(y)).numpy(), x + y
    yield "multiply and add", lambda: (Tensor(x) * 2.5 - Tensor(y)).numpy(), x * 2.5 - y
    yield "divide", lambda: (Tensor(x) / Tensor(y)).numpy(), x / y
    yield "exp", lambda: Tensor(x).exp().numpy(), np.exp(x)
    yield "log", lambda: Tensor(x).abs().log().numpy(), np.log(np.abs(x))
    yield "sin", lambda: Tensor(x).sin().numpy(), np.sin(x)
    yield "sqrt", lambda: Tensor(x).abs().sqrt().numpy(), np.sqrt(np.abs(x))
    yield "where", lambda: (Tensor(x) > 0).where(Tensor(x), 0).numpy(), np.where(x > 0, x, 0)
    yield "sum", lambda: Tensor(x).sum().numpy(), x.sum(dtype=np.float64)
    yield "sum of an axis", lambda: Tensor(x).sum(axis=0).numpy(), x.sum(axis=0)
    yield "max", lambda: Tensor(x).max(axis=1).numpy(), x.max(axis=1)
    yield "argmax", lambda: Tensor(x).argmax(axis=1).numpy(), x.argmax(axis=1)
    shifted = np.exp(x - x.max(axis=1, keepdims=True))
    yield "softmax", lambda: Tensor(x).softmax().numpy(), shifted / shifted.sum(1, keepdims=True)
    yield "product", lambda: (Tensor(square) @ Tensor(square)).numpy(), square @ square
    product = halves.astype(np.float32) @ halves.astype(np.float32)
    if not matrix_units:
        product = (halves[:, :, None] * halves[None]).sum(axis=1, dtype=np.float32)
    yield (
        "product of halves",
        lambda: Tensor(halves).matmul(Tensor(halves), dtype=dtypes.float32).numpy(),
        product,
    )
    yield "transposed", lambda: Tensor(x).T.contiguous().numpy(), x.T
    yield "pad", lambda: Tensor(x).pad(((1, 2), (0, 3))).numpy(), np.pad(x, ((1, 2), (0, 3)))
    yield "cat", lambda: Tensor(x).cat(Tensor(y)).numpy(), np.concatenate((x, y))
    yield "whole division", lambda: (Tensor(whole) // 7).numpy(), whole // 7
    yield "remainder", lambda: (Tensor(whole) % 7).numpy(), whole % 7
    yield "shift and mask", lambda: (Tensor(whole).bitwise_and(12) << 3).numpy(), (whole & 12) << 3
    yield "bytes", lambda: Tensor(whole).cast(dtypes.uint8).numpy(), whole.astype(np.uint8)
    yield (
        "short integers",
        lambda: (Tensor(whole).cast(dtypes.int16) * Tensor(whole).cast(dtypes.int16) + 5).numpy(),
        (whole.astype(np.int16) * whole.astype(np.int16) + 5),
    )
    yield "doubles", lambda: (Tensor(x).cast(dtypes.float64) * 3).numpy(), x.astype(np.float64) * 3
    yield "cumsum", lambda: Tensor(x).cumsum(axis=1).numpy(), x.cumsum(axis=1)
    yield "sort", lambda: Tensor(x[0]).sort()[0].numpy(), np.sort(x[0])
    image, taps = numbers(1, 3, 12, 12, seed=5), numbers(4, 3, 3, 3, seed=6)
    windows = np.lib.stride_tricks.sliding_window_view(image[0], (3, 3), axis=(1, 2))
    convolved = np.einsum("chwij,ocij->ohw", windows, taps)[None]
    yield "convolution", lambda: Tensor(image).conv2d(Tensor(taps)).numpy(), convolved
    yield "recorded, replayed", _replayed, numbers(32) * 2 + 1


def _replayed() -> np.ndarray:
    @TinyJit
    def step(value: Tensor) -> Tensor:
        return (value * 2 + 1).realize()

    result = Tensor.zeros(32)
    for seed in (3, 2, 1, 0):
        result = step(Tensor(numbers(32, seed=seed)).realize())
    return np.asarray(result.numpy())


def few() -> Iterator[Step]:
    """Three steps: the device works."""
    x = numbers(256)
    yield "copy", lambda: Tensor(x).numpy(), x
    yield "add", lambda: (Tensor(x) + 1).numpy(), x + 1
    yield "sum", lambda: Tensor(x).sum().numpy(), x.sum(dtype=np.float64)


def trouble(act: Callable[[], Any], expected: Any) -> str:
    """Run a step; return "ok" or what is wrong."""
    try:
        got = np.asarray(act())
    except Exception as error:  # whatever tinygrad raises is this step's result
        return f"{type(error).__name__}: {error}"
    expected = np.asarray(expected)
    exact = expected.dtype.kind in "iub"
    tolerance = 0 if exact else 2e-4
    if got.shape == expected.shape and np.allclose(got, expected, tolerance, tolerance):
        return "ok"
    return f"expected {expected.ravel()[:4]}, got {got.ravel()[:4]} (shape {got.shape})"
