"""Vector moves, selections, shifts and bit fields, translated to LLVM IR.

Source: RDNA3 ISA document, chapters of the VOP1, VOP2 and VOP3 opcodes.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.arithmetic.integer import Function, binary, same, shift
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.text import constant, lanes


def _shift64(operation: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        count = e.convert("zext", "i32", "i64", e.source(i.srcs[0], "i32"))
        e.set_result(i, "i64", shift(e, operation, "i64", e.source(i.srcs[1], "i64"), count))

    return emit


def _field_extract(signed: bool) -> Function:
    def function(e: Registers, v: tuple[str, ...]) -> str:
        right = "ashr" if signed else "lshr"
        five = constant("i32", 31)
        moved = shift(e, right, "i32", v[0], v[1])
        width = e.binary("and", "i32", v[2], five)
        room = e.binary("and", "i32", e.binary("sub", "i32", constant("i32", 32), width), five)
        part = e.binary(right, "i32", e.binary("shl", "i32", moved, room), room)
        empty = e.compare("eq", "i32", width, constant("i32", 0))
        return e.select(empty, "i32", constant("i32", 0), part)

    return function


def _insert(e: Registers, v: tuple[str, ...]) -> str:
    """Select bits of b where a has ones, and of c elsewhere."""
    difference = e.binary("xor", "i32", v[1], v[2])
    return e.binary("xor", "i32", e.binary("and", "i32", difference, v[0]), v[2])


def _align(bits: bool) -> Function:
    def function(e: Registers, v: tuple[str, ...]) -> str:
        if bits:
            count = e.binary("and", "i32", v[2], constant("i32", 31))
        else:
            count = e.binary("and", "i32", v[2], constant("i32", 3))
            count = e.binary("shl", "i32", count, constant("i32", 3))
        return e.intrinsic("fshr", "i32", v[0], v[1], count)

    return function


def _permute_bytes(e: Registers, v: tuple[str, ...]) -> str:
    """Build four bytes selected from the eight of {a, b}, sign fills and constants."""
    both = e.join(v[1], v[0])
    result = constant("i32", 0)
    for byte in range(4):
        selector = e.binary("lshr", "i32", v[2], constant("i32", 8 * byte))
        selector = e.binary("and", "i32", selector, constant("i32", 0xFF))
        wide = e.convert("zext", "i32", "i64", selector)
        amount = e.binary("shl", "i64", e.binary("and", "i64", wide, constant("i64", 7)),
                          constant("i64", 3))  # fmt: skip
        picked = e.convert("trunc", "i64", "i32", e.binary("lshr", "i64", both, amount))
        picked = e.binary("and", "i32", picked, constant("i32", 0xFF))
        # 8..11: the sign of bytes 1, 3, 5, 7; 12: zero; above: all ones.
        sign_at = e.binary("and", "i64", wide, constant("i64", 3))
        sign_at = e.binary("shl", "i64", sign_at, constant("i64", 4))
        sign_at = e.binary("add", "i64", sign_at, constant("i64", 15))
        sign = e.convert("trunc", "i64", "i32", e.binary("lshr", "i64", both, sign_at))
        sign = e.binary("and", "i32", sign, constant("i32", 1))
        fill = e.binary("mul", "i32", sign, constant("i32", 0xFF))
        zero = e.compare("eq", "i32", selector, constant("i32", 12))
        special = e.select(zero, "i32", constant("i32", 0), constant("i32", 0xFF))
        is_sign = e.compare("ult", "i32", selector, constant("i32", 12))
        special = e.select(is_sign, "i32", fill, special)
        plain = e.compare("ult", "i32", selector, constant("i32", 8))
        chosen = e.select(plain, "i32", picked, special)
        moved = e.binary("shl", "i32", chosen, constant("i32", 8 * byte))
        result = e.binary("or", "i32", result, moved)
    return result


def _zeros(intrinsic: str) -> Function:
    """Count zeros from one end; -1 if all bits are zero."""

    def function(e: Registers, v: tuple[str, ...]) -> str:
        kind = e.vector
        name = f"llvm.{intrinsic}.v{e.lanes}i32"
        count = e.call(kind, name, (kind, v[0]), ("i1", "false"))
        empty = e.compare("eq", "i32", v[0], constant("i32", 0))
        return e.select(empty, "i32", constant("i32", -1), count)

    return function


def _sign_bits(e: Registers, v: tuple[str, ...]) -> str:
    sign = e.binary("ashr", "i32", v[0], constant("i32", 31))
    return _zeros("ctlz")(e, (e.binary("xor", "i32", v[0], sign),))


def _mask_count(upper: bool) -> Function:
    """Count the mask bits below each lane, among the first 32 lanes or among those above."""
    first = 32 if upper else 0

    def function(e: Registers, v: tuple[str, ...]) -> str:
        if first >= e.lanes:
            return v[1]
        counted = [min(max(lane - first, 0), 32) for lane in range(e.lanes)]
        bits = e.binary("and", "i32", v[0], lanes([(1 << count) - 1 for count in counted]))
        return e.binary("add", "i32", e.intrinsic("ctpop", "i32", bits), v[1])

    return function


def _field_mask(e: Registers, v: tuple[str, ...]) -> str:
    ones = shift(e, "shl", "i32", constant("i32", 1), v[0])
    ones = e.binary("sub", "i32", ones, constant("i32", 1))
    return shift(e, "shl", "i32", ones, v[1])


def _select(kind: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        mask = e.mask_source(i.srcs[2])
        element = "float" if kind == "i32" else "half"  # the sources have float modifiers
        a, b = e.source(i.srcs[0], element), e.source(i.srcs[1], element)
        chosen = e.select(mask, element, b, a)
        e.set_result(i, kind, e.convert("bitcast", element, kind, chosen))

    return emit


def _move(kind: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        e.set_result(i, kind, e.source(i.srcs[0], kind))

    return emit


def _swap(kind: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        first, second = e.source(i.dst, kind), e.source(i.srcs[0], kind)
        e.set_vector(i.dst, kind, second)
        e.set_vector(i.srcs[0], kind, first)

    return emit


def _inverted(kind: str) -> Function:
    return lambda e, v: e.binary("xor", kind, v[0], constant(kind, -1))


def _reversed_shift(operation: str, kind: str) -> Function:
    """Shift with the count as the first source."""
    return lambda e, v: shift(e, operation, kind, v[1], v[0])


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {}
    for bits in (16, 32):
        kind = f"i{bits}"
        for name in ("and", "or", "xor"):
            found[f"v_{name}_b{bits}"] = binary(kind, name)
        found[f"v_not_b{bits}"] = same(kind, 1, _inverted(kind))
        found[f"v_mov_b{bits}"] = _move(kind)
        found[f"v_swap_b{bits}"] = _swap(kind)
        found[f"v_cndmask_b{bits}"] = _select(kind)
        for name, operation in (
            (f"v_lshlrev_b{bits}", "shl"), (f"v_lshrrev_b{bits}", "lshr"),
            (f"v_ashrrev_i{bits}", "ashr"),
        ):  # fmt: skip
            found[name] = same(kind, 2, _reversed_shift(operation, kind))
    found["v_xnor_b32"] = same(
        "i32", 2,
        lambda e, v: e.binary("xor", "i32", e.binary("xor", "i32", *v), constant("i32", -1)),
    )  # fmt: skip
    found["v_lshlrev_b64"] = _shift64("shl")
    found["v_lshrrev_b64"] = _shift64("lshr")
    found["v_ashrrev_i64"] = _shift64("ashr")
    found["v_bfe_u32"] = same("i32", 3, _field_extract(False))
    found["v_bfe_i32"] = same("i32", 3, _field_extract(True))
    found["v_bfi_b32"] = same("i32", 3, _insert)
    found["v_bfm_b32"] = same("i32", 2, _field_mask)
    found["v_alignbit_b32"] = same("i32", 3, _align(True))
    found["v_alignbyte_b32"] = same("i32", 3, _align(False))
    found["v_perm_b32"] = same("i32", 3, _permute_bytes)
    found["v_bfrev_b32"] = same("i32", 1, lambda e, v: e.intrinsic("bitreverse", "i32", v[0]))
    found["v_clz_i32_u32"] = same("i32", 1, _zeros("ctlz"))
    found["v_ctz_i32_b32"] = same("i32", 1, _zeros("cttz"))
    found["v_cls_i32"] = same("i32", 1, _sign_bits)
    found["v_bcnt_u32_b32"] = same(
        "i32", 2, lambda e, v: e.binary("add", "i32", e.intrinsic("ctpop", "i32", v[0]), v[1])
    )
    found["v_mbcnt_lo_u32_b32"] = same("i32", 2, _mask_count(False))
    found["v_mbcnt_hi_u32_b32"] = same("i32", 2, _mask_count(True))
    return found
