"""Packed 16-bit arithmetic, mixed-precision and dot products (VOP3P), translated to LLVM IR.

Source: RDNA3 ISA document, chapter of the VOP3P opcodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.translator.arithmetic.float import extreme, fma, fused_half
from ugpu.virtual.amd.isa.translator.arithmetic.integer import choose, shift
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader.text import constant

Function = Callable[[Registers, tuple[str, ...]], str]


def half_of(e: Registers, word: str, high: int, kind: str) -> str:
    """Take one half of a register as i16, half or bfloat lanes."""
    if high:
        word = e.binary("lshr", "i32", word, constant("i32", 16))
    return e.convert("bitcast", "i16", kind, e.convert("trunc", "i32", "i16", word))


def _raw(operand: Operand) -> Operand:
    """Return the operand without modifiers and half; packed instructions hold them separately."""
    return replace(operand, neg=False, absolute=False, high=False)


def _bit(bits: tuple[int, ...], number: int) -> int:
    return bits[number] if number < len(bits) else 0


def _combined(e: Registers, low: str, high: str) -> str:
    """Join two vectors of i16 lanes."""
    wide_low = e.convert("zext", "i16", "i32", low)
    wide_high = e.convert("zext", "i16", "i32", high)
    return e.binary("or", "i32", wide_low, e.binary("shl", "i32", wide_high, constant("i32", 16)))


def _words(e: Registers, i: Instruction) -> list[str]:
    return [e.source(operand if operand.is_vector else _raw(operand), "i32") for operand in i.srcs]


def packed(kind: str, function: Function, saturating: Function | None = None) -> Handler:
    """Create an emitter that processes both halves; neg_lo and neg_hi apply to float sources."""

    def emit(e: Registers, i: Instruction) -> None:
        work = function
        if i.clamp and kind == "i16":
            if saturating is None:
                raise Unsupported(f"{i.name} with clamp")
            work = saturating
        words = _words(e, i)
        results = []
        for chosen, negated in ((i.op_sel, i.neg_lo), (i.op_sel_hi, i.neg_hi)):
            values = []
            for number, word in enumerate(words):
                value = half_of(e, word, _bit(chosen, number), kind)
                if kind == "half" and _bit(negated, number):
                    value = e.unary("fneg", "half", value)
                values.append(value)
            result = work(e, tuple(values))
            if kind == "half":
                result = e.saturated(result, [("half", value) for value in values])
            if kind == "half" and i.clamp:
                result = e.clamped("half", result)
            results.append(e.convert("bitcast", kind, "i16", result))
        assert i.dst is not None
        e.set_vector_register(i.dst.index, _combined(e, *results))

    return emit


def _through_float(function: Callable[[Registers, tuple[str, ...]], str]) -> Function:
    def work(e: Registers, v: tuple[str, ...]) -> str:
        wide = tuple(e.convert("fpext", "half", "float", value) for value in v)
        return e.convert("fptrunc", "float", "half", function(e, wide))

    return work


def _integer(operation: str) -> Function:
    return lambda e, v: e.binary(operation, "i16", v[0], v[1])


def _saturated(name: str) -> Function:
    return lambda e, v: e.intrinsic(name, "i16", v[0], v[1])


def _folded(name: str) -> Function:
    return lambda e, v: choose(e, name, "i16", *v)


def _shifted(operation: str) -> Function:
    return lambda e, v: shift(e, operation, "i16", v[1], v[0])


def _multiply_add(e: Registers, v: tuple[str, ...]) -> str:
    return e.binary("add", "i16", e.binary("mul", "i16", v[0], v[1]), v[2])


def _saturated_multiply_add(signed: bool) -> Function:
    """Compute a * b + c in 32 bits, where it fits, and limit it."""
    extension, prefix = ("sext", "s") if signed else ("zext", "u")

    def work(e: Registers, v: tuple[str, ...]) -> str:
        a, b, c = (e.convert(extension, "i16", "i32", value) for value in v)
        total = e.binary("add", "i32", e.binary("mul", "i32", a, b), c)
        if signed:
            total = e.intrinsic("smax", "i32", total, constant("i32", -0x8000))
        high = constant("i32", 0x7FFF if signed else 0xFFFF)
        total = e.intrinsic(f"{prefix}min", "i32", total, high)
        return e.convert("trunc", "i32", "i16", total)

    return work


def _extreme_of(name: str) -> Function:
    return lambda e, v: extreme(e, "half", name, v[0], v[1])


def _packed_handlers() -> dict[str, Handler]:
    found: dict[str, Handler] = {
        "v_pk_mul_lo_u16": packed("i16", _integer("mul")),
        "v_pk_lshlrev_b16": packed("i16", _shifted("shl")),
        "v_pk_lshrrev_b16": packed("i16", _shifted("lshr")),
        "v_pk_ashrrev_i16": packed("i16", _shifted("ashr")),
        "v_pk_fma_f16": packed("half", lambda e, v: fused_half(e, *v)),
        "v_pk_add_f16": packed("half", _through_float(lambda e, v: e.binary("fadd", "float", *v))),
        "v_pk_mul_f16": packed("half", _through_float(lambda e, v: e.binary("fmul", "float", *v))),
    }
    for name in ("min", "max"):
        found[f"v_pk_{name}_f16"] = packed("half", _extreme_of(name))
    for letter, prefix in (("i", "s"), ("u", "u")):
        found[f"v_pk_mad_{letter}16"] = packed(
            "i16", _multiply_add, _saturated_multiply_add(letter == "i")
        )
        for operation in ("add", "sub"):
            found[f"v_pk_{operation}_{letter}16"] = packed(
                "i16", _integer(operation), _saturated(f"{prefix}{operation}.sat")
            )
        for name in ("min", "max"):
            found[f"v_pk_{name}_{letter}16"] = packed("i16", _folded(prefix + name))
    return found


# -- mixed precision -----------------------------------------------------------------------------


def _mixed_sources(e: Registers, i: Instruction) -> list[str]:
    """Read the sources of v_fma_mix as f32: an f32 or, by op_sel_hi, one half of a register.

    neg_lo negates; neg_hi gives the absolute value.
    """
    values = []
    for number, operand in enumerate(i.srcs):
        plain = _raw(operand)  # the decoder sets modifiers in both places
        if _bit(i.op_sel_hi, number):
            word = e.source(plain, "i32")
            value = half_of(e, word, _bit(i.op_sel, number), "half")
            value = e.convert("fpext", "half", "float", value)
        else:
            value = e.source(plain, "float")
        if _bit(i.neg_hi, number):
            value = e.intrinsic("fabs", "float", value)
        if _bit(i.neg_lo, number):
            value = e.unary("fneg", "float", value)
        values.append(value)
    return values


def _mixed(half: str) -> Handler:
    """Create an emitter. half: "" for an f32 result, else the destination's half for f16."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        a, b, c = _mixed_sources(e, i)
        result = fma(e, "float", a, b, c)
        if not half:
            if i.clamp:
                result = e.clamped("float", result)
            e.set_vector(i.dst, "float", result)
            return
        narrow = e.convert("fptrunc", "float", "half", result)
        narrow = e.saturated(narrow, [("float", value) for value in (a, b, c)])
        if i.clamp:
            narrow = e.clamped("half", narrow)
        e.set_vector(replace(i.dst, high=half == "high"), "half", narrow)

    return emit


