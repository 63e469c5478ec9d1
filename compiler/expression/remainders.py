"""Remainders and quotients of float32, exact for quotients of any size (see `functions`).

The remainder of x by y is computed from the mantissas by long division: each step multiplies the
rest by a power of two, and subtracts the nearest multiple of the divisor by a fused multiply-add,
which is exact. Signs and special values as in C's fmod, Python's % and NumPy's floor_divide.
"""

from __future__ import annotations

import math

from ugpu.compiler.dtype import float16, int32, uint32
from ugpu.compiler.expression.functions import (
    absolute,
    add,
    as_bits,
    as_float,
    div,
    equal,
    fma,
    less,
    mul,
    real,
    scale,
    sub,
    unary,
    unequal,
    where,
    with_sign,
)
from ugpu.compiler.expression.value import Value, binary, cast, const

FIRST, STEP = 21, 22  # bits of the quotient in a step: its error stays below one


def _parts(x: Value) -> tuple[Value, Value]:
    """x = 2**e * m with 1 <= m < 2, for a finite x > 0."""
    tiny = less(x, 2.0**-126)
    bits = as_bits(where(tiny, mul(x, 2.0**24), x))
    exponent = sub(binary("shr", bits, const(23, int32)), 127)
    mantissa = as_float(sub(bits, binary("shl", exponent, const(23, int32))))
    return sub(exponent, where(tiny, const(24, int32), const(0, int32))), mantissa


def _exponents(x: Value) -> tuple[int, int]:
    """Return the powers of two between which all finite non-zero values of x are."""
    if x.op == "const" and 0 < abs(x.arg) < math.inf:
        exponent = math.frexp(x.arg)[1] - 1
        return exponent, exponent
    if x.op == "cast" and x.sources[0].dtype is float16:
        return -24, 15
    if x.op == "cast" and not x.sources[0].dtype.is_float:
        return 0, x.sources[0].dtype.bits
    return -149, 127


def _rest(x: Value, y: Value, bits: int) -> Value:
    """fmod of finite x >= y > 0 whose quotient is below 2**(bits + 1)."""
    exponent, rest = _parts(x)
    own, divisor = _parts(y)
    inverse = div(real(1.0), divisor)
    minus = unary("neg", divisor)
    # as the bits of exponents; the distance may be 276, so that they fill 32 bits
    left = binary("shl", cast(sub(exponent, own), uint32), const(23, uint32))
    for step in (FIRST, *[STEP] * -(-max(0, bits - FIRST) // STEP)):
        taken = binary("min", left, const(step << 23, uint32))
        left = sub(left, taken)
        power = as_float(cast(add(taken, 127 << 23), int32))
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
    nothing = binary("or", equal(divisor, 0.0), binary("le", real(math.inf), size))
    nothing = binary("or", nothing, binary("or", unequal(x, x), unequal(y, y)))
    return where(nothing, real(math.nan), with_sign(rest, x))


def _is_opposite(rest: Value, y: Value) -> Value:
    """Return whether the remainder is not zero and its sign is not that of y."""
    signs = less(mul(with_sign(real(1.0), rest), with_sign(real(1.0), y)), 0.0)
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
    down = where(less(real(0.5), sub(quotient, down)), add(down, 1.0), down)
    plain = div(x, y)
    down = where(equal(quotient, 0.0), with_sign(real(0.0), plain), down)
    return where(equal(y, 0.0), plain, down)
