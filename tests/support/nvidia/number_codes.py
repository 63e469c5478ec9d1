"""Bits of small number formats and back, written from their documents, for tests.

Source: PTX ISA 9.1, "Alternate Floating-Point Data Formats"; OCP Microscaling Formats (MX) 1.0,
tables of E5M2, E4M3, E3M2, E2M3, E2M1 and E8M0.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s8": 8, "u8": 8, "s4": 4,
        "u4": 4, "b1": 1, "s32": 32, "e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m3": 6, "e2m1": 4,
        "ue8m0": 8, "ue4m3": 8}  # fmt: skip
# Bits of the exponent and of the fraction, and what is not a number: all codes of the largest
# exponent ("ieee"), the largest code alone ("top"), or none.
_MINI = {"e4m3": (4, 3, "top"), "e5m2": (5, 2, "ieee"), "e3m2": (3, 2, ""), "e2m3": (2, 3, ""),
         "e2m1": (2, 1, "")}  # fmt: skip


@cache
def table(kind: str) -> NDArray[np.float64]:
    """Return the number of each code of a format of 8 bits and less."""
    if kind == "ue8m0":
        found = [2.0 ** (code - 127) for code in range(255)] + [float("nan")]
        return np.array(found)
    if kind == "ue4m3":
        return table("e4m3")[:128]
    exponent_bits, fraction_bits, specials = _MINI[kind]
    bias = (1 << exponent_bits - 1) - 1
    found = []
    for code in range(1 << exponent_bits + fraction_bits):
        exponent, fraction = code >> fraction_bits, code & ((1 << fraction_bits) - 1)
        if specials == "ieee" and exponent == (1 << exponent_bits) - 1:
            found.append(float("nan") if fraction else float("inf"))
        elif specials == "top" and code == (1 << exponent_bits + fraction_bits) - 1:
            found.append(float("nan"))
        elif exponent:
            scale = 2.0 ** (exponent - bias)
            found.append((1 + fraction / (1 << fraction_bits)) * scale)
        else:
            found.append(fraction / (1 << fraction_bits) * 2.0 ** (1 - bias))
    return np.array(found + [-x for x in found])


def decode(kind: str, codes: NDArray[Any]) -> NDArray[np.float64]:
    """Return the numbers of bits given as unsigned integers."""
    codes = codes.astype(np.uint64)
    if kind in _MINI or kind in ("ue8m0", "ue4m3"):
        return table(kind)[codes.astype(np.int64)]
    if kind == "f16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float64)
    if kind == "bf16":
        return decode("f32", codes << np.uint64(16))
    if kind in ("tf32", "f32"):
        kept = codes & np.uint64(0xFFFFE000 if kind == "tf32" else 0xFFFFFFFF)
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            return kept.astype(np.uint32).view(np.float32).astype(np.float64)
    if kind == "f64":
        return codes.view(np.float64)
    bits = BITS[kind]
    whole = codes.astype(np.int64)
    if kind[0] == "s":
        whole = np.where(whole >> (bits - 1) & 1, whole - (1 << bits), whole)
    return whole.astype(np.float64)


def random_codes(
    random: np.random.Generator, kind: str, shape: tuple[int, ...], specials: bool = False
) -> NDArray[np.uint64]:
    """Return codes: of any integers or small floats; of wide floats small whole numbers, or any at
    all with `specials`: NaN, infinities, denormals."""
    bits = BITS[kind]
    whole = kind[0] in "sub" and kind != "bf16"
    if whole or bits <= 8:
        codes = random.integers(0, 1 << bits, shape, np.uint64)
        if not whole and not specials:  # numbers alone
            numbers = np.flatnonzero(np.isfinite(table(kind)))
            codes = numbers[random.integers(0, len(numbers), shape)].astype(np.uint64)
        return codes
    if not specials:
        return encode_whole(kind, random.integers(-6, 7, shape))
    codes = random.integers(0, 1 << 63, shape, np.uint64) >> np.uint64(63 - bits)
    top = {"f16": 0x7C00, "bf16": 0x7F80, "tf32": 0x7F800000, "f32": 0x7F800000}.get(kind, 0)
    sign, quiet = 1 << (bits - 1), top | (top & -top) >> 1
    awkward = np.array([0, 1, sign, sign | 1, top, sign | top, quiet], np.uint64)
    rare = random.random(shape) < 0.05
    return np.where(rare, awkward[random.integers(0, len(awkward), shape)], codes)


def encode_whole(kind: str, values: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the bits of whole numbers that the format holds exactly."""
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint64)
    if kind in ("bf16", "tf32", "f32"):
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        return bits >> np.uint64(16) if kind == "bf16" else bits
    if kind == "f64":
        return values.astype(np.float64).view(np.uint64)
    return values.astype(np.int64).view(np.uint64) & np.uint64((1 << BITS[kind]) - 1)
