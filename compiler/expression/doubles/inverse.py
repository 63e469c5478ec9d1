"""Inverse functions and the error function on float64 (see compiler.expression.functions)."""

from __future__ import annotations

import math

from ugpu.compiler.expression.doubles import coefficients as numbers
from ugpu.compiler.expression.doubles.exponential import exp, log_of_sum
from ugpu.compiler.expression.doubles.pairs import Pair, nearly, product, quotient, real, summed
from ugpu.compiler.expression.functions import (
    absolute,
    add,
    clamp,
    div,
    equal,
    fma,
    less,
    mul,
    polynomial,
    sub,
    unary,
    where,
    with_sign,
)
from ugpu.compiler.expression.value import Value, binary

HALF_PI, HALF_PI_LOW = numbers.HALF_PI[:2]
PI, PI_LOW = 2 * HALF_PI, 2 * HALF_PI_LOW
ENDLESS = 2.0**28  # from here on x and sqrt(x^2 +- 1) are one


def _arc_sine(size: Value) -> tuple[Value, Value, Value]:
    """For 0 <= x <= 1: whether x is above 1/2, s and c: asin(x) is s + c, or pi/2 - 2 (s + c)."""
    large = less(real(0.5), size)
    square = where(large, mul(sub(real(1.0), size), 0.5), mul(size, size))
    root = unary("sqrt", square)
    # what the root lost
    lost = div(fma(unary("neg", root), root, square), mul(root, 2.0))
    lost = where(less(real(0.0), root), lost, real(0.0))
    start = where(large, root, size)
    more = mul(mul(start, square), polynomial(square, numbers.ASIN))
    return large, start, add(more, where(large, lost, real(0.0)))


def asin(x: Value) -> Value:
    """Arc sine; NaN outside of -1 to 1."""
    large, start, more = _arc_sine(absolute(x))
    near, lost = nearly(real(HALF_PI), mul(start, -2.0))
    far = add(near, add(lost, fma(more, -2.0, HALF_PI_LOW)))
    return with_sign(where(large, far, add(start, more)), x)


def acos(x: Value) -> Value:
    """Arc cosine; NaN outside of -1 to 1."""
    large, start, more = _arc_sine(absolute(x))
    near, lost = nearly(real(HALF_PI), unary("neg", with_sign(start, x)))
    near = add(near, add(lost, sub(real(HALF_PI_LOW), with_sign(more, x))))
    twice, rest = mul(start, 2.0), mul(more, 2.0)
    behind, left = nearly(real(PI), unary("neg", twice))
    behind = add(behind, add(left, sub(real(PI_LOW), rest)))
    return where(large, where(less(x, 0.0), behind, add(twice, rest)), near)


def atan(x: Value) -> Value:
    """Arc tangent."""
    size = absolute(x)
    large = less(real(1.0), size)
    start = where(large, div(real(1.0), size), size)
    square = mul(start, start)
    more = mul(mul(start, square), polynomial(square, numbers.ATAN))
    near, lost = nearly(real(HALF_PI), unary("neg", start))
    far = add(near, add(lost, sub(real(HALF_PI_LOW), more)))
    return with_sign(where(large, far, add(start, more)), x)


def _root(square: Value, lost: Value) -> Pair:
    """Return the root of a positive sum; 0 of 0."""
    root = unary("sqrt", square)
    rest = div(add(fma(unary("neg", root), root, square), lost), mul(root, 2.0))
    return root, where(less(real(0.0), root), rest, real(0.0))


def asinh(x: Value) -> Value:
    """Inverse hyperbolic sine."""
    size = absolute(x)
    large = less(real(ENDLESS), size)
    bounded = clamp(size, 0.0, ENDLESS)
    square, lost = product(bounded, bounded)
    above, left = summed(square, real(1.0))
    root, more = _root(above, add(left, lost))
    below = nearly(root, real(1.0))
    part = quotient((square, lost), (below[0], add(below[1], more)))
    total, rest = nearly(bounded, part)  # x + sqrt(x^2 + 1) - 1
    result = _logarithm(large, size, total, rest)
    return with_sign(where(less(size, 2.0**-28), size, result), x)


def acosh(x: Value) -> Value:
    """Inverse hyperbolic cosine; NaN below 1."""
    above, lost = summed(binary("min", x, real(ENDLESS)), real(-1.0))
    twice, left = summed(above, real(2.0))
    square, more = product(above, twice)
    more = add(fma(above, add(left, lost), more), mul(lost, twice))
    root, rest = _root(square, more)
    total, part = summed(root, above)
    result = _logarithm(less(real(ENDLESS), x), x, total, add(part, add(rest, lost)))
    return where(less(x, 1.0), real(math.nan), result)


def _logarithm(large: Value, x: Value, more: Value, lost: Value) -> Value:
    """log(2 x) where x is large, else log(1 + more + lost)."""
    one, zero = real(1.0), real(0.0)
    result = log_of_sum(where(large, x, one), where(large, zero, more), where(large, zero, lost))
    return add(result, where(large, real(math.log(2)), zero))


def atanh(x: Value) -> Value:
    """Inverse hyperbolic tangent; NaN outside of -1 to 1."""
    size = absolute(x)
    below = nearly(real(1.0), unary("neg", size))
    twice = mul(size, 2.0)
    ratio = div(twice, below[0])
    minus = unary("neg", ratio)
    lost = div(fma(minus, below[1], fma(minus, below[0], twice)), below[0])
    lost = where(equal(size, 1.0), real(0.0), lost)
    result = mul(log_of_sum(real(1.0), ratio, lost), 0.5)
    return with_sign(where(less(size, 2.0**-28), size, result), x)


def erf(x: Value) -> Value:
    """The error function."""
    size = absolute(x)
    near = fma(polynomial(mul(size, size), numbers.ERF), size, size)
    far = sub(real(1.0), exp(polynomial(clamp(size, 1.0, 6.0), numbers.LOG_ERFC)))
    return with_sign(where(less(size, 1.0), near, far), x)
