"""Matrices of complex numbers as real ones of twice the size: A + iB is [[A, -B], [B, A]].

Sums, products and inverses of these are those of the complex matrices, and transposes are their
conjugate transposes; singular values, and the eigenvalues of Hermitian ones, occur twice.
"""

from __future__ import annotations

from typing import cast

from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.tensor import Tensor


def complex_of(*given: object) -> ComplexTensor | None:
    """Return the first argument that is complex; None if all are real."""
    return next((each for each in given if isinstance(each, ComplexTensor)), None)


def whole(matrix: ComplexTensor) -> Tensor:
    """Return the real matrix."""
    top = Tensor.cat([matrix.real, -matrix.imag], -1)
    return Tensor.cat([top, Tensor.cat([matrix.imag, matrix.real], -1)], -2)


def stacked(right: ComplexTensor) -> Tensor:
    """Return the left half of `whole`: its product with another is that half of their product."""
    return Tensor.cat([right.real, right.imag], -2)


def complex_matrix(stack: Tensor) -> Tensor:
    """Return the complex matrix of a result of `stacked`, or of `whole` with its right half."""
    one, two = stack.chunk(2, -2)
    return cast("Tensor", ComplexTensor.of(one, two))


def left_half(matrix: Tensor) -> Tensor:
    """Return the columns of `stacked` of a result of `whole`."""
    half: Tensor = matrix.narrow(-1, 0, matrix.shape[-1] // 2)
    return half
