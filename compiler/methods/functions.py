"""Tensor: more functions of each element, and activations, made of those of Elementwise.

They are computed in float32 and rounded once, so that a chain in float16 loses nothing on the way.
Approximations: M. Abramowitz, I. Stegun, Handbook of Mathematical Functions (1964), by number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self

from compiler import dtype as dtypes
from compiler.dtype import float32
from compiler.methods.elementwise import Elementwise

# 4.4.46: acos(x) / sqrt(1 - x) for 0 <= x <= 1, within 2e-8
_ACOS = (1.5707963050, -0.2145988016, 0.0889789874, -0.0501743046, 0.0308918810, -0.0170881256,
         0.0066700901, -0.0012624911)  # fmt: skip
# 4.4.49: atan(x) / x by powers of x^2, for -1 <= x <= 1, within 2e-8
_ATAN = (1.0, -0.3333314528, 0.1999355085, -0.1420889944, 0.1065626393, -0.0752896400,
         0.0429096138, -0.0161657367, 0.0028662257)  # fmt: skip
# 7.1.26: (1 - erf(x)) * exp(x^2) by powers of 1 / (1 + p x) for x >= 0, within 1.5e-7
_ERF = (0.0, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_ERF_P = 0.3275911
_SINH = (1.0, 1 / 6, 1 / 120, 1 / 5040, 1 / 362880)  # sinh(x) / x by powers of x^2
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # arXiv:1706.02515


class Functions(Elementwise):
    """Integers give float32."""

    __slots__ = ()

    def _real(self) -> Self:
        return self.cast(float32)

    def _rounded(self, result: Self) -> Self:
        return result.cast(dtypes.float_dtype(self.dtype))

    def _series(self, factors: Sequence[float]) -> Self:
        """A polynomial, the constant first."""
        total = self * factors[-1]
        for factor in reversed(factors[1:-1]):
            total = (total + factor) * self
        return total + factors[0]

    # ---- mathematics ---------------------------------------------------------------------------

    def tan(self) -> Self:
        real = self._real()
        return self._rounded(real.sin() / real.cos())

    def asin(self) -> Self:
        """Within 4e-7; NaN outside of -1 to 1."""
        real = self._real()
        return self._rounded(math.pi / 2 - real.acos())

    def acos(self) -> Self:
        """Within 4e-7; NaN outside of -1 to 1."""
        real = self._real()
        size = real.abs()
        found = (1 - size).sqrt() * size._series(_ACOS)
        return self._rounded((real < 0).where(math.pi - found, found))

    def atan(self) -> Self:
        """Within 2e-7."""
        real = self._real()
        size = real.abs()
        small = size <= 1
        near = small.where(size, 1 / size.maximum(1))
        found = near * near.square()._series(_ATAN)
        return self._rounded(small.where(found, math.pi / 2 - found).copysign(real))

    def sinh(self) -> Self:
        real = self._real()
        square = real.square()
        near = real * square.minimum(1)._series(_SINH)
        raised = (real.abs() - math.log(2)).exp()  # half of e^x, which overflows later
        far = (raised - 0.25 / raised).copysign(real)
        return self._rounded((square < 1).where(near, far))

    def cosh(self) -> Self:
        raised = (self._real().abs() - math.log(2)).exp()
        return self._rounded(raised + 0.25 / raised)

    def asinh(self) -> Self:
        """Within 3e-7 up to 8, then within 1e-6 of itself."""
        real = self._real()
        size = real.abs()
        large = size > 1e9
        root = (large.where(0, size).square() + 1).sqrt() + size
        return self._rounded((large.where(2 * size, root)).log().copysign(real))

    def acosh(self) -> Self:
        """NaN below 1."""
        real = self._real()
        return self._rounded((real + (real - 1).sqrt() * (real + 1).sqrt()).log())

    def atanh(self) -> Self:
        real = self._real()
        return self._rounded(((1 + real) / (1 - real)).log() * 0.5)

    def erf(self) -> Self:
        """Within 4e-7."""
        real = self._real()
        size = real.abs()
        rest = (1 / (size * _ERF_P + 1))._series(_ERF) * (-size.square()).exp()
        return self._rounded((1 - rest).copysign(real))

    def log10(self) -> Self:
        return self._rounded(self._real().log2() * math.log10(2))

    def logaddexp(self, other: Any) -> Self:
        """log(exp(self) + exp(other)), where neither would fit."""
        most, least = self.maximum(other)._real(), self.minimum(other)._real()
        apart = (least._compare("eq", most)).where(0, least - most)
        return self._rounded(most + (apart.exp() + 1).log())

    def copysign(self, other: Any) -> Self:
        """The size of this with the sign of the other; zero counts by its sign too."""
        _, (left, right) = self._operands("copysign", other)
        size = self._new(left).abs()
        negative = self._new(right)._real().bitcast("int32")._compare("lt", 0)
        return negative.where(-size, size)

    def lerp(self, end: Any, weight: Any) -> Self:
        """From this to `end`, `weight` of the way."""
        return self.sub(self.sub(end).mul(weight))

    def fmod(self, other: Any) -> Self:
        """The remainder with this one's sign, as math.fmod."""
        size = self.abs().remainder(abs(other))
        return self._compare("lt", 0).where(-size, size)

    # ---- activations ---------------------------------------------------------------------------

    def gelu(self, approximate: Literal["tanh", "none"] = "tanh") -> Self:
        """x times the normal distribution's part below x (arXiv:1606.08415), by tanh or by erf."""
        real = self._real()
        if approximate == "none":
            return self._rounded(real * 0.5 * ((real * math.sqrt(0.5)).erf() + 1))
        inner = (real + real * real * real * 0.044715) * math.sqrt(2 / math.pi)
        return self._rounded(real * 0.5 * (inner.tanh() + 1))

    def quick_gelu(self) -> Self:
        real = self._real()
        return self._rounded(real * (real * 1.702).sigmoid())

    def swish(self) -> Self:
        return self._rounded(self._real().silu())

    def elu(self, alpha: float = 1.0) -> Self:
        real = self._real()
        return self._rounded((real > 0).where(real, (real.minimum(0).exp() - 1) * alpha))

    def celu(self, alpha: float = 1.0) -> Self:
        real = self._real()
        return self._rounded((real > 0).where(real, ((real.minimum(0) / alpha).exp() - 1) * alpha))

    def selu(self) -> Self:
        return self._rounded(self._real().elu(SELU_ALPHA) * SELU_SCALE)

    def leaky_relu(self, slope: float = 0.01) -> Self:
        real = self._real()
        return self._rounded((real < 0).where(real * slope, real))

    def relu6(self) -> Self:
        return self.clamp(0, 6)

    def hardtanh(self, low: float = -1, high: float = 1) -> Self:
        return self.clamp(low, high)

    def hardsigmoid(self) -> Self:
        return self._rounded((self._real() / 6 + 0.5).clamp(0, 1))

    def hardswish(self) -> Self:
        real = self._real()
        return self._rounded(real * (real + 3).clamp(0, 6) / 6)

    def softplus(self, beta: float = 1.0) -> Self:
        """log(1 + exp(x)), smooth above zero."""
        real = self._real() * beta
        return self._rounded((real.maximum(0) + ((-real.abs()).exp() + 1).log()) / beta)

    def logsigmoid(self) -> Self:
        return self._rounded(-(-self._real()).softplus())

    def softsign(self) -> Self:
        real = self._real()
        return self._rounded(real / (real.abs() + 1))

    def mish(self) -> Self:
        real = self._real()
        return self._rounded(real * real.softplus().tanh())
