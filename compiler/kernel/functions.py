"""Elementary functions on float32, made of the IR's own operations.

LLVM's intrinsics for these are library calls on the host and differ in accuracy between GPUs (and
some abort the back end), so each is a range reduction and a polynomial, the same on every target.
Errors are a few units in the last place (tests/compiler/test_compiler_functions.py holds the
bounds). Reductions: Cody and Waite, "Software Manual for the Elementary Functions"; for large
angles Payne and Hanek, "Radian reduction for trigonometric functions"; polynomials of log, sin,
cos and tanh: S. Moshier, Cephes library, single precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.dtype import bool_, float32, int32, uint32, uint64
from compiler.kernel.ir import Value, binary, cast, const, value

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
# pi/2 as a sum of three float32
HALF_PI = (1.57079637050628662109375, -4.37113882867379055824e-8, -1.71512488609214586e-15)
# The bits of 2/pi after the binary point, 8 zero bits first.
TWO_OVER_PI = (0x00A2F983, 0x6E4E4415, 0x29FC2757, 0xD1F534DD, 0xC0DB6295, 0x993C4390)
HUGE_ANGLE = 131072.0  # beyond it, angles are reduced by integer arithmetic


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


def fma(left: Value, right: Value | float, addend: Value | float) -> Value:
    return value("fma", left.dtype, (left, _like(left, right), _like(left, addend)))


def unary(op: str, source: Value) -> Value:
    return value(op, source.dtype, (source,))


def absolute(source: Value) -> Value:
    """The magnitude: for floats by clearing the sign bit."""
    if source.dtype is float32:
        return as_float(binary("and", as_bits(source), const(0x7FFFFFFF, int32)))
    if source.dtype.kind in "bu":
        return source
    return where(less(source, 0), unary("neg", source), source)


def as_bits(source: Value) -> Value:
    return value("bitcast", int32, (source,))


def as_float(bits: Value) -> Value:
    return value("bitcast", float32, (bits,))


def _like(left: Value, right: Value | float) -> Value:
    return right if isinstance(right, Value) else const(right, left.dtype)


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule; the highest power's coefficient first."""
    total = real(coefficients[0])
    for coefficient in coefficients[1:]:
        total = fma(total, x, coefficient)
    return total


def _clamp(x: Value, low: float, high: float) -> Value:
    return binary("min", binary("max", x, real(low)), real(high))


def _scale(x: Value, exponent: Value) -> Value:
    """x * 2**exponent, |exponent| < 250: in two steps, so that results may be subnormal."""
    half = binary("shr", exponent, const(1, int32))
    for part in (half, sub(exponent, half)):
        x = mul(x, as_float(binary("shl", add(part, 127), const(23, int32))))
    return x


def exp(x: Value) -> Value:
    """e**x."""
    x = _clamp(x, -105.0, 89.0)
    count = unary("round", mul(x, LOG2_E))
    rest = fma(count, -LN2_LOW, fma(count, -LN2_HIGH, x))
    series = polynomial(rest, [1 / math.factorial(k) for k in range(7, -1, -1)])
    return _scale(series, cast(count, int32))


def exp_below(x: Value) -> Value:
    """e**x for x at most zero, or NaN, in fewer steps; below the normal numbers it is zero.

    Adding 1.5 * 2**23 rounds to a whole number and leaves it in the lowest bits.
    """
    shifter = 12582912.0
    shifted = fma(x, LOG2_E, const(shifter, float32))
    count = sub(shifted, shifter)
    rest = fma(count, -LN2_LOW, fma(count, -LN2_HIGH, x))
    series = polynomial(rest, [1 / math.factorial(k) for k in range(7, -1, -1)])
    exponent = binary("shl", as_bits(shifted), const(23, int32))
    power = as_float(binary("add", exponent, const(127 << 23, int32)))
    return where(less(x, -87.0), const(0, float32), mul(series, power))


def _exp2_of(count: Value, rest: Value) -> Value:
    """2**(count + rest), count whole and |rest| at most about 0.5."""
    powers = [math.log(2) ** k / math.factorial(k) for k in range(7, -1, -1)]
    return _scale(polynomial(rest, powers), cast(count, int32))


def exp2(x: Value) -> Value:
    """2**x; exact for whole x."""
    x = _clamp(x, -151.0, 129.0)
    count = unary("round", x)
    return _exp2_of(count, sub(x, count))


def _log_parts(x: Value) -> tuple[Value, Value]:
    """x = 2**e * m with sqrt(1/2) <= m < sqrt(2): e as a float, and log(m). For x > 0."""
    tiny = less(x, 2.0**-126)
    bits = as_bits(where(tiny, mul(x, 2.0**24), x))
    offset = sub(bits, 0x3F3504F3)  # the bits of sqrt(1/2)
    exponent = binary("shr", offset, const(23, int32))
    mantissa = as_float(sub(bits, binary("shl", exponent, const(23, int32))))
    exponent = sub(exponent, where(tiny, const(24, int32), const(0, int32)))
    f = sub(mantissa, 1.0)
    square = mul(f, f)
    series = polynomial(
        f,
        [
            7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
            -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
        ],
    )  # fmt: skip
    return cast(exponent, float32), fma(mul(f, square), series, fma(square, -0.5, f))


def _log_specials(x: Value, result: Value) -> Value:
    result = where(equal(x, 0.0), real(-math.inf), result)
    result = where(less(x, 0.0), real(math.nan), result)
    passed = binary("or", equal(x, math.inf), unequal(x, x))
    return where(passed, x, result)


