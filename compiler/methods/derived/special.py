"""Tensor: further functions of each element, composed of other methods. Names and meanings as in
PyTorch."""

from __future__ import annotations

import math
from typing import Any, Self

from ugpu.compiler.dtype import float32, float64, int32
from ugpu.compiler.methods.core import Scalar, number_of
from ugpu.compiler.methods.groups import Groups
from ugpu.hcq.errors import BadArgument, NotSupported

LARGEST = {  # finite numbers
    "float16": 65504.0, "bfloat16": (2 - 2.0**-7) * 2.0**127, "float32": (2 - 2.0**-23) * 2.0**127,
    "float64": (2 - 2.0**-52) * 2.0**1023,
}  # fmt: skip
ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
    1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


class Special(Groups):
    """Further functions. Integers give float32, unless said otherwise."""

    __slots__ = ()

    # ---- numbers -------------------------------------------------------------------------------

    def deg2rad(self) -> Self:
        """Convert angles from degrees to radians."""
        return self._rounded(self._real() * (math.pi / 180))

    def rad2deg(self) -> Self:
        """Convert angles from radians to degrees."""
        return self._rounded(self._real() * (180 / math.pi))

    def _single(self, name: str) -> Self:
        """Return it as float32; NotSupported for float64, for which the coefficients are not."""
        if self.dtype is float64:
            raise NotSupported(f"{name}: computed in float32 only, got float64; expected x.float()")
        return self.cast(float32)

    def erfc(self) -> Self:
        """Return 1 - erf(x), with a relative error below 3e-6 where it is close to zero.

        Above 1/2 by exp(-x^2) times a polynomial of 1 / (1 + x / 2) (W. Press et al., "Numerical
        Recipes", 2nd edition, 6.2)."""
        x = self._single("erfc")
        size = x.abs()
        t = (size * 0.5 + 1).reciprocal()
        series = t * ERFC[-1]
        for number in reversed(ERFC[1:-1]):
            series = (series + number) * t
        # x^2 is rounded apart from its remainder: the exponent would lose what exp multiplies
        high = (size.bitcast(int32) & -0x1000).bitcast(float32)
        square, rest = -high * high, -(size - high) * (size + high)
        tail = t * (square + ERFC[0]).exp() * (series + rest).exp()
        tail = (size > 12).where(0, tail)
        result = (x > 0.5).where(tail, (x < -0.5).where(2 - tail, 1 - x.erf()))
        result = x.isnan().where(x, result)
        return self._rounded(result._ruled("erfc", [x]))

    def erfinv(self) -> Self:
        """Return the inverse of `erf`: infinite at -1 and 1, NaN outside."""
        x = self._single("erfinv")
        return self._rounded(x._function("erfinv"))

    def sinc(self) -> Self:
        """Return sin(pi x) / (pi x); 1 at 0."""
        x = self._real()
        zero = x._compare("eq", 0)
        angle = zero.where(1, x) * math.pi
        curve = 1 - x * x * (math.pi**2 / 6)  # its derivatives at zero are those of the quotient
        return self._rounded(zero.where(curve, angle.sin() / angle))

    def logit(self, epsilon: float | None = None) -> Self:
        """Return log(x / (1 - x)). epsilon: limit x to epsilon and 1 - epsilon first."""
        x = self._real()
        x = x if epsilon is None else x.clamp(epsilon, 1 - epsilon)
        return self._rounded((x / (1 - x)).log())

    def logaddexp2(self, other: Any) -> Self:
        """Return log2(2^self + 2^other) without overflow."""
        scale = math.log(2)
        kind = self._float_common("logaddexp2", other)
        two = self._tensor("logaddexp2", other)._real() * scale
        return ((self._real() * scale).logaddexp(two) / scale).cast(kind)

    def nan_to_num(
        self, nan: float | None = 0.0, posinf: float | None = None, neginf: float | None = None
    ) -> Self:
        """Replace NaN by a number, and infinities by others (None: the type's largest and smallest
        finite number)."""
        if not self.dtype.is_float:
            return self._same()
        largest = LARGEST.get(self.dtype.name, math.inf)
        high = largest if posinf is None else number_of("nan_to_num", "posinf", posinf)
        low = -largest if neginf is None else number_of("nan_to_num", "neginf", neginf)
        finite = self._compare("eq", math.inf).where(high, self)
        finite = self._compare("eq", -math.inf).where(low, finite)
        return self.isnan().where(0.0 if nan is None else nan, finite)

    def heaviside(self, values: Any) -> Self:
        """Return 0 below zero, 1 above, and `values` at zero; NaN for NaN."""
        at = self._tensor("heaviside", values)
        zero = self._compare("eq", 0)
        step = (self > 0).where(1, 0).cast(self.dtype)
        step = self.isnan().where(self, step) if self.dtype.is_float else step
        return zero.where(at, step.detach())

    def isposinf(self) -> Self:
        """Return whether each element is infinite and positive."""
        return self._compare("eq", math.inf)

    def isneginf(self) -> Self:
        """Return whether each element is infinite and negative."""
        return self._compare("eq", -math.inf)

    def angle(self) -> Self:
        """Return 0, or pi for negative numbers; NaN for NaN."""
        negative = (self < 0).where(math.pi, 0.0)
        found = self.isnan().where(math.nan, negative) if self.dtype.is_float else negative
        return self._rounded(found)

    def ldexp(self, exponent: Any) -> Self:
        """Return self * 2^exponent."""
        kind = self._float_common("ldexp", exponent)
        power = self._tensor("ldexp", exponent)._real().exp2()
        return (self * power).cast(kind)

    # ---- activations ---------------------------------------------------------------------------

    def hardshrink(self, lambd: float = 0.5) -> Self:
        """Return x where |x| > lambd, otherwise 0."""
        return ((self > lambd) | (self < -lambd) | self.isnan()).where(self, 0)

    def softshrink(self, lambd: float = 0.5) -> Self:
        """Return x moved towards zero by lambd, and 0 where it would pass zero."""
        if number_of("softshrink", "lambd", lambd) < 0:
            raise BadArgument(f"softshrink: expected lambd >= 0, got {lambd}")
        inner = (self < -lambd).where(self + lambd, self * 0)
        return (self > lambd).where(self - lambd, inner)

    def tanhshrink(self) -> Self:
        """Return x - tanh(x)."""
        return self - self.tanh()

    def threshold(self, threshold: float, value: Scalar) -> Self:
        """Return x where it is above the threshold, otherwise `value`."""
        return (self > threshold).where(self, value)

    def prelu(self, weight: Any) -> Self:
        """Return x if positive, otherwise weight x; one weight, or one for each of axis 1."""
        slopes = self._tensor("prelu", weight)
        if slopes.ndim and slopes.numel() != 1:
            if self.ndim < 2 or slopes.shape != (self.shape[1],):
                raise BadArgument(
                    f"prelu: expected one weight or {list(self.shape[1:2])}, got {slopes._shown}"
                )
            slopes = slopes.reshape((-1, *[1] * (self.ndim - 2)))
        elif slopes.ndim > self.ndim:
            slopes = slopes.reshape(())
        return (self > 0).where(self, self * slopes)

    def glu(self, axis: int = -1) -> Self:
        """Return the first half of an axis times the sigmoid of the second."""
        place = self._axis("glu", axis)
        if self.shape[place] % 2:
            raise BadArgument(f"glu: axis {axis} of shape {self._shown} has no halves")
        one, two = self.split(self.shape[place] // 2, place)
        return one * two.sigmoid()
