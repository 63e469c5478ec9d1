"""Elementary functions on float32, composed of the IR's own operations; those on float64
(`doubles`) share the steps that are not tied to a width.

LLVM's intrinsics for these are library calls on the host and differ in accuracy between GPUs (and
some abort the back end), so each is a range reduction and a polynomial, the same on every target.
Error bounds: docs/accuracy.md. They need a fused multiply-add. More functions are in
`inverse`, `power` and `remainders`. Reductions: Cody and Waite, "Software Manual for the Elementary
Functions"; for large angles Payne and Hanek, "Radian reduction for trigonometric functions".
Polynomials of log, sin and cos: S. Moshier, Cephes library, single precision; of expm1, sinh and
tanh: minimax fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.compiler.dtype import DType, bool_, float32, float64, int32, int64, uint32, uint64
from ugpu.compiler.expression.value import Value, binary, cast, const, value

LOG2_E = 1.4426950408889634
LOG2_E_LOW = LOG2_E - 1.44269502162933349609375  # beyond float32
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
LOG10_E, LOG10_E_LOW = 0.434294492006301879883, -1.01030418e-8
LOG10_2_HIGH, LOG10_2_LOW = 0.301025390625, 4.60503898e-6  # the first has 11 bits
# pi/2 as a sum of three float32
HALF_PI = (1.57079637050628662109375, -4.37113882867379055824e-8, -1.71512488608214586e-15)
# The bits of 2/pi after the binary point, 8 zero bits first.
TWO_OVER_PI = (
    0x00A2F983, 0x6E4E4415, 0x29FC2757, 0xD1F534DD, 0xC0DB6295, 0x993C4390, 0x41FE5163,
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How a float is stored.

    Attributes:
        bits: the integer of its width.
        fraction: bits of the mantissa that are stored.
        bias: of the exponent.
        root_half: the bits of the root of 1/2.
    """

    bits: DType
    fraction: int
    bias: int
    root_half: int

    @property
    def sign(self) -> int:
        """The sign bit, as a signed integer."""
        return -1 << self.bits.bits - 1

    @property
    def least(self) -> float:
        """The least normal number."""
        return 2.0 ** (1 - self.bias)


SINGLE = Layout(int32, 23, 127, 0x3F3504F3)
DOUBLE = Layout(int64, 52, 1023, 0x3FE6A09E667F3BCD)
SIGN = SINGLE.sign
SHIFTER = 12582912.0  # 1.5 * 2**23: adding it rounds to a whole number, left in the lowest bits
TWO_STEPS = 254  # twice the bias of an exponent
# e**r, |r| up to log(2) / 2, and 2**r, up to 1/2; error 2**-28
EXP = (1.38182973e-3, 8.3685331e-3, 4.16682921e-2, 1.66665226e-1, 4.9999994e-1, 1.0, 1.0)
EXP2 = (1.53264627e-4, 1.33908063e-3, 9.61850583e-3, 5.55035993e-2, 2.40226477e-1, 6.93147182e-1,
        1.0)  # fmt: skip
# (2 atanh(s / 2) / s - 1) / s^2 by s^2, up to 4/9; error 2**-27
ATANH = (5.47015399e-4, 2.18773074e-3, 1.25067001e-2, 8.3333023e-2)
RARE = "rare"  # arg of a "where"
HUGE_ANGLE = 131072.0  # larger angles are reduced by integer arithmetic


def real(number: float) -> Value:
    return const(number, float32)


def add(left: Value, right: Value | float) -> Value:
    return binary("add", left, _like(left, right))


def sub(left: Value, right: Value | float) -> Value:
    return binary("sub", left, _like(left, right))


def mul(left: Value, right: Value | float) -> Value:
    return binary("mul", left, _like(left, right))


def div(left: Value, right: Value) -> Value:
    return binary("div", left, right)


def less(left: Value, right: Value | float) -> Value:
    return binary("lt", left, _like(left, right))


def equal(left: Value, right: Value | float) -> Value:
    return binary("eq", left, _like(left, right))


def unequal(left: Value, right: Value | float) -> Value:
    return binary("ne", left, _like(left, right))


def where(condition: Value, yes: Value, no: Value) -> Value:
    return value("where", yes.dtype, (condition, yes, no))


