"""Linear algebra: the extension `linalg` of the standard, by ugpu.linalg and Tensor's products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from ugpu.compiler.array_api.manipulation import matrix_transpose as matrix_transpose
from ugpu.compiler.array_api.operands import array_of, pair_of
from ugpu.compiler.dtype import DType
from ugpu.compiler.numeric import linalg
from ugpu.compiler.tensor import Tensor

Axes = int | tuple[int, ...] | None
Tolerance = float | Tensor | None


class Eigh(NamedTuple):
    """The result of `eigh`, see there."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    """The result of `qr`, see there."""

    Q: Tensor
    R: Tensor


class Slogdet(NamedTuple):
    """The result of `slogdet`, see there."""

    sign: Tensor
    logabsdet: Tensor


class SVD(NamedTuple):
    """The result of `svd`, see there."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def cholesky(x: Tensor, /, *, upper: bool = False) -> Tensor:
    """Return `ugpu.linalg.cholesky`."""
    return linalg.cholesky(x, upper=upper)


def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return `Tensor.cross`."""
    return array_of("cross", x1).cross(x2, axis)


def det(x: Tensor, /) -> Tensor:
    """Return `ugpu.linalg.det`."""
    return linalg.det(x)


def diagonal(x: Tensor, /, *, offset: int = 0) -> Tensor:
    """Return `Tensor.diagonal`."""
    return array_of("diagonal", x).diagonal(offset, -2, -1)


def eigh(x: Tensor, /) -> Eigh:
    """Return `ugpu.linalg.eigh`."""
    return Eigh(*linalg.eigh(x))


def eigvalsh(x: Tensor, /) -> Tensor:
    """Return `ugpu.linalg.eigvalsh`."""
    return linalg.eigvalsh(x)


def inv(x: Tensor, /) -> Tensor:
    """Return `ugpu.linalg.inv`."""
    return linalg.inv(x)


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return `Tensor.matmul`."""
    return array_of("matmul", x1).matmul(array_of("matmul", x2))


def matrix_norm(
    x: Tensor, /, *, keepdims: bool = False,
    ord: int | float | Literal["fro", "nuc"] | None = "fro",
) -> Tensor:  # fmt: skip
    """Return `ugpu.linalg.matrix_norm`."""
    return linalg.matrix_norm(x, "fro" if ord is None else ord, (-2, -1), keepdims)


def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """Return `ugpu.linalg.matrix_power`."""
    return linalg.matrix_power(x, n)


def matrix_rank(x: Tensor, /, *, rtol: Tolerance = None) -> Tensor:
    """Return `ugpu.linalg.matrix_rank`."""
    return linalg.matrix_rank(x, rtol)


def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return `Tensor.outer`."""
    left, right = pair_of("outer", x1, x2)
    return left.outer(right)


def pinv(x: Tensor, /, *, rtol: Tolerance = None) -> Tensor:
    """Return `ugpu.linalg.pinv`."""
    return linalg.pinv(x, rtol)


def qr(x: Tensor, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QR:
    """Return `ugpu.linalg.qr`."""
    return QR(*linalg.qr(x, mode))


def slogdet(x: Tensor, /) -> Slogdet:
    """Return `ugpu.linalg.slogdet`."""
    return Slogdet(*linalg.slogdet(x))


def solve(x1: Tensor, x2: Tensor, /) -> Tensor:
    """Return `ugpu.linalg.solve`; only an x2 of one axis is a vector."""
    right = array_of("solve", x2)
    return linalg.solve(x1, right.unsqueeze(0) if 1 < right.ndim < x1.ndim else right)


def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVD:
    """Return `ugpu.linalg.svd`."""
    return SVD(*linalg.svd(x, full_matrices))


def svdvals(x: Tensor, /) -> Tensor:
    """Return `ugpu.linalg.svdvals`."""
    return linalg.svdvals(x)


def tensordot(
    x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Tensor:
    """Return `Tensor.tensordot`."""
    left, right = pair_of("tensordot", x1, x2)
    return left.tensordot(right, axes)


def trace(x: Tensor, /, *, offset: int = 0, dtype: DType | None = None) -> Tensor:
    """Return the sums of diagonals of matrices [..., rows, columns]."""
    return array_of("trace", x).diagonal(offset, -2, -1).sum(-1, dtype=dtype)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return `Tensor.vecdot`."""
    left, right = pair_of("vecdot", x1, x2)
    return left.vecdot(right, axis)


def vector_norm(
    x: Tensor, /, *, axis: Axes = None, keepdims: bool = False, ord: int | float = 2
) -> Tensor:
    """Return `Tensor.norm`."""
    return array_of("vector_norm", x).norm(ord, axis, keepdims)
