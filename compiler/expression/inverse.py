"""Inverse functions and the error function on float32 (see `functions`).

Polynomials are minimax fits in the relative error of the function, by Lawson's iteration.
"""

from __future__ import annotations

import math

from ugpu.compiler.dtype import float32, int32
from ugpu.compiler.expression.functions import (
    LOG2_E,
    SHIFTER,
    absolute,
    add,
    as_bits,
    as_float,
    clamp,
    div,
    equal,
    fma,
    less,
    log_of_normal,
    log_of_sum,
    mul,
    polynomial,
    real,
    sub,
    to_exponent,
    unary,
    where,
    with_sign,
)
from ugpu.compiler.expression.value import Value, binary, const

HALF_PI, HALF_PI_LOW = 1.57079637050628662109375, -4.371139e-8
PI, PI_LOW = 2 * HALF_PI, 2 * HALF_PI_LOW
# (asin(s) / s - 1) / s^2 by s^2, s^2 up to 1/4
_ASIN = (4.2218566e-2, 2.4147602e-2, 4.5477100e-2, 7.4952416e-2, 1.66667536e-1)
# (atan(s) / s - 1) / s^2 by s^2, up to 1
_ATAN = (-1.79362029e-3, 1.09145995e-2, -3.11778337e-2, 5.79575822e-2, -8.40344951e-2,
         1.09521858e-1, -1.42642424e-1, 1.99985489e-1, -3.33332986e-1)  # fmt: skip
# erf(s) / s - 1 by s^2, up to 1
_ERF = (7.85386073e-5, -8.01019371e-4, 5.18832775e-3, -2.68538129e-2, 1.12835854e-1,
        -3.76126260e-1, 1.28379166e-1)  # fmt: skip
# log(1 - erf(x)), 1 to 4
_LOG_ERFC = (-2.16976274e-5, 4.41472832e-4, -4.20528557e-3, 2.52103433e-2, -1.08422108e-1,
             -6.33216381e-1, -1.12958026, 1.88468548e-4)  # fmt: skip
# e**r, |r| up to log(2) / 2
_EXP = (8.3127031e-3, 4.18901928e-2, 1.66671127e-1, 4.99992311e-1, 1.0, 1.0)
# log2(erfc(x / sqrt(2))) / x, up to 6; beyond, the polynomial falls faster than the function
_LOG2_TAILS = (-2.40836062e-8, 7.34200455e-7, -9.59699264e-6, 6.82660611e-5, -2.50767625e-4,
               -6.11758805e-5, 7.02266907e-3, -5.24925366e-2, -4.59204406e-1,
               -1.151106)  # fmt: skip
# 2**r / 2, |r| up to 1/2
_HALF_EXP2 = (6.63237122e-4, 4.83575882e-3, 2.77536679e-2, 1.20111212e-1, 3.46573502e-1, 0.5)
# erfinv(x) / x by w - 2.5 where w = -log(1 - x^2) is below 5, else by sqrt(w) - 3
_ERFINV_NEAR = (2.81022636e-8, 3.43273939e-7, -3.5233877e-6, -4.39150654e-6, 2.1858087e-4,
                -1.25372503e-3, -4.17768164e-3, 2.46640727e-1, 1.50140941)  # fmt: skip
_ERFINV_FAR = (-2.00214257e-4, 1.00950558e-4, 1.34934322e-3, -3.67342844e-3, 5.73950773e-3,
               -7.6224613e-3, 9.43887047e-3, 1.00167406, 2.83297682)  # fmt: skip
ENDLESS = 1e4  # from here on x and sqrt(x^2 +- 1) are one


def _arc_sine(size: Value) -> tuple[Value, Value, Value]:
    """For 0 <= x <= 1: whether x is above 1/2, s and c: asin(x) is s + c, or pi/2 - 2 (s + c)."""
    large = less(real(0.5), size)
    square = where(large, mul(sub(real(1.0), size), 0.5), mul(size, size))
    start = where(large, unary("sqrt", square), size)
    return large, start, mul(mul(start, square), polynomial(square, _ASIN))


def asin(x: Value) -> Value:
    """Arc sine; NaN outside of -1 to 1."""
    large, start, more = _arc_sine(absolute(x))
    far = sub(sub(real(HALF_PI), mul(start, 2.0)), fma(more, 2.0, -HALF_PI_LOW))
    return with_sign(where(large, far, add(start, more)), x)


