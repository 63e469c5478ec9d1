"""Complex tensors: exponentials, logarithms, roots, and functions of angles.

Inverses: W. Kahan, "Branch cuts for complex elementary functions" (1987), whose formulas need no
difference of nearly equal numbers and keep the sign of zeros on the cuts.
"""

from __future__ import annotations

import math
from typing import Self

from ugpu.compiler.complex.arithmetic import Arithmetic
from ugpu.compiler.tensor import Tensor

FLAT = 20.0  # beyond it tanh is 1 to rounding of float64


def _by_sine(size: Tensor, angle: Tensor) -> Tensor:
    """Return size * sin(angle); of an infinite size and an angle of zero, zero."""
    none = angle.eq(0) & size.isinf()
    return none.where(angle * size.sign(), size * angle.sin())


class Functions(Arithmetic):
    """Functions of each element."""

    __slots__ = ()

    def exp(self) -> Self:
        """Return the exponential."""
        size = self.real.exp()
        return self.of(size * self.imag.cos(), _by_sine(size, self.imag))

    def exp2(self) -> Self:
        """Return 2 to the power of each element."""
        return (self * math.log(2)).exp()

    def expm1(self) -> Self:
        """Return exp(x) - 1."""
        half = (self.imag * 0.5).sin()
        small = self.real.expm1()
        real = small * self.imag.cos() - 2 * half * half
        return self.of(real, _by_sine(small + 1, self.imag))

    def log(self) -> Self:
        """Return the natural logarithm, its imaginary part from -pi to pi."""
        size = self.abs()
        large, small = self._larger()
        near = 0.5 * ((large - 1) * (large + 1) + small * small).log1p()
        return self.of(((size > 0.5) & (size < 2)).where(near, size.log()), self.angle())

    def _larger(self) -> tuple[Tensor, Tensor]:
        """Return the sizes of both parts, the larger first."""
        one, two = self.real.abs(), self.imag.abs()
        swapped = two > one
        return swapped.where(two, one), swapped.where(one, two)

    def log2(self) -> Self:
        """Return the base-2 logarithm."""
        return self.log() / math.log(2)

    def log10(self) -> Self:
        """Return the base-10 logarithm."""
        return self.log() / math.log(10)

    def log1p(self) -> Self:
        """Return log(1 + x)."""
        x, y = self.real, self.imag
        size = self.add(1.0).abs()
        near = 0.5 * (x * (x + 2) + y * y).log1p()
        close = (size > 0.5) & (size < 2)
        return self.of(close.where(near, size.log()), y.atan2(x + 1))

    def sqrt(self) -> Self:
        """Return the root whose real part is not negative."""
        size = self.abs()
        large = self.real.abs()
        root = ((size * 0.5) + (large * 0.5)).sqrt()
        other = (root > 0).where(self.imag.abs() / ((root > 0).where(root, 1.0) * 2), 0.0)
        right = self.real >= 0
        return self.of(right.where(root, other), right.where(other, root).copysign(self.imag))

    def rsqrt(self) -> Self:
        """Return one divided by the root."""
        return self.sqrt().reciprocal()

    def sign(self) -> Self:
        """Return x / |x|, and 0 for 0."""
        size = self.abs()
        return self.div((size > 0).where(size, 1.0))

    sgn = sign

    def sigmoid(self) -> Self:
        """Return 1 / (1 + exp(-x))."""
        return (self.neg().exp() + 1.0).reciprocal()

    # ---- functions of angles -------------------------------------------------------------------

    def _turned(self) -> Self:
        """Return i x."""
        return self.of(-self.imag, self.real)

    def _turned_back(self) -> Self:
        """Return -i x."""
        return self.of(self.imag, -self.real)

    def sinh(self) -> Self:
        """Return the hyperbolic sine."""
        imag = _by_sine(self.real.cosh(), self.imag)
        return self.of(self.real.sinh() * self.imag.cos(), imag)

    def cosh(self) -> Self:
        """Return the hyperbolic cosine."""
        imag = _by_sine(self.real.sinh(), self.imag)
        return self.of(self.real.cosh() * self.imag.cos(), imag)

    def tanh(self) -> Self:
        """Return the hyperbolic tangent."""
        far = self.real.abs() > FLAT
        x = far.where(FLAT, self.real)
        divisor = x.sinh().square() + self.imag.cos().square()
        real = far.where(self.real.sign(), x.sinh() * x.cosh() / divisor)
        return self.of(real, self.imag.sin() * self.imag.cos() / divisor)

    def sin(self) -> Self:
        """Return the sine."""
        return self._turned().sinh()._turned_back()

    def cos(self) -> Self:
        """Return the cosine."""
        return self._turned().cosh()

    def tan(self) -> Self:
        """Return the tangent."""
        return self._turned().tanh()._turned_back()

    def asin(self) -> Self:
        """Return the inverse sine."""
        less, more = self._rooted()
        real = self.real.atan2(less.real * more.real - less.imag * more.imag)
        return self.of(real, (less.real * more.imag - less.imag * more.real).asinh())

    def acos(self) -> Self:
        """Return the inverse cosine."""
        less, more = self._rooted()
        real = 2 * less.real.atan2(more.real)
        return self.of(real, (more.real * less.imag - more.imag * less.real).asinh())

    def _rooted(self) -> tuple[Self, Self]:
        """Return the roots of 1 - x and 1 + x."""
        less, more = self.of(1 - self.real, -self.imag), self.of(1 + self.real, self.imag)
        return less.sqrt(), more.sqrt()

    def asinh(self) -> Self:
        """Return the inverse hyperbolic sine."""
        return self._turned().asin()._turned_back()

    def acosh(self) -> Self:
        """Return the inverse hyperbolic cosine."""
        less, more = self.sub(1.0).sqrt(), self.add(1.0).sqrt()
        real = (less.real * more.real + less.imag * more.imag).asinh()
        return self.of(real, 2 * less.imag.atan2(more.real))

    def atanh(self) -> Self:
        """Return the inverse hyperbolic tangent."""
        x, y = self.real, self.imag
        side = (x < 0).where(-1.0, 1.0)
        size = x * side
        real = 0.25 * side * (4 * size / ((1 - size) * (1 - size) + y * y)).log1p()
        return self.of(real, 0.5 * (2 * y).atan2((1 - x) * (1 + x) - y * y))

    def atan(self) -> Self:
        """Return the inverse tangent."""
        return self._turned().atanh()._turned_back()
