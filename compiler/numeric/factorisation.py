"""Factorisations of matrices: Cholesky's, QR, eigenvectors, singular values; and their gradients.
The gradients of several results of one function add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.gradients.table import rule
from ugpu.compiler.numeric.elimination import solve
from ugpu.compiler.numeric.pairs import (
    choose,
    conjugate,
    direction,
    like,
    real_of,
    squared,
    turned,
)
from ugpu.compiler.numeric.rotations import eigen, singular
from ugpu.compiler.numeric.steps import (
    computed,
    first_step,
    matrix_of,
    nothing,
    ruled,
    scaled,
    square_of,
)
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument, NotSupported

Results = Sequence[Any]


def cholesky(a: Tensor, *, upper: bool = False) -> Tensor:
    """Return the lower triangular L with L @ L^T = a, of symmetric positive definite matrices, of
    which the lower triangle is read; NaN for others. upper: return L^T."""
    matrix = square_of("cholesky", a)
    size = matrix.shape[-1]
    if not matrix.numel():
        return matrix

    def compute() -> list[Tensor]:
        rows = Tensor.arange(size, device=matrix.device)
        rest = matrix.reshape((-1, size, size)).tril()
        rest = rest + rest.tril(-1).transpose(1, 2)
        lower, step = rest.zeros_like().contiguous(), first_step(matrix)
        for _ in range(size):
            here = rows._compare("eq", step)
            column = here.where(rest, 0.0).sum(2)
            pivot = here.where(column, 0.0).sum(1, keepdims=True).sqrt()
            column = (rows >= step).where(column, 0.0) / pivot
            lower = here.where(column.unsqueeze(2), lower)
            rest = rest - column.unsqueeze(2) * column.unsqueeze(1)
            rest, lower, step = computed(rest, lower, step + 1)
        return [lower.reshape(matrix.shape)]

    (lower,) = ruled(compute, ["cholesky"], [matrix])
    return lower.transpose(-1, -2) if upper else lower


def qr(a: Tensor, mode: Literal["reduced", "complete"] = "reduced") -> tuple[Tensor, Tensor]:
    """Return Q [..., rows, k] with orthonormal columns, and R [..., k, columns], upper triangular,
    with Q @ R = a; k is the smaller of rows and columns, or the rows for "complete". By Householder
    reflections. The matrices may be complex; then they have no gradient."""
    matrix = matrix_of("qr", a, whole=True)
    if mode not in ("reduced", "complete"):
        raise BadArgument(f"qr: mode must be 'reduced' or 'complete', got {mode!r}")
    height, width = matrix.shape[-2:]
    size = min(height, width) if mode == "reduced" else height
    if not matrix.numel():
        return nothing(matrix, height, size), nothing(matrix, size, width)

    def compute() -> list[Tensor]:
        rows = Tensor.arange(height, device=matrix.device)
        columns = Tensor.arange(width, device=matrix.device)
        right, power = scaled(matrix.reshape((-1, height, width)))
        one = Tensor.eye(height, device=matrix.device, dtype=real_of(matrix).dtype)
        left = like(one.expand((right.shape[0], height, height)), matrix).contiguous()
        step = first_step(matrix)
        for _ in range(min(height - 1, width)):
            column = choose(columns._compare("eq", step), right, 0.0).sum(2)
            column = choose(rows >= step, column, 0.0)
            here = rows._compare("eq", step)
            head = choose(here, column, 0.0).sum(1, keepdims=True)
            length = squared(column).sum(1, keepdims=True).sqrt()
            mirror = column + choose(here, direction(head) * length, 0.0)
            squares = squared(mirror).sum(1, keepdims=True)
            scale = squares._compare("eq", 0).where(0.0, 2.0 / squares)
            (mirror,) = computed(mirror * scale.sqrt())
            along = (conjugate(mirror).unsqueeze(2) * right).sum(1, keepdims=True)
            across = (left * mirror.unsqueeze(1)).sum(2, keepdims=True)
            right = right - mirror.unsqueeze(2) * along
            left = left - across * conjugate(mirror).unsqueeze(1)
            right, left, step = computed(right, left, step + 1)
        batch = matrix.shape[:-2]
        return [
            left[:, :, :size].reshape((*batch, height, size)),
            (right[:, :size].triu() * power).reshape((*batch, size, width)),
        ]

    whole = size > width
    rules = ["qr completed"] * 2 if whole else ["qr left", "qr right"]
    results = ruled(compute, rules, [matrix], lambda: qr(matrix, mode))
    return results[0], results[1]


def eigh(a: Tensor, UPLO: Literal["L", "U"] = "L") -> tuple[Tensor, Tensor]:
    """Return the eigenvalues [..., n] of symmetric or Hermitian matrices, smallest first, and the
    eigenvectors, in columns; complex ones have no gradient. UPLO: the triangle that is read. By
    Jacobi rotations."""
    if UPLO not in ("L", "U"):
        raise BadArgument(f"eigh: UPLO must be 'L' or 'U', got {UPLO!r}")
    matrix = square_of("eigh", a if UPLO == "L" else turned(a), whole=True)
    if not matrix.numel():
        return real_of(matrix).reshape(matrix.shape[:-1]), matrix

    def compute() -> list[Tensor]:
        size = matrix.shape[-1]
        values, vectors = eigen(matrix.reshape((-1, size, size)))
        return [values.reshape(matrix.shape[:-1]), vectors.reshape(matrix.shape)]

    results = ruled(compute, ["eigenvalues", "eigenvectors"], [matrix], lambda: eigh(matrix))
    return results[0], results[1]


def svd(a: Tensor, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return U [..., rows, k], the singular values [..., k], largest first, and V^T [..., k,
    columns]; k is the smaller of rows and columns. By one-sided Jacobi rotations. full_matrices:
    complete U and V^T to orthonormal bases of rows and columns, which have no gradient. Of complex
    matrices, which have none either, V^T is the conjugate transpose."""
    if full_matrices:
        left, values, right = svd(a)
        return _completed(left), values, turned(_completed(turned(right)))
    matrix = matrix_of("svd", a, whole=True)
    height, width = matrix.shape[-2:]
    if not matrix.numel():
        size = min(height, width)
        kind = real_of(matrix).dtype
        values = Tensor.zeros((*matrix.shape[:-2], size), device=matrix.device, dtype=kind)
        return nothing(matrix, height, size), values, nothing(matrix, size, width)

    def compute() -> list[Tensor]:
        flat, batch = matrix.reshape((-1, height, width)), matrix.shape[:-2]
        size, wide = min(height, width), height < width
        flat, power = scaled(flat)
        left, values, right = singular(turned(flat) if wide else flat)
        left = _orthonormal(left)
        if wide:
            left, right = right, left
        return [
            left.reshape((*batch, height, size)),
            (values * power.squeeze(-1)).reshape((*batch, size)),
            turned(right).reshape((*batch, size, width)),
        ]

    results = ruled(compute, ["svd left", "svd values", "svd right"], [matrix], lambda: svd(matrix))
    return results[0], results[1], results[2]