def rarely(condition: Value, yes: Value, no: Value) -> Value:
    """Return `where` of a condition that hardly ever holds: a host's loop may test it for many
    elements at once."""
    return value("where", yes.dtype, (condition, yes, no), RARE)


def fma(left: Value, right: Value | float, addend: Value | float) -> Value:
    return value("fma", left.dtype, (left, _like(left, right), _like(left, addend)))


def unary(op: str, source: Value) -> Value:
    return value(op, source.dtype, (source,))


def absolute(source: Value) -> Value:
    """The magnitude: for floats by clearing the sign bit."""
    if source.dtype.is_float:
        bits = as_bits(source)
        return as_float(binary("and", bits, const(~layout(source).sign, bits.dtype)))
    if source.dtype.kind in "bu":
        return source
    return where(less(source, 0), unary("neg", source), source)


def layout(x: Value) -> Layout:
    """Return the layout of a float32 or a float64."""
    return DOUBLE if x.dtype is float64 else SINGLE


def as_bits(source: Value) -> Value:
    """The bits of a float32 as int32, of a float64 as int64."""
    return value("bitcast", layout(source).bits, (source,))


def as_float(bits: Value) -> Value:
    """The float32 or float64 of `as_bits`."""
    return value("bitcast", float64 if bits.dtype is int64 else float32, (bits,))


def with_sign(size: Value, source: Value) -> Value:
    """Return `size`, which is not negative, with the sign of `source`; zeros have one too."""
    bits = as_bits(source)
    sign = binary("and", bits, const(layout(source).sign, bits.dtype))
    return as_float(binary("or", as_bits(size), sign))


def _like(left: Value, right: Value | float) -> Value:
    return right if isinstance(right, Value) else const(right, left.dtype)


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule; the highest power's coefficient first."""
    total = const(coefficients[0], x.dtype)
    for coefficient in coefficients[1:]:
        total = fma(total, x, coefficient)
    return total


def clamp(x: Value, low: float, high: float) -> Value:
    return binary("min", binary("max", x, const(low, x.dtype)), const(high, x.dtype))


def scale(x: Value, exponent: Value) -> Value:
    """Return x * 2**exponent, |exponent| < 250 (float64: 2000): in two steps, so that results may
    be subnormal. exponent: an integer of the float's width."""
    form, half = layout(x), binary("shr", exponent, const(1, exponent.dtype))
    for part in (half, sub(exponent, half)):
        x = mul(x, as_float(binary("shl", add(part, form.bias), const(form.fraction, form.bits))))
    return x


def exp(x: Value) -> Value:
    """e**x."""
    return _exp_of(clamp(x, -105.0, 89.0))


def _exp_of(x: Value) -> Value:
    """e**x for -105 <= x <= 89 or NaN."""
    shifted, rest = _exp_parts(x, TWO_STEPS)
    return scaled(polynomial(rest, EXP), shifted)


def _exp_parts(x: Value, bias: float) -> tuple[Value, Value]:
    """Return SHIFTER + bias + n, and r: x = n log(2) + r, |r| at most about log(2) / 2."""
    shifted = fma(x, LOG2_E, SHIFTER + bias)
    count = sub(shifted, SHIFTER + bias)
    return shifted, fma(count, -LN2_LOW, fma(count, -LN2_HIGH, x))


def scaled(series: Value, shifted: Value) -> Value:
    """Return series * 2**n in two steps, so that results may be subnormal or infinite. shifted:
    SHIFTER + TWO_STEPS + n, -TWO_STEPS < n < 256; the bias gives each step half of its own."""
    bits = as_bits(shifted)
    half = to_exponent(binary("shr", bits, const(1, int32)))
    return mul(mul(series, as_float(half)), as_float(sub(to_exponent(bits), half)))


def to_exponent(bits: Value) -> Value:
    """Return the lowest bits of an integer, in the place of a float32's exponent and sign."""
    return binary("shl", bits, const(SINGLE.fraction, int32))


def exp_below(x: Value) -> Value:
    """Return e**x for x <= 0 or NaN, in fewer steps; results below the normal numbers are zero."""
    shifted, rest = _exp_parts(x, 0.0)
    power = as_float(binary("add", to_exponent(as_bits(shifted)), const(127 << 23, int32)))
    return where(less(x, -87.0), const(0, float32), mul(polynomial(rest, EXP), power))