def acos(x: Value) -> Value:
    """Arc cosine; NaN outside of -1 to 1."""
    large, start, more = _arc_sine(absolute(x))
    near = sub(sub(real(HALF_PI), with_sign(start, x)), add(with_sign(more, x), -HALF_PI_LOW))
    twice, rest = mul(start, 2.0), mul(more, 2.0)
    behind = sub(sub(real(PI), twice), add(rest, -PI_LOW))
    return where(large, where(less(x, 0.0), behind, add(twice, rest)), near)


def atan(x: Value) -> Value:
    """Arc tangent."""
    size = absolute(x)
    large = less(real(1.0), size)
    start = where(large, div(real(1.0), size), size)
    square = mul(start, start)
    more = mul(mul(start, square), polynomial(square, _ATAN))
    far = sub(sub(real(HALF_PI), start), add(more, -HALF_PI_LOW))
    return with_sign(where(large, far, add(start, more)), x)


def asinh(x: Value) -> Value:
    """Inverse hyperbolic sine."""
    size = absolute(x)
    large = less(real(ENDLESS), size)
    bounded = clamp(size, 0.0, ENDLESS)
    square = mul(bounded, bounded)
    root = unary("sqrt", add(square, 1.0))
    more = add(bounded, div(square, add(root, 1.0)))  # x + sqrt(x^2 + 1) - 1
    found = _logarithm(large, size, more)
    return with_sign(where(equal(x, 0.0), size, found), x)


def acosh(x: Value) -> Value:
    """Inverse hyperbolic cosine; NaN below 1."""
    above = sub(binary("min", x, real(ENDLESS)), 1.0)
    root = unary("sqrt", mul(above, add(above, 2.0)))
    found = _logarithm(less(real(ENDLESS), x), x, add(above, root))
    return where(less(x, 1.0), real(math.nan), found)


def _logarithm(large: Value, x: Value, more: Value) -> Value:
    """log(2 x) where x is large, else log(1 + more)."""
    found = log_of_sum(where(large, x, real(1.0)), where(large, real(0.0), more))
    return add(found, where(large, const(math.log(2), float32), real(0.0)))


def atanh(x: Value) -> Value:
    """Inverse hyperbolic tangent; NaN outside of -1 to 1."""
    size = absolute(x)
    ratio = div(mul(size, 2.0), sub(real(1.0), size))
    found = mul(log_of_sum(real(1.0), ratio), 0.5)
    return with_sign(where(equal(x, 0.0), size, found), x)


def erf(x: Value) -> Value:
    """The error function."""
    size = absolute(x)
    near = fma(polynomial(mul(size, size), _ERF), size, size)
    far = sub(real(1.0), _exp_near(polynomial(binary("min", size, real(4.0)), _LOG_ERFC)))
    return with_sign(where(less(size, 1.0), near, far), x)


def gelu(x: Value) -> Value:
    """x times the normal distribution's cumulative probability at x, from that of being beyond
    |x|, whose exponent is the other factor's: at -126 both are 0."""
    size = absolute(x)
    power = binary("max", mul(polynomial(size, _LOG2_TAILS), size), real(-126.0))
    shifted = add(power, SHIFTER)
    fraction = as_bits(polynomial(sub(power, sub(shifted, SHIFTER)), _HALF_EXP2))
    tail = as_float(binary("add", fraction, to_exponent(as_bits(shifted))))
    return mul(x, where(less(x, 0.0), tail, sub(real(1.0), tail)))


def _exp_near(x: Value) -> Value:
    """Return e**x to 2**-23 of itself, for -20 < x < 1 or NaN."""
    shifted = fma(x, LOG2_E, SHIFTER)
    rest = fma(sub(shifted, SHIFTER), -math.log(2), x)
    power = binary("add", to_exponent(as_bits(shifted)), const(127 << 23, int32))
    return mul(polynomial(rest, _EXP), as_float(power))


def erfinv(x: Value) -> Value:
    """Inverse of the error function; infinite at -1 and 1, NaN outside (M. Giles, "Approximating
    the erfinv function", 2010)."""
    size = absolute(x)
    inverse = log_of_normal(mul(sub(real(1.0), size), add(size, 1.0)))  # -w
    near = polynomial(sub(real(-2.5), inverse), _ERFINV_NEAR)
    far = polynomial(sub(unary("sqrt", unary("neg", inverse)), 3.0), _ERFINV_FAR)
    found = mul(where(less(real(-5.0), inverse), near, far), x)
    outside = mul(x, where(equal(size, 1.0), real(math.inf), real(math.nan)))
    return where(less(size, 1.0), found, outside)
