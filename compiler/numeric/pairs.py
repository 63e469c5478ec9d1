"""Matrices of complex numbers, and what steps on matrices need of real and complex numbers alike.

As a real matrix of twice the size, A + iB is [[A, -B], [B, A]]. Sums, products and inverses of such
are those of the complex matrices, and transposes are their conjugate transposes; singular values,
and the eigenvalues of Hermitian ones, occur twice. Functions for both kinds have the types of real
tensors.
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


def conjugate(x: Tensor) -> Tensor:
    """Return the conjugate of complex numbers; real ones as they are."""
    return cast("Tensor", x.conj()) if isinstance(x, ComplexTensor) else x


def turned(x: Tensor) -> Tensor:
    """Return the conjugate transpose of matrices."""
    return conjugate(x.transpose(-1, -2))


def choose(condition: Tensor, one: Tensor | float, two: Tensor | float) -> Tensor:
    """Return elements of `one` where the condition holds, of `two` elsewhere."""
    if complex_of(one, two) is not None:
        return cast("Tensor", ComplexTensor.where(condition, one, two))
    result: Tensor = condition.where(one, two)
    return result


def squared(x: Tensor) -> Tensor:
    """Return the squares of magnitudes."""
    if isinstance(x, ComplexTensor):
        return x.real.square() + x.imag.square()
    return x.square()


def direction(x: Tensor) -> Tensor:
    """Return x divided by its magnitude; 1 for 0."""
    if not isinstance(x, ComplexTensor):
        return (x < 0).where(-1.0, 1.0)
    length = x.abs()
    zero = length._compare("eq", 0)
    return choose(zero, 1.0, x / zero.where(1.0, length))


def real_of(x: Tensor) -> Tensor:
    """Return the real part."""
    return x.real if isinstance(x, ComplexTensor) else x


def like(real: Tensor, other: Tensor) -> Tensor:
    """Return real numbers as complex ones if `other` is complex."""
    if not isinstance(other, ComplexTensor):
        return real
    return cast("Tensor", ComplexTensor.of(real, real.zeros_like()))
