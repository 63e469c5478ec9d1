"""Vector integer arithmetic of 16, 32 and 64 bits, translated to LLVM IR.

Source: RDNA3 ISA document, chapters of the VOP1, VOP2 and VOP3 opcodes.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader.text import ELEMENT_BITS, constant

Function = Callable[[Registers, tuple[str, ...]], str]


def lanewise(sources: tuple[str, ...], result: str, function: Function) -> Handler:
    """Create an emitter from a function of the sources' values, each read as its element type."""

    def emit(e: Registers, i: Instruction) -> None:
        if i.clamp:
            raise Unsupported(f"{i.name} with clamp")
        values = tuple(
            e.source(operand, kind) for operand, kind in zip(i.srcs, sources, strict=False)
        )
        e.set_result(i, result, function(e, values))

    return emit


def same(kind: str, count: int, function: Function) -> Handler:
    return lanewise((kind,) * count, kind, function)


def binary(kind: str, operation: str, swapped: bool = False) -> Handler:
    """Create a handler for an LLVM operation on two sources. swapped: exchange the sources."""
    order = (1, 0) if swapped else (0, 1)
    return same(kind, 2, lambda e, v: e.binary(operation, kind, v[order[0]], v[order[1]]))


def _adding(kind: str, operation: str, signed: bool, swapped: bool = False) -> Handler:
    """Add or subtract, saturating when CLAMP is set."""

    def emit(e: Registers, i: Instruction) -> None:
        a, b = e.source(i.srcs[0], kind), e.source(i.srcs[1], kind)
        if swapped:
            a, b = b, a
        if i.clamp:
            result = e.intrinsic(f"{'s' if signed else 'u'}{operation}.sat", kind, a, b)
        else:
            result = e.binary(operation, kind, a, b)
        e.set_result(i, kind, result)

    return emit


def shift(e: Registers, operation: str, kind: str, value: str, count: str) -> str:
    """Shift by the low bits of `count`, which is of the same element type."""
    low = e.binary("and", kind, count, constant(kind, ELEMENT_BITS[kind] - 1))
    return e.binary(operation, kind, value, low)


def choose(e: Registers, name: str, kind: str, *values: str) -> str:
    """Fold values by llvm.smin, smax, umin or umax."""
    result = values[0]
    for value in values[1:]:
        result = e.intrinsic(name, kind, result, value)
    return result


def _extreme(name: str, kind: str) -> Function:
    return lambda e, v: choose(e, name, kind, *v)


def _one_then_other(first: str, second: str, kind: str) -> Function:
    """Combine two operations, as in v_maxmin: min(max(a, b), c)."""
    return lambda e, v: e.intrinsic(second, kind, e.intrinsic(first, kind, v[0], v[1]), v[2])


def _median(prefix: str, kind: str) -> Function:
    def function(e: Registers, v: tuple[str, ...]) -> str:
        low = e.intrinsic(prefix + "min", kind, *v[:2])
        high = e.intrinsic(prefix + "max", kind, *v[:2])
        return e.intrinsic(prefix + "max", kind, low, e.intrinsic(prefix + "min", kind, high, v[2]))

    return function


def _low24(e: Registers, value: str, signed: bool) -> str:
    if not signed:
        return e.binary("and", "i32", value, constant("i32", 0xFFFFFF))
    up = e.binary("shl", "i32", value, constant("i32", 8))
    return e.binary("ashr", "i32", up, constant("i32", 8))


def _wide_product(e: Registers, a: str, b: str, signed: bool) -> str:
    extension = "sext" if signed else "zext"
    wide_a = e.convert(extension, "i32", "i64", a)
    return e.binary("mul", "i64", wide_a, e.convert(extension, "i32", "i64", b))


def _high_product(signed: bool, bits24: bool = False) -> Function:
    def function(e: Registers, v: tuple[str, ...]) -> str:
        a, b = (_low24(e, v[0], signed), _low24(e, v[1], signed)) if bits24 else v[:2]
        return e.split(_wide_product(e, a, b, signed))[1]

    return function


def _product24(signed: bool) -> Function:
    def function(e: Registers, v: tuple[str, ...]) -> str:
        product = e.binary("mul", "i32", _low24(e, v[0], signed), _low24(e, v[1], signed))
        return product if len(v) == 2 else e.binary("add", "i32", product, v[2])

    return function


