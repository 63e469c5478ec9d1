"""Remainders and quotients of floats, exact for quotients of any size (see `functions`).

The remainder of x by y is computed from the mantissas by long division: each step multiplies the
rest by a power of two, and subtracts the nearest multiple of the divisor by a fused multiply-add,
which is exact. Signs and special values as in C's fmod, Python's % and NumPy's floor_divide.
"""

from __future__ import annotations

import math

from ugpu.compiler.dtype import float16, float64, uint32, uint64
from ugpu.compiler.expression.functions import (
    absolute,
    add,
    as_bits,
    as_float,
    div,
    equal,
    fma,
    layout,
    less,
    mul,
    scale,
    sub,
    unary,
    unequal,
    where,
    with_sign,
)
from ugpu.compiler.expression.value import Value, binary, cast, const

FIRST, STEP = (
    3,
    2,
)  # a step has so many bits of the quotient less than a float: its error stays below one


def _parts(x: Value) -> tuple[Value, Value]:
    """x = 2**e * m with 1 <= m < 2, for a finite x > 0."""
    form = layout(x)
    raised, place = form.fraction + 1, const(form.fraction, form.bits)
    tiny = less(x, form.least)
    bits = as_bits(where(tiny, mul(x, 2.0**raised), x))
    exponent = sub(binary("shr", bits, place), form.bias)
    mantissa = as_float(sub(bits, binary("shl", exponent, place)))
    return sub(exponent, where(tiny, const(raised, form.bits), const(0, form.bits))), mantissa


def _exponents(x: Value) -> tuple[int, int]:
    """Return the powers of two between which all finite non-zero values of x are."""
    if x.op == "const" and 0 < abs(x.arg) < math.inf:
        exponent = math.frexp(x.arg)[1] - 1
        return exponent, exponent
    if x.op == "cast" and x.sources[0].dtype is float16:
        return -24, 15
    if x.op == "cast" and not x.sources[0].dtype.is_float:
        return 0, x.sources[0].dtype.bits
    return (-1074, 1023) if x.dtype is float64 else (-149, 127)


def _rest(x: Value, y: Value, bits: int) -> Value:
    """fmod of finite x >= y > 0 whose quotient is below 2**(bits + 1)."""
    exponent, rest = _parts(x)
    own, divisor = _parts(y)
    inverse = div(const(1.0, x.dtype), divisor)
    form = layout(x)
    whole, place = uint64 if x.dtype is float64 else uint32, form.fraction
    first, step = place + 1 - FIRST, place + 1 - STEP
    minus = unary("neg", divisor)
    # as the bits of exponents; the distance may be 276 (2,098), so that they fill the width
    left = binary("shl", cast(sub(exponent, own), whole), const(place, whole))
    for size in (first, *[step] * -(-max(0, bits - first) // step)):
        taken = binary("min", left, const(size << place, whole))
        left = sub(left, taken)
        power = as_float(cast(add(taken, form.bias << place), form.bits))
        rest = mul(rest, power)
        rest = fma(unary("round", mul(rest, inverse)), minus, rest)
    rest = where(less(rest, 0.0), add(rest, divisor), rest)
    rest = where(less(rest, divisor), rest, sub(rest, divisor))
    return scale(rest, own)


def fmod(x: Value, y: Value) -> Value:
    """x - trunc(x / y) * y, exact, with the sign of x."""
    size, divisor = absolute(x), absolute(y)
    bits = _exponents(x)[1] - _exponents(y)[0]
    rest = where(less(size, divisor), size, _rest(size, divisor, bits))
    nothing = binary("or", equal(divisor, 0.0), binary("le", const(math.inf, x.dtype), size))
    nothing = binary("or", nothing, binary("or", unequal(x, x), unequal(y, y)))
    return where(nothing, const(math.nan, x.dtype), with_sign(rest, x))


def _is_opposite(rest: Value, y: Value) -> Value:
    """Return whether the remainder is not zero and its sign is not that of y."""
    one = const(1.0, y.dtype)
    signs = less(mul(with_sign(one, rest), with_sign(one, y)), 0.0)
    return binary("and", unequal(rest, 0.0), signs)


def remainder(x: Value, y: Value) -> Value:
    """x - floor(x / y) * y, rounded once, with the sign of y unless it is zero."""
    rest = fmod(x, y)
    return where(_is_opposite(rest, y), add(rest, y), rest)


def floor_quotient(x: Value, y: Value) -> Value:
    """Return floor(x / y) of the exact quotient, rounded; x / y where y is zero."""
    rest = fmod(x, y)
    quotient = div(sub(x, rest), y)
    quotient = where(_is_opposite(rest, y), sub(quotient, 1.0), quotient)
    down = unary("floor", quotient)
    down = where(less(const(0.5, x.dtype), sub(quotient, down)), add(down, 1.0), down)
    plain = div(x, y)
    down = where(equal(quotient, 0.0), with_sign(const(0.0, x.dtype), plain), down)
    return where(equal(y, 0.0), plain, down)
