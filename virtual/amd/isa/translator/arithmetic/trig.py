"""v_trig_preop_f64: 53 bits of 2/pi for the reduction of large angles, translated to LLVM IR.

Source: RDNA3 ISA document, pseudocode of V_TRIG_PREOP_F64. LLVM, AMDGPUInstCombineIntrinsic.cpp:
segments after the table's 37 words are zero, and a denormal result is rounded to nearest even.
"""

from __future__ import annotations

from functools import cache

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.arithmetic.division import biased_exponent
from ugpu.virtual.amd.isa.translator.arithmetic.float import scaled
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.text import constant

_WORDS = 37
_SEGMENT = 53  # bits
_FAR, _HUGE = 1077, 1968  # biased exponents: from _FAR on skip whole turns; from _HUGE on scale up


def _inverse_tangent(inverse: int, one: int) -> int:
    """Return atan(1 / inverse) * one, computed from its series."""
    power = total = one // inverse
    number, sign = 3, -1
    while power:
        power //= inverse * inverse
        total += sign * (power // number)
        number, sign = number + 2, -sign
    return total


@cache
def two_over_pi() -> tuple[int, ...]:
    """Return the first 37 words of the fraction 2/pi, highest first."""
    guard = 64
    one = 1 << 32 * _WORDS + guard
    pi = 4 * (4 * _inverse_tangent(5, one) - _inverse_tangent(239, one))  # Machin
    fraction = (2 * one * one // pi) >> guard
    return tuple(fraction >> 32 * (_WORDS - 1 - k) & 0xFFFF_FFFF for k in range(_WORDS))


def _trig_preop(e: Registers, i: Instruction) -> None:
    angle, segment = e.source(i.srcs[0], "double"), e.source(i.srcs[1])
    exponent = biased_exponent(e, "double", angle)
    shift = e.binary("and", "i32", segment, constant("i32", 31))
    shift = e.binary("mul", "i32", shift, constant("i32", _SEGMENT))
    beyond = e.binary("sub", "i32", exponent, constant("i32", _FAR))
    beyond = e.intrinsic("smax", "i32", beyond, constant("i32", 0))
    shift = e.binary("add", "i32", shift, beyond)
    place = e.binary("lshr", "i32", shift, constant("i32", 5))
    words = two_over_pi()
    high = low = constant("i64", 0)
    for number in range(_WORDS - 2):  # all later segments are zero
        here = e.compare("eq", "i32", place, constant("i32", number))
        pair = constant("i64", words[number] << 32 | words[number + 1])
        high = e.select(here, "i64", pair, high)
        low = e.select(here, "i64", constant("i64", words[number + 2]), low)
    count = e.convert("zext", "i32", "i64", e.binary("and", "i32", shift, constant("i32", 31)))
    rest = e.binary("sub", "i64", constant("i64", 32), count)
    bits = e.binary("shl", "i64", high, count)
    bits = e.binary("or", "i64", bits, e.binary("lshr", "i64", low, rest))
    bits = e.binary("lshr", "i64", bits, constant("i64", 64 - _SEGMENT))
    scale = e.binary("sub", "i32", constant("i32", -_SEGMENT), shift)
    raised = e.binary("add", "i32", scale, constant("i32", 128))
    huge = e.compare("sge", "i32", exponent, constant("i32", _HUGE))
    scale = e.select(huge, "i32", raised, scale)
    value = e.convert("uitofp", "i64", "double", bits)
    e.set_result(i, "double", scaled(e, "double", value, scale))


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    return {"v_trig_preop_f64": _trig_preop}
