"""Tensor: further elementwise functions and activations, composed of those of Elementwise.

They are computed in float32 (float64 in its own type) and rounded once, so that a chain in float16
loses no precision in between. For error bounds see docs/accuracy.md.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import float32
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.tracking import mode
from ugpu.compiler.methods.core import Scalar, TensorCore, integer_of
from ugpu.compiler.methods.elementwise import Elementwise
from ugpu.hcq.errors import BadArgument

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # arXiv:1706.02515


class Functions(Elementwise):
    """Further elementwise functions. Integers give float32."""

    __slots__ = ()

    def _sign_bit(self) -> Self:
        """Return whether the sign bit is set, of zeros too."""
        real = self._real()
        whole = dtypes.int64 if real.dtype is dtypes.float64 else dtypes.int32
        return real.bitcast(whole)._compare("lt", 0)

    def _rounded(self, result: Self) -> Self:
        return result.cast(dtypes.float_dtype(self.dtype))

    # ---- mathematics ---------------------------------------------------------------------------

    def exp2(self) -> Self:
        """Return 2 to the power of each element."""
        return self._function("exp2")

    def log2(self) -> Self:
        """Return the base-2 logarithm."""
        return self._function("log2")

    def sin(self) -> Self:
        """Return the sine of an angle in radians."""
        return self._function("sin")

    def cos(self) -> Self:
        """Return the cosine of an angle in radians."""
        return self._function("cos")

    def reciprocal(self) -> Self:
        """Return 1 / x."""
        return self._function("reciprocal")

    def sign(self) -> Self:
        """Return -1, 0 or 1; NaN for NaN."""
        if self.dtype.kind in "bu":
            return self._compare("ne", 0).cast(self.dtype)
        one, zero = (self._new(graph.full(number, self.dtype, self.shape)) for number in (1, 0))
        signs = (self < 0).where(-one, (self > 0).where(one, zero))
        return self.isnan().where(self, signs) if self.dtype.is_float else signs

    def floor(self) -> Self:
        """Round down to an integer."""
        return self._rounding("floor")

    def ceil(self) -> Self:
        """Round up to an integer."""
        return self._rounding("ceil")

    def trunc(self) -> Self:
        """Round towards 0 to an integer."""
        return self._rounding("trunc")

    def round(self, *, decimals: int = 0) -> Self:
        """Round to the nearest integer, halves to even. decimals (floats only): number of places
        to keep after the point; if negative, round to multiples of 10, 100 ..."""
        places = integer_of("round", "decimals", decimals)
        if not places:
            return self._rounding("round")
        if not self.dtype.is_float:
            raise BadArgument(f"round: decimals needs floats, got {self.dtype.name}")
        wide, scale = self._real(), 10.0 ** abs(places)
        if places > 0:
            return ((wide * scale)._rounding("round") / scale).cast(self.dtype)
        return ((wide / scale)._rounding("round") * scale).cast(self.dtype)

    def tanh(self) -> Self:
        """Return the hyperbolic tangent."""
        return self._function("tanh")

    def tan(self) -> Self:
        """Return the tangent of an angle in radians."""
        return self._function("tan")

    def asin(self) -> Self:
        """Return the arc sine; NaN outside of -1 to 1."""
        return self._function("asin")

    def acos(self) -> Self:
        """Return the arc cosine; NaN outside of -1 to 1."""
        return self._function("acos")

    def atan(self) -> Self:
        """Return the arc tangent, in radians from -pi/2 to pi/2."""
        return self._function("atan")

    def sinh(self) -> Self:
        """Return the hyperbolic sine."""
        return self._function("sinh")

    def cosh(self) -> Self:
        """Return the hyperbolic cosine."""
        return self._function("cosh")

    def asinh(self) -> Self:
        """Return the inverse hyperbolic sine."""
        return self._function("asinh")

    def acosh(self) -> Self:
        """Return the inverse hyperbolic cosine; NaN below 1."""
        return self._function("acosh")

    def atanh(self) -> Self:
        """Return the inverse hyperbolic tangent; NaN outside of -1 to 1."""
        return self._function("atanh")

    def erf(self) -> Self:
        """Return the error function."""
        return self._function("erf")

    def expm1(self) -> Self:
        """Return exp(x) - 1, accurate even if exp(x) is close to 1."""
        return self._function("expm1")

    def log1p(self) -> Self:
        """Return log(1 + x), accurate even if 1 + x is close to 1."""
        return self._function("log1p")

    def log10(self) -> Self:
        """Return the base-10 logarithm."""
        return self._function("log10")

    def logaddexp(self, other: Any) -> Self:
        """Return log(exp(self) + exp(other)) without overflow."""
        kind = self._float_common("logaddexp", other)
        _, (left, right) = self._operands("logaddexp", other, common=kind)
        one, two = self._new(left)._real(), self._new(right)._real()
        most, least = one.maximum(two), one.minimum(two)
        apart = (least._compare("eq", most)).where(0, least - most)
        total: Self = most + apart.exp().log1p()
        return total._ruled("logaddexp", [one, two]).cast(kind)

    def copysign(self, other: Any) -> Self:
        """Return the magnitude of self with the sign of other, including the sign of zero. Integers
        give float32."""
        common, _ = self._operands("copysign", other)
        _, (left, right) = self._operands("copysign", other, common=dtypes.float_dtype(common))
        size = self._new(left).abs()
        negative = self._new(right)._sign_bit()
        return negative.where(-size, size)

    def lerp(self, end: Any, weight: Any) -> Self:
        """Interpolate from self to `end` by `weight`."""
        return self.sub(self.sub(end).mul(weight))

    def fmod(self, other: Any) -> Self:
        """Return the exact remainder with the sign of self; an integer modulo zero gives zero."""
        dtype, (left, right) = self._operands("fmod", other)
        if dtype.is_float:
            return self._new(graph.elementwise("fmod", dtype, left, right))
        dividend, divisor = self._new(left), self._new(right)
        rest = dividend.remainder(divisor)
        if dtype.kind != "i":
            return rest
        opposite = rest._compare("ne", 0) & ((rest ^ dividend) < 0)
        return opposite.where(rest - divisor, rest)

    def clamp(self, min: Any = None, max: Any = None) -> Self:
        """Limit the elements to `min` and `max`, numbers or tensors; None means no limit."""
        return self._clamped(min, max, True)

    def _clamped(self, low: Scalar | None, high: Scalar | None, edges: bool) -> Self:
        """Limit the elements. edges: whether one at a limit passes its gradient on."""
        if isinstance(low, TensorCore) or isinstance(high, TensorCore):
            return self._limited("maximum", low)._limited("minimum", high)
        bounded = self._same() if low is None else self.maximum(low)
        bounded = bounded if high is None else bounded.minimum(high)
        return bounded._ruled("clamp", [self], (low, high, edges))

    def _limited(self, operation: str, limit: Any) -> Self:
        """Return the maximum or minimum; of equals, the gradient is this tensor's."""
        if limit is None:
            return self
        _, (left, right) = self._operands(operation, limit)
        one, two = self._new(left), self._new(right)
        bounded: Self = one.maximum(two) if operation == "maximum" else one.minimum(two)
        return bounded._ruled("limit", [one, two])

    clip = clamp

    def tf32(self) -> Self:
        """Round float32 to the 10 mantissa bits of TensorFloat-32, half to even.

        Products of two such tensors use the matrix units that support it (NVIDIA, from sm_80 on).
        """
        single = self.cast(float32)
        bits = single.bitcast(dtypes.int32)
        rounded = single.isnan().where(0x7FC00000, bits + ((bits >> 13) & 1) + 0xFFF)
        found = (rounded & -0x2000).bitcast(float32)
        found.node.tracked = single.node.tracked and mode.on  # integers between are not
        return found._ruled("straight", [single])

    # ---- activations ---------------------------------------------------------------------------

    def silu(self) -> Self:
        """Return x * sigmoid(x), rounded once."""
        real = self._real()
        return self._rounded(real * real.sigmoid())

    def relu(self) -> Self:
        """Return max(x, 0)."""
        return self.maximum(0)._ruled("relu", [self])

    def gelu(self, approximate: Literal["tanh", "none"] = "none") -> Self:
        """Return x times the normal distribution's cumulative probability at x (arXiv:1606.08415),
        by erf, or approximated by tanh."""
        real = self._real()
        if approximate == "none" and real.dtype is dtypes.float32:
            return self._rounded(real._function("gelu"))
        if approximate == "none":
            return self._rounded(real * 0.5 * ((real * math.sqrt(0.5)).erf() + 1))
        # (tanh(u) + 1) / 2 is sigmoid(2 u), which does not cancel below zero
        twice = (real + real * real * real * 0.044715) * math.sqrt(8 / math.pi)
        return self._rounded(real * twice.sigmoid())

    def quick_gelu(self) -> Self:
        """Return x sigmoid(1.702 x), an approximation of `gelu`."""
        real = self._real()
        return self._rounded(real * (real * 1.702).sigmoid())

    def swish(self) -> Self:
        """Return x sigmoid(x); the same as `silu`."""
        return self.silu()

    def elu(self, alpha: float = 1.0) -> Self:
        """Return x if positive, otherwise alpha (exp(x) - 1)."""
        real = self._real()
        return self._rounded((real > 0).where(real, real.clamp(max=0).expm1() * alpha))

    def celu(self, alpha: float = 1.0) -> Self:
        """Return max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
        real = self._real()
        return self._rounded((real > 0).where(real, (real.clamp(max=0) / alpha).expm1() * alpha))

    def selu(self) -> Self:
        """Return `elu` scaled with the constants of self-normalising networks."""
        return self._rounded(self._real().elu(SELU_ALPHA) * SELU_SCALE)

    def leaky_relu(self, slope: float = 0.01) -> Self:
        """Return x if positive, otherwise slope x."""
        real = self._real()
        return self._rounded((real > 0).where(real, real * slope))

    def relu6(self) -> Self:
        """Limit the elements to 0 to 6."""
        return self._clamped(0, 6, False)

    def hardtanh(self, low: float = -1, high: float = 1) -> Self:
        """Limit the elements to `low` to `high`, by default -1 to 1; of integers, to what these
        are without their fraction, as PyTorch."""
        if not self.dtype.is_float and math.isfinite(low) and math.isfinite(high):
            return self._clamped(int(low), int(high), False)
        return self._clamped(low, high, False)

    def hardsigmoid(self) -> Self:
        """Return relu6(x + 3) / 6."""
        return self._rounded((self._real() / 6 + 0.5)._clamped(0, 1, False))

    def hardswish(self) -> Self:
        """Return x relu6(x + 3) / 6."""
        real = self._real()
        return self._rounded(real * ((real + 3)._clamped(0, 6, False) / 6))

    def softplus(self, beta: float = 1.0, threshold: float | None = None) -> Self:
        """Return log(1 + exp(beta x)) / beta, a smooth relu. threshold: x itself where beta x is
        above it; None never, since the result is right to rounding everywhere."""
        real = self._real() * beta
        smooth = real._function("softplus") / beta
        plain = smooth if threshold is None else (real > threshold).where(self._real(), smooth)
        return self._rounded(plain)

    def logsigmoid(self) -> Self:
        """Return the logarithm of `sigmoid`, without overflow."""
        real = self._real()
        total = 0 - (-real)._function("softplus")  # 0.0, not -0.0, where it vanishes
        return self._rounded(total._ruled("logsigmoid", [real]))

    def softsign(self) -> Self:
        """Return x / (1 + |x|)."""
        real = self._real()
        return self._rounded(real / (real.abs() + 1))

    def mish(self) -> Self:
        """Return x tanh(softplus(x))."""
        real = self._real()
        return self._rounded(real * real.softplus().tanh())
