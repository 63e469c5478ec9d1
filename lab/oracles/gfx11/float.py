"""Floating-point arithmetic for the oracle: exactly rounded, written for clearness.

Arrays of float16, float32 or float64; results have the type of the sources. Rounding is to the
nearest, ties to even.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from lab.oracles.gfx11.state import Lanes

_BITS: dict[type[np.generic], type[np.generic]] = {
    np.float16: np.uint16,
    np.float32: np.uint32,
    np.float64: np.uint64,
}
_EXPONENT = {np.float16: (10, 0x1F), np.float32: (23, 0xFF), np.float64: (52, 0x7FF)}


def bits_of(values: Lanes) -> Lanes:
    """Return the bit patterns."""
    return values.view(_BITS[values.dtype.type])


def exponent(values: Lanes) -> Lanes:
    """Return the biased exponent fields."""
    shift, mask = _EXPONENT[values.dtype.type]
    wide: Lanes = bits_of(values).astype(np.uint64)
    field: Lanes = (wide >> np.uint64(shift) & np.uint64(mask)).astype(np.int64)
    return field


def is_denormal(values: Lanes) -> Lanes:
    """Return where the values are denormal."""
    found: Lanes = (exponent(values) == 0) & (values != 0)
    return found


def is_signalling(values: Lanes) -> Lanes:
    """Return where the values are signalling NaNs."""
    shift = _EXPONENT[values.dtype.type][0] - 1
    wide: Lanes = bits_of(values).astype(np.uint64)
    found: Lanes = np.isnan(values) & (wide >> np.uint64(shift) & np.uint64(1) == 0)
    return found


def quieted(values: Lanes) -> Lanes:
    """Return the values with signalling NaNs made quiet."""
    kind = _BITS[values.dtype.type]
    quiet = np.array(1 << (_EXPONENT[values.dtype.type][0] - 1), kind)
    return np.where(np.isnan(values), (bits_of(values) | quiet).view(values.dtype), values)


def _odd(total: Lanes, error: Lanes) -> Lanes:
    """Round a float64 sum to odd: keep the last bit set when the sum was not exact."""
    raw = total.view(np.uint64)
    inexact = (error != 0) & np.isfinite(total) & (raw & np.uint64(1) == 0)
    away = (error > 0) == (total > 0)
    step = np.where(away, 1, -1).astype(np.int64)
    moved = (raw.view(np.int64) + step).view(np.float64)
    moved = np.where(total == 0, error, moved)
    return np.where(inexact, moved, total)


def add_exactly(first: Lanes, second: Lanes) -> Lanes:
    """Return the sum of two float64 arrays, rounded to odd, ready to be rounded once more."""
    total = first + second
    part = total - first
    error = (first - (total - part)) + (second - part)
    return _odd(total, np.where(np.isfinite(error), error, 0.0))


def _via_double(operation: Callable[[Lanes, Lanes], Lanes]) -> Callable[[Lanes, Lanes], Lanes]:
    def apply(first: Lanes, second: Lanes) -> Lanes:
        kind = first.dtype.type
        if kind is np.float64:
            return operation(first, second)
        return operation(first.astype(np.float64), second.astype(np.float64)).astype(kind)

    return apply


def add(first: Lanes, second: Lanes) -> Lanes:
    """Return first + second, rounded once."""
    if first.dtype.type is np.float64:
        return first + second
    wide = add_exactly(first.astype(np.float64), second.astype(np.float64))
    return wide.astype(first.dtype)


def subtract(first: Lanes, second: Lanes) -> Lanes:
    """Return first - second, rounded once."""
    return add(first, np.where(np.isnan(second), second, -second))


multiply = _via_double(np.multiply)  # products of two f32 are exact in f64


def fma(first: Lanes, second: Lanes, third: Lanes) -> Lanes:
    """Return first * second + third, rounded once."""
    kind = first.dtype.type
    if kind is not np.float64:
        product = first.astype(np.float64) * second.astype(np.float64)
        return add_exactly(product, third.astype(np.float64)).astype(kind)
    return np.array([_fma64(*values) for values in zip(first, second, third, strict=True)])


_OVERFLOW = 2**1024 - 2**970  # float64 rounds this and more to infinity


def fma_scaled(first: Lanes, second: Lanes, third: Lanes, powers: Lanes) -> Lanes:
    """Return (first * second + third) * 2**power in float64, rounded once."""
    lanes = zip(first, second, third, powers, strict=True)
    return np.array([_fma64(*values) for values in lanes])


def _fma64(first: Any, second: Any, third: Any, power: Any = 0) -> float:  # Any: NumPy scalars
    numbers = (float(first), float(second), float(third))
    if not all(math.isfinite(number) for number in numbers):
        if math.isinf(numbers[2]) and math.isfinite(numbers[0]) and math.isfinite(numbers[1]):
            return numbers[2]
        return float(first * second + third)
    exact = Fraction(numbers[0]) * Fraction(numbers[1]) + Fraction(numbers[2])
    if abs(exact) >= _OVERFLOW:  # also when it is to be scaled down
        return math.inf if exact > 0 else -math.inf
    exact *= Fraction(2) ** int(power)
    if exact == 0:
        product_sign = math.copysign(1, numbers[0]) * math.copysign(1, numbers[1])
        zero_product = numbers[0] == 0 or numbers[1] == 0
        same = zero_product and numbers[2] == 0 and math.copysign(1, numbers[2]) == product_sign
        return math.copysign(0.0, product_sign) if same else 0.0
    try:
        rounded = exact.numerator / exact.denominator
    except OverflowError:
        rounded = math.inf if exact > 0 else -math.inf
    return rounded if rounded else math.copysign(0.0, -1 if exact < 0 else 1)


def minimum(first: Lanes, second: Lanes, ieee: bool) -> Lanes:
    """Return the lesser; -0 is less than +0; a number wins over a (quiet, if ieee) NaN, the
    first of two NaNs."""
    less = (first < second) | ((first == second) & np.signbit(first))
    chosen = np.where(less, first, second)
    chosen = np.where(np.isnan(second), first, np.where(np.isnan(first), second, chosen))
    return _signalling_wins(chosen, first, second) if ieee else chosen


def maximum(first: Lanes, second: Lanes, ieee: bool) -> Lanes:
    """Return the greater; +0 is greater than -0; a number wins over a (quiet, if ieee) NaN, the
    first of two NaNs."""
    more = (first > second) | ((first == second) & ~np.signbit(first))
    chosen = np.where(more, first, second)
    chosen = np.where(np.isnan(second), first, np.where(np.isnan(first), second, chosen))
    return _signalling_wins(chosen, first, second) if ieee else chosen


def _signalling_wins(chosen: Lanes, first: Lanes, second: Lanes) -> Lanes:
    """In IEEE mode a signalling source makes the result that NaN, quiet."""
    chosen = np.where(is_signalling(second), quieted(second), chosen)
    return np.where(is_signalling(first), quieted(first), chosen)


def median(first: Lanes, second: Lanes, third: Lanes, ieee: bool) -> Lanes:
    """Return the middle one; with a NaN among them the least."""
    nan = np.isnan(first) | np.isnan(second) | np.isnan(third)
    least = minimum(minimum(first, second, ieee), third, ieee)
    most = maximum(maximum(first, second, ieee), third, ieee)
    others = [(second, third), (first, third), (first, second)]
    rest = [maximum(one, other, ieee) for one, other in others]
    is_first, is_second = bits_of(most) == bits_of(first), bits_of(most) == bits_of(second)
    middle = np.where(is_first, rest[0], np.where(is_second, rest[1], rest[2]))
    return np.where(nan, least, middle)


def ldexp(values: Lanes, powers: Lanes) -> Lanes:
    """Return values * 2**powers, rounded once."""
    kind = values.dtype.type
    if kind is np.float64:
        return np.ldexp(values, np.clip(powers, -2300, 2300).astype(np.int32))
    wide = np.ldexp(values.astype(np.float64), np.clip(powers, -500, 500).astype(np.int32))
    return wide.astype(kind)


def fraction(values: Lanes) -> Lanes:
    """Return the part after the point, less than one."""
    below_one = np.nextafter(values.dtype.type(1), values.dtype.type(0))
    parts = subtract(values, np.floor(values))
    return np.where(parts >= 1, below_one, parts)


def frexp_mantissa(values: Lanes) -> Lanes:
    """Return the mantissas in [0.5, 1); infinities and NaNs stay."""
    mantissa = np.frexp(values.astype(np.float64))[0]
    return np.where(np.isfinite(values), mantissa, values).astype(values.dtype)


def frexp_exponent(values: Lanes) -> Lanes:
    """Return the exponents that go with the mantissas; 0 for infinities and NaNs."""
    found = np.frexp(values.astype(np.float64))[1]
    return np.where(np.isfinite(values), found, 0)


def classify(values: Lanes, wanted: Lanes) -> Lanes:
    """Return where a value is in one of the classes of the mask `wanted`.

    Bits: 0 signalling NaN, 1 quiet NaN, 2 -inf, 3 -normal, 4 -denormal, 5 -0, 6 +0, 7 +denormal,
    8 +normal, 9 +inf.
    """
    negative = np.signbit(values)
    size = np.select(
        [np.isinf(values), values == 0, is_denormal(values)],
        [np.where(negative, 2, 9), np.where(negative, 5, 6), np.where(negative, 4, 7)],
        np.where(negative, 3, 8),
    )
    number = np.where(np.isnan(values), np.where(is_signalling(values), 0, 1), size)
    return (wanted.astype(np.int64) >> number & 1).astype(bool)


def clamped(values: Lanes, nan_to_zero: bool) -> Lanes:
    """Limit to 0..1, as the clamp modifier does."""
    limited = np.where(values <= 0, values.dtype.type(0), np.where(values >= 1, 1, values))
    if nan_to_zero:
        limited = np.where(np.isnan(values), 0, limited)
    return limited.astype(values.dtype)


def to_integer(values: Lanes, low: int, high: int) -> Lanes:
    """Convert towards zero, limited to low..high, NaN to 0; int64 (uint64 is not needed)."""
    wide = values.astype(np.float64)
    limited = np.clip(np.where(np.isnan(wide), 0.0, np.trunc(wide)), float(low), float(high))
    return limited.astype(np.int64)


def bf16_to_f32(bits: Lanes) -> Lanes:
    """Widen bfloat16 patterns."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Lanes) -> Lanes:
    """Round float32 to bfloat16 patterns (to nearest even; NaNs stay NaNs)."""
    raw = values.view(np.uint32).astype(np.uint64)
    rounded = (raw + np.uint64(0x7FFF) + (raw >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    nan = raw >> np.uint64(16) | np.uint64(0x40)
    return np.where(np.isnan(values), nan, rounded).astype(np.uint16)


def f32_to_f16_towards_zero(values: Lanes) -> Lanes:
    """Convert to half precision, dropping what does not fit (v_cvt_pk_rtz_f16_f32)."""
    nearest = values.astype(np.float16)
    too_big = np.abs(nearest.astype(np.float64)) > np.abs(values.astype(np.float64))
    smaller = (nearest.view(np.uint16) - np.uint16(1)).view(np.float16)
    return np.where(too_big, smaller, nearest).astype(np.float16)
