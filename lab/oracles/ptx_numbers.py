"""Exact floating-point numbers for the oracle: rational values and one rounding.

Independent of the translator: Python integers and fractions only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Form:
    """A binary format. bits: of the whole; fraction: stored bits of the significand."""

    bits: int
    fraction: int

    @property
    def bias(self) -> int:
        return (1 << (self.bits - self.fraction - 2)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        return ((1 << (self.bits - 1 - self.fraction)) - 1) << self.fraction

    @property
    def least(self) -> int:
        """Exponent of the smallest denormal."""
        return 1 - self.bias - self.fraction


FORMS = {"f16": Form(16, 10), "bf16": Form(16, 7), "f32": Form(32, 23), "f64": Form(64, 52)}
NAN = "nan"
Number = Fraction | float | str  # a value, an infinity or NAN; the sign of zero goes beside it


def is_nan(bits: int, form: Form) -> bool:
    return bits & ~form.sign > form.infinity


def is_infinite(bits: int, form: Form) -> bool:
    return bits & ~form.sign == form.infinity


def value(bits: int, form: Form) -> Fraction:
    """The value of a finite number."""
    magnitude = bits & ~form.sign
    exponent = magnitude >> form.fraction
    part = magnitude & ((1 << form.fraction) - 1)
    if exponent:
        part |= 1 << form.fraction
        exponent -= 1
    result = Fraction(part) * Fraction(2) ** (exponent + form.least)
    return -result if bits & form.sign else result


def _integer(x: Fraction, mode: str) -> int:
    """Round a value that is not negative to an integer; mode rn, rz, ru (away) or rna."""
    whole = x.numerator // x.denominator
    rest = x - whole
    if mode == "rz":
        return whole
    if mode == "ru":
        return whole + (rest > 0)
    half = Fraction(1, 2)
    if rest > half or (rest == half and (mode == "rna" or whole & 1)):
        return whole + 1
    return whole


def rounded(x: Fraction, form: Form, mode: str = "rn", negative_zero: bool = False) -> int:
    """Bits of x rounded once. mode: rn, rz, rm or rp."""
    if x == 0:
        return form.sign if negative_zero else 0
    sign = form.sign if x < 0 else 0
    inner = {"rn": "rn", "rz": "rz", "rm": "ru" if x < 0 else "rz", "rp": "rz" if x < 0 else "ru"}
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = max(exponent - form.fraction, form.least)
    count = _integer(size / Fraction(2) ** unit, inner[mode])
    # Units counted from the smallest denormal's scale: the encoding is monotonic.
    bits = count if unit == form.least else ((unit - form.least) << form.fraction) + count
    if bits >= form.infinity:
        bits = form.infinity
        if inner[mode] == "rz":
            bits -= 1
    return sign | bits


def root(x: Fraction, form: Form, mode: str) -> int:
    """Bits of the square root of a positive x."""
    scale = 1 << 400
    whole = math.isqrt(x.numerator * x.denominator * scale * scale)
    exact = whole * whole == x.numerator * x.denominator * scale * scale
    low = Fraction(whole, x.denominator * scale)
    # A little more where the root is not exact: never a tie, never an exact number.
    return rounded(low if exact else low + Fraction(1, x.denominator * scale * 4), form, mode)