# -- dot products --------------------------------------------------------------------------------


def _dot2(kind: str, result_kind: str, accumulates: bool = False) -> Handler:
    """Compute d = c + a.lo * b.lo + a.hi * b.hi; each product and each sum is rounded to the
    result's type, as in the ISA documents' pseudocode."""

    def wide(e: Registers, value: str, source: str) -> str:
        if source == "bfloat":
            bits = e.convert("zext", "i16", "i32", e.convert("bitcast", "bfloat", "i16", value))
            bits = e.binary("shl", "i32", bits, constant("i32", 16))
            return e.convert("bitcast", "i32", "float", bits)
        return e.convert("fpext", source, "float", value) if source == "half" else value

    def rounded(e: Registers, value: str) -> str:
        if result_kind == "half":
            return e.convert("fpext", "half", "float", e.convert("fptrunc", "float", "half", value))
        if result_kind == "bfloat":
            return wide(e, e.convert("bitcast", "i16", "bfloat", to_brain(e, value)), "bfloat")
        return value

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        words = [e.source(operand, "i32") for operand in i.srcs[:2]]
        if accumulates:
            total = wide(e, e.source(i.dst, "float"), "float")
        elif result_kind == "float":
            added = e.source(_raw(i.srcs[2]) if not i.srcs[2].is_vector else i.srcs[2], "float")
            if _bit(i.neg_lo, 2):
                added = e.unary("fneg", "float", added)
            total = wide(e, added, "float")
        else:
            total = wide(e, e.source(i.srcs[2], kind), kind)
        for half, (chosen, negated) in enumerate(((i.op_sel, i.neg_lo), (i.op_sel_hi, i.neg_hi))):
            factors = []
            for number, word in enumerate(words):
                high = half if _plain(i) else _bit(chosen, number)
                value = wide(e, half_of(e, word, high, kind), kind)
                if not _plain(i) and _bit(negated, number):
                    value = e.unary("fneg", "float", value)
                factors.append(value)
            product = rounded(e, e.binary("fmul", "float", *factors))
            total = rounded(e, e.binary("fadd", "float", total, product))
        _set_dot(e, i, result_kind, total)

    return emit


