"""Floats of 8, 6 and 4 bits: e4m3, e5m2, e3m2, e2m3, e2m1.

Source: PTX ISA 9.1, "Alternate Floating-Point Data Formats"; Micikevicius et al., "FP8 formats for
deep learning" (e4m3 has no infinities, its NaN is all ones); OCP Microscaling Formats (MX) 1.0
(those of 6 and 4 bits have neither).
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.virtual.nvidia.sm.translator.value import Lanes, Value, number, real


@dataclass(frozen=True)
class Format:
    """fraction: number of its bits. bias: of the exponent. most: bits of the largest number. nan:
    bits of NaN, or of its replacement if there is none. bits: of a number."""

    fraction: int
    bias: int
    most: int
    nan: int
    bits: int = 8


E4M3 = Format(3, 7, 0x7E, 0x7F)
E5M2 = Format(2, 15, 0x7B, 0x7F)
E3M2 = Format(2, 3, 0x1F, 0x1F, 6)
E2M3 = Format(3, 1, 0x1F, 0x1F, 6)
E2M1 = Format(1, 1, 0x7, 0x7, 4)


def encode(k: Lanes, form: Format, x: Value) -> Value:
    """Round a float to nearest even; too large values become the largest number. Returns i32."""
    bits = k.bits_of(x)
    top = number("i32", 1 << (form.bits - 1))
    sign = k.op("and", k.op("lshr", bits, number("i32", 32 - form.bits)), top)
    magnitude = k.op("and", bits, number("i32", 0x7FFFFFFF))
    drop = 23 - form.fraction
    # Normal numbers: round the fraction and move the exponent's bias.
    odd = k.op("and", k.op("lshr", magnitude, number("i32", drop)), number("i32", 1))
    up = k.op("add", k.op("add", magnitude, number("i32", (1 << (drop - 1)) - 1)), odd)
    normal = k.op("sub", k.op("lshr", up, number("i32", drop)),
                  number("i32", (127 - form.bias) << form.fraction))  # fmt: skip
    # Small numbers: adding a power of two makes the host round at the right bit.
    magic = real("float", 2.0 ** (23 + 1 - form.bias - form.fraction))
    size = k.cast("bitcast", magnitude, "float")
    shifted = k.bits_of(k.op("fadd", size, magic))
    small = k.op("sub", shifted, k.bits_of(magic))
    least = real("float", 2.0 ** (1 - form.bias))
    result = k.choose(k.cmp("olt", size, least), small, normal)
    result = k.call_op("smin", result, number("i32", form.most))
    infinite = k.cmp("ugt", magnitude, number("i32", 0x47800000))
    result = k.choose(infinite, number("i32", form.most), result)
    result = k.choose(k.cmp("uno", x, x), number("i32", form.nan), k.op("or", result, sign))
    return k.op("and", result, number("i32", (1 << form.bits) - 1))


def decode(k: Lanes, form: Format, code: Value) -> Value:
    """Return the float of a number's bits, which are given as i32 with zeros above them."""
    top = 1 << (form.bits - 1)
    sign = k.op("shl", k.op("and", code, number("i32", top)), number("i32", 32 - form.bits))
    size = k.op("and", code, number("i32", top - 1))
    raised = k.op("shl", size, number("i32", 23 - form.fraction))
    scale = real("float", 2.0 ** (127 - form.bias))
    # Reinterpreted as a small or denormal float, then scaled: exact for all of them.
    value = k.op("fmul", k.cast("bitcast", raised, "float"), scale)
    if form is E5M2:
        special = k.cmp("ugt", size, number("i32", 0x7B))
        infinite = k.cmp("eq", size, number("i32", 0x7C))
        other = k.choose(infinite, real("float", float("inf")), number("float", 0x7FFFFFFF))
        value = k.choose(special, other, value)
    elif form is E4M3:
        special = k.cmp("eq", size, number("i32", 0x7F))
        value = k.choose(special, number("float", 0x7FFFFFFF), value)
    return k.cast("bitcast", k.op("or", k.bits_of(value), sign), "float")