def _multiply_add24(signed: bool) -> Handler:
    """Compute a * b + c with factors of 24 bits; saturating if CLAMP is set."""
    plain = same("i32", 3, _product24(signed))
    extension, prefix = ("sext", "s") if signed else ("zext", "u")
    low, high = (-1 << 31, (1 << 31) - 1) if signed else (0, (1 << 32) - 1)

    def emit(e: Registers, i: Instruction) -> None:
        if not i.clamp:
            plain(e, i)
            return
        a, b, c = (e.source(operand) for operand in i.srcs)
        wide = [e.convert(extension, "i32", "i64", value)
                for value in (_low24(e, a, signed), _low24(e, b, signed), c)]  # fmt: skip
        total = e.binary("add", "i64", e.binary("mul", "i64", wide[0], wide[1]), wide[2])
        if signed:
            total = e.intrinsic("smax", "i64", total, constant("i64", low))
        total = e.intrinsic(f"{prefix}min", "i64", total, constant("i64", high))
        e.set_result(i, "i32", e.convert("trunc", "i64", "i32", total))

    return emit


def _then(kind: str, first: str, second: str) -> Handler:
    """Perform two operations in sequence: second(first(a, b), c)."""

    def operate(e: Registers, operation: str, a: str, b: str) -> str:
        if operation in ("shl", "lshr"):
            return shift(e, operation, kind, a, b)
        return e.binary(operation, kind, a, b)

    return same(kind, 3, lambda e, v: operate(e, second, operate(e, first, v[0], v[1]), v[2]))


def _byte(e: Registers, value: str, number: int) -> str:
    moved = e.binary("lshr", "i32", value, constant("i32", 8 * number))
    return e.binary("and", "i32", moved, constant("i32", 0xFF))


def _difference(e: Registers, a: str, b: str) -> str:
    """Return |a - b| of unsigned values."""
    high, low = e.intrinsic("umax", "i32", a, b), e.intrinsic("umin", "i32", a, b)
    return e.binary("sub", "i32", high, low)


def _sad_bytes(shift_by: int, masked: bool = False) -> Function:
    def function(e: Registers, v: tuple[str, ...]) -> str:
        total = constant("i32", 0)
        for number in range(4):
            b = _byte(e, v[1], number)
            part = _difference(e, _byte(e, v[0], number), b)
            if masked:
                zero = e.compare("eq", "i32", b, constant("i32", 0))
                part = e.select(zero, "i32", constant("i32", 0), part)
            total = e.binary("add", "i32", total, part)
        if shift_by:
            total = e.binary("shl", "i32", total, constant("i32", shift_by))
        return e.binary("add", "i32", total, v[2])

    return function


def _sad_words(e: Registers, v: tuple[str, ...]) -> str:
    sixteen, mask = constant("i32", 16), constant("i32", 0xFFFF)
    low = _difference(e, e.binary("and", "i32", v[0], mask), e.binary("and", "i32", v[1], mask))
    high = _difference(
        e, e.binary("lshr", "i32", v[0], sixteen), e.binary("lshr", "i32", v[1], sixteen)
    )
    return e.binary("add", "i32", e.binary("add", "i32", low, high), v[2])


def _lerp(e: Registers, v: tuple[str, ...]) -> str:
    """Average bytes, rounding up where the third source's byte has bit 0 set."""
    result = constant("i32", 0)
    for number in range(4):
        total = e.binary("add", "i32", _byte(e, v[0], number), _byte(e, v[1], number))
        up = e.binary("and", "i32", _byte(e, v[2], number), constant("i32", 1))
        total = e.binary("lshr", "i32", e.binary("add", "i32", total, up), constant("i32", 1))
        moved = e.binary("shl", "i32", total, constant("i32", 8 * number))
        result = e.binary("or", "i32", result, moved)
    return result


def _multiply_add64(signed: bool) -> Handler:
    """Compute the 64-bit d = a * b + c; sdst gets bit 64 of the sum (signed: of the 65-bit sum)."""

    def emit(e: Registers, i: Instruction) -> None:
        a, b, c = e.source(i.srcs[0]), e.source(i.srcs[1]), e.source(i.srcs[2], "i64")
        total = e.binary("add", "i64", _wide_product(e, a, b, signed), c)
        if signed:
            # If the operands have the same sign but the result has not, bit 64 is not its sign.
            product = _wide_product(e, a, b, True)
            flips = e.binary(
                "and", "i64", e.binary("xor", "i64", total, product),
                e.binary("xor", "i64", total, c),
            )  # fmt: skip
            sign = e.binary("xor", "i64", total, flips)
            carry = e.compare("slt", "i64", sign, constant("i64", 0))
        else:
            carry = e.compare("ult", "i64", total, c)
        if i.sdst is not None:
            e.set_mask(i.sdst, carry)
        e.set_result(i, "i64", total)

    return emit


