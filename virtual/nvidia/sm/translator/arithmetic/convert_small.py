"""Conversions of pairs of small floats (8, 6, 4 bits) and of scales, and cvt.pack.

Source: PTX ISA 9.1, "Data Movement and Conversion Instructions": cvt, cvt.pack.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.translator.arithmetic.floats import as_float, float_to_half
from ugpu.virtual.nvidia.sm.translator.arithmetic.minifloat import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    decode,
    encode,
)
from ugpu.virtual.nvidia.sm.translator.arithmetic.rounding import rectified
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number

_FORMS = {"e4m3x2": E4M3, "e5m2x2": E5M2, "e3m2x2": E3M2, "e2m3x2": E2M3, "e2m1x2": E2M1}
_SCALES = "ue8m0x2"
FORMATS = frozenset((*_FORMS, _SCALES))
_HALVES = {"f16x2": "f16", "bf16x2": "bf16"}


def pairs(k: Kernel, i: Instruction, target: str, source: str, flags: set[str]) -> Value:
    """Return the bits of a converted pair; the first of two operands becomes the upper half."""
    if source in FORMATS:
        return _widened(k, i, target, source, flags)
    if source == "f32" and len(i.operands) == 3:
        values = [k.source(operand, "f32") for operand in i.operands[1:]]
    elif source in _HALVES and len(i.operands) == 2:
        both, kind = k.source(i.operands[1], "b32"), _HALVES[source]
        halves = (k.op("lshr", both, number("i32", 16)), both)
        values = [as_float(k, k.cast("trunc", half, "i16"), kind, False) for half in halves]
    else:
        raise k.unsupported()
    if target == _SCALES:
        if source == "f16x2" or "relu" in flags or not flags & {"rz", "rp"}:
            raise k.unsupported()
        high, low = (_scale(k, x, "rp" in flags, "satfinite" in flags) for x in values)
        return k.cast("trunc", k.op("or", low, k.op("shl", high, number("i32", 8))), "i16")
    if "satfinite" not in flags or "rn" not in flags:
        raise k.bad("expected .rn.satfinite")
    if "relu" in flags:
        values = [rectified(k, x) for x in values]
    form = _FORMS[target]
    room = 4 if form.bits == 4 else 8
    high, low = (encode(k, form, x) for x in values)
    whole = k.op("or", low, k.op("shl", high, number("i32", room)))
    return k.cast("trunc", whole, f"i{2 * room}")


def _widened(k: Kernel, i: Instruction, target: str, source: str, flags: set[str]) -> Value:
    """Return a pair of small floats as f16x2, or one of scales as bf16x2."""
    wanted = "bf16x2" if source == _SCALES else "f16x2"
    if target != wanted or len(i.operands) != 2 or flags - {"rn", "relu"}:
        raise k.unsupported()
    if source == _SCALES:
        both = k.cast("zext", k.source(i.operands[1], "b16"), "i32")
        parts = [_power(k, k.op("and", k.op("lshr", both, number("i32", 8 * n)),
                                number("i32", 0xFF))) for n in (0, 1)]  # fmt: skip
    else:
        form = _FORMS[source]
        room = 4 if form.bits == 4 else 8
        both = k.cast("zext", k.source(i.operands[1], f"b{2 * room}"), "i32")
        parts = []
        for n in (0, 1):
            code = k.op("lshr", both, number("i32", room * n))
            x = decode(k, form, k.op("and", code, number("i32", (1 << form.bits) - 1)))
            if "relu" in flags:
                x = rectified(k, x)
            parts.append(k.cast("zext", float_to_half(k, x), "i32"))
    return k.op("or", parts[0], k.op("shl", parts[1], number("i32", 16)))


def _power(k: Kernel, code: Value) -> Value:
    """Return the bits of the bf16 of a scale, as i32: 2 ** (code - 127), or NaN."""
    least = k.cmp("eq", code, number("i32", 0))  # 2 ** -127 is a denormal of bf16
    bits = k.choose(least, number("i32", 0x40), k.op("shl", code, number("i32", 7)))
    return k.choose(k.cmp("eq", code, number("i32", 0xFF)), number("i32", 0x7FFF), bits)


def _scale(k: Kernel, x: Value, up: bool, limited: bool) -> Value:
    """Return the power of two next to the magnitude of a number, as a code of ue8m0.

    limited: an infinity becomes the largest power. Otherwise its code is that of NaN.
    """
    size = k.op("and", k.bits_of(x), number("i32", 0x7FFFFFFF))
    exponent = k.op("lshr", size, number("i32", 23))
    rest = k.op("and", size, number("i32", 0x7FFFFF))
    if up:  # for denormals, 2 ** -127 is half of the least normal number
        half = number("i32", 0x400000)
        normal = k.cmp("ne", exponent, number("i32", 0))
        more = k.choose(normal, k.cmp("ne", rest, number("i32", 0)), k.cmp("ugt", rest, half))
        exponent = k.op("add", exponent, k.cast("zext", more, "i32"))
    exponent = k.call_op("umin", exponent, number("i32", 0xFE if limited else 0xFF))
    return k.choose(k.cmp("uno", x, x), number("i32", 0xFF), exponent)


def pack(k: Kernel, i: Instruction) -> None:
    """Emit cvt.pack.sat: two clamped integers side by side, with a part of the third above them."""
    if i.modifiers[1:2] != ("sat",) or len(i.modifiers) < 4:
        raise k.unsupported()
    kind, source = i.modifiers[2:4]
    if kind not in ("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2") or source != "s32":
        raise k.unsupported()
    bits, signed = int(kind[1:]), kind[0] == "s"
    if len(i.operands) != (3 if bits == 16 else 4):
        raise k.bad(f"expected {3 if bits == 16 else 4} operands")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    result: Value = number("i32", 0)
    for place, operand in enumerate((i.operands[2], i.operands[1])):
        one = k.call_op("smax", k.source(operand, "s32"), number("i32", low))
        one = k.call_op("smin", one, number("i32", high))
        one = k.op("and", one, number("i32", (1 << bits) - 1))
        result = k.op("or", result, k.op("shl", one, number("i32", bits * place)))
    if bits < 16:
        upper = k.op("shl", k.source(i.operands[3], "b32"), number("i32", 2 * bits))
        result = k.op("or", result, upper)
    k.write(i.operands[0], result)
