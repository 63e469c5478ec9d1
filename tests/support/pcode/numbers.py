"""Numbers of the ISA document: exact arithmetic on the bits of floats, rounded once.

Everything is computed with whole numbers, so that nothing depends on the host's arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NEAREST, TO_ZERO = "nearest", "to zero"


@dataclass(frozen=True)
class Format:
    """A binary format. finite: no infinities, and one NaN, as in e4m3 of OCP."""

    width: int
    fraction: int
    finite: bool = False

    @property
    def exponents(self) -> int:
        """The largest exponent field."""
        return (1 << (self.width - 1 - self.fraction)) - 1

    @property
    def bias(self) -> int:
        """What is subtracted from the exponent field."""
        return self.exponents >> 1

    @property
    def sign(self) -> int:
        """The sign's bit."""
        return 1 << (self.width - 1)

    @property
    def infinity(self) -> int:
        """The bits of the infinity; of e4m3, which has none, its NaN."""
        return self.sign - 1 if self.finite else self.exponents << self.fraction

    @property
    def nan(self) -> int:
        """The bits of a quiet NaN."""
        return self.sign - 1 if self.finite else self.infinity | 1 << (self.fraction - 1)


FORMATS = {
    ("f", 16): Format(16, 10), ("f", 32): Format(32, 23), ("f", 64): Format(64, 52),
    ("bf", 16): Format(16, 7), ("fp", 8): Format(8, 3, True), ("bf", 8): Format(8, 2),
}  # fmt: skip


def is_nan(form: Format, bits: int) -> bool:
    """Whether bits are a NaN."""
    return bits & (form.sign - 1) > form.infinity - form.finite


def is_signalling(form: Format, bits: int) -> bool:
    """Whether bits are a signalling NaN."""
    return is_nan(form, bits) and not form.finite and not bits >> (form.fraction - 1) & 1


def is_infinite(form: Format, bits: int) -> bool:
    """Whether bits are an infinity."""
    return not form.finite and bits & (form.sign - 1) == form.infinity


def exponent(form: Format, bits: int) -> int:
    """Return the exponent field."""
    return bits >> form.fraction & form.exponents


def parts(form: Format, bits: int) -> tuple[int, int]:
    """Return a finite number as signed mantissa and power of two."""
    field, mantissa = exponent(form, bits), bits & ((1 << form.fraction) - 1)
    if field:
        mantissa |= 1 << form.fraction
    power = max(field, 1) - form.bias - form.fraction
    return (-mantissa if bits & form.sign else mantissa), power


def rounded(
    form: Format, mantissa: int, power: int, negative: bool, mode: str = NEAREST, rest: bool = False
) -> int:
    """Return the bits of mantissa * 2^power; rest: the number is a little larger than that."""
    sign = form.sign if negative else 0
    if not mantissa:
        return sign
    least = 1 - form.bias - form.fraction
    drop = max(mantissa.bit_length() - form.fraction - 1, least - power)
    if drop > 0:
        kept, lost, half = mantissa >> drop, mantissa & ((1 << drop) - 1), 1 << (drop - 1)
        up = lost > half or (lost == half and (rest or kept & 1 == 1))
        kept += mode == NEAREST and up
        if kept.bit_length() > form.fraction + 1:
            kept, drop = kept >> 1, drop + 1
    else:
        kept, drop = mantissa << -drop, drop
    field = power + drop + form.fraction + form.bias
    bits = kept + ((field - 1) << form.fraction) if kept >> form.fraction else kept
    if bits >= form.infinity:
        bits = form.infinity - (mode == TO_ZERO)
    return sign | bits


def convert(source: Format, form: Format, bits: int, mode: str = NEAREST) -> int:
    """Return a number in another format, NaNs with their upper bits, quiet or signalling."""
    sign = form.sign if bits & source.sign else 0
    if is_nan(source, bits):
        shift = form.fraction - source.fraction
        payload = bits & ((1 << source.fraction) - 1)
        payload = payload << shift if shift >= 0 else payload >> -shift
        return sign | (form.infinity | payload if payload and not form.finite else form.nan)
    if is_infinite(source, bits):
        return sign | form.infinity
    mantissa, power = parts(source, bits)
    return rounded(form, abs(mantissa), power, bool(sign), mode)


def from_int(form: Format, number: int, mode: str = NEAREST) -> int:
    """Return a whole number as a float."""
    return rounded(form, abs(number), 0, number < 0, mode)


def to_float(form: Format, bits: int) -> float:
    """Return a number as Python's float."""
    if is_nan(form, bits):
        return math.nan
    if is_infinite(form, bits):
        return -math.inf if bits & form.sign else math.inf
    mantissa, power = parts(form, bits)
    value = math.ldexp(abs(mantissa), power)
    return -value if bits & form.sign else value


def from_float(form: Format, value: float) -> int:
    """Return Python's float in a format."""
    if math.isnan(value):
        return form.nan
    negative = math.copysign(1.0, value) < 0
    if math.isinf(value):
        return form.infinity | (form.sign if negative else 0)
    numerator, denominator = abs(value).as_integer_ratio()
    return rounded(form, numerator, 1 - denominator.bit_length(), negative)


