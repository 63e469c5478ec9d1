"""Wave matrix multiply-accumulate (v_wmma_*), translated to calls of `runtime.matrix`.

The operands' registers are pinned, so that native functions can access them in the wave state.
Source: RDNA3 ISA document, "Wave matrix multiply accumulate" and the VOP3P opcodes.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.runtime.matrix import A_COLUMN, B_COLUMN, C_COLUMN
from ugpu.virtual.amd.isa.translator.access.memory import io_column, load_columns, store_columns
from ugpu.virtual.amd.isa.translator.arithmetic.packed import to_brain
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import constant

_COLUMNS = 8  # columns of C and D: their registers, with the passes of each one after another


def _sums(e: Registers, operand: Operand) -> list[str]:
    """Return the registers of C."""
    return _registers(e, operand, _COLUMNS // len(e.passes))


def _as_columns(e: Registers, values: list[str]) -> list[str]:
    """Return the passes of registers of C or D one after another, so that their rows are
    consecutive in waves of 32 and of 64 lanes."""
    return [part for value in values for part in e.cut("i32", value)]


def _as_registers(e: Registers, columns: list[str]) -> list[str]:
    count = len(e.passes)
    return [e.whole("i32", columns[k : k + count]) for k in range(0, len(columns), count)]


def _registers(e: Registers, operand: Operand, count: int) -> list[str]:
    if operand.is_vector:
        return [e.vector_register(operand.index + k) for k in range(count)]
    if operand.is_constant:
        return [constant("i32", operand.value)] * count
    raise Unsupported("a matrix in scalar registers")


def _placed(e: Registers, values: list[str], column: int) -> str:
    """Put one pass of some registers into IO columns; return their address."""
    store_columns(e, values, column)
    return io_column(e, column)


def _factor(e: Registers, i: Instruction, number: int) -> str:
    """Return the address of the registers of A or B, in the form that the native function needs."""
    operand = i.srcs[number]
    flips = 0
    if "_iu" not in i.name:
        flips = (0x8000 if i.neg_lo[number] else 0) | (0x80000000 if i.neg_hi[number] else 0)
    places = e.in_place(operand, written=False)
    if places is not None and not flips:
        return places[0]  # the other lanes repeat the same values
    words = _registers(e, operand, operand.width)
    if flips:
        words = [e.binary("xor", "i32", word, constant("i32", flips)) for word in words]
    firsts = [e.cut("i32", word)[0] for word in words]
    return _placed(e, firsts, (A_COLUMN, B_COLUMN)[number])


def _call(e: Registers, i: Instruction, function: str, added: str, result: str) -> None:
    """Call a native function. added: address of C. result: address for D."""
    signed = [_flag("_iu" in i.name and i.neg_lo[number]) for number in (0, 1)]
    e.call(
        "void", PREFIX + function,
        ("ptr", _factor(e, i, 0)), ("ptr", _factor(e, i, 1)), ("ptr", added), ("ptr", result),
        ("i1", signed[0]), ("i1", signed[1]), ("i1", _flag(i.clamp)),
    )  # fmt: skip


def _flag(value: int | bool) -> str:
    return "true" if value else "false"


def _matrix(function: str) -> Handler:
    """Emit D = A x B + C in 32-bit elements. EXEC is ignored: the ISA requires all ones."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        places = e.in_place(i.dst)
        assert places is not None  # they are pinned
        if not e.wide:
            _call(e, i, function, _added(e, i), places[0])
            return
        added = _added(e, i)
        _call(e, i, function, added, io_column(e, C_COLUMN))
        _store_sums(e, i.dst, _as_registers(e, _result_columns(e)))

    return emit


def _added(e: Registers, i: Instruction) -> str:
    """Return the address of C, with its modifiers applied."""
    operand = i.srcs[2]
    integers = "_iu" in i.name
    places = None if e.wide else e.in_place(operand, written=False)
    if places is not None and (integers or not (i.neg_hi[2] or i.neg_lo[2])):
        return places[0]
    values = _sums(e, operand)
    if i.neg_hi[2] and not integers:
        values = [e.binary("and", "i32", v, constant("i32", 0x7FFFFFFF)) for v in values]
    if i.neg_lo[2] and not integers:
        values = [e.binary("xor", "i32", v, constant("i32", 0x80000000)) for v in values]
    return _placed(e, _as_columns(e, values), C_COLUMN)


def _result_columns(e: Registers) -> list[str]:
    """Read D from the columns that held C."""
    return load_columns(e, C_COLUMN + _COLUMNS)[C_COLUMN:]


def _store_sums(e: Registers, dst: Operand, values: list[str]) -> None:
    for k, value in enumerate(values):  # EXEC is ignored
        e.store_vector(dst.index + k, value)


def _half_matrix(element: str) -> Handler:
    """Emit f16 += f16 * f16, or bf16; op_sel of C selects the half of C's and D's registers."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        high = i.op_sel[2]
        added = []
        for word in _sums(e, i.srcs[2]):
            if i.srcs[2].is_constant:
                word = constant("i32", i.srcs[2].value & 0xFFFF)
            elif high:
                word = e.binary("lshr", "i32", word, constant("i32", 16))
            added.append(widened(e, word, element))
        place = _placed(e, _as_columns(e, added), C_COLUMN)
        _call(e, i, f"wmma_f32_{element}", place, place)
        merged: list[str] = []
        for k, value in enumerate(_as_registers(e, _result_columns(e))):
            old = e.vector_register(i.dst.index + k)
            wide = e.convert("zext", "i16", "i32", narrowed(e, value, element))
            if high:
                wide = e.binary("shl", "i32", wide, constant("i32", 16))
            kept = e.binary("and", "i32", old, constant("i32", 0xFFFF if high else ~0xFFFF))
            merged.append(e.binary("or", "i32", kept, wide))
        _store_sums(e, i.dst, merged)

    return emit


def widened(e: Registers, word: str, element: str) -> str:
    """Convert the low halves of words, f16 or bf16, to the bits of f32."""
    if element == "bf16":
        return e.binary("shl", "i32", word, constant("i32", 16))
    half = e.convert("bitcast", "i16", "half", e.convert("trunc", "i32", "i16", word))
    return e.convert("bitcast", "float", "i32", e.convert("fpext", "half", "float", half))


def narrowed(e: Registers, word: str, element: str) -> str:
    """Round the bits of f32 to i16, the bits of f16 or bf16."""
    value = e.convert("bitcast", "i32", "float", word)
    if element == "bf16":
        return to_brain(e, value)
    return e.convert("bitcast", "half", "i16", e.convert("fptrunc", "float", "half", value))


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    return {
        "v_wmma_f32_16x16x16_f16": _matrix("wmma_f32_f16"),
        "v_wmma_f32_16x16x16_bf16": _matrix("wmma_f32_bf16"),
        "v_wmma_f16_16x16x16_f16": _half_matrix("f16"),
        "v_wmma_bf16_16x16x16_bf16": _half_matrix("bf16"),
        "v_wmma_i32_16x16x16_iu8": _matrix("wmma_i32_iu8"),
        "v_wmma_i32_16x16x16_iu4": _matrix("wmma_i32_iu4"),
    }
