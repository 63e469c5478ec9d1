"""Systems of equations, inverses and determinants, by Gauss-Jordan elimination with partial
pivoting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.dtype import promote, wide
from ugpu.compiler.gradients.table import rule
from ugpu.compiler.numeric.pairs import (
    choose,
    complex_matrix,
    complex_of,
    left_half,
    like,
    real_of,
    stacked,
    whole,
)
from ugpu.compiler.numeric.steps import batch_of, computed, first_step, ruled, square_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Results = Sequence[Any]


def solve(a: Tensor, b: Tensor) -> Tensor:
    """Return x with a @ x = b. a: [..., n, n]; b: [..., n, columns], [n] of one equation, or, as in
    PyTorch, [..., n] with the same leading axes as a. By Gauss-Jordan elimination with partial
    pivoting; of complex matrices, of real ones of twice the size (compiler.numeric.pairs)."""
    pair = complex_of(a, b)
    if pair is not None:
        return _solved(pair._lifted("solve", a), pair._lifted("solve", b))
    matrix = square_of("solve", a)
    vector = b.ndim == 1 or b.shape == a.shape[:-1]
    kind = promote(matrix.dtype, wide(b.dtype))
    matrix, right = matrix.cast(kind), (b.unsqueeze(-1) if vector else b).cast(kind)
    if right.ndim < 2 or right.shape[-2] != matrix.shape[-1]:
        raise BadArgument(f"solve: shapes {list(a.shape)} and {list(b.shape)} do not match")
    batch = batch_of("solve", matrix, right)
    one = matrix.broadcast_to((*batch, *matrix.shape[-2:]))
    two = right.broadcast_to((*batch, *right.shape[-2:]))
    if not two.numel():
        return two.squeeze(-1) if vector else two

    def compute() -> list[Tensor]:
        size, columns = one.shape[-1], two.shape[-1]
        flat = one.reshape((-1, size, size)), two.reshape((-1, size, columns))
        return [_eliminated(*flat)[0].reshape(two.shape)]

    (result,) = ruled(compute, ["solve"], [one, two])
    return result.squeeze(-1) if vector else result


def inv(a: Tensor) -> Tensor:
    """Return the inverse of square matrices, which may be complex."""
    pair = complex_of(a)
    if pair is not None:
        return complex_matrix(left_half(inv(whole(_square("inv", pair)))))
    matrix = square_of("inv", a)
    if not matrix.numel():
        return matrix
    one = Tensor.eye(matrix.shape[-1], device=matrix.device, dtype=matrix.dtype)
    return solve(matrix, one.broadcast_to(matrix.shape))


def det(a: Tensor) -> Tensor:
    """Return the determinant of square matrices; of complex ones, it has no gradient."""
    matrix = square_of("det", a, whole=True)
    if not matrix.numel():
        return like(_ones(matrix), matrix)

    def compute() -> list[Tensor]:
        pivots, sign = _pivots(matrix)
        return [(pivots.prod(-1) * sign).reshape(matrix.shape[:-2])]

    return ruled(compute, ["det"], [matrix])[0]


def slogdet(a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sign of the determinant, of complex matrices its direction, and the logarithm of
    its magnitude; of complex ones, neither has a gradient."""
    matrix = square_of("slogdet", a, whole=True)
    if not matrix.numel():
        ones = _ones(matrix)
        return like(ones, matrix), ones.zeros_like()

    def compute() -> list[Tensor]:
        pivots, sign = _pivots(matrix)
        signs = (pivots.sign().prod(-1) * sign).reshape(matrix.shape[:-2])
        return [signs, pivots.abs().log().sum(-1).reshape(matrix.shape[:-2])]

    results = ruled(compute, [None, "logdet"], [matrix])
    return results[0], results[1]


def _ones(matrix: Tensor) -> Tensor:
    kind = real_of(matrix).dtype
    return Tensor.ones(matrix.shape[:-2], device=matrix.device, dtype=kind)


def _square(operation: str, a: ComplexTensor) -> ComplexTensor:
    """Return a square complex matrix; BadArgument for another shape."""
    square_of(operation, a.real)
    return a


def _solved(a: ComplexTensor, b: ComplexTensor) -> Tensor:
    """Return `solve` of complex matrices."""
    _square("solve", a)
    vector = b.ndim == 1 or b.shape == a.shape[:-1]
    right = b.unsqueeze(-1) if vector else b
    if right.ndim < 2 or right.shape[-2] != a.shape[-1]:
        raise BadArgument(f"solve: shapes {list(a.shape)} and {list(b.shape)} do not match")
    result = complex_matrix(solve(whole(a), stacked(right)))
    return result.squeeze(-1) if vector else result


def _eliminated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a^-1 @ b, the pivots [batch, n] and the sign of the exchanges. a: [batch, n, n]."""
    count, size, _ = a.shape
    rows = Tensor.arange(size, device=a.device)
    whole = ComplexTensor if isinstance(a, ComplexTensor) else Tensor
    joined, step = whole.cat([a, b], 2).contiguous(), first_step(a)
    columns, kind = Tensor.arange(joined.shape[2], device=a.device), real_of(a).dtype
    pivots = like(Tensor.zeros(count, size, device=a.device, dtype=kind), a).contiguous()
    sign = Tensor.ones(count, device=a.device, dtype=kind).contiguous()
    for _ in range(size):
        column = choose(columns._compare("eq", step), joined, 0.0).sum(2)
        chosen = (rows >= step).where(column.abs(), -1.0).argmax(1, keepdims=True)
        chosen, column = computed(chosen, column)
        here = rows._compare("eq", step)
        exchanged = here.where(chosen, rows._compare("eq", chosen).where(step, rows))
        joined = joined.gather(1, exchanged.unsqueeze(2).expand(joined.shape))
        column = column.gather(1, exchanged)
        pivot = choose(here, column, 0.0).sum(1, keepdims=True)
        row = here.reshape((1, size, 1))
        top = choose(row, joined, 0.0).sum(1, keepdims=True) / pivot.unsqueeze(2)
        joined = choose(row, top, joined - column.unsqueeze(2) * top)
        pivots = choose(here, pivot, pivots)
        sign = chosen.squeeze(1)._compare("eq", step).where(sign, -sign)
        joined, pivots, sign, step = computed(joined, pivots, sign, step + 1)
    return joined[:, :, size:], pivots, sign


def _pivots(matrix: Tensor) -> tuple[Tensor, Tensor]:
    size = matrix.shape[-1]
    flat = matrix.reshape((-1, size, size))
    _, pivots, sign = _eliminated(flat, flat[:, :, :0])
    return pivots, sign


# ---- gradients (M. Giles, "Collected matrix derivative results", 2008) --------------------------


def _turn(x: Any) -> Any:
    return x.transpose(-1, -2)


@rule("solve")
def _solve(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    right = solve(_turn(xs[0]), g)
    return -right @ _turn(y), right


@rule("det")
def _det(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    inverse = inv(xs[0])
    return (_turn(inverse) * (g * y).unsqueeze(-1).unsqueeze(-1),)


@rule("logdet")
def _logdet(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    return (_turn(inv(xs[0])) * g.unsqueeze(-1).unsqueeze(-1),)
