"""Operators that reduce axes, and products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.operators.shapes import ints
from ugpu.compiler.tensor import Tensor

Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _real(x: Tensor) -> Tensor:
    return x if x.dtype.is_float else x.float()


def _extreme(lowest: bool) -> Reduce:
    def reduced(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
        if any(not x.shape[axis] for axis in axes):
            number = dtypes.highest(x.dtype) if lowest else dtypes.lowest(x.dtype)
            shape = [1 if n in axes else size for n, size in enumerate(x.shape)]
            shape = shape if keep else [s for n, s in enumerate(x.shape) if n not in axes]
            return Tensor.full(shape, number, device=x.device, dtype=x.dtype)
        return x.min(axes, keep) if lowest else x.max(axes, keep)

    return reduced


_REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes, keep: x.abs().sum(axes, keep),
    "ReduceL2": lambda x, axes, keep: _real(x).square().sum(axes, keep).sqrt(),
    "ReduceLogSum": lambda x, axes, keep: _real(x).sum(axes, keep).log(),
    "ReduceLogSumExp": lambda x, axes, keep: x.logsumexp(axes, keep),
    "ReduceMax": _extreme(False),
    "ReduceMean": lambda x, axes, keep: x.mean(axes, keep),
    "ReduceMin": _extreme(True),
    "ReduceProd": lambda x, axes, keep: x.prod(axes, keep),
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keep),
}


def _reduction(reduce: Reduce) -> Callable[..., Tensor]:
    def reduced(
        x: Tensor, given: Any = None, *, axes: list[int] | None = None, keepdims: int = 1,
        noop_with_empty_axes: int = 0,
    ) -> Tensor:  # fmt: skip
        listed = axes if given is None else ints(given)
        if not listed and noop_with_empty_axes:
            return reduce(x, (), True).cast(x.dtype)
        places = tuple(axis % x.ndim for axis in listed) if listed else tuple(range(x.ndim))
        return reduce(x, places, bool(keepdims)).cast(x.dtype)

    return reduced


for _name, _reduce in _REDUCTIONS.items():
    operator(_name, host=(1,))(_reduction(_reduce))


def _position(x: Tensor, axis: int, keepdims: int, last: int, largest: bool) -> Tensor:
    wide = x.flip(axis % x.ndim) if last else x
    place = wide.argmax(axis, bool(keepdims)) if largest else wide.argmin(axis, bool(keepdims))
    return x.shape[axis] - 1 - place if last else place


@operator("ArgMax")
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _position(x, axis, keepdims, select_last_index, True)


@operator("ArgMin")
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _position(x, axis, keepdims, select_last_index, False)


@operator("Softmax")
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return x.softmax(axis)


@operator("LogSoftmax")
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return x.log_softmax(axis)


@operator("Hardmax")
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    place = axis % x.ndim
    first = x.argmax(place, True)
    shape = [x.shape[place] if n == place else 1 for n in range(x.ndim)]
    hot: Tensor = Tensor.arange(x.shape[place], device=x.device).reshape(shape) == first
    return hot.cast(x.dtype)


@operator("MatMul")
def matmul(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


@operator("Gemm")
def gemm(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0,
    transA: int = 0, transB: int = 0,
) -> Tensor:  # fmt: skip
    result = (a.transpose(0, 1) if transA else a) @ (b.transpose(0, 1) if transB else b)
    if alpha != 1:
        result = result * alpha
    if c is None:
        return result.cast(a.dtype)
    return (result + (c if beta == 1 else c * beta)).cast(a.dtype)


@operator("Einsum")
def einsum(*inputs: Tensor, equation: str) -> Tensor:
    return Tensor.einsum(equation.replace(" ", ""), *inputs)


def _centred(x: Tensor, zero: Tensor | None, rows: bool) -> Tensor:
    wide = x.cast("int32")
    if zero is None:
        return wide
    around = zero.cast("int32")
    if rows and around.ndim == 1 and around.numel() > 1:
        around = around.unsqueeze(1)
    return wide - around


@operator("MatMulInteger")
def matmul_integer(
    a: Tensor, b: Tensor, zero_a: Tensor | None = None, zero_b: Tensor | None = None
) -> Tensor:
    return _centred(a, zero_a, True) @ _centred(b, zero_b, False)


@operator("QLinearMatMul")
def q_linear_matmul(
    a: Tensor, scale_a: Tensor, zero_a: Tensor, b: Tensor, scale_b: Tensor, zero_b: Tensor,
    scale: Tensor, zero: Tensor,
) -> Tensor:  # fmt: skip
    total = (_centred(a, zero_a, True) @ _centred(b, zero_b, False)).float()
    left = scale_a.float().unsqueeze(-1) if scale_a.ndim == 1 and scale_a.numel() > 1 else scale_a
    steps = (total * (left.float() * scale_b.float() / scale.float())).round() + zero.float()
    low, high = dtypes.lowest(zero.dtype), dtypes.highest(zero.dtype)
    return steps.clamp(float(low), float(high)).cast(zero.dtype)


@operator("Det")
def det(x: Tensor) -> Tensor:
    """By elimination with pivots, a step for each column."""
    size = x.shape[-1]
    matrix = x.float()
    result = matrix[..., 0, 0] * 0 + 1
    for column in range(size):
        rest = matrix[..., column:, column:]
        pivot = rest[..., 0].abs().argmax(-1, True).unsqueeze(-1)
        row = rest.gather(rest.ndim - 2, pivot.expand(*rest.shape[:-2], 1, rest.shape[-1]))
        first: Any = pivot.squeeze(-1).squeeze(-1) == 0
        result = result * row[..., 0, 0] * first.where(1.0, -1.0)
        if column + 1 < size:
            number = Tensor.arange(rest.shape[-2], device=x.device).unsqueeze(-1)
            top: Any = number == pivot
            rest = top.where(rest[..., :1, :], rest)[..., 1:, :]
            divisor = (row[..., :1] == 0).where(1.0, row[..., :1])
            matrix = matrix * 0  # only the part below counts
            lower = rest - rest[..., :1] / divisor * row
            pads = [(0, 0)] * (x.ndim - 2) + [(column + 1, 0), (column, 0)]
            matrix = lower.pad(pads)
    return result.cast(x.dtype)
