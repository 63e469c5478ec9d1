"""Conversions, comparisons and transcendental functions of lanes, translated to LLVM IR.

Source: RDNA3 ISA document, chapters of the VOP1, VOP3 and VOPC opcodes.
"""

from __future__ import annotations

from dataclasses import replace

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator import saturation
from ugpu.virtual.amd.isa.translator.arithmetic.float import SUFFIXES
from ugpu.virtual.amd.isa.translator.arithmetic.integer import pack_halves
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import ELEMENT_BITS, constant, integer_of

_FLOAT_PREDICATES = {
    "lt": "olt", "eq": "oeq", "le": "ole", "gt": "ogt", "lg": "one", "ge": "oge", "o": "ord",
    "u": "uno", "nge": "ult", "nlg": "ueq", "ngt": "ule", "nle": "ugt", "neq": "une", "nlt": "uge",
    "f": "false", "t": "true",
}  # fmt: skip
_INTEGER_PREDICATES = {
    "i": {"lt": "slt", "eq": "eq", "le": "sle", "gt": "sgt", "ne": "ne", "ge": "sge"},
    "u": {"lt": "ult", "eq": "eq", "le": "ule", "gt": "ugt", "ne": "ne", "ge": "uge"},
}


def _set_compared(e: Registers, i: Instruction, mask: str) -> None:
    assert i.sdst is not None
    e.set_mask(i.sdst, mask)


