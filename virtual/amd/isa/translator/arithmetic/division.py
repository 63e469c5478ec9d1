"""The steps of a division, translated to LLVM IR: v_div_scale, v_div_fmas, v_div_fixup.

Source: RDNA3 ISA document, pseudocode of the VOP3 opcodes. Where its tests for denormals cannot be
meant literally, the code follows the correct result of a division (LLVM expands fdiv into these
steps).
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.arithmetic.float import SUFFIXES, fma
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.text import ELEMENT_BITS, constant, integer_of

_EXPONENT = {"float": (23, 0xFF), "double": (52, 0x7FF)}


def biased_exponent(e: Registers, kind: str, value: str) -> str:
    """Return the exponent field as i32."""
    shift, mask = _EXPONENT[kind]
    integer = integer_of(kind)
    bits = e.convert("bitcast", kind, integer, value)
    moved = e.binary("lshr", integer, bits, constant(integer, shift))
    field = e.binary("and", integer, moved, constant(integer, mask))
    return e.convert("trunc", integer, "i32", field) if integer == "i64" else field


def _is_denormal(e: Registers, kind: str, value: str) -> str:
    small = e.compare("eq", "i32", biased_exponent(e, kind, value), constant("i32", 0))
    nonzero = e.compare("une", kind, value, constant(kind, 0))
    return e.binary("and", "i1", small, nonzero)


def _and(e: Registers, a: str, b: str) -> str:
    return e.binary("and", "i1", a, b)


def _or(e: Registers, a: str, b: str) -> str:
    return e.binary("or", "i1", a, b)


def _div_scale(kind: str) -> Handler:
    """Scale numerator or denominator of a division so that the division's steps stay normal."""
    far, step, tiny = (96, 64, 23) if kind == "float" else (768, 128, 53)
    bias = 127 if kind == "float" else 1023
    factor = (127 + step) << 23 if kind == "float" else (1023 + step) << 52
    inverse = (127 - step) << 23 if kind == "float" else (1023 - step) << 52
    nan = 0x7FC00000 if kind == "float" else 0x7FF8000000000000

    def emit(e: Registers, i: Instruction) -> None:
        value, low, top = (e.source(operand, kind) for operand in i.srcs[:3])
        zero = constant(kind, 0)
        up = e.binary("fmul", kind, value, constant(kind, factor))
        down = e.binary("fmul", kind, value, constant(kind, inverse))
        is_low, is_top = e.compare("oeq", kind, value, low), e.compare("oeq", kind, value, top)
        either_zero = _or(e, e.compare("oeq", kind, low, zero), e.compare("oeq", kind, top, zero))
        top_exponent = biased_exponent(e, kind, top)
        gap = e.binary("sub", "i32", top_exponent, biased_exponent(e, kind, low))
        wide_gap = e.compare("sge", "i32", gap, constant("i32", far))
        low_denormal = _is_denormal(e, kind, low)
        # Of the operands' type, not of f64 as the ISA document says of the reciprocal: then
        # v_rcp_f32, which flushes, would make a division by 2**127 zero. By exponents: a host that
        # flushes denormals sees none in a quotient, and boards answer the same in either mode
        # (tinygrad, test/amd/hw/test_vop3.py, TestDivScale).
        low_exponent = biased_exponent(e, kind, low)
        inverse_denormal = e.compare("sge", "i32", low_exponent, constant("i32", 2 * bias - 1))
        finite = e.compare("slt", "i32", low_exponent, constant("i32", 2 * bias + 1))
        inverse_denormal = _and(e, inverse_denormal, finite)
        small = e.compare("sle", "i32", gap, constant("i32", 1 - bias))
        small = _and(e, small, finite)
        quotient_denormal = _or(e, small, _is_denormal(e, kind, e.binary("fdiv", kind, top, low)))
        both = _and(e, inverse_denormal, quotient_denormal)
        tiny_top = e.compare("sle", "i32", top_exponent, constant("i32", tiny))
        # The first rule that applies decides, so the rules are applied from last to first.
        result = e.select(tiny_top, kind, up, value)
        result = e.select(quotient_denormal, kind, e.select(is_top, kind, up, value), result)
        result = e.select(inverse_denormal, kind, down, result)
        # UNSURE: the ISA document scales the denominator up here, which overflows; scaling it down
        # gives the right quotient. A division of huge numbers on silicon would settle it.
        result = e.select(both, kind, e.select(is_low, kind, down, value), result)
        result = e.select(low_denormal, kind, up, result)
        result = e.select(wide_gap, kind, e.select(is_low, kind, up, value), result)
        result = e.select(either_zero, kind, constant(kind, nan), result)
        no_low_denormal = e.binary("xor", "i1", low_denormal, "splat (i1 true)")
        flag = _or(e, wide_gap, _and(e, no_low_denormal, quotient_denormal))
        if i.sdst is not None:  # of zeros too, against the ISA document: boards do it
            e.set_mask(i.sdst, _or(e, flag, either_zero))
        e.set_result(i, kind, result)

    return emit


