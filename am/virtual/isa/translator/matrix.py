"""Wave matrix multiply-accumulate (v_wmma_*), translated to calls of `runtime_matrix`.

Source: RDNA3 ISA document, "Wave matrix multiply accumulate" and the VOP3P opcodes.
"""

from __future__ import annotations

from am.virtual.isa.decoder.formats import Instruction
from am.virtual.isa.decoder.operands import Operand
from am.virtual.isa.runtime.calls import PREFIX
from am.virtual.isa.runtime.matrix import A_COLUMN, B_COLUMN, C_COLUMN
from am.virtual.isa.translator.memory import load_columns, store_columns
from am.virtual.isa.translator.packed import to_brain
from am.virtual.isa.translator.registers import Registers, Unsupported
from am.virtual.isa.translator.scalar import Handler
from hcq.emu.text import VECTOR, constant

_ROWS = 8  # registers of C and D


def _registers(e: Registers, operand: Operand, count: int) -> list[str]:
    if operand.is_vector:
        return [e.vector_register(operand.index + k) for k in range(count)]
    if operand.is_constant:
        return [constant("i32", operand.value)] * count
    raise Unsupported("a matrix in scalar registers")


def _call(e: Registers, function: str, a_signed: int, b_signed: int, saturate: bool) -> list[str]:
    e.call(
        "void", PREFIX + function, ("ptr", "%context"), ("i1", _flag(a_signed)),
        ("i1", _flag(b_signed)), ("i1", _flag(saturate)),
    )  # fmt: skip
    return load_columns(e, C_COLUMN + _ROWS)[C_COLUMN:]


def _flag(value: int | bool) -> str:
    return "true" if value else "false"


def _negated(e: Registers, i: Instruction, words: list[str], number: int) -> list[str]:
    """Apply the sign modifiers of a packed 16-bit float operand."""
    flips = (0x8000 if i.neg_lo[number] else 0) | (0x80000000 if i.neg_hi[number] else 0)
    if not flips:
        return words
    return [e.binary("xor", "i32", word, constant("i32", flips)) for word in words]


def _float_matrix(element: str) -> Handler:
    """f32 += f16 * f16 or bf16 * bf16."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        for number, column in ((0, A_COLUMN), (1, B_COLUMN)):
            words = _registers(e, i.srcs[number], 8)
            store_columns(e, _negated(e, i, words, number), column)
        values = _registers(e, i.srcs[2], _ROWS)
        if i.neg_hi[2]:
            values = [e.binary("and", "i32", v, constant("i32", 0x7FFFFFFF)) for v in values]
        if i.neg_lo[2]:
            values = [e.binary("xor", "i32", v, constant("i32", 0x80000000)) for v in values]
        store_columns(e, values, C_COLUMN)
        _set_all(e, i.dst, _call(e, f"wmma_f32_{element}", 0, 0, False))

    return emit


def _half_matrix(element: str) -> Handler:
    """f16 += f16 * f16, or bf16: C and D use one half of their registers, by op_sel of C."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        for number, column in ((0, A_COLUMN), (1, B_COLUMN)):
            words = _registers(e, i.srcs[number], 8)
            store_columns(e, _negated(e, i, words, number), column)
        high = i.op_sel[2]
        added = []
        for word in _registers(e, i.srcs[2], _ROWS):
            if i.srcs[2].is_constant:
                word = constant("i32", i.srcs[2].value & 0xFFFF)
            elif high:
                word = e.binary("lshr", "i32", word, constant("i32", 16))
            added.append(_widened(e, word, element))
        store_columns(e, added, C_COLUMN)
        results = _call(e, f"wmma_f32_{element}", 0, 0, False)
        merged: list[str] = []
        for k, value in enumerate(results):
            old = e.vector_register(i.dst.index + k)
            wide = e.convert("zext", "i16", "i32", _narrowed(e, value, element))
            if high:
                wide = e.binary("shl", "i32", wide, constant("i32", 16))
            kept = e.binary("and", "i32", old, constant("i32", 0xFFFF if high else ~0xFFFF))
            merged.append(e.binary("or", "i32", kept, wide))
        _set_all(e, i.dst, merged)

    return emit


def _widened(e: Registers, word: str, element: str) -> str:
    if element == "bf16":
        return e.binary("shl", "i32", word, constant("i32", 16))
    half = e.convert("bitcast", "i16", "half", e.convert("trunc", "i32", "i16", word))
    return e.convert("bitcast", "float", "i32", e.convert("fpext", "half", "float", half))


def _narrowed(e: Registers, word: str, element: str) -> str:
    value = e.convert("bitcast", "i32", "float", word)
    if element == "bf16":
        return to_brain(e, value)
    return e.convert("bitcast", "half", "i16", e.convert("fptrunc", "float", "half", value))


def _integer_matrix(name: str, registers: int) -> Handler:
    """i32 += 8-bit or 4-bit integers; neg_lo says which of A and B is signed."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        for number, column in ((0, A_COLUMN), (1, B_COLUMN)):
            store_columns(e, _registers(e, i.srcs[number], registers), column)
        store_columns(e, _registers(e, i.srcs[2], _ROWS), C_COLUMN)
        _set_all(e, i.dst, _call(e, name, i.neg_lo[0], i.neg_lo[1], i.clamp))

    return emit


def _set_all(e: Registers, dst: Operand, values: list[str]) -> None:
    """Write all rows. EXEC is ignored: the instruction requires it to be all ones."""
    for k, value in enumerate(values):
        e.vector_register(dst.index + k)  # counts it as used; raises when it is not allocated
        e.do(f"store {VECTOR} {value}, ptr %v{dst.index + k}")


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    return {
        "v_wmma_f32_16x16x16_f16": _float_matrix("f16"),
        "v_wmma_f32_16x16x16_bf16": _float_matrix("bf16"),
        "v_wmma_f16_16x16x16_f16": _half_matrix("f16"),
        "v_wmma_bf16_16x16x16_bf16": _half_matrix("bf16"),
        "v_wmma_i32_16x16x16_iu8": _integer_matrix("wmma_i32_iu8", 4),
        "v_wmma_i32_16x16x16_iu4": _integer_matrix("wmma_i32_iu4", 2),
    }