def softplus(x: Value) -> Value:
    """Return log(1 + e**x): the larger of x and 0, and log(1 + t) for t = e**-|x|."""
    below = unary("neg", absolute(x))
    falling = _exp_of(binary("max", below, real(-105.0)))
    double = div(add(falling, falling), add(falling, 2.0))  # log(1 + t) = 2 atanh(double / 2)
    square = mul(double, double)
    more = fma(mul(double, square), polynomial(square, ATANH), double)
    return add(binary("max", x, real(0.0)), more)


def _half_exp(x: Value) -> Value:
    """Return e**x / 2 for x >= 0 or NaN."""
    shifted, rest = _exp_parts(binary("min", x, real(89.5)), 0.0)
    # a quarter of the power, which is a float32 for all x, and twice the series
    quarter = as_float(binary("add", to_exponent(as_bits(shifted)), const(125 << 23, int32)))
    return mul(polynomial(rest, [2 * each for each in EXP]), quarter)


def expm1(x: Value) -> Value:
    """Return e**x - 1, accurate even where e**x is close to 1."""
    bounded = clamp(x, -18.0, 89.0)
    shifted, rest = _exp_parts(bounded, 0.0)
    series = polynomial(
        rest,
        [1.98459005e-4, 1.39409152e-3, 8.33338965e-3, 4.16663587e-2, 1.66666657e-1, 0.5],
    )
    series = fma(mul(rest, rest), series, rest)  # e**rest - 1
    # 2**(count - 1), since 2**count may be too large: e**x - 1 = 2**count * series + 2**count - 1
    half = as_float(binary("add", to_exponent(as_bits(shifted)), const(126 << 23, int32)))
    result = mul(fma(series, half, sub(half, 0.5)), 2.0)
    return where(less(absolute(x), 2.0**-30), x, result)


def exp2(x: Value) -> Value:
    """2**x; exact for whole x."""
    x = clamp(x, -151.0, 129.0)
    shifted = add(x, SHIFTER + TWO_STEPS)
    rest = sub(x, sub(shifted, SHIFTER + TWO_STEPS))
    return scaled(polynomial(rest, EXP2), shifted)


def mantissa_of(x: Value) -> tuple[Value, Value]:
    """Return e as an integer, and m: x = 2**e * m with sqrt(1/2) <= m < sqrt(2). For x > 0."""
    form = layout(x)
    raised = form.fraction + 1
    tiny = less(x, form.least)
    exponent, mantissa = _normal_mantissa(where(tiny, mul(x, 2.0**raised), x))
    lowered = where(tiny, const(raised, form.bits), const(0, form.bits))
    return sub(exponent, lowered), mantissa


def _normal_mantissa(x: Value) -> tuple[Value, Value]:
    """The same for a normal number."""
    form = layout(x)
    place, bits = const(form.fraction, form.bits), as_bits(x)
    exponent = binary("shr", sub(bits, form.root_half), place)
    return exponent, as_float(sub(bits, binary("shl", exponent, place)))


def _log_of(f: Value) -> Value:
    """log(1 + f) with sqrt(1/2) <= 1 + f < sqrt(2)."""
    square = mul(f, f)
    series = polynomial(
        f,
        [
            7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
            -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
        ],
    )  # fmt: skip
    return fma(mul(f, square), series, fma(square, -0.5, f))


def _log_parts(x: Value) -> tuple[Value, Value]:
    """Return e as a float, and log(m), for x = 2**e * m."""
    exponent, mantissa = mantissa_of(x)
    return cast(exponent, float32), _log_of(sub(mantissa, 1.0))


def log_of_normal(x: Value) -> Value:
    """Return the natural logarithm of a positive number that is neither subnormal nor infinite."""
    exponent, mantissa = _normal_mantissa(x)
    count, rest = cast(exponent, float32), _log_of(sub(mantissa, 1.0))
    return fma(count, LN2_HIGH, fma(count, LN2_LOW, rest))


def log_specials(x: Value, result: Value) -> Value:
    """Return a logarithm's result for a positive x, or its limit for any other."""
    result = where(less(x, math.inf), result, x)  # infinity and NaN are their own
    result = where(equal(x, 0.0), const(-math.inf, x.dtype), result)
    return where(less(x, 0.0), const(math.nan, x.dtype), result)


