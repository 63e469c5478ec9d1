"""Complex tensors: arithmetic and comparisons."""

from __future__ import annotations

from typing import Any, Self

from ugpu.compiler.complex.core import ComplexCore
from ugpu.compiler.tensor import Tensor

SQUARED = 32  # whole exponents up to this one are products


class Arithmetic(ComplexCore):
    """Sums, products, quotients, powers, and whether elements are equal. Operands may be real."""

    __slots__ = ()

    def add(self, other: Any) -> Self:
        """Return `self + other`, with broadcasting."""
        right = self._operand("add", other)
        if not isinstance(right, ComplexCore):
            return self.of(self.real + right, self.imag)
        return self.of(self.real + right.real, self.imag + right.imag)

    def sub(self, other: Any) -> Self:
        """Return `self - other`, with broadcasting."""
        right = self._operand("sub", other)
        if not isinstance(right, ComplexCore):
            return self.of(self.real - right, self.imag)
        return self.of(self.real - right.real, self.imag - right.imag)

    def mul(self, other: Any) -> Self:
        """Return `self * other`, with broadcasting."""
        right = self._operand("mul", other)
        if not isinstance(right, ComplexCore):
            return self.of(self.real * right, self.imag * right)
        a, b, c, d = self.real, self.imag, right.real, right.imag
        return self.of(a * c - b * d, a * d + b * c)

    def div(self, other: Any) -> Self:
        """Return `self / other`, with broadcasting: by a factor that keeps the divisor's square in
        range."""
        right = self._operand("div", other)
        if not isinstance(right, ComplexCore):
            return self.of(self.real / right, self.imag / right)
        size = right.real.detach().abs().maximum(right.imag.detach().abs())
        scale = ((size > 0) & size.isfinite()).where(size, 1.0)
        c, d = right.real / scale, right.imag / scale
        square = (c * c + d * d) * scale
        a, b = self.real, self.imag
        return self.of((a * c + b * d) / square, (b * c - a * d) / square)

    divide = true_divide = div
    multiply, subtract = mul, sub

    def positive(self) -> Self:
        """Return the same elements."""
        return +self

    resolve_conj = resolve_neg = positive

    def neg(self) -> Self:
        """Return `-self`."""
        return self.of(-self.real, -self.imag)

    negative = neg

    def conj(self) -> Self:
        """Return the conjugate."""
        return self.of(self.real, -self.imag)

    conjugate, conj_physical = conj, conj

    def reciprocal(self) -> Self:
        """Return `1 / self`."""
        return self._lifted("reciprocal", 1.0).div(self)

    def square(self) -> Self:
        """Return `self * self`."""
        return self.mul(self)

    def pow(self, exponent: Any) -> Self:
        """Return the power. A small whole number as exponent is computed by products."""
        if isinstance(exponent, int) and abs(exponent) <= SQUARED:
            return self._whole_power(abs(exponent), exponent < 0)
        power = self._operand("pow", exponent)
        raised = self.log().mul(power).exp()
        real = power.real if isinstance(power, ComplexCore) else power
        none: Tensor | bool = real == 0
        if isinstance(power, ComplexCore):
            none = power.eq(0)
        at_zero = self.eq(0)
        raised = raised._set(at_zero & (real > 0), 0.0)
        return raised._set(at_zero & none, 1.0)

    def _set(self, places: Tensor, number: float) -> Self:
        return self.of(places.where(number, self.real), places.where(0.0, self.imag))

    def _whole_power(self, exponent: int, inverse: bool) -> Self:
        result, square = self.of(self.real.ones_like(), self.imag.zeros_like()), self
        first = True
        while exponent:
            if exponent & 1:
                result, first = square if first else result * square, False
            exponent >>= 1
            square = square * square if exponent else square
        return result.reciprocal() if inverse else +result

    float_power = pow

    def lerp(self, end: Any, weight: Any) -> Self:
        """Return `self + weight * (end - self)`."""
        return self.add(self._lifted("lerp", end).sub(self).mul(weight))

    def addcmul(self, one: Any, two: Any, *, value: Any = 1) -> Self:
        """Return `self + value * one * two`."""
        return self.add(self._lifted("addcmul", one).mul(two).mul(value))

    def addcdiv(self, one: Any, two: Any, *, value: Any = 1) -> Self:
        """Return `self + value * one / two`."""
        return self.add(self._lifted("addcdiv", one).div(two).mul(value))

    def exp(self) -> Self:
        """Return the exponential."""
        raise NotImplementedError

    def log(self) -> Self:
        """Return the natural logarithm."""
        raise NotImplementedError

    # ---- comparisons ---------------------------------------------------------------------------

    def eq(self, other: Any) -> Tensor:
        """Return whether elements are equal, with broadcasting."""
        right = self._lifted("eq", other)
        return self.real.eq(right.real) & self.imag.eq(right.imag)

    def ne(self, other: Any) -> Tensor:
        """Return whether elements differ, with broadcasting."""
        return ~self.eq(other)

    def isnan(self) -> Tensor:
        """Return whether a part is not a number."""
        return self.real.isnan() | self.imag.isnan()

    def isinf(self) -> Tensor:
        """Return whether a part is infinite."""
        return self.real.isinf() | self.imag.isinf()

    def isfinite(self) -> Tensor:
        """Return whether both parts are finite."""
        return self.real.isfinite() & self.imag.isfinite()

    def isreal(self) -> Tensor:
        """Return whether the imaginary part is zero."""
        return self.imag.eq(0)

    def isclose(
        self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> Tensor:
        """Return whether |self - other| <= atol + rtol |other|, or both are equal. equal_nan: or
        both are NaN."""
        right = self._lifted("isclose", other)
        near = right.isfinite() & ((self - right).abs() <= right.abs() * rtol + atol)
        near = near | self.eq(right)
        return near | (self.isnan() & right.isnan()) if equal_nan else near

    def allclose(
        self, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
    ) -> bool:
        """Return whether all elements are close, see `isclose`."""
        return bool(self.isclose(other, rtol, atol, equal_nan).all())

    def equal(self, other: Any) -> bool:
        """Return whether shapes and all elements are equal."""
        right = self._lifted("equal", other)
        return self.shape == right.shape and bool(self.eq(right).all())

    def abs(self) -> Tensor:
        """Return the absolute value, a real tensor."""
        return self.real.hypot(self.imag)

    absolute = abs

    def angle(self) -> Tensor:
        """Return the angle in radians, from -pi to pi."""
        return self.imag.atan2(self.real)

    # ---- operators -----------------------------------------------------------------------------

    def __add__(self, other: Any) -> Self:
        return self.add(other)

    def __radd__(self, other: Any) -> Self:
        return self.add(other)

    def __sub__(self, other: Any) -> Self:
        return self.sub(other)

    def __rsub__(self, other: Any) -> Self:
        return self._lifted("sub", other).sub(self)

    def __mul__(self, other: Any) -> Self:
        return self.mul(other)

    def __rmul__(self, other: Any) -> Self:
        return self.mul(other)

    def __truediv__(self, other: Any) -> Self:
        return self.div(other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._lifted("div", other).div(self)

    def __pow__(self, other: Any) -> Self:
        return self.pow(other)

    def __rpow__(self, other: Any) -> Self:
        return self._lifted("pow", other).pow(self)

    def __neg__(self) -> Self:
        return self.neg()

    def __pos__(self) -> Self:
        return self.of(self.real, self.imag)

    def __abs__(self) -> Tensor:
        return self.abs()

    # Any: see Tensor.__eq__
    def __eq__(self, other: object) -> Any:
        return self.eq(other) if self._is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self.ne(other) if self._is_operand(other) else NotImplemented

    __hash__ = object.__hash__