def _div_fmas(kind: str) -> Handler:
    """Fused multiply-add, scaled back according to the flag that v_div_scale left in VCC."""
    step, bias = (64, 127) if kind == "float" else (128, 1023)
    shift = 23 if kind == "float" else 52

    def emit(e: Registers, i: Instruction) -> None:
        a, b, c = (e.source(operand, kind) for operand in i.srcs[:3])
        total = fma(e, kind, a, b, c)
        flag = e.as_mask(e.mask_register(layout.SGPR_VCC))
        large = e.compare("sgt", "i32", biased_exponent(e, kind, c), constant("i32", bias))
        up, down = constant(kind, (bias + step) << shift), constant(kind, (bias - step) << shift)
        if kind == "float":  # scaled before rounding, as on the chip
            wide = [e.convert("fpext", "float", "double", value) for value in (a, b, c)]
            factor = e.convert("fpext", "float", "double", e.select(large, kind, up, down))
            exact = e.binary("fmul", "double", fma(e, "double", *wide), factor)
            moved = e.convert("fptrunc", "double", "float", exact)
        else:
            steered = _steered(e, a, b, c, total)
            moved = e.select(large, kind, e.binary("fmul", kind, total, up),
                             e.binary("fmul", kind, steered, down))  # fmt: skip
        e.set_result(i, kind, e.select(flag, kind, moved, total))

    return emit


def _steered(e: Registers, a: str, b: str, c: str, total: str) -> str:
    """Move total = a * b + c by one unit in the last place towards its exact value if needed.

    It is needed where scaling by 2**-128 to a denormal would round a second time, to the wrong
    side. If two or more bits are dropped, the last bit must be set (rounding to odd). If one bit is
    dropped, only a set last bit, a tie, is wrong.
    """
    error = fma(e, "double", a, b, e.binary("fsub", "double", c, total))
    exponent = biased_exponent(e, "double", total)
    bits = e.convert("bitcast", "double", "i64", total)
    odd = e.convert("trunc", "i64", "i1", bits)
    one_bit = e.compare("eq", "i32", exponent, constant("i32", 128))
    wrong = e.binary("xor", "i1", odd, one_bit)
    wrong = e.binary("xor", "i1", wrong, "splat (i1 true)")
    inexact = e.compare("one", "double", error, constant("double", 0))
    denormal = e.compare("sle", "i32", exponent, constant("i32", 128))
    signs = e.binary("xor", "i64", bits, e.convert("bitcast", "double", "i64", error))
    inward = e.compare("slt", "i64", signs, constant("i64", 0))
    step = e.select(inward, "i64", constant("i64", -1), constant("i64", 1))
    moved = e.convert("bitcast", "i64", "double", e.binary("add", "i64", bits, step))
    return e.select(_and(e, _and(e, wrong, inexact), denormal), "double", moved, total)


def _div_fixup(kind: str) -> Handler:
    """Correct the special cases of a division: NaN, zero, infinity, sign."""
    shift = {"half": 10, "float": 23, "double": 52}[kind]
    infinity = {"half": 0x7C00, "float": 0x7F800000, "double": 0x7FF << 52}[kind]
    quiet = 1 << (shift - 1)
    integer = integer_of(kind)
    sign = 1 << (ELEMENT_BITS[kind] - 1)

    def emit(e: Registers, i: Instruction) -> None:
        quotient, low, top = (
            e.convert("bitcast", kind, integer, e.source(operand, kind)) for operand in i.srcs[:3]
        )

        def magnitude(value: str) -> str:
            return e.binary("and", integer, value, constant(integer, sign - 1))

        signs = e.binary("xor", integer, low, top)
        signs = e.binary("and", integer, signs, constant(integer, sign))
        size_low, size_top = magnitude(low), magnitude(top)
        limit, zero = constant(integer, infinity), constant(integer, 0)
        if kind == "half":
            low_zero, top_zero = (e.compare("eq", integer, v, zero) for v in (size_low, size_top))
        else:  # compared as floats: denormals count as zero if the mode treats them as zero
            low_zero, top_zero = (
                e.compare("oeq", kind, e.convert("bitcast", integer, kind, v), constant(kind, 0))
                for v in (low, top)
            )
        low_inf, top_inf = (e.compare("eq", integer, v, limit) for v in (size_low, size_top))
        low_nan, top_nan = (e.compare("ugt", integer, v, limit) for v in (size_low, size_top))
        # UNSURE: a quotient that overflows becomes NaN in the refinement steps. The ISA document
        # does not describe the correction, but such a division gives infinity on silicon.
        result = magnitude(quotient)
        lost = e.compare("ugt", integer, result, limit)
        result = e.select(lost, integer, limit, result)
        if kind != "half":
            fields = [
                biased_exponent(e, kind, e.convert("bitcast", integer, kind, v)) for v in (top, low)
            ]
            gap = e.binary("sub", "i32", *fields)
            lost = e.compare("slt", "i32", gap, constant("i32", -150 if kind == "float" else -1075))
            result = e.select(lost, integer, zero, result)
        result = e.select(_or(e, low_inf, top_zero), integer, zero, result)
        result = e.select(_or(e, low_zero, top_inf), integer, limit, result)
        result = e.binary("or", integer, result, signs)
        invalid = _or(e, _and(e, low_zero, top_zero), _and(e, low_inf, top_inf))
        default_nan = constant(integer, sign | infinity | quiet)
        result = e.select(invalid, integer, default_nan, result)
        for is_nan, value in ((low_nan, low), (top_nan, top)):
            quieted = e.binary("or", integer, value, constant(integer, quiet))
            result = e.select(is_nan, integer, quieted, result)
        e.set_result(i, kind, e.convert("bitcast", integer, kind, result))

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {}
    for suffix, kind in SUFFIXES.items():
        found[f"v_div_fixup_{suffix}"] = _div_fixup(kind)
        if kind != "half":
            found[f"v_div_scale_{suffix}"] = _div_scale(kind)
            found[f"v_div_fmas_{suffix}"] = _div_fmas(kind)
    return found