def _carrying(operation: str, swapped: bool, takes_carry: bool) -> Handler:
    """Add or subtract with carry-out to sdst, and carry-in from the last source."""

    def emit(e: Registers, i: Instruction) -> None:
        a, b = e.source(i.srcs[0]), e.source(i.srcs[1])
        if swapped:
            a, b = b, a
        carry_in = e.mask_source(i.srcs[2]) if takes_carry else None
        result = e.binary(operation, "i32", a, b)
        first, second = (result, a) if operation == "add" else (a, b)
        carry = e.compare("ult", "i32", first, second)
        if carry_in is not None:
            before = result
            result = e.binary(operation, "i32", before, e.convert("zext", "i1", "i32", carry_in))
            first, second = (result, before) if operation == "add" else (before, result)
            again = e.compare("ult", "i32", first, second)
            carry = e.binary("or", "i1", carry, again)
        if i.clamp:
            limit = constant("i32", -1 if operation == "add" else 0)
            result = e.select(carry, "i32", limit, result)
        if i.sdst is not None:
            e.set_mask(i.sdst, carry)
        e.set_result(i, "i32", result)

    return emit


def _extended(source: str, extension: str) -> Handler:
    return lanewise((source,), "i32", lambda e, v: e.convert(extension, source, "i32", v[0]))