def fused(form: Format, a: int, b: int, c: int, mode: str = NEAREST, scale: int = 0) -> int:
    """Return (a * b + c) * 2^scale of bits, rounded once; any NaN gives the quiet NaN."""
    if any(is_nan(form, bits) for bits in (a, b, c)):
        return form.nan
    product_sign = (a ^ b) & form.sign
    if is_infinite(form, a) or is_infinite(form, b):
        if not (a & ~form.sign and b & ~form.sign):
            return form.nan
        if is_infinite(form, c) and c & form.sign != product_sign:
            return form.nan
        return form.infinity | product_sign
    if is_infinite(form, c):
        return c
    (x, p), (y, q), (z, r) = parts(form, a), parts(form, b), parts(form, c)
    power = min(p + q, r)
    total = (x * y << (p + q - power)) + (z << (r - power))
    if total:
        return rounded(form, abs(total), power + scale, total < 0, mode)
    return form.sign if product_sign and c & form.sign else 0


def product(form: Format, a: int, b: int, mode: str = NEAREST) -> int:
    """Return a * b."""
    if any(is_nan(form, bits) or is_infinite(form, bits) for bits in (a, b)):
        return fused(form, a, b, 0 if (a ^ b) & form.sign == 0 else form.sign, mode)
    (x, p), (y, q) = parts(form, a), parts(form, b)
    return rounded(form, abs(x * y), p + q, bool((a ^ b) & form.sign), mode)


def total(form: Format, a: int, b: int, mode: str = NEAREST) -> int:
    """Return a + b."""
    return fused(form, a, from_int(form, 1), b, mode)


def quotient(form: Format, a: int, b: int, mode: str = NEAREST) -> int:
    """Return a / b."""
    sign = (a ^ b) & form.sign
    zero_a, zero_b = not a & ~form.sign, not b & ~form.sign
    endless_a, endless_b = is_infinite(form, a), is_infinite(form, b)
    if is_nan(form, a) or is_nan(form, b) or (zero_a and zero_b) or (endless_a and endless_b):
        return form.nan
    if endless_a or zero_b:
        return sign | form.infinity
    if zero_a or endless_b:
        return sign
    (x, p), (y, q) = parts(form, a), parts(form, b)
    more = 2 * form.fraction + 8
    whole, rest = divmod(abs(x) << more, abs(y))
    return rounded(form, whole << 1, p - q - more - 1, bool(sign), mode, bool(rest))


def root(form: Format, bits: int, mode: str = NEAREST) -> int:
    """Return the square root."""
    if not bits & ~form.sign:
        return bits
    if is_nan(form, bits) or bits & form.sign:
        return form.nan
    if is_infinite(form, bits):
        return bits
    mantissa, power = parts(form, bits)
    mantissa, power = mantissa << (2 * form.fraction + 8), power - 2 * form.fraction - 8
    if power & 1:
        mantissa, power = mantissa << 1, power - 1
    whole = math.isqrt(mantissa)
    return rounded(form, whole << 1, power // 2 - 1, False, mode, whole * whole != mantissa)


def scaled(form: Format, bits: int, power: int, mode: str = NEAREST) -> int:
    """Return a number times a power of two."""
    if is_nan(form, bits):
        return form.nan
    if is_infinite(form, bits):
        return bits
    mantissa, own = parts(form, bits)
    return rounded(form, abs(mantissa), own + power, bool(bits & form.sign), mode)


def compare(form: Format, a: int, b: int) -> int | None:
    """Return -1, 0 or 1; None if one is a NaN."""
    if is_nan(form, a) or is_nan(form, b):
        return None
    x, y = (-(bits & ~form.sign) if bits & form.sign else bits for bits in (a, b))
    return (x > y) - (x < y)


def truncated(form: Format, bits: int, toward: int = 0) -> int:
    """Return the next whole number toward zero, or toward minus infinity (-1)."""
    if is_nan(form, bits):
        return form.nan
    if is_infinite(form, bits):
        return bits
    mantissa, power = parts(form, bits)
    if power >= 0:
        return bits
    whole = abs(mantissa) >> -power
    if toward < 0 and mantissa < 0 and whole << -power != -mantissa:
        whole += 1
    return rounded(form, whole, 0, bool(bits & form.sign))


def whole(form: Format, bits: int, lowest: int, highest: int) -> int:
    """Return a number as an integer, toward zero; beyond the range the nearest; NaN gives 0."""
    if is_nan(form, bits):
        return 0
    if is_infinite(form, bits):
        return lowest if bits & form.sign else highest
    mantissa, power = parts(form, bits)
    size = abs(mantissa) << power if power >= 0 else abs(mantissa) >> -power
    return max(lowest, min(highest, -size if mantissa < 0 else size))


def nearest(form: Format, bits: int, factor: int, lowest: int, highest: int) -> int:
    """Return a number times a factor as an integer, to nearest even, within a range."""
    if is_nan(form, bits):
        return 0
    if is_infinite(form, bits):
        return lowest if bits & form.sign else highest
    mantissa, power = parts(form, bits)
    size, lost = abs(mantissa) * factor, 0
    if power >= 0:
        size <<= power
    else:
        size, lost = size >> -power, size & ((1 << -power) - 1)
        half = 1 << (-power - 1)
        size += lost > half or (lost == half and size & 1)
    return max(lowest, min(highest, -size if mantissa < 0 else size))


def two_over_pi(count: int) -> int:
    """Return the first bits of 2/pi behind the point."""
    scale = 1 << (count + 64)

    def arctangent(inverse: int) -> int:
        term, result, number, sign = scale // inverse, 0, 1, 1
        while term:
            result += sign * (term // number)
            term, number, sign = term // (inverse * inverse), number + 2, -sign
        return result

    pi = 4 * (4 * arctangent(5) - arctangent(239))
    return (2 * scale * scale // pi) >> 64