def log(x: Value) -> Value:
    """Natural logarithm."""
    exponent, rest = _log_parts(x)
    return log_specials(x, fma(exponent, LN2_HIGH, fma(exponent, LN2_LOW, rest)))


def log2(x: Value) -> Value:
    """Logarithm to base 2; exact for powers of two."""
    exponent, rest = _log_parts(x)
    return log_specials(x, fma(rest, LOG2_E, fma(rest, LOG2_E_LOW, exponent)))


def log10(x: Value) -> Value:
    """Logarithm to base 10; exact for powers of ten."""
    exponent, rest = _log_parts(x)
    low = fma(exponent, LOG10_2_LOW, mul(rest, LOG10_E_LOW))
    return log_specials(x, fma(exponent, LOG10_2_HIGH, fma(rest, LOG10_E, low)))


def log_of_sum(base: Value, more: Value) -> Value:
    """Return log(base + more) of a sum that is not rounded; base = 1 or more = 0."""
    total = add(base, more)
    part = sub(total, base)
    lost = add(sub(base, sub(total, part)), sub(more, part))  # Knuth's two-sum
    exponent, mantissa = _normal_mantissa(total)  # a sum with 1 is zero or at least 2**-24
    biased = binary("max", sub(const(127, int32), exponent), const(0, int32))
    inverse = as_float(to_exponent(biased))  # 2**-e
    rest = _log_of(fma(lost, inverse, sub(mantissa, 1.0)))
    count = cast(exponent, float32)
    result = fma(count, LN2_HIGH, fma(count, LN2_LOW, rest))
    return log_specials(total, result)


def log1p(x: Value) -> Value:
    """Return log(1 + x), accurate even where 1 + x is close to 1."""
    return where(equal(x, 0.0), x, log_of_sum(real(1.0), x))


def unary_not(condition: Value) -> Value:
    return binary("xor", condition, const(True, bool_))


def _reduce_huge(x: Value) -> tuple[Value, Value]:
    """Quadrant and rest of |x| >= HUGE_ANGLE: the mantissa times 64 chosen bits of 2/pi, mod 4."""
    bits = as_bits(x)
    exponent = binary("and", binary("shr", bits, const(23, int32)), const(255, int32))
    mantissa = binary("or", binary("and", bits, const(0x7FFFFF, int32)), const(0x800000, int32))
    # 8 zero bits lead the table; bit k of 2/pi times 2**(exponent - 150) is below 4 from here on
    start = binary("max", sub(exponent, 150 - 6), const(0, int32))
    word = binary("shr", start, const(5, int32))
    shift = cast(binary("and", start, const(31, int32)), uint64)

    def chosen(offset: int) -> Value:
        picked = const(TWO_OVER_PI[offset + 3], uint64)
        for index in (2, 1, 0):
            here = equal(word, index)
            picked = where(here, const(TWO_OVER_PI[offset + index], uint64), picked)
        return picked

    high = binary("or", binary("shl", chosen(0), const(32, uint64)), chosen(1))
    next_bits = binary("or", binary("shl", chosen(2), const(32, uint64)), chosen(3))
    low = binary("shr", next_bits, sub(const(64, uint64), shift))
    window = binary("or", binary("shl", high, shift), low)
    below = binary("shr", binary("shl", next_bits, shift), const(32, uint64))
    wide = cast(mantissa, uint64)
    # in units of 2**-62, modulo 4; near a multiple of pi/2 the bits below the window count too
    product = add(mul(wide, window), binary("shr", mul(wide, below), const(32, uint64)))
    quadrant = binary("shr", add(product, const(1 << 61, uint64)), const(62, uint64))
    fraction = sub(product, binary("shl", quadrant, const(62, uint64)))
    upper = cast(cast(binary("shr", fraction, const(30, uint64)), uint32), int32)
    lower = cast(binary("and", cast(fraction, uint32), const((1 << 30) - 1, uint32)), int32)
    rest = mul(cast(upper, float32), 2.0**-32 * math.pi / 2)
    rest = fma(cast(lower, float32), 2.0**-62 * math.pi / 2, rest)
    negative = binary("lt", bits, const(0, int32))
    turned = cast(cast(quadrant, uint32), int32)
    return (
        where(negative, unary("neg", turned), turned),
        where(negative, unary("neg", rest), rest),
    )


