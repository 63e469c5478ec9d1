"""Sine, cosine and tangent on float64, for angles of any size.

Angles are reduced by multiples of pi/2 of three float64, which with a fused multiply-add loses
nothing up to LARGE; larger ones by integers (M. Payne, R. Hanek, "Radian reduction for
trigonometric functions", 1983).
"""

from __future__ import annotations

import math

from ugpu.compiler.dtype import float64, int64, uint64
from ugpu.compiler.expression.doubles import coefficients as numbers
from ugpu.compiler.expression.doubles.exponential import SHIFTER, whole
from ugpu.compiler.expression.doubles.pairs import (
    Pair,
    nearly,
    product,
    quotient,
    real,
    summed,
)
from ugpu.compiler.expression.functions import (
    absolute,
    add,
    as_bits,
    as_float,
    equal,
    fma,
    less,
    mul,
    polynomial,
    rarely,
    sub,
    unary,
    unequal,
    where,
)
from ugpu.compiler.expression.value import Value, binary, cast, const

LARGE = 2.0**30
FIRST = 1013  # the biased exponent of a number whose first bit of 2/pi is the table's first
LOWER = 0xFFFFFFFF
WINDOW = 4  # words that hold 192 bits from any bit on


def _upper(left: Value, right: Value) -> Value:
    """Return the upper 64 bits of a product of two uint64."""
    shift, mask = const(32, uint64), const(LOWER, uint64)

    def halves(number: Value) -> tuple[Value, Value]:
        return binary("shr", number, shift), binary("and", number, mask)

    (high, low), (other_high, other_low) = halves(left), halves(right)
    first = add(mul(high, other_low), binary("shr", mul(low, other_low), shift))
    second = add(mul(low, other_high), binary("and", first, mask))
    return add(
        add(mul(high, other_high), binary("shr", first, shift)), binary("shr", second, shift)
    )


def _window(start: Value) -> list[Value]:
    """Return 192 bits of 2/pi from bit `start` of a table on that begins with 64 zeros, the upper
    word first."""
    words = [const(word, uint64) for word in (0, *numbers.TWO_OVER_PI)]
    nothing, place = const(0, uint64), binary("shr", start, const(6, uint64))
    for step in (16, 8, 4, 2, 1):
        far = unequal(binary("and", place, const(step, uint64)), 0)
        moved = words[step:] + [nothing] * step
        words = [where(far, moved[i], words[i]) for i in range(WINDOW + step - 1)]
    shift = binary("and", start, const(63, uint64))
    back = sub(const(64, uint64), shift)
    return [
        binary("or", binary("shl", words[i], shift), binary("shr", words[i + 1], back))
        for i in range(WINDOW - 1)
    ]


def _reduced_large(x: Value) -> tuple[Value, Pair]:
    """Return quadrant and rest of |x| >= LARGE: the mantissa times 192 bits of 2/pi, mod 4."""
    bits = cast(as_bits(x), uint64)
    exponent = binary("and", binary("shr", bits, const(52, uint64)), const(0x7FF, uint64))
    fraction = binary("and", bits, const((1 << 52) - 1, uint64))
    mantissa = binary("or", fraction, const(1 << 52, uint64))
    start = binary("max", exponent, const(FIRST, uint64))
    first, second, third = _window(sub(start, FIRST))
    low = mul(mantissa, second)
    middle = add(low, _upper(mantissa, third))
    carry = cast(less(middle, low), uint64)
    upper = add(add(mul(mantissa, first), _upper(mantissa, second)), carry)
    # upper is in units of 2**-62, modulo 4
    quadrant = binary("shr", add(upper, const(1 << 61, uint64)), const(62, uint64))
    upper = sub(upper, binary("shl", quadrant, const(62, uint64)))
    signed = binary("shr", cast(upper, int64), const(30, int64))
    rest = binary("shl", binary("and", upper, const((1 << 30) - 1, uint64)), const(22, uint64))
    rest = binary("or", rest, binary("shr", middle, const(42, uint64)))
    last = binary("and", middle, const((1 << 42) - 1, uint64))
    high, lost = summed(
        mul(cast(signed, float64), 2.0**-32), mul(cast(cast(rest, int64), float64), 2.0**-84)
    )
    lost = fma(cast(cast(last, int64), float64), 2.0**-126, lost)
    angle, more = product(high, numbers.HALF_PI[:2])
    return cast(quadrant, int64), nearly(angle, fma(lost, numbers.HALF_PI[0], more))


def _reduced(x: Value) -> tuple[Value, Value, Value]:
    """Return the number of multiples of pi/2, of which the lowest two bits count, and the rest as a
    sum; NaN for infinity."""
    count, n = whole(fma(x, 2 / math.pi, SHIFTER))
    near = fma(count, -numbers.HALF_PI[0], x)
    part, lost = product(count, (numbers.HALF_PI[1], numbers.HALF_PI[2]))
    rest, more = summed(near, unary("neg", part))
    rest, more = nearly(rest, sub(more, lost))
    huge = less(real(LARGE), absolute(x))
    quadrant, (far, far_more) = _reduced_large(x)
    negative = less(x, 0.0)
    quadrant = where(negative, unary("neg", quadrant), quadrant)
    far, far_more = (where(negative, unary("neg", part), part) for part in (far, far_more))
    far = where(less(absolute(x), math.inf), far, real(math.nan))
    return (
        rarely(huge, quadrant, n),
        rarely(huge, far, rest),
        rarely(huge, far_more, more),
    )


def _turned(x: Value) -> tuple[Pair, Pair, Value]:
    """Return sine and cosine of x reduced by multiples of pi/2, and the number of multiples."""
    quadrant, rest, lost = _reduced(x)
    z = mul(rest, rest)
    # sin(r + l) = sin(r) + l cos(r), cos(r + l) = cos(r) - l sin(r)
    bent = mul(mul(rest, z), polynomial(z, numbers.SIN))
    sine = nearly(rest, fma(lost, fma(z, -0.5, 1.0), bent))
    half = mul(z, 0.5)
    left = fma(rest, rest, unary("neg", z))  # what the square lost
    start, more = nearly(real(1.0), unary("neg", half))
    tail = fma(mul(z, z), polynomial(z, numbers.COS), fma(left, -0.5, more))
    cosine = nearly(start, sub(tail, mul(lost, rest)))
    return sine, cosine, quadrant


def _is_set(number: Value, bit: int) -> Value:
    return unequal(binary("and", number, const(bit, int64)), 0)


def _sine(x: Value, turn: int) -> Value:
    """sin(x + turn * pi/2)."""
    sine, cosine, quadrant = _turned(x)
    quadrant = add(quadrant, turn) if turn else quadrant
    result = where(_is_set(quadrant, 1), cosine[0], sine[0])
    sign = binary("and", binary("shl", quadrant, const(62, int64)), const(-1 << 63, int64))
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
    above = tuple(where(odd, unary("neg", c), s) for s, c in zip(sine, cosine, strict=True))
    below = tuple(where(odd, s, c) for s, c in zip(sine, cosine, strict=True))
    result = quotient((above[0], above[1]), (below[0], below[1]))
    return where(equal(x, 0.0), x, result)
