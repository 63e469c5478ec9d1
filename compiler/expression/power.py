"""Powers on floats and on integers, composed of the IR's own operations (see `functions`).

x**y = 2**(y * log2(x)), with the logarithm as a sum of two float32, as an error of 2**-24 in it
would be multiplied by up to 128. Sums and products of two terms: T. Dekker, "A floating-point
technique for extending the available precision", Numerische Mathematik 18 (1971), with a fused
multiply-add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.compiler.dtype import float32, float64
from ugpu.compiler.expression.doubles import coefficients as doubles
from ugpu.compiler.expression.doubles.exponential import exp2_of
from ugpu.compiler.expression.functions import (
    SHIFTER,
    TWO_STEPS,
    absolute,
    add,
    as_bits,
    clamp,
    div,
    equal,
    fma,
    less,
    mantissa_of,
    mul,
    polynomial,
    scaled,
    sub,
    unary,
    unary_not,
    unequal,
    where,
)
from ugpu.compiler.expression.value import Value, binary, cast, const

Pair = tuple[Value, Value | None]  # a number as a sum: rounded, and the rest, if any


@dataclass(frozen=True)
class _Form:
    """What differs between the floats.

    Attributes:
        factor: 2/3 of log2(e).
        tail: the series of `_log2` from s^4 on.
        exp2: 2 to the power of a sum.
        largest: an exponent of 2 whose result is infinite.
        most: an exponent whose power of any number but 1 is infinite or zero.
    """

    factor: tuple[float, float]
    tail: tuple[float, ...]
    exp2: Callable[[Value, Value], Value]
    largest: float
    most: float


def _product(one: Pair, two: Pair) -> tuple[Value, Value]:
    """Return the product of two sums."""
    rounded = mul(one[0], two[0])
    error = fma(one[0], two[0], unary("neg", rounded))
    for (high, _), (_, low) in ((one, two), (two, one)):
        if low is not None:
            error = fma(high, low, error)
    return rounded, error


def whole_power(exponent: int, x: Value) -> Value:
    """x**exponent by products, rounded once; exponent at least 2."""
    total: Pair = (x, None)
    for bit in f"{exponent:b}"[1:]:
        total = _product(total, total)
        if bit == "1":
            total = _product(total, (x, None))
    rounded, error = total
    assert error is not None
    size = absolute(rounded)  # for zero and infinity the error is not known
    usable = binary("and", less(const(0.0, x.dtype), size), less(size, math.inf))
    return where(usable, add(rounded, error), rounded)


def _log2(x: Value) -> tuple[Value, Value]:
    """log2(x) for x > 0: an error of some 2**-35, of the logarithm and of 2**-41; of float64 of
    2**-65."""
    exponent, mantissa = mantissa_of(x)
    form, count = _FORMS[x.dtype], cast(exponent, x.dtype)
    # log(m) = 2 atanh(s) = 2/3 * s * (3 + s^2 + 3/5 s^4 + ...), s = (m - 1) / (m + 1)
    below, above = sub(mantissa, 1.0), add(mantissa, 1.0)
    above_low = sub(mantissa, sub(above, 1.0))
    inverse = div(const(1.0, x.dtype), above)
    s = mul(below, inverse)
    minus = unary("neg", s)
    s_low = mul(fma(minus, above_low, fma(minus, above, below)), inverse)
    square, square_low = _product((s, s_low), (s, s_low))
    series = polynomial(square, form.tail)
    total = add(square, 3.0)
    left = fma(mul(square, square), series, square_low)
    total_low = add(sub(square, sub(total, 3.0)), left)
    natural = _product((s, s_low), (total, total_low))
    factor = const(form.factor[0], x.dtype), const(form.factor[1], x.dtype)
    part, part_low = _product(natural, factor)
    result = add(count, part)
    return result, add(sub(part, sub(result, count)), part_low)


def _exp2(high: Value, low: Value) -> Value:
    """2**(high + low), for |high| below 200 and a small low."""
    shifted = add(high, SHIFTER + TWO_STEPS)
    whole = sub(high, sub(shifted, SHIFTER + TWO_STEPS))
    rest = add(whole, low)
    lost = mul(sub(low, sub(rest, whole)), math.log(2))
    series = polynomial(  # (2**r - 1 - r log(2)) / r^2
        rest, [1.54762994e-4, 1.34002697e-3, 9.618003852e-3, 5.5503278971e-2, 2.4022650719e-1]
    )
    lost = fma(mul(lost, rest), math.log(2), lost)
    more = fma(rest, math.log(2), fma(mul(rest, rest), series, lost))
    return scaled(add(more, 1.0), shifted)


_FORMS = {
    float32: _Form(
        (0.96179670095443725586, -7.02846165e-9), (3.51297289e-1, 4.28206265e-1, 6.00002289e-1),
        _exp2, 180.0, 1e10,
    ),
    float64: _Form(doubles.FACTOR, doubles.LOG_TAIL, exp2_of, 1100.0, 1e20),
}  # fmt: skip


def power(x: Value, y: Value) -> Value:
    """x**y as C's powf and pow."""
    form, size = _FORMS[x.dtype], absolute(x)

    def real(number: float) -> Value:
        return const(number, x.dtype)

    high, low = _log2(size)
    finite = less(size, math.inf)
    high = where(finite, high, size)  # infinity and NaN are their own logarithms
    high = where(equal(x, 0.0), real(-math.inf), high)
    bounded = clamp(y, -form.most, form.most)
    product = mul(bounded, high)
    product_low = fma(bounded, low, fma(bounded, high, unary("neg", product)))
    limited = clamp(product, -form.largest, form.largest)
    near = equal(limited, product)
    result = form.exp2(limited, where(near, product_low, real(0.0)))
    # what is left of y beside an even number: 0, 1 or -1 if y is whole
    left = fma(unary("round", mul(bounded, 0.5)), -2.0, bounded)
    odd = equal(absolute(left), 1.0)
    negative = less(as_bits(x), 0)
    result = where(binary("and", negative, odd), unary("neg", result), result)
    broken = binary("and", unequal(left, 0.0), unary_not(odd))
    root = binary("and", binary("and", less(x, 0.0), finite), broken)
    result = where(root, real(math.nan), result)
    one = binary("or", equal(x, 1.0), equal(y, 0.0))
    return where(one, real(1.0), result)


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