def _multiply_add(kind: str, source: str, extension: str) -> Handler:
    """Compute d = a * b + c with the factors extended to d's width; saturating if CLAMP is set."""
    bits = int(kind[1:])
    wide = f"i{2 * bits}"
    signed = extension == "sext"
    low, high = (-1 << bits - 1, (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def emit(e: Registers, i: Instruction) -> None:
        a, b, c = (e.source(*given) for given in zip(i.srcs, (source, source, kind), strict=True))
        if not i.clamp:
            a, b = e.convert(extension, source, kind, a), e.convert(extension, source, kind, b)
            e.set_result(i, kind, e.binary("add", kind, e.binary("mul", kind, a, b), c))
            return
        a, b = e.convert(extension, source, wide, a), e.convert(extension, source, wide, b)
        total = e.binary("mul", wide, a, b)  # even with c added, it fits in twice the bits
        total = e.binary("add", wide, total, e.convert(extension, kind, wide, c))
        if signed:
            total = e.intrinsic("smax", wide, total, constant(wide, low))
        total = e.intrinsic("smin" if signed else "umin", wide, total, constant(wide, high))
        e.set_result(i, kind, e.convert("trunc", wide, kind, total))

    return emit


def _saturated_pack(signed: bool) -> Function:
    """Pack two 32-bit integers into 16-bit halves, saturating."""

    def function(e: Registers, v: tuple[str, ...]) -> str:
        halves = []
        for value in v[:2]:
            if signed:
                value = e.intrinsic("smax", "i32", value, constant("i32", -32768))
                value = e.intrinsic("smin", "i32", value, constant("i32", 32767))
            else:
                value = e.intrinsic("umin", "i32", value, constant("i32", 65535))
            halves.append(value)
        return pack_halves(e, *halves)

    return function


def pack_halves(e: Registers, low: str, high: str) -> str:
    """Join the low 16 bits of two <32 x i32>."""
    low = e.binary("and", "i32", low, constant("i32", 0xFFFF))
    return e.binary("or", "i32", low, e.binary("shl", "i32", high, constant("i32", 16)))


def _saturated_bytes(e: Registers, v: tuple[str, ...]) -> str:
    """Pack the two signed halves of a register into unsigned bytes, saturating."""
    shifted = e.binary("shl", "i32", v[0], constant("i32", 16))
    parts = [e.binary("ashr", "i32", value, constant("i32", 16)) for value in (shifted, v[0])]
    parts = [e.intrinsic("smax", "i32", part, constant("i32", 0)) for part in parts]
    low, high = (e.intrinsic("smin", "i32", part, constant("i32", 255)) for part in parts)
    both = e.binary("or", "i32", low, e.binary("shl", "i32", high, constant("i32", 8)))
    return e.convert("trunc", "i32", "i16", both)


def _arithmetic() -> dict[str, Handler]:
    found: dict[str, Handler] = {}
    for name, operation in (("add", "add"), ("sub", "sub")):
        found[f"v_{name}_nc_u32"] = _adding("i32", operation, False)
        found[f"v_{name}_nc_i32"] = _adding("i32", operation, True)
        found[f"v_{name}_nc_u16"] = _adding("i16", operation, False)
        found[f"v_{name}_nc_i16"] = _adding("i16", operation, True)
        found[f"v_{name}_co_u32"] = _carrying(operation, False, False)
        found[f"v_{name}_co_ci_u32"] = _carrying(operation, False, True)
    found["v_subrev_nc_u32"] = _adding("i32", "sub", False, swapped=True)
    found["v_subrev_co_u32"] = _carrying("sub", True, False)
    found["v_subrev_co_ci_u32"] = _carrying("sub", True, True)
    found["v_mul_lo_u32"] = binary("i32", "mul")
    found["v_mul_lo_u16"] = binary("i16", "mul")
    found["v_mul_hi_u32"] = same("i32", 2, _high_product(False))
    found["v_mul_hi_i32"] = same("i32", 2, _high_product(True))
    for letter, signed in (("u", False), ("i", True)):
        ty = f"{letter}32_{letter}24"
        found[f"v_mul_{ty}"] = same("i32", 2, _product24(signed))
        found[f"v_mul_hi_{ty}"] = same("i32", 2, _high_product(signed, True))
        found[f"v_mad_{ty}"] = _multiply_add24(signed)
        extension = "sext" if signed else "zext"
        found[f"v_mad_{letter}32_{letter}16"] = _multiply_add("i32", "i16", extension)
        found[f"v_mad_{letter}16"] = _multiply_add("i16", "i16", extension)
    found["v_mad_u64_u32"] = _multiply_add64(False)
    found["v_mad_i64_i32"] = _multiply_add64(True)
    found["v_add3_u32"] = _then("i32", "add", "add")
    found["v_lshl_add_u32"] = _then("i32", "shl", "add")
    found["v_add_lshl_u32"] = _then("i32", "add", "shl")
    found["v_lshl_or_b32"] = _then("i32", "shl", "or")
    found["v_and_or_b32"] = _then("i32", "and", "or")
    found["v_or3_b32"] = _then("i32", "or", "or")
    found["v_xor3_b32"] = _then("i32", "xor", "xor")
    found["v_xad_u32"] = _then("i32", "xor", "add")
    found["v_sad_u8"] = same("i32", 3, _sad_bytes(0))
    found["v_sad_hi_u8"] = same("i32", 3, _sad_bytes(16))
    found["v_msad_u8"] = same("i32", 3, _sad_bytes(0, masked=True))
    found["v_sad_u16"] = same("i32", 3, _sad_words)
    found["v_sad_u32"] = same(
        "i32", 3, lambda e, v: e.binary("add", "i32", _difference(e, v[0], v[1]), v[2])
    )
    found["v_lerp_u8"] = same("i32", 3, _lerp)
    return found


def _ordering() -> dict[str, Handler]:
    found: dict[str, Handler] = {}
    for letter, prefix in (("i", "s"), ("u", "u")):
        for bits in (16, 32):
            kind, ty = f"i{bits}", f"{letter}{bits}"
            for name in ("min", "max"):
                found[f"v_{name}_{ty}"] = same(kind, 2, _extreme(prefix + name, kind))
                found[f"v_{name}3_{ty}"] = same(kind, 3, _extreme(prefix + name, kind))
            found[f"v_med3_{ty}"] = same(kind, 3, _median(prefix, kind))
            for first, second in (("min", "max"), ("max", "min")):
                both = _one_then_other(prefix + first, prefix + second, kind)
                found[f"v_{first}{second}_{ty}"] = same(kind, 3, both)
    return found


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found = {**_arithmetic(), **_ordering()}
    found["v_cvt_i32_i16"] = _extended("i16", "sext")
    found["v_cvt_u32_u16"] = _extended("i16", "zext")
    found["v_cvt_pk_u16_u32"] = same("i32", 2, _saturated_pack(False))
    found["v_cvt_pk_i16_i32"] = same("i32", 2, _saturated_pack(True))
    found["v_sat_pk_u8_i16"] = lanewise(("i32",), "i16", _saturated_bytes)
    return found
