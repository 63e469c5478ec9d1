"""Exponential functions and logarithms on float64 (see compiler.expression.functions)."""

from __future__ import annotations

import math

from ugpu.compiler.dtype import float64, int64
from ugpu.compiler.expression.doubles import coefficients as numbers
from ugpu.compiler.expression.doubles.pairs import Pair, nearly, product, quotient, real, summed
from ugpu.compiler.expression.functions import (
    absolute,
    add,
    as_bits,
    as_float,
    clamp,
    div,
    fma,
    less,
    log_specials,
    mantissa_of,
    mul,
    polynomial,
    scale,
    sub,
    unary,
    where,
    with_sign,
)
from ugpu.compiler.expression.value import Value, binary, cast, const

SHIFTER = 1.5 * 2.0**52  # adding it rounds to a whole number, left in the lowest bits
SHIFTED = 0x4338000000000000  # its bits


def whole(shifted: Value) -> tuple[Value, Value]:
    """Return the whole number in a float to which SHIFTER was added, and the same as int64."""
    return sub(shifted, SHIFTER), sub(as_bits(shifted), SHIFTED)


def _reduced(x: Value) -> tuple[Value, Value, Value]:
    """Return n as int64, r and what r lost: x = n log(2) + r, |r| at most log(2) / 2."""
    count, n = whole(fma(x, numbers.LOG2_E[0], SHIFTER))
    high = fma(count, -numbers.LN2[0], x)
    low = mul(count, -numbers.LN2[1])
    return n, *nearly(high, low)


def _power_of_e(x: Value) -> tuple[Value, Pair]:
    """Return n and m as a sum: e**x = 2**n m, for bounded x."""
    n, rest, lost = _reduced(x)
    more = fma(mul(rest, rest), polynomial(rest, numbers.EXP), fma(lost, rest, lost))
    high, low = nearly(real(1.0), rest)
    return n, (high, add(low, more))


def exp(x: Value) -> Value:
    """e**x."""
    n, (high, low) = _power_of_e(clamp(x, -746.0, 710.0))
    return scale(add(high, low), n)


def exp2_of(high: Value, low: Value) -> Value:
    """2**(high + low), for |high| below 1,200 and |low| below 1."""
    high, low = nearly(high, low)
    count, n = whole(add(high, SHIFTER))
    rest = sub(high, count)
    linear, lost = product(rest, numbers.WHOLE_LN2)
    more = fma(mul(rest, rest), polynomial(rest, numbers.EXP2), lost)
    start, left = nearly(real(1.0), linear)
    left = add(left, more)
    left = fma(add(start, left), mul(low, math.log(2)), left)
    return scale(add(start, left), n)


def exp2(x: Value) -> Value:
    """2**x; exact for whole x."""
    return exp2_of(clamp(x, -1076.0, 1025.0), real(0.0))


def expm1(x: Value) -> Value:
    """Return e**x - 1, accurate even where e**x is close to 1."""
    n, rest, lost = _reduced(clamp(x, -40.0, 710.0))
    square = mul(rest, rest)
    high, low = nearly(rest, fma(square, polynomial(rest, numbers.EXP), fma(lost, rest, lost)))
    # with 2**(n - 1), since 2**n may be too large
    half = as_float(binary("shl", add(n, 1022), const(52, int64)))
    total, left = summed(sub(half, 0.5), mul(high, half))
    result = mul(add(total, fma(low, half, left)), 2.0)
    return where(less(absolute(x), 2.0**-60), x, result)


def _log_parts(x: Value) -> tuple[Value, Pair]:
    """Return n, as a float, and log(m) as a sum: x = 2**n m, for x > 0."""
    exponent, mantissa = mantissa_of(x)
    return cast(exponent, float64), _log_of(sub(mantissa, 1.0))


def _log_of(f: Value) -> Pair:
    """log(1 + f) with sqrt(1/2) <= 1 + f < sqrt(2): by s = f / (2 + f), of which it is 2 atanh."""
    s = div(f, add(f, 2.0))
    z = mul(s, s)
    half = mul(f, 0.5)
    square, lost = product(f, half)
    high = sub(f, square)
    low = fma(s, fma(z, polynomial(z, numbers.LOG), square), sub(sub(sub(f, high), square), lost))
    return high, low


def log(x: Value) -> Value:
    """Natural logarithm."""
    n, (high, low) = _log_parts(x)
    return log_specials(x, _with_exponent(n, high, low))


def _with_exponent(n: Value, high: Value, low: Value) -> Value:
    """Return n log(2) + high + low."""
    total, lost = summed(mul(n, numbers.LN2[0]), high)
    return add(total, add(lost, fma(n, numbers.LN2[1], low)))


def log2(x: Value) -> Value:
    """Logarithm to base 2; exact for powers of two."""
    n, (high, low) = _log_parts(x)
    part, lost = product(high, numbers.LOG2_E)
    total, more = summed(n, part)
    return log_specials(x, add(total, add(more, fma(low, numbers.LOG2_E[0], lost))))


def log10(x: Value) -> Value:
    """Logarithm to base 10; exact for powers of ten."""
    n, (high, low) = _log_parts(x)
    part, lost = product(high, numbers.LOG10_E)
    total, more = summed(mul(n, numbers.LOG10_2[0]), part)
    rest = fma(n, numbers.LOG10_2[1], fma(low, numbers.LOG10_E[0], lost))
    return log_specials(x, add(total, add(more, rest)))


def log_of_sum(base: Value, more: Value, lost: Value) -> Value:
    """Return log(base + more + lost) of a sum that is not rounded; base = 1 or more = 0."""
    total, left = summed(base, more)
    n, (high, low) = _log_parts(total)
    result = _with_exponent(n, high, add(low, div(add(left, lost), total)))
    return log_specials(total, result)


def log1p(x: Value) -> Value:
    """Return log(1 + x), accurate even where 1 + x is close to 1."""
    return where(less(absolute(x), 2.0**-54), x, log_of_sum(real(1.0), x, real(0.0)))


def softplus(x: Value) -> Value:
    """Return log(1 + e**x)."""
    return add(binary("max", x, real(0.0)), log1p(exp(unary("neg", absolute(x)))))


def sinh(x: Value) -> Value:
    """Hyperbolic sine."""
    size = absolute(x)
    square = mul(x, x)
    small = fma(mul(polynomial(square, numbers.SINH), square), size, size)
    half = _half(size)
    large = sub(half, div(real(0.25), half))
    return with_sign(where(less(size, 1.0), small, large), x)


def _half(size: Value) -> Value:
    """Return e**x / 2 for x >= 0."""
    n, (high, low) = _power_of_e(clamp(size, 0.0, 712.0))
    return scale(add(high, low), sub(n, 1))


def cosh(x: Value) -> Value:
    """Hyperbolic cosine."""
    half = _half(absolute(x))
    return add(half, div(real(0.25), half))


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    size = absolute(x)
    square = mul(x, x)
    small = fma(mul(polynomial(square, numbers.TANH), square), size, size)
    bounded = where(less(real(22.0), size), real(22.0), size)  # NaN stays
    large = sub(real(1.0), div(real(2.0), add(exp(mul(bounded, 2.0)), 1.0)))
    return with_sign(where(less(size, 0.55), small, large), x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e**-x)."""
    n, (high, low) = _power_of_e(clamp(unary("neg", absolute(x)), -746.0, 0.0))
    falling = scale(add(high, low), n)
    above = where(less(x, 0.0), falling, real(1.0))
    return quotient((above, real(0.0)), nearly(real(1.0), falling))
