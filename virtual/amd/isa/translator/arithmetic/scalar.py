"""Scalar ALU: SOP1, SOP2, SOPK and SOPC, translated to LLVM IR.

Source: RDNA3 ISA document, chapters of the SOP1, SOP2, SOPK and SOPC opcodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported

Handler = Callable[[Registers, Instruction], None]
HANDLERS: dict[str, Handler] = {}  # filled by the _define functions, once


def _read(e: Registers, operand: Operand, bits: int) -> str:
    return e.scalar64(operand) if bits == 64 else e.scalar(operand)


def _write(e: Registers, i: Instruction, bits: int, value: str) -> None:
    assert i.dst is not None
    if bits == 64:
        e.set_scalar64(i.dst, value)
    else:
        e.set_scalar(i.dst, value)


def _set_scc_nonzero(e: Registers, bits: int, value: str) -> None:
    e.set_scc(e.value(f"icmp ne i{bits} {value}, 0"))


def _logic(e: Registers, operation: str, bits: int, a: str, b: str) -> str:
    """Combine two integers by a bitwise operation, given by its name in the ISA."""
    ty = f"i{bits}"
    if operation in ("and_not1", "or_not1"):
        b = e.value(f"xor {ty} {b}, -1")
    elif operation in ("and_not0", "or_not0"):
        a = e.value(f"xor {ty} {a}, -1")
    plain = {"nand": "and", "nor": "or", "xnor": "xor"}.get(operation, operation.split("_")[0])
    result = e.value(f"{plain} {ty} {a}, {b}")
    if operation in ("nand", "nor", "xnor"):
        result = e.value(f"xor {ty} {result}, -1")
    return result


def _define_logic() -> None:
    def binary(operation: str, bits: int) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            a, b = _read(e, i.srcs[0], bits), _read(e, i.srcs[1], bits)
            result = _logic(e, operation, bits, a, b)
            _write(e, i, bits, result)
            _set_scc_nonzero(e, bits, result)

        return emit

    def saveexec(operation: str, bits: int, write_result: bool) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            if bits == 64 and not e.wide:
                raise Unsupported("a wave of 32 lanes has only 32 bits of EXEC")
            source = _read(e, i.srcs[0], bits)
            old = e.exec() if bits == 64 or not e.wide else e.exec_low()
            result = _logic(e, operation, bits, source, old)
            halves = e.halves(result) if bits == 64 else (result,)
            for number, half in enumerate(halves, layout.SGPR_EXEC):
                e.set_scalar_register(number, half)
            _write(e, i, bits, result if write_result else old)
            _set_scc_nonzero(e, bits, result)

        return emit

    names = ("and", "or", "xor", "nand", "nor", "xnor", "and_not1", "or_not1")
    for name in names:
        for bits in (32, 64):
            HANDLERS[f"s_{name}_b{bits}"] = binary(name, bits)
    for name in (*names, "and_not0", "or_not0"):
        for bits in (32, 64):
            HANDLERS[f"s_{name}_saveexec_b{bits}"] = saveexec(name, bits, False)
            HANDLERS[f"s_{name}_wrexec_b{bits}"] = saveexec(name, bits, True)


def _overflowing(e: Registers, intrinsic: str, a: str, b: str) -> tuple[str, str]:
    both = e.call("{i32, i1}", f"llvm.{intrinsic}.with.overflow.i32", ("i32", a), ("i32", b))
    result = e.value(f"extractvalue {{i32, i1}} {both}, 0")
    return result, e.value(f"extractvalue {{i32, i1}} {both}, 1")


def _define_arithmetic() -> None:
    def plain(intrinsic: str) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            a, b = e.scalar(i.srcs[0]), e.scalar(i.srcs[1])
            result, overflow = _overflowing(e, intrinsic, a, b)
            _write(e, i, 32, result)
            e.set_scc(overflow)

        return emit

    def with_carry(intrinsic: str) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            a, b = e.scalar(i.srcs[0]), e.scalar(i.srcs[1])
            carry = e.value(f"zext i1 {e.scc()} to i32")
            first, carry_first = _overflowing(e, intrinsic, a, b)
            result, carry_second = _overflowing(e, intrinsic, first, carry)
            _write(e, i, 32, result)
            e.set_scc(e.value(f"or i1 {carry_first}, {carry_second}"))

        return emit

    for name, intrinsic in (
        ("s_add_u32", "uadd"), ("s_sub_u32", "usub"), ("s_add_i32", "sadd"), ("s_sub_i32", "ssub"),
    ):  # fmt: skip
        HANDLERS[name] = plain(intrinsic)
    HANDLERS["s_addc_u32"] = with_carry("uadd")
    HANDLERS["s_subb_u32"] = with_carry("usub")

    def minmax(predicate: str) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            a, b = e.scalar(i.srcs[0]), e.scalar(i.srcs[1])
            condition = e.value(f"icmp {predicate} i32 {a}, {b}")
            _write(e, i, 32, e.value(f"select i1 {condition}, i32 {a}, i32 {b}"))
            e.set_scc(condition)

        return emit

    # SCC shows whether the first source was chosen; if they are equal, max chooses the first.
    HANDLERS["s_min_i32"] = minmax("slt")
    HANDLERS["s_min_u32"] = minmax("ult")
    HANDLERS["s_max_i32"] = minmax("sge")
    HANDLERS["s_max_u32"] = minmax("uge")


def _define_shifts() -> None:
    def shift(operation: str, bits: int) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            a, count = _read(e, i.srcs[0], bits), e.scalar(i.srcs[1])
            count = e.value(f"and i32 {count}, {bits - 1}")
            if bits == 64:
                count = e.value(f"zext i32 {count} to i64")
            result = e.value(f"{operation} i{bits} {a}, {count}")
            _write(e, i, bits, result)
            _set_scc_nonzero(e, bits, result)

        return emit

    for bits in (32, 64):
        HANDLERS[f"s_lshl_b{bits}"] = shift("shl", bits)
        HANDLERS[f"s_lshr_b{bits}"] = shift("lshr", bits)
        HANDLERS[f"s_ashr_i{bits}"] = shift("ashr", bits)

    def shift_add(count: int) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            a, b = e.scalar(i.srcs[0]), e.scalar(i.srcs[1])
            wide_a = e.value(f"zext i32 {a} to i64")
            wide_b = e.value(f"zext i32 {b} to i64")
            total = e.value(f"shl i64 {wide_a}, {count}")
            total = e.value(f"add i64 {total}, {wide_b}")
            _write(e, i, 32, e.value(f"trunc i64 {total} to i32"))
            e.set_scc(e.value(f"icmp ugt i64 {total}, 4294967295"))

        return emit

    for count in range(1, 5):
        HANDLERS[f"s_lshl{count}_add_u32"] = shift_add(count)

    def field_extract(signed: bool, bits: int) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            ty = f"i{bits}"
            a, control = _read(e, i.srcs[0], bits), e.scalar(i.srcs[1])
            offset = e.value(f"and i32 {control}, {bits - 1}")
            width = e.value(f"lshr i32 {control}, 16")
            width = e.value(f"and i32 {width}, 127")
            if bits == 64:
                offset = e.value(f"zext i32 {offset} to i64")
                width = e.value(f"zext i32 {width} to i64")
            shifted = e.value(f"{'ashr' if signed else 'lshr'} {ty} {a}, {offset}")
            whole = e.value(f"icmp uge {ty} {width}, {bits}")
            room = e.value(f"sub {ty} {bits}, {width}")
            room = e.value(f"and {ty} {room}, {bits - 1}")
            left = e.value(f"shl {ty} {shifted}, {room}")
            part = e.value(f"{'ashr' if signed else 'lshr'} {ty} {left}, {room}")
            part = e.value(f"select i1 {whole}, {ty} {shifted}, {ty} {part}")
            empty = e.value(f"icmp eq {ty} {width}, 0")
            result = e.value(f"select i1 {empty}, {ty} 0, {ty} {part}")
            _write(e, i, bits, result)
            _set_scc_nonzero(e, bits, result)

        return emit

    for bits in (32, 64):
        HANDLERS[f"s_bfe_u{bits}"] = field_extract(False, bits)
        HANDLERS[f"s_bfe_i{bits}"] = field_extract(True, bits)

    def field_mask(bits: int) -> Handler:
        def emit(e: Registers, i: Instruction) -> None:
            width = e.value(f"and i32 {e.scalar(i.srcs[0])}, {bits - 1}")
            offset = e.value(f"and i32 {e.scalar(i.srcs[1])}, {bits - 1}")
            if bits == 64:
                width = e.value(f"zext i32 {width} to i64")
                offset = e.value(f"zext i32 {offset} to i64")
            ones = e.value(f"shl i{bits} 1, {width}")
            ones = e.value(f"sub i{bits} {ones}, 1")
            _write(e, i, bits, e.value(f"shl i{bits} {ones}, {offset}"))

        return emit

    for bits in (32, 64):
        HANDLERS[f"s_bfm_b{bits}"] = field_mask(bits)


def _multiply(e: Registers, i: Instruction) -> None:
    _write(e, i, 32, e.value(f"mul i32 {e.scalar(i.srcs[0])}, {e.scalar(i.srcs[1])}"))


def _multiply_high(extension: str) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        a = e.value(f"{extension} i32 {e.scalar(i.srcs[0])} to i64")
        b = e.value(f"{extension} i32 {e.scalar(i.srcs[1])} to i64")
        product = e.value(f"mul i64 {a}, {b}")
        _write(e, i, 32, e.halves(product)[1])

    return emit


def _select(bits: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        a, b = _read(e, i.srcs[0], bits), _read(e, i.srcs[1], bits)
        _write(e, i, bits, e.value(f"select i1 {e.scc()}, i{bits} {a}, i{bits} {b}"))

    return emit


def _absolute_difference(e: Registers, i: Instruction) -> None:
    difference = e.value(f"sub i32 {e.scalar(i.srcs[0])}, {e.scalar(i.srcs[1])}")
    result = e.call("i32", "llvm.abs.i32", ("i32", difference), ("i1", "false"))
    _write(e, i, 32, result)
    _set_scc_nonzero(e, 32, result)


def _pack(high_of_first: bool, high_of_second: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        a, b = e.scalar(i.srcs[0]), e.scalar(i.srcs[1])
        low = e.value(f"lshr i32 {a}, 16") if high_of_first else e.value(f"and i32 {a}, 65535")
        high = e.value(f"and i32 {b}, -65536") if high_of_second else e.value(f"shl i32 {b}, 16")
        _write(e, i, 32, e.value(f"or i32 {low}, {high}"))

    return emit


def _move(bits: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        _write(e, i, bits, _read(e, i.srcs[0], bits))

    return emit


def _conditional_move(bits: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        new, old = _read(e, i.srcs[0], bits), _read(e, i.dst, bits)
        _write(e, i, bits, e.value(f"select i1 {e.scc()}, i{bits} {new}, i{bits} {old}"))

    return emit


def _unary(
    bits: int, function: Callable[[Registers, str], str], result_bits: int, scc: bool
) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        result = function(e, _read(e, i.srcs[0], bits))
        _write(e, i, result_bits, result)
        if scc:
            _set_scc_nonzero(e, result_bits, result)

    return emit


def _count(intrinsic: str, bits: int) -> Callable[[Registers, str], str]:
    """Count leading or trailing zeros; -1 for zero."""

    def function(e: Registers, a: str) -> str:
        ty = f"i{bits}"
        count = e.call(ty, f"llvm.{intrinsic}.{ty}", (ty, a), ("i1", "false"))
        if bits == 64:
            count = e.value(f"trunc i64 {count} to i32")
        zero = e.value(f"icmp eq {ty} {a}, 0")
        return e.value(f"select i1 {zero}, i32 -1, i32 {count}")

    return function


def _count_sign(bits: int) -> Callable[[Registers, str], str]:
    """Count leading bits equal to the sign, less the sign; -1 when all are equal."""

    def function(e: Registers, a: str) -> str:
        ty = f"i{bits}"
        sign = e.value(f"ashr {ty} {a}, {bits - 1}")
        return _count("ctlz", bits)(e, e.value(f"xor {ty} {a}, {sign}"))

    return function


def _population(bits: int, ones: bool) -> Callable[[Registers, str], str]:
    def function(e: Registers, a: str) -> str:
        ty = f"i{bits}"
        if not ones:
            a = e.value(f"xor {ty} {a}, -1")
        count = e.call(ty, f"llvm.ctpop.{ty}", (ty, a))
        return count if bits == 32 else e.value(f"trunc i64 {count} to i32")

    return function


def _inverted(ty: str) -> Callable[[Registers, str], str]:
    return lambda e, a: e.value(f"xor {ty} {a}, -1")


def _reversed_bits(ty: str) -> Callable[[Registers, str], str]:
    return lambda e, a: e.call(ty, f"llvm.bitreverse.{ty}", (ty, a))


def _sign_extended(ty: str) -> Callable[[Registers, str], str]:
    return lambda e, a: e.value(f"sext {ty} {e.value(f'trunc i32 {a} to {ty}')} to i32")


def _quads(bits: int, whole: bool) -> Callable[[Registers, str], str]:
    """Mark groups of four bits that have a bit set: one bit per group, or with `whole` all four."""

    def function(e: Registers, a: str) -> str:
        ty = f"i{bits}"
        for shift in (1, 2):
            a = e.value(f"or {ty} {a}, {e.value(f'lshr {ty} {a}, {shift}')}")
        a = e.value(f"and {ty} {a}, {int('1' * (bits // 4), 16)}")
        if whole:
            return e.value(f"mul {ty} {a}, 15")
        ones, apart = 1, 4  # length of the runs of bits, and distance between them
        while ones < bits // 4:
            a = e.value(f"or {ty} {a}, {e.value(f'lshr {ty} {a}, {apart - ones}')}")
            ones, apart = 2 * ones, 2 * apart
            kept = sum(((1 << ones) - 1) << at for at in range(0, bits, apart))
            a = e.value(f"and {ty} {a}, {kept}")
        return a

    return function


def _define_unary() -> None:
    for bits in (32, 64):
        ty = f"i{bits}"
        HANDLERS[f"s_quadmask_b{bits}"] = _unary(bits, _quads(bits, False), bits, True)
        HANDLERS[f"s_wqm_b{bits}"] = _unary(bits, _quads(bits, True), bits, True)
        HANDLERS[f"s_mov_b{bits}"] = _move(bits)
        HANDLERS[f"s_cmov_b{bits}"] = _conditional_move(bits)
        HANDLERS[f"s_cselect_b{bits}"] = _select(bits)
        HANDLERS[f"s_not_b{bits}"] = _unary(bits, _inverted(ty), bits, True)
        HANDLERS[f"s_brev_b{bits}"] = _unary(bits, _reversed_bits(ty), bits, False)
        HANDLERS[f"s_ctz_i32_b{bits}"] = _unary(bits, _count("cttz", bits), 32, False)
        HANDLERS[f"s_clz_i32_u{bits}"] = _unary(bits, _count("ctlz", bits), 32, False)
        HANDLERS["s_cls_i32" if bits == 32 else "s_cls_i32_i64"] = _unary(
            bits, _count_sign(bits), 32, False
        )
        HANDLERS[f"s_bcnt0_i32_b{bits}"] = _unary(bits, _population(bits, False), 32, True)
        HANDLERS[f"s_bcnt1_i32_b{bits}"] = _unary(bits, _population(bits, True), 32, True)
    for name, ty in (("s_sext_i32_i8", "i8"), ("s_sext_i32_i16", "i16")):
        HANDLERS[name] = _unary(32, _sign_extended(ty), 32, False)
    HANDLERS["s_abs_i32"] = _unary(
        32, lambda e, a: e.call("i32", "llvm.abs.i32", ("i32", a), ("i1", "false")), 32, True
    )


def _set_bit(bits: int, value: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        old = _read(e, i.dst, bits)
        position = e.value(f"and i32 {e.scalar(i.srcs[0])}, {bits - 1}")
        if bits == 64:
            position = e.value(f"zext i32 {position} to i64")
        bit = e.value(f"shl i{bits} 1, {position}")
        if value:
            result = e.value(f"or i{bits} {old}, {bit}")
        else:
            inverse = e.value(f"xor i{bits} {bit}, -1")
            result = e.value(f"and i{bits} {old}, {inverse}")
        _write(e, i, bits, result)

    return emit


_PREDICATES = {
    "eq_i32": "eq", "lg_i32": "ne", "gt_i32": "sgt", "ge_i32": "sge", "lt_i32": "slt",
    "le_i32": "sle", "eq_u32": "eq", "lg_u32": "ne", "gt_u32": "ugt", "ge_u32": "uge",
    "lt_u32": "ult", "le_u32": "ule",
}  # fmt: skip


def _compare(predicate: str, bits: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        a, b = _read(e, i.srcs[0], bits), _read(e, i.srcs[1], bits)
        e.set_scc(e.value(f"icmp {predicate} i{bits} {a}, {b}"))

    return emit


def _test_bit(bits: int, wanted: int) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        a = _read(e, i.srcs[0], bits)
        position = e.value(f"and i32 {e.scalar(i.srcs[1])}, {bits - 1}")
        if bits == 64:
            position = e.value(f"zext i32 {position} to i64")
        bit = e.value(f"trunc i{bits} {e.value(f'lshr i{bits} {a}, {position}')} to i1")
        e.set_scc(bit if wanted else e.value(f"xor i1 {bit}, true"))

    return emit


def _compare_immediate(predicate: str, signed: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.srcs or i.dst
        register = i.srcs[0] if i.srcs else i.dst
        assert register is not None
        immediate = i.simm16_signed if signed else i.simm16
        e.set_scc(e.value(f"icmp {predicate} i32 {e.scalar(register)}, {immediate}"))

    return emit


def _add_immediate(e: Registers, i: Instruction) -> None:
    assert i.dst is not None
    result, overflow = _overflowing(e, "sadd", e.scalar(i.dst), str(i.simm16_signed))
    _write(e, i, 32, result)
    e.set_scc(overflow)


def _multiply_immediate(e: Registers, i: Instruction) -> None:
    assert i.dst is not None
    _write(e, i, 32, e.value(f"mul i32 {e.scalar(i.dst)}, {i.simm16_signed}"))


def _move_immediate(e: Registers, i: Instruction) -> None:
    _write(e, i, 32, str(i.simm16_signed))


def _conditional_move_immediate(e: Registers, i: Instruction) -> None:
    assert i.dst is not None
    old = e.scalar(i.dst)
    _write(e, i, 32, e.value(f"select i1 {e.scc()}, i32 {i.simm16_signed}, i32 {old}"))


def _replicate_bits(e: Registers, i: Instruction) -> None:
    """Double every bit of a 32-bit value."""
    value = e.value(f"zext i32 {e.scalar(i.srcs[0])} to i64")
    for shift, keep in (
        (16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F),
        (2, 0x3333333333333333), (1, 0x5555555555555555),
    ):  # fmt: skip
        moved = e.value(f"shl i64 {value}, {shift}")
        value = e.value(f"or i64 {value}, {moved}")
        value = e.value(f"and i64 {value}, {keep}")
    doubled = e.value(f"shl i64 {value}, 1")
    _write(e, i, 64, e.value(f"or i64 {value}, {doubled}"))


def _define_rest() -> None:
    for name, predicate in _PREDICATES.items():
        HANDLERS[f"s_cmp_{name}"] = _compare(predicate, 32)
        HANDLERS[f"s_cmpk_{name}"] = _compare_immediate(predicate, name.endswith("i32"))
    HANDLERS["s_cmp_eq_u64"] = _compare("eq", 64)
    HANDLERS["s_cmp_lg_u64"] = _compare("ne", 64)
    for bits in (32, 64):
        for bit in (0, 1):
            HANDLERS[f"s_bitcmp{bit}_b{bits}"] = _test_bit(bits, bit)
            HANDLERS[f"s_bitset{bit}_b{bits}"] = _set_bit(bits, bit)
    HANDLERS["s_mul_i32"] = _multiply
    HANDLERS["s_mul_hi_u32"] = _multiply_high("zext")
    HANDLERS["s_mul_hi_i32"] = _multiply_high("sext")
    HANDLERS["s_absdiff_i32"] = _absolute_difference
    for name, (first, second) in {
        "ll": (False, False), "lh": (False, True), "hl": (True, False), "hh": (True, True),
    }.items():  # fmt: skip
        HANDLERS[f"s_pack_{name}_b32_b16"] = _pack(first, second)
    HANDLERS["s_movk_i32"] = _move_immediate
    HANDLERS["s_cmovk_i32"] = _conditional_move_immediate
    HANDLERS["s_addk_i32"] = _add_immediate
    HANDLERS["s_mulk_i32"] = _multiply_immediate
    HANDLERS["s_bitreplicate_b64_b32"] = _replicate_bits


@cache
def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    _define_logic()
    _define_arithmetic()
    _define_shifts()
    _define_unary()
    _define_rest()
    return HANDLERS