def log(x: Value) -> Value:
    """Natural logarithm."""
    exponent, rest = _log_parts(x)
    return _log_specials(x, fma(exponent, LN2_HIGH, fma(exponent, LN2_LOW, rest)))


def log2(x: Value) -> Value:
    """Logarithm to base 2; exact for powers of two."""
    exponent, rest = _log_parts(x)
    return _log_specials(x, fma(rest, LOG2_E, exponent))


def power(x: Value, y: Value) -> Value:
    """x**y as C's powf; the relative error grows with |y log x|, to about 1e-5."""
    exponent, rest = _log_parts(absolute(x))
    logarithm = mul(rest, LOG2_E)
    bounded = _clamp(y, -1e10, 1e10)
    product = mul(bounded, exponent)
    product_error = fma(bounded, exponent, unary("neg", product))
    estimate = _clamp(fma(bounded, logarithm, product), -200.0, 200.0)
    count = unary("round", estimate)
    near = less(absolute(estimate), 180.0)
    fraction = add(sub(product, count), fma(bounded, logarithm, product_error))
    result = _exp2_of(count, where(near, fraction, real(0.0)))
    finite = unequal(absolute(x), math.inf)
    whole = equal(y, unary("floor", y))
    half = mul(y, 0.5)
    odd = binary("and", whole, unequal(half, unary("floor", half)))
    sinking, nothing, endless = less(y, 0.0), real(0.0), real(math.inf)
    result = where(equal(x, 0.0), where(sinking, endless, nothing), result)
    result = where(finite, result, where(sinking, nothing, endless))
    negative = binary("lt", as_bits(x), const(0, int32))
    result = where(binary("and", negative, odd), unary("neg", result), result)
    root = binary("and", binary("and", less(x, 0.0), finite), unary_not(whole))
    result = where(root, real(math.nan), result)
    result = where(binary("or", unequal(x, x), unequal(y, y)), real(math.nan), result)
    fixed = binary("and", equal(absolute(x), 1.0), equal(absolute(y), math.inf))
    one = binary("or", binary("or", equal(x, 1.0), equal(y, 0.0)), fixed)
    return where(one, real(1.0), result)


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
    low = binary("shr", chosen(2), sub(const(32, uint64), shift))
    window = binary("or", binary("shl", high, shift), low)
    product = mul(cast(mantissa, uint64), window)  # in units of 2**-62, modulo 4
    quadrant = binary("shr", add(product, const(1 << 61, uint64)), const(62, uint64))
    fraction = sub(product, binary("shl", quadrant, const(62, uint64)))
    upper = cast(cast(binary("shr", fraction, const(30, uint64)), uint32), int32)
    rest = mul(cast(upper, float32), 2.0**-32 * math.pi / 2)
    negative = binary("lt", bits, const(0, int32))
    turned = cast(cast(quadrant, uint32), int32)
    return (
        where(negative, unary("neg", turned), turned),
        where(negative, unary("neg", rest), rest),
    )


def _sine(x: Value, turn: int) -> Value:
    """sin(x + turn * pi/2)."""
    huge = less(real(HUGE_ANGLE), absolute(x))
    count = unary("round", mul(x, 2 / math.pi))
    rest = x
    for part in HALF_PI:
        rest = fma(count, -part, rest)
    huge_quadrant, huge_rest = _reduce_huge(x)
    rest = where(huge, huge_rest, rest)
    quadrant = add(where(huge, huge_quadrant, cast(count, int32)), turn)
    square = mul(rest, rest)
    odd_series = polynomial(square, [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1])
    even_series = polynomial(
        square, [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2]
    )
    sine = fma(mul(rest, square), odd_series, rest)
    cosine = fma(mul(square, square), even_series, fma(square, -0.5, 1.0))
    one, two = const(1, int32), const(2, int32)
    result = where(unequal(binary("and", quadrant, one), 0), cosine, sine)
    result = where(unequal(binary("and", quadrant, two), 0), unary("neg", result), result)
    return where(less(absolute(x), math.inf), result, real(math.nan))


def sin(x: Value) -> Value:
    """Sine, for angles of any size."""
    return where(equal(x, 0.0), x, _sine(x, 0))


def cos(x: Value) -> Value:
    """Cosine, for angles of any size."""
    return _sine(x, 1)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    size = absolute(x)
    square = mul(x, x)
    series = polynomial(
        square,
        [
            -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
            -3.33332819422e-1,
        ],
    )  # fmt: skip
    small = fma(mul(series, square), x, x)
    large = sub(real(1.0), div(real(2.0), add(exp(mul(size, 2.0)), 1.0)))
    signed = where(less(x, 0.0), unary("neg", large), large)
    return where(less(size, 0.625), small, signed)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x)."""
    return div(real(1.0), add(exp(unary("neg", x)), 1.0))


def integer_power(x: Value, y: Value) -> Value:
    """x**y for integers by squaring, wrapping; a negative y gives zero unless x is 1 or -1."""
    dtype = x.dtype
    result, base = const(1, dtype), x
    for bit in range(dtype.bits - (dtype.kind == "i")):
        chosen = binary("and", binary("shr", y, const(bit, dtype)), const(1, dtype))
        result = where(unequal(chosen, 0), mul(result, base), result)
        base = mul(base, base)
    if dtype.kind == "u":
        return result
    odd = unequal(binary("and", y, const(1, dtype)), 0)
    minus = where(odd, const(-1, dtype), const(1, dtype))
    inverse = where(equal(x, 1), const(1, dtype), const(0, dtype))
    inverse = where(equal(x, -1), minus, inverse)
    return where(less(y, 0), inverse, result)