def _turned(x: Value) -> tuple[Value, Value, Value]:
    """Return sine and cosine of x reduced by multiples of pi/2, and the number of multiples, of
    which the lowest two bits count; NaN for infinity."""
    huge = less(real(HUGE_ANGLE), absolute(x))
    shifted = fma(x, 2 / math.pi, SHIFTER)
    count, rest = sub(shifted, SHIFTER), x
    for part in HALF_PI:
        rest = fma(count, -part, rest)
    huge_quadrant, huge_rest = _reduce_huge(x)
    huge_rest = where(less(absolute(x), math.inf), huge_rest, real(math.nan))
    rest = rarely(huge, huge_rest, rest)
    quadrant = rarely(huge, huge_quadrant, as_bits(shifted))
    square = mul(rest, rest)
    odd_series = polynomial(square, [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1])
    even_series = polynomial(
        square, [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2]
    )
    sine = fma(mul(rest, square), odd_series, rest)
    cosine = fma(mul(square, square), even_series, fma(square, -0.5, 1.0))
    return sine, cosine, quadrant


def _is_set(number: Value, bit: int) -> Value:
    return unequal(binary("and", number, const(bit, int32)), 0)


def _sine(x: Value, turn: int) -> Value:
    """sin(x + turn * pi/2)."""
    sine, cosine, quadrant = _turned(x)
    quadrant = add(quadrant, turn) if turn else quadrant
    result = where(_is_set(quadrant, 1), cosine, sine)
    sign = binary("and", binary("shl", quadrant, const(30, int32)), const(SIGN, int32))
    return as_float(binary("xor", as_bits(result), sign))


def sin(x: Value) -> Value:
    """Sine, for angles of any size."""
    return where(equal(x, 0.0), x, _sine(x, 0))


def cos(x: Value) -> Value:
    """Cosine, for angles of any size."""
    return _sine(x, 1)


def tan(x: Value) -> Value:
    """Tangent, for angles of any size."""
    sine, cosine, quadrant = _turned(x)
    odd = _is_set(quadrant, 1)
    result = div(where(odd, unary("neg", cosine), sine), where(odd, sine, cosine))
    return where(equal(x, 0.0), x, result)


def sinh(x: Value) -> Value:
    """Hyperbolic sine."""
    size = absolute(x)
    square = mul(x, x)
    series = polynomial(square, [2.81695134e-6, 1.98361596e-4, 8.33334960e-3, 1.66666672e-1])
    small = fma(mul(series, square), size, size)
    half = _half_exp(size)
    large = sub(half, div(real(0.25), half))
    return with_sign(where(less(size, 1.0), small, large), x)


def cosh(x: Value) -> Value:
    """Hyperbolic cosine."""
    half = _half_exp(absolute(x))
    return add(half, div(real(0.25), half))


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    size = absolute(x)
    square = mul(x, x)
    series = polynomial(
        square,
        [-6.27423916e-3, 2.10716777e-2, -5.38523085e-2, 1.33325860e-1, -3.33333164e-1],
    )
    small = fma(mul(series, square), size, size)
    bounded = binary("min", size, real(10.0))
    shifted = fma(bounded, 2 * LOG2_E, SHIFTER)
    rest = fma(sub(shifted, SHIFTER), -math.log(2) / 2, bounded)
    series = polynomial(
        rest,
        [8.85550958e-2, 2.67996949e-1, 6.66691717e-1, 1.33331353, 1.99999968, 2.00000007, 1.0],
    )  # e**(2 * rest)
    half = as_float(binary("add", to_exponent(as_bits(shifted)), const(126 << 23, int32)))
    large = sub(real(1.0), div(real(1.0), fma(series, half, 0.5)))  # 1 - 2 / (e**2x + 1)
    return with_sign(where(less(size, 0.55), small, large), x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x)."""
    below = unary("neg", absolute(x))
    falling = _exp_of(binary("max", below, real(-105.0)))
    return div(where(less(x, 0.0), falling, real(1.0)), add(falling, 1.0))
