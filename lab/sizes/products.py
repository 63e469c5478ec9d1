"""Products of the campaign: of matrices, batches, few rows, windows, and attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from lab.sizes.case import Array, Case, Operation, Shape
from ugpu.compiler import Tensor

FLOATS = ("float32", "float32", "float16")
TYPES = ("float32", "float32", "float16", "int8", "int32")
EACH = 200.0  # multiplications that cost as much as an element of other operations


def _cost(sizes: Shape) -> float:
    rows, depth, columns = sizes[-3:]
    return max(prod(sizes[:-3]) * rows * depth * columns / EACH, rows * depth, depth * columns)


def _matrices(case: Case) -> list[Shape]:
    *batch, rows, depth, columns = case.sizes
    left, right = (rows, depth), (depth, columns)
    if case.seed & 1:  # a factor that lies the other way
        left = left[::-1]
    if case.seed & 2:
        right = right[::-1]
    return [(*batch, *left), (*batch, *right)]


def _matmul(case: Case, x: Sequence[Tensor]) -> Tensor:
    left = x[0].transpose(-2, -1) if case.seed & 1 else x[0]
    right = x[1].transpose(-2, -1) if case.seed & 2 else x[1]
    return left @ right


def _matmul_numpy(case: Case, x: Sequence[Array]) -> Array:
    left, right = (each.astype(np.float64) for each in x)
    left = left.swapaxes(-2, -1) if case.seed & 1 else left
    right = right.swapaxes(-2, -1) if case.seed & 2 else right
    return left @ right


def products() -> Iterator[tuple[str, Operation]]:
    """Yield the part of the table."""
    for name in ("matmul", "matmul_again"):  # twice as often as others
        yield (
            name,
            Operation(
                _matmul,
                _matmul_numpy,
                (3, 3),
                TYPES,
                _matrices,
                work_of=_cost,
            ),
        )
    yield (
        "matmul_batched",
        Operation(
            _matmul,
            _matmul_numpy,
            (4, 4),
            TYPES,
            _matrices,
            work_of=_cost,
        ),
    )
    yield (
        "matmul_bfloat16",
        Operation(
            lambda case, x: x[0].cast("bfloat16").matmul(x[1].cast("bfloat16")).cast("float32"),
            lambda case, x: _rounded(x[0].astype(np.float64) @ x[1]),
            (3, 3),
            ("float32",),
            lambda case: [case.sizes[:2], case.sizes[1:]],
            work_of=_cost,
        ),
    )
    yield (
        "linear_relu",
        Operation(
            lambda case, x: (x[0].layernorm() @ x[1] + x[2]).relu(),
            _linear_relu,
            (3, 3),
            FLOATS,
            lambda case: [case.sizes[:2], case.sizes[1:], case.sizes[2:]],
            work_of=_cost,
            rtol=5e-2,
            atol=5e-1,
        ),
    )
    yield (
        "vector",
        Operation(
            lambda case, x: x[0] @ x[1],
            lambda case, x: x[0].astype(np.float64) @ x[1],
            (2, 2),
            TYPES,
            lambda case: [case.sizes, case.sizes[1:]],
        ),
    )
    yield from _windows()
    yield (
        "attention",
        Operation(
            lambda case, x: x[0].scaled_dot_product_attention(x[1], x[2], is_causal=_causal(case)),
            _attention,
            (4, 4),  # batch, rows, keys, depth
            ("float32",),
            lambda case: [
                (case.sizes[0], case.sizes[1], case.sizes[3]),
                (case.sizes[0], case.sizes[2], case.sizes[3]),
                (case.sizes[0], case.sizes[2], case.sizes[3]),
            ],
            work_of=_cost,
            rtol=5e-3,
            atol=5e-3,
        ),
    )


def _rounded(x: Array) -> Array:
    """Return float32 values rounded to bfloat16."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def _linear_relu(case: Case, x: Sequence[Array]) -> Array:
    wide = x[0].astype(np.float64)
    apart = wide - wide.mean(-1, keepdims=True)
    normal = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5)
    return np.asarray(np.maximum(normal @ x[1] + x[2], 0))


def _causal(case: Case) -> bool:
    return bool(case.seed & 4)


def _attention(case: Case, x: Sequence[Array]) -> Array:
    queries, keys, values = (each.astype(np.float64) for each in x)
    scores = queries @ keys.swapaxes(-2, -1) / np.sqrt(queries.shape[-1])
    if _causal(case):
        seen = np.tril(np.ones(scores.shape[-2:], bool))
        scores = np.where(seen, scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(scores / scores.sum(-1, keepdims=True) @ values)


# ---- windows: [images, channels, height, width] -------------------------------------------------


def _image(case: Case) -> Shape:
    images, channels, height, width = case.sizes
    return images, channels, height + 3, width + 3


def _outputs(case: Case) -> int:
    return 1 + case.seed % 19


def _conv_cost(sizes: Shape) -> float:
    return prod(sizes) * max(1.0, 20 * 9 / EACH)


def _steps(case: Case) -> tuple[int, int]:
    return 1 + case.seed % 2, case.seed // 2 % 2  # stride, padding


def _laid_out(case: Case, image: Array, fill: float) -> Array:
    """Return all windows of 3 x 3 of an image."""
    stride, padding = _steps(case)
    pairs = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    padded = np.pad(image.astype(np.float64), pairs, constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.asarray(windows[:, :, ::stride, ::stride])


def _windows() -> Iterator[tuple[str, Operation]]:
    yield (
        "conv2d",
        Operation(
            lambda case, x: x[0].conv2d(
                x[1], stride=_steps(case)[0], padding=_steps(case)[1], winograd=False
            ),
            lambda case, x: np.einsum(
                "nchwij,ocij->nohw",
                _laid_out(case, x[0], 0),
                x[1].astype(np.float64),
                optimize=True,
            ),
            (4, 4),
            FLOATS,
            lambda case: [_image(case), (_outputs(case), case.sizes[1], 3, 3)],
            work_of=_conv_cost,
        ),
    )
    yield (
        "depthwise",
        Operation(
            lambda case, x: x[0].conv2d(
                x[1], stride=_steps(case)[0], padding=_steps(case)[1], groups=case.sizes[1]
            ),
            lambda case, x: np.einsum(
                "nchwij,cij->nchw", _laid_out(case, x[0], 0), x[1][:, 0].astype(np.float64)
            ),
            (4, 4),
            FLOATS,
            lambda case: [_image(case), (case.sizes[1], 1, 3, 3)],
            work_of=_conv_cost,
        ),
    )
    yield (
        "max_pool2d",
        Operation(
            lambda case, x: x[0].max_pool2d(3, stride=_steps(case)[0], padding=_steps(case)[1]),
            lambda case, x: _laid_out(case, x[0], -np.inf).max((-2, -1)),
            (4, 4),
            FLOATS,
            lambda case: [_image(case)],
            work_of=_conv_cost,
        ),
    )
    yield (
        "avg_pool2d",
        Operation(
            lambda case, x: x[0].avg_pool2d(3, stride=_steps(case)[0], padding=_steps(case)[1]),
            lambda case, x: _laid_out(case, x[0], 0).mean((-2, -1)),
            (4, 4),
            FLOATS,
            lambda case: [_image(case)],
            work_of=_conv_cost,
            rtol=2e-3,
            atol=2e-3,
        ),
    )