def _completed(base: Tensor) -> Tensor:
    """Complete orthonormal columns to a base; the given ones stay."""
    more = base.shape[-2] - base.shape[-1]
    whole = qr(base, "complete")[0]
    kind = ComplexTensor if isinstance(base, ComplexTensor) else Tensor
    return kind.cat([base, whole[..., base.shape[-1] :]], -1) if more else base


def _orthonormal(left: Tensor) -> Tensor:
    """Complete columns of zeros, of singular values of zero, to an orthonormal base; the others
    stay."""
    base, triangle = qr(left)
    return base * direction(triangle.diagonal(0, -2, -1)).unsqueeze(-2)


# ---- gradients (M. Giles, 2008; QR: arXiv:1710.08717) --------------------------------------------


def _turn(x: Any) -> Any:
    return x.transpose(-1, -2)


def _halved(x: Any) -> Any:
    """The lower triangle, its diagonal halved."""
    return (x.tril() + x.tril(-1)) * 0.5


@rule("cholesky")
def _cholesky(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    inner = _halved(_turn(y) @ g)
    # L^-T inner L^-1
    left = solve(_turn(y), inner)
    whole = _turn(solve(_turn(y), _turn(left)))
    return ((whole + _turn(whole)) * 0.5,)


def _of_qr(left: Any, right: Any, given: Any, middle: Any) -> Any:
    """(given + Q sym(middle)) R^-T, with sym the lower triangle mirrored upwards."""
    mirrored = middle.tril() + _turn(middle.tril(-1))
    total = left @ mirrored if given is None else given + left @ mirrored
    return _turn(solve(right, _turn(total)))


def _narrow(x: Any) -> None:
    if x.shape[-2] < x.shape[-1]:
        raise NotSupported(
            f"backward: qr has a gradient for at least as many rows as columns, got {list(x.shape)}"
        )


@rule("qr left")
def _qr_left(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    _narrow(xs[0])
    left, right = arg()
    return (_of_qr(left, right, g, -_turn(g) @ left),)


@rule("qr right")
def _qr_right(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    _narrow(xs[0])
    left, right = arg()
    return (_of_qr(left, right, None, right @ _turn(g)),)


@rule("qr completed")
def _qr_completed(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    raise NotSupported(
        "backward: columns that complete a base are not determined and have no gradient, expected "
        f"mode='reduced' or full_matrices=False for shape {list(xs[0].shape)}"
    )


def _apart(values: Any) -> Any:
    """1 / (values[j] - values[i]), and zero on the diagonal."""
    gaps = values.unsqueeze(-2) - values.unsqueeze(-1)
    same = gaps._compare("eq", 0)
    return same.where(0.0, 1.0 / same.where(1.0, gaps))


@rule("eigenvalues")
def _eigenvalues(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    _, vectors = arg()
    return ((vectors * g.unsqueeze(-2)) @ _turn(vectors),)


@rule("eigenvectors")
def _eigenvectors(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    values, vectors = arg()
    inner = _apart(values) * (_turn(vectors) @ g)
    whole = vectors @ inner @ _turn(vectors)
    return ((whole + _turn(whole)) * 0.5,)


@rule("svd values")
def _svd_values(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    left, _, right = arg()
    return ((left * g.unsqueeze(-2)) @ right,)


@rule("svd left")
def _svd_left(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    left, values, right = arg()
    inner = _apart(values.square()) * (_turn(left) @ g)
    whole = left @ ((inner + _turn(inner)) * values.unsqueeze(-2))
    if left.shape[-2] > left.shape[-1]:
        whole = whole + (g - left @ (_turn(left) @ g)) / values.unsqueeze(-2)
    return (whole @ right,)


@rule("svd right")
def _svd_right(g: Any, y: Any, xs: Sequence[Any], arg: Any) -> Results:
    left, values, right = arg()
    turned = _turn(g)  # of V
    inner = _apart(values.square()) * (right @ turned)
    whole = values.unsqueeze(-1) * (inner + _turn(inner)) @ right
    if right.shape[-1] > right.shape[-2]:
        whole = whole + (g - (g @ _turn(right)) @ right) / values.unsqueeze(-1)
    return (left @ whole,)