def _float_compare(kind: str, predicate: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        a, b = e.source(i.srcs[0], kind), e.source(i.srcs[1], kind)
        work = kind
        if kind == "half":
            a, b = (e.convert("fpext", "half", "float", v) for v in (a, b))
            work = "float"
        _set_compared(e, i, e.compare(predicate, work, a, b))

    return emit


def _integer_compare(kind: str, predicate: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        if predicate in ("f", "t"):
            mask = f"splat (i1 {'true' if predicate == 't' else 'false'})"
        else:
            mask = e.compare(predicate, kind, e.source(i.srcs[0], kind), e.source(i.srcs[1], kind))
        _set_compared(e, i, mask)

    return emit


def _class_test(kind: str) -> Handler:
    """Test a float against the classes selected by the bits of the second source."""
    fraction = {"half": 10, "float": 23, "double": 52}[kind]
    integer = integer_of(kind)
    bits = ELEMENT_BITS[kind]
    infinity = ((1 << (bits - 1 - fraction)) - 1) << fraction

    def emit(e: Registers, i: Instruction) -> None:
        raw = e.convert("bitcast", kind, integer, e.source(i.srcs[0], kind))
        wanted_kind = "i16" if kind == "half" else "i32"
        wanted = e.source(i.srcs[1], wanted_kind)
        if kind == "half":
            wanted = e.convert("zext", "i16", "i32", wanted)
        size = e.binary("and", integer, raw, constant(integer, (1 << (bits - 1)) - 1))
        negative = e.compare("slt", integer, raw, constant(integer, 0))

        def number(value: int) -> str:
            return constant("i32", value)

        # Class numbers of negative values: 2 infinity, 3 normal, 4 denormal, 5 zero; positive 9..6.
        found = e.select(negative, "i32", number(3), number(8))
        denormal = e.compare("ult", integer, size, constant(integer, 1 << fraction))
        found = e.select(denormal, "i32", e.select(negative, "i32", number(4), number(7)), found)
        zero = e.compare("eq", integer, size, constant(integer, 0))
        found = e.select(zero, "i32", e.select(negative, "i32", number(5), number(6)), found)
        infinite = e.compare("eq", integer, size, constant(integer, infinity))
        found = e.select(infinite, "i32", e.select(negative, "i32", number(2), number(9)), found)
        quiet = e.compare("uge", integer, size, constant(integer, infinity | 1 << (fraction - 1)))
        nan = e.compare("ugt", integer, size, constant(integer, infinity))
        found = e.select(nan, "i32", e.select(quiet, "i32", number(1), number(0)), found)
        bit = e.binary("and", "i32", e.binary("lshr", "i32", wanted, found), number(1))
        _set_compared(e, i, e.compare("ne", "i32", bit, number(0)))

    return emit


def _comparisons() -> dict[str, Handler]:
    found: dict[str, Handler] = {}
    for suffix, kind in SUFFIXES.items():
        for condition, predicate in _FLOAT_PREDICATES.items():
            found[f"{condition}_{suffix}"] = _float_compare(kind, predicate)
        found[f"class_{suffix}"] = _class_test(kind)
    for letter, predicates in _INTEGER_PREDICATES.items():
        for bits in (16, 32, 64):
            for condition, predicate in (*predicates.items(), ("f", "f"), ("t", "t")):
                found[f"{condition}_{letter}{bits}"] = _integer_compare(f"i{bits}", predicate)
    return {
        f"{prefix}_{name}": handler
        for name, handler in found.items()
        for prefix in ("v_cmp", "v_cmpx")
    }


# -- conversions ---------------------------------------------------------------------------------


def to_integer(e: Registers, source: str, target: str, value: str, signed: bool) -> str:
    """Convert floats to integers, rounded toward zero and saturating; NaN becomes 0."""
    name = "fptosi" if signed else "fptoui"
    suffix = {"float": "f32", "double": "f64"}[source]
    return e.call(
        e.vector_of(target), f"llvm.{name}.sat.v{e.lanes}{target}.v{e.lanes}{suffix}",
        (e.vector_of(source), value),
    )  # fmt: skip


def _float_to_int(source: str, target: str, signed: bool, rounding: str = "") -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        value = e.source(i.srcs[0], source)
        work = source
        if source == "half":
            value, work = e.convert("fpext", "half", "float", value), "float"
        if rounding == "nearest":
            value = e.binary("fadd", work, value, constant(work, 0x3F000000))
        if rounding:
            value = e.intrinsic("floor", work, value)
        e.set_result(i, target, to_integer(e, work, target, value, signed))

    return emit


def _int_to_float(source: str, target: str, signed: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        value = e.source(i.srcs[0], source)
        operation = "sitofp" if signed else "uitofp"
        if target == "half":
            wide = e.convert(operation, source, "float", value)
            e.set_result(i, "half", e.convert("fptrunc", "float", "half", wide))
        else:
            e.set_result(i, target, e.convert(operation, source, target, value))

    return emit


def _float_to_float(source: str, target: str) -> Handler:
    operation = "fpext" if ELEMENT_BITS[source] < ELEMENT_BITS[target] else "fptrunc"

    def emit(e: Registers, i: Instruction) -> None:
        e.set_result(i, target, e.convert(operation, source, target, e.source(i.srcs[0], source)))

    return emit


def _byte_to_float(number: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        value = e.binary("lshr", "i32", e.source(i.srcs[0]), constant("i32", 8 * number))
        value = e.binary("and", "i32", value, constant("i32", 0xFF))
        e.set_result(i, "float", e.convert("uitofp", "i32", "float", value))

    return emit


def toward_zero(e: Registers, value: str) -> str:
    """Round f32 to the bits (i16 lanes) of an f16, toward zero."""
    near = e.convert("fptrunc", "float", "half", value)
    back = e.convert("fpext", "half", "float", near)
    larger = e.compare(
        "ogt", "float", e.intrinsic("fabs", "float", back), e.intrinsic("fabs", "float", value)
    )
    infinite = constant("float", 0x7F800000)
    finite = e.compare("olt", "float", e.intrinsic("fabs", "float", value), infinite)
    larger = e.binary("and", "i1", larger, finite)
    bits = e.convert("bitcast", "half", "i16", near)
    return e.binary("sub", "i16", bits, e.convert("zext", "i1", "i16", larger))


def _pack_toward_zero(e: Registers, i: Instruction) -> None:
    halves = []
    for operand in i.srcs[:2]:
        bits = toward_zero(e, e.source(operand, "float"))
        if i.clamp:
            half = e.clamped("half", e.convert("bitcast", "i16", "half", bits))
            bits = e.convert("bitcast", "half", "i16", half)
        halves.append(e.convert("zext", "i16", "i32", bits))
    e.set_result(i, "i32", pack_halves(e, *halves))


def _pack_half(e: Registers, i: Instruction) -> None:
    halves = []
    for operand in i.srcs[:2]:
        bits = e.convert("bitcast", "half", "i16", e.source(operand, "half"))
        halves.append(e.convert("zext", "i16", "i32", bits))
    e.set_result(i, "i32", pack_halves(e, *halves))


def _normalised(e: Registers, value: str, signed: bool) -> str:
    """Map -1..1 (or 0..1) to the range of 16-bit integers, rounding to nearest even; i32 lanes.
    The product is one of f64, where it is exact."""
    one, low = 0x3F800000, 0xBF800000 if signed else 0
    nan = e.compare("uno", "float", value, value)
    value = e.select(nan, "float", constant("float", 0), value)
    above = e.compare("ogt", "float", value, constant("float", one))
    value = e.select(above, "float", constant("float", one), value)
    below = e.compare("olt", "float", value, constant("float", low))
    value = e.select(below, "float", constant("float", low), value)
    factor = constant("double", 0x40DF_FFC0_0000_0000 if signed else 0x40EF_FFE0_0000_0000)
    wide = e.binary("fmul", "double", e.convert("fpext", "float", "double", value), factor)
    return to_integer(e, "double", "i32", e.intrinsic("roundeven", "double", wide), True)


def _pack_normalised(kind: str, signed: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        parts = []
        for operand in i.srcs[:2]:
            value = e.source(operand, kind)
            if kind == "half":
                value = e.convert("fpext", "half", "float", value)
            parts.append(_normalised(e, value, signed))
        e.set_result(i, "i32", pack_halves(e, *parts))

    return emit


def _one_normalised(signed: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        value = e.convert("fpext", "half", "float", e.source(i.srcs[0], "half"))
        bits = e.convert("trunc", "i32", "i16", _normalised(e, value, signed))
        e.set_result(i, "i16", bits)

    return emit


def _pack_integers(signed: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        parts = []
        for operand in i.srcs[:2]:
            whole = to_integer(e, "float", "i16", e.source(operand, "float"), signed)
            parts.append(e.convert("zext", "i16", "i32", whole))
        e.set_result(i, "i32", pack_halves(e, *parts))

    return emit


def _pack_byte(e: Registers, i: Instruction) -> None:
    """Convert to an unsigned byte; insert it into source 3 at the byte selected by source 2."""
    value = e.source(i.srcs[0], "float")
    value = to_integer(e, "float", "i32", e.intrinsic("roundeven", "float", value), False)
    value = e.intrinsic("umin", "i32", value, constant("i32", 255))
    position = e.binary("and", "i32", e.source(i.srcs[1]), constant("i32", 3))
    position = e.binary("shl", "i32", position, constant("i32", 3))
    hole = e.binary("shl", "i32", constant("i32", 0xFF), position)
    hole = e.binary("xor", "i32", hole, constant("i32", -1))
    kept = e.binary("and", "i32", e.source(i.srcs[2]), hole)
    e.set_result(i, "i32", e.binary("or", "i32", kept, e.binary("shl", "i32", value, position)))


def _offset_from_4bits(e: Registers, i: Instruction) -> None:
    """Convert a signed 4-bit integer to sixteenths."""
    value = e.binary("shl", "i32", e.source(i.srcs[0]), constant("i32", 28))
    value = e.binary("ashr", "i32", value, constant("i32", 28))
    value = e.convert("sitofp", "i32", "float", value)
    e.set_result(i, "float", e.binary("fmul", "float", value, constant("float", 0x3D800000)))


def _conversions() -> dict[str, Handler]:
    found: dict[str, Handler] = {
        "v_cvt_f16_f32": _float_to_float("float", "half"),
        "v_cvt_f32_f16": _float_to_float("half", "float"),
        "v_cvt_f32_f64": _float_to_float("double", "float"),
        "v_cvt_f64_f32": _float_to_float("float", "double"),
        "v_cvt_nearest_i32_f32": _float_to_int("float", "i32", True, "nearest"),
        "v_cvt_floor_i32_f32": _float_to_int("float", "i32", True, "floor"),
        "v_cvt_off_f32_i4": _offset_from_4bits,
        "v_cvt_pk_rtz_f16_f32": _pack_toward_zero,
        "v_pack_b32_f16": _pack_half,
        "v_cvt_pk_u8_f32": _pack_byte,
        "v_cvt_pk_i16_f32": _pack_integers(True),
        "v_cvt_pk_u16_f32": _pack_integers(False),
        "v_cvt_norm_i16_f16": _one_normalised(True),
        "v_cvt_norm_u16_f16": _one_normalised(False),
    }
    for letter, signed in (("i", True), ("u", False)):
        found[f"v_cvt_pk_norm_{letter}16_f16"] = _pack_normalised("half", signed)
        found[f"v_cvt_pk_norm_{letter}16_f32"] = _pack_normalised("float", signed)
        for suffix, kind in SUFFIXES.items():
            bits = 16 if suffix == "f16" else 32
            found[f"v_cvt_{letter}{bits}_{suffix}"] = _float_to_int(kind, f"i{bits}", signed)
            found[f"v_cvt_{suffix}_{letter}{bits}"] = _int_to_float(f"i{bits}", kind, signed)
    for number in range(4):
        found[f"v_cvt_f32_ubyte{number}"] = _byte_to_float(number)
    return found


# -- 8-bit floats: OCP e4m3 (fp8) and e5m2 (bf8), as with SH_MEM_CONFIG.F8_MODE 0 ----------------


def _from_eight_bits(e: Registers, kind: str, byte: str) -> str:
    """Convert bytes (i16 lanes) to f32. e5m2 is the upper half of an f16; bits of e4m3, moved to
    the places of an f16's, are a 256th of the value, and its NaN has all bits set."""
    raised = e.binary("shl", "i16", byte, constant("i16", 8))
    if kind == "bf8":
        return e.convert("fpext", "half", "float", e.convert("bitcast", "i16", "half", raised))
    size = e.binary("lshr", "i16", raised, constant("i16", 1))
    size = e.binary("and", "i16", size, constant("i16", 0x3F80))
    sign = e.binary("and", "i16", raised, constant("i16", 0x8000))
    half = e.convert("bitcast", "i16", "half", e.binary("or", "i16", size, sign))
    value = e.convert("fpext", "half", "float", half)
    value = e.binary("fmul", "float", value, constant("float", 0x43800000))
    nan = e.compare("eq", "i16", size, constant("i16", 0x3F80))
    return e.select(nan, "float", constant("float", 0x7FC00000), value)


def _byte_of(e: Registers, word: str, number: int) -> str:
    moved = e.binary("lshr", "i32", word, constant("i32", 8 * number))
    byte = e.binary("and", "i32", moved, constant("i32", 0xFF))
    return e.convert("trunc", "i32", "i16", byte)


def _widened_byte(kind: str) -> Handler:
    """Convert one byte; VOP3's op_sel has the number of the byte, its higher bit first."""

    def emit(e: Registers, i: Instruction) -> None:
        number = i.op_sel[0] << 1 | i.op_sel[1] if i.op_sel else 0
        byte = _byte_of(e, e.source(i.srcs[0]), number)
        e.set_result(i, "float", _from_eight_bits(e, kind, byte))

    return emit


def _widened_bytes(kind: str) -> Handler:
    """Convert both bytes of a half register to two registers."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        word = e.convert("zext", "i16", "i32", e.source(i.srcs[0], "i16"))
        values = [_from_eight_bits(e, kind, _byte_of(e, word, number)) for number in (0, 1)]
        for number, value in enumerate(values):
            bits = e.convert("bitcast", "float", "i32", value)
            e.set_vector_register(i.dst.index + number, bits)

    return emit


def _to_eight_bits(e: Registers, kind: str, value: str) -> str:
    """Round f32 to nearest even; return bytes in i32 lanes. Too large values become NaN (fp8) or
    infinity (bf8), finite ones the largest number where MODE.FP16_OVFL is set."""
    mantissa, bias, largest, beyond = (3, 7, 0x7E, 0x7F) if kind == "fp8" else (2, 15, 0x7B, 0x7C)
    kept = 23 - mantissa

    def number(bits: int) -> str:
        return constant("i32", bits)

    bits = e.convert("bitcast", "float", "i32", value)
    sign = e.binary("and", "i32", e.binary("lshr", "i32", bits, number(24)), number(0x80))
    size = e.binary("and", "i32", bits, number(0x7FFF_FFFF))
    odd = e.binary("and", "i32", e.binary("lshr", "i32", size, number(kept)), number(1))
    near = e.binary("add", "i32", size, number((1 << kept - 1) - 1))
    near = e.binary("add", "i32", near, odd)
    near = e.binary("sub", "i32", near, number(127 - bias << 23))
    code = e.binary("lshr", "i32", near, number(kept))
    # Denormals: the sum with this power of two has them in its lowest bits, rounded.
    power = 23 + 1 - bias - mantissa
    plain = e.convert("bitcast", "i32", "float", size)
    added = e.binary("fadd", "float", plain, constant("float", 127 + power << 23))
    low = e.binary("and", "i32", e.convert("bitcast", "float", "i32", added), number(0xFF))
    small = e.compare("ult", "i32", size, number(127 + 1 - bias << 23))
    code = e.select(small, "i32", low, code)
    over = e.compare("ugt", "i32", code, number(largest))
    limit = number(beyond)
    if e.saturates:
        e.used_scalars.add(layout.SGPR_NULL)
        finite = e.compare("ult", "i32", size, number(0x7F80_0000))
        limited = e.binary("and", "i1", finite, e.broadcast("i1", saturation.flag(e)))
        limit = e.select(limited, "i32", number(largest), limit)
    over = e.binary("and", "i1", over, e.binary("xor", "i1", small, constant("i1", 1)))
    code = e.select(over, "i32", limit, code)
    nan = e.compare("ugt", "i32", size, number(0x7F80_0000))
    return e.binary("or", "i32", sign, e.select(nan, "i32", number(0x7F), code))


def _packed_bytes(kind: str) -> Handler:
    """Convert two floats to the bytes of one half of the destination."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        low, high = (_to_eight_bits(e, kind, e.source(operand, "float")) for operand in i.srcs[:2])
        both = e.binary("or", "i32", low, e.binary("shl", "i32", high, constant("i32", 8)))
        e.set_vector(i.dst, "i16", e.convert("trunc", "i32", "i16", both))

    return emit


def _stochastic(kind: str) -> Handler:
    """Add the upper bits of source 2 to the bits that are lost, and convert to one byte; op_sel
    chooses which. The sum of the mantissas wraps, as in the ISA document's pseudocode."""
    kept = 12 if kind == "fp8" else 11

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        bits = e.convert("bitcast", "float", "i32", e.source(i.srcs[0], "float"))
        added = e.binary("lshr", "i32", e.source(i.srcs[1]), constant("i32", kept))
        mantissa = e.binary("add", "i32", bits, added)
        mantissa = e.binary("and", "i32", mantissa, constant("i32", 0x7F_FFFF))
        upper = e.binary("and", "i32", bits, constant("i32", -0x80_0000))
        value = e.convert("bitcast", "i32", "float", e.binary("or", "i32", upper, mantissa))
        byte = _to_eight_bits(e, kind, value)
        shift = 8 * (i.op_sel[2] | i.op_sel[3] << 1) if i.op_sel else 0
        old = e.vector_register(i.dst.index)
        old = e.binary("and", "i32", old, constant("i32", ~(0xFF << shift)))
        byte = e.binary("shl", "i32", byte, constant("i32", shift))
        e.set_vector(replace(i.dst, high=False), "i32", e.binary("or", "i32", old, byte))

    return emit


def _dot(left: str, right: str) -> Handler:
    """Add the products of four pairs of bytes to f32, one after another; products are exact."""

    def emit(e: Registers, i: Instruction) -> None:
        a, b = (e.source(operand) for operand in i.srcs[:2])
        total = e.source(i.srcs[2], "float")
        if i.neg_hi[2]:
            total = e.intrinsic("fabs", "float", total)
        if i.neg_lo[2]:
            total = e.unary("fneg", "float", total)
        for number in range(4):
            x = _from_eight_bits(e, left, _byte_of(e, a, number))
            y = _from_eight_bits(e, right, _byte_of(e, b, number))
            total = e.binary("fadd", "float", total, e.binary("fmul", "float", x, y))
        e.set_result(i, "float", total)

    return emit


def _eight_bit_conversions() -> dict[str, Handler]:
    found: dict[str, Handler] = {
        f"v_dot4_f32_{a}_{b}": _dot(a, b) for a in ("fp8", "bf8") for b in ("fp8", "bf8")
    }
    for kind in ("fp8", "bf8"):
        found[f"v_cvt_f32_{kind}"] = _widened_byte(kind)
        found[f"v_cvt_pk_f32_{kind}"] = _widened_bytes(kind)
        found[f"v_cvt_pk_{kind}_f32"] = _packed_bytes(kind)
        found[f"v_cvt_sr_{kind}_f32"] = _stochastic(kind)
    return found


# -- transcendental functions --------------------------------------------------------------------


def _transcendental(function: str, kind: str) -> Handler:
    """Call a runtime function of f32 lanes, precise to about half a unit in the last place."""

    def emit(e: Registers, i: Instruction) -> None:
        value = e.source(i.srcs[0], kind)
        if kind == "half":
            value = e.convert("fpext", "half", "float", value)
        result = e.by_passes("float", PREFIX + function, (e.vector_of("float"), value))
        if kind == "half":
            result = e.convert("fptrunc", "float", "half", result)
        e.set_result(i, kind, result)

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found = {**_comparisons(), **_conversions(), **_eight_bit_conversions()}
    for name, function in (("exp", "exp2"), ("log", "log2"), ("sin", "sin"), ("cos", "cos")):
        for suffix, kind in (("f16", "half"), ("f32", "float")):
            found[f"v_{name}_{suffix}"] = _transcendental(function, kind)
    return found
