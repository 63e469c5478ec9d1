"""Inverse functions and the error function on float32 (see `functions`).

Polynomials are minimax fits in the relative error of the function, by Lawson's iteration.
"""

from __future__ import annotations

import math

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.functions import (
    absolute,
    add,
    clamp,
    div,
    equal,
    exp_below,
    fma,
    less,
    log_of_sum,
    mul,
    polynomial,
    real,
    sub,
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
    bounded = clamp(size, 1.0, 4.0)
    far = sub(real(1.0), exp_below(polynomial(bounded, _LOG_ERFC)))
    return with_sign(where(less(size, 1.0), near, far), x)
