"""Floats of 8 bits: formats, and conversions of NumPy arrays.

Sources: OCP 8-bit Floating Point Specification (e4m3fn, e5m2); Noune et al., "8-bit Numerical
Formats for Deep Neural Networks" (the fnuz forms: no infinity, no negative zero, NaN in its place).
Numbers out of range are treated as by PyTorch 2.13: e4m3fn becomes its largest number (infinity
too), e5m2 infinity, the fnuz forms NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

_BIAS = 127  # of float32, whose mantissa has 23 bits
_MANTISSA = 23
INFINITE = 0x7F80_0000


@dataclass(frozen=True)
class Float8:
    """A format: sign, exponent, mantissa.

    Attributes:
        mantissa: bits.
        bias: of the exponent.
        largest: code of the largest number.
        overflow: code of a number that is too large.
        nan: code of NaN.
        infinite: code of infinity; codes above it are NaN. None if the format has none.
        unsigned: whether zero and NaN have no sign.
    """

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    infinite: int | None = None
    unsigned: bool = False

    @property
    def shift(self) -> int:
        """Return how far the mantissa lies below that of float32."""
        return _MANTISSA - self.mantissa

    @property
    def rebias(self) -> int:
        """Return the difference of the exponents, in bits of float32."""
        return (_BIAS - self.bias) << _MANTISSA

    @property
    def normal(self) -> int:
        """Return the bits of the smallest normal number as float32."""
        return self.rebias + (1 << _MANTISSA)

    @property
    def step(self) -> float:
        """Return the smallest number above zero."""
        return 2.0 ** (1 - self.bias - self.mantissa)

    @property
    def magic(self) -> float:
        """Return the float32 whose last bit is `step`: a sum with it rounds to a multiple."""
        return self.step * 2.0**_MANTISSA

    @property
    def half(self) -> int:
        """Return what is added to the bits of a normal float32, less its last bit that is kept,
        before they are shifted: rounding, and the change of the exponent."""
        return (1 << (self.shift - 1)) - 1 - self.rebias


FORMATS: Mapping[str, Float8] = {
    "float8_e4m3fn": Float8(3, 7, largest=0x7E, overflow=0x7E, nan=0x7F),
    "float8_e5m2": Float8(2, 15, largest=0x7B, overflow=0x7C, nan=0x7F, infinite=0x7C),
    "float8_e4m3fnuz": Float8(3, 8, largest=0x7F, overflow=0x80, nan=0x80, unsigned=True),
    "float8_e5m2fnuz": Float8(2, 16, largest=0x7F, overflow=0x80, nan=0x80, unsigned=True),
}


@cache
def numbers(name: str) -> NDArray[np.float32]:
    """Return the number of each of a format's 256 codes."""
    form = FORMATS[name]
    codes = np.arange(128, dtype=np.int64)
    fraction, exponent = codes % (1 << form.mantissa), codes >> form.mantissa
    whole = fraction + np.where(exponent > 0, 1 << form.mantissa, 0)
    values = np.ldexp(whole.astype(np.float64) * form.step, np.maximum(exponent, 1) - 1)
    if form.infinite is not None:
        values[form.infinite] = np.inf
    values[(form.infinite or form.largest) + 1 :] = np.nan
    both = np.concatenate([values, -values]).astype(np.float32)
    if form.unsigned:
        both[form.nan] = np.nan
    both.flags.writeable = False
    return both


def decode(codes: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    """Return the numbers of codes; exact."""
    return np.asarray(numbers(name)[codes])


def encode(values: NDArray[np.float32], name: str) -> NDArray[np.uint8]:
    """Round float32 to codes, to nearest, ties to even."""
    form = FORMATS[name]
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    size = bits & np.uint32(0x7FFF_FFFF)
    odd = (size >> np.uint32(form.shift)) & np.uint32(1)
    normal = (size + odd + np.uint32(form.half & 0xFFFF_FFFF)) >> np.uint32(form.shift)
    magic = np.float32(form.magic)
    limit = np.uint32(form.normal)
    small = (np.minimum(size, limit).view(np.float32) + magic).view(np.uint32)
    code = np.where(size < limit, small - magic.view(np.uint32), normal)
    code = np.where(code > form.largest, form.overflow, code)
    code = np.where(size > INFINITE, form.nan, code)
    signed = code | (bits >> np.uint32(24)) & np.uint32(0x80)
    return np.where(code == 0, 0, signed).astype(np.uint8) if form.unsigned else signed.astype(
        np.uint8)  # fmt: skip