_WHOLE = ("v_dot2_f16_f16", "v_dot2_bf16_bf16")


def _plain(i: Instruction) -> bool:
    """Return whether the encoding does not select halves of the packed sources."""
    return i.name in _WHOLE or "dot2acc" in i.name


def _set_dot(e: Registers, i: Instruction, result_kind: str, total: str) -> None:
    if result_kind == "float":
        if i.clamp:
            total = e.clamped("float", total)
        e.set_result(replace(i, clamp=False, omod=0), "float", total)
    elif result_kind == "half":
        e.set_result(i, "half", e.convert("fptrunc", "float", "half", total))
    else:
        assert i.dst is not None
        e.set_vector(i.dst, "i16", to_brain(e, total))


def to_brain(e: Registers, value: str) -> str:
    """Round f32 lanes to the bits of bf16, to nearest even; NaN stays NaN."""
    bits = e.convert("bitcast", "float", "i32", value)
    odd = e.binary("and", "i32", e.binary("lshr", "i32", bits, constant("i32", 16)),
                   constant("i32", 1))  # fmt: skip
    rounded = e.binary("add", "i32", e.binary("add", "i32", bits, odd), constant("i32", 0x7FFF))
    nan = e.compare("uno", "float", value, value)
    quiet = e.binary("or", "i32", bits, constant("i32", 0x400000))
    rounded = e.select(nan, "i32", quiet, rounded)
    return e.convert("trunc", "i32", "i16", e.binary("lshr", "i32", rounded, constant("i32", 16)))


def _dot_integers(bits: int, mixed: bool) -> Handler:
    """Sum products of 4 bytes or 8 nibbles, plus c. mixed: neg_lo marks the signed sources."""

    def emit(e: Registers, i: Instruction) -> None:
        a, b, c = _words(e, i)
        total: str | None = None
        signs = [bool(mixed and _bit(i.neg_lo, number)) for number in (0, 1)]
        for number in range(32 // bits):
            parts = []
            for word, signed in ((a, signs[0]), (b, signs[1])):
                up = e.binary("shl", "i32", word, constant("i32", 32 - bits * (number + 1)))
                right = "ashr" if signed else "lshr"
                parts.append(e.binary(right, "i32", up, constant("i32", 32 - bits)))
            product = e.binary("mul", "i32", *parts)
            total = product if total is None else e.binary("add", "i32", total, product)
        assert total is not None and i.dst is not None
        if i.clamp:
            name = "sadd.sat" if mixed else "uadd.sat"
            result = e.intrinsic(name, "i32", total, c)
        else:
            result = e.binary("add", "i32", total, c)
        e.set_vector_register(i.dst.index, result)

    return emit


def _packed_fmac(e: Registers, i: Instruction) -> None:
    """Emit v_pk_fmac_f16: both halves, accumulated in the destination."""
    assert i.dst is not None
    words = [*(e.source(operand, "i32") for operand in i.srcs), e.source(_raw(i.dst), "i32")]
    results = []
    for high in (0, 1):
        values = [half_of(e, word, high, "half") for word in words]
        results.append(e.convert("bitcast", "half", "i16", fused_half(e, *values)))
    e.set_vector_register(i.dst.index, _combined(e, *results))


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found = _packed_handlers()
    found["v_pk_fmac_f16"] = _packed_fmac
    found["v_fma_mix_f32"] = _mixed("")
    found["v_fma_mixlo_f16"] = _mixed("low")
    found["v_fma_mixhi_f16"] = _mixed("high")
    found["v_dot2_f32_f16"] = _dot2("half", "float")
    found["v_dot2_f32_bf16"] = _dot2("bfloat", "float")
    found["v_dot2acc_f32_f16"] = _dot2("half", "float", accumulates=True)
    found["v_dot2acc_f32_bf16"] = _dot2("bfloat", "float", accumulates=True)
    found["v_dot2_f16_f16"] = _dot2("half", "half")
    found["v_dot2_bf16_bf16"] = _dot2("bfloat", "bfloat")
    found["v_dot4_i32_iu8"] = _dot_integers(8, True)
    found["v_dot4_u32_u8"] = _dot_integers(8, False)
    found["v_dot8_i32_iu4"] = _dot_integers(4, True)
    found["v_dot8_u32_u4"] = _dot_integers(4, False)
    return found
