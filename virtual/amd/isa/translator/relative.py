"""Registers selected at run time by M0 (v_movrel*, v_swaprel, s_movrel*), translated to LLVM IR.

All vector registers of a program that selects vector registers this way are pinned, that is, they
are in the wave state. Scalar registers are values without addresses, unless all registers are in
the wave state. So all of them are written to the wave state, the selected one is accessed there,
and after a write all are read back. The registers that the function uses are known only after all
of it has been emitted: until then, `SPILL` and `RELOAD` lines are placeholders.
Source: RDNA3 ISA document, "Relative addressing" and the V_MOVREL and S_MOVREL opcodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Kind, Operand
from ugpu.virtual.amd.isa.runtime import layout
from ugpu.virtual.amd.isa.translator.arithmetic.scalar import Handler
from ugpu.virtual.amd.isa.translator.needed import numbers
from ugpu.virtual.amd.isa.translator.registers import Registers, Unsupported
from ugpu.virtual.shader.text import PASS, VECTOR, Text

SPILL = "; spill all scalar registers"
RELOAD = "; reload all scalar registers"
NOTE = "; note vector registers "
_SCALARS = 106


def expanded(
    lines: list[str], scalars: list[int], vectors: frozenset[int] = frozenset(), wide: int = PASS
) -> list[str]:
    """Replace the placeholders, now that the registers in use are known.

    vectors: the vector registers that are values. wide: lanes per wave.
    """
    found: list[str] = []
    for number, line in enumerate(lines):
        if not line.startswith("  ;"):
            found.append(line)
            continue
        kept = line.strip()
        if kept.startswith(NOTE):
            noted = [k for k in numbers(int(kept.removeprefix(NOTE), 16)) if k in vectors]
            found.extend(stored_vectors(Text(wide, f"vn{number}."), noted))
            continue
        if kept not in (SPILL, RELOAD):
            found.append(line)
            continue
        for k in scalars:
            here, there = f"%s{k}", f"%sp{k}"
            if kept == RELOAD:
                here, there = there, here
            name = f"%rel.s{k}.{number}"
            found.append(f"  {name} = load i32, ptr {here}, align 4")
            found.append(f"  store i32 {name}, ptr {there}, align 4")
    return found


def stored_vectors(t: Text, vectors: Iterable[int]) -> list[str]:
    """Return the lines that store vector registers that are values to the wave state."""
    for k in vectors:
        value = t.value(f"load {t.vector}, ptr %v{k}")
        for turn, part in enumerate(t.cut("i32", value)):
            t.do(f"store {VECTOR} {part}, ptr %vp{k}.{turn}, align 64")
    return t.lines


def _index(e: Registers, base: int, shift: int, limit: int) -> str:
    """Return base + the field of M0 at bit `shift`; an index out of range gives register 0."""
    field = e.scalar_register(layout.SGPR_M0)
    if shift >= 0:
        field = e.value(f"lshr i32 {field}, {shift}")
        field = e.value(f"and i32 {field}, 1023")
    number = e.value(f"add i32 {field}, {base}")
    inside = e.value(f"icmp ult i32 {number}, {limit}")
    return e.value(f"select i1 {inside}, i32 {number}, i32 0")


def _vector_at(e: Registers, index: str) -> list[str]:
    """Return the address of each pass of the vector register with number `index`."""
    offset = e.value(f"mul i32 {index}, {layout.REGISTER}")
    e.forget()
    starts = [e.pinned_at(0, turn) for turn in e.passes]
    return [e.value(f"getelementptr i8, ptr {start}, i32 {offset}") for start in starts]


def _load_at(e: Registers, places: list[str]) -> str:
    parts = [e.value(f"load {VECTOR}, ptr {place}, align 64") for place in places]
    return e.whole("i32", parts)


def _scalar_at(e: Registers, index: str) -> str:
    return e.value(f"getelementptr i32, ptr %wave, i32 {index}")


def _touch(e: Registers, operand: Operand) -> None:
    """Mark the base register as used, so that its value is available."""
    if operand.kind is Kind.VGPR:
        e.vector_register(operand.index)
    elif operand.kind is Kind.SGPR:
        e.scalar_register(operand.index)
    else:
        raise Unsupported(f"relative addressing from {operand.kind.value}")


def _vector_move(source_shift: int | None, target_shift: int | None) -> Handler:
    """Move between vector registers; a shift selects the field of M0 to add (-1: all of M0)."""

    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        source, target = i.srcs[0], i.dst
        _touch(e, target)
        if source_shift is None:
            value = e.source(source)
        else:
            _touch(e, source)
            index = _index(e, source.index, source_shift, e.vector_limit)
            value = _load_at(e, _vector_at(e, index))
        if target_shift is None:
            e.set_vector(target, "i32", value)
            return
        _store_at(e, _vector_at(e, _index(e, target.index, target_shift, e.vector_limit)), value)

    return emit


def _store_at(e: Registers, places: list[str], value: str) -> None:
    """Store to the enabled lanes."""
    mask = e.write_mask()
    if mask is not None:
        value = e.select(mask, "i32", value, _load_at(e, places))
    for place, part in zip(places, e.cut("i32", value), strict=True):
        e.do(f"store {VECTOR} {part}, ptr {place}, align 64")
    e.forget()


def _vector_swap(e: Registers, i: Instruction) -> None:
    """Exchange two vector registers: M0[9:0] is added to the source's number, M0[25:16] to the
    destination's."""
    assert i.dst is not None
    places = []
    for operand, shift in ((i.srcs[0], 0), (i.dst, 16)):
        _touch(e, operand)
        places.append(_vector_at(e, _index(e, operand.index, shift, e.vector_limit)))
    values = [_load_at(e, place) for place in places]
    _store_at(e, places[1], values[0])
    _store_at(e, places[0], values[1])


def _scalar_move_both(e: Registers, i: Instruction) -> None:
    """Move from the scalar register that M0[9:0] selects to the one that M0[25:16] does."""
    assert i.dst is not None
    places = []
    for operand, shift in ((i.srcs[0], 0), (i.dst, 16)):
        _touch(e, operand)
        places.append(_scalar_at(e, _index(e, operand.index, shift, _SCALARS)))
    e.forget()
    e.do(SPILL)
    value = e.value(f"load i32, ptr {places[0]}, align 4")
    e.do(f"store i32 {value}, ptr {places[1]}, align 4")
    e.do(RELOAD)
    e.forget()


def _scalar_move(words: int, from_index: bool) -> Handler:
    def emit(e: Registers, i: Instruction) -> None:
        assert i.dst is not None
        source, target = i.srcs[0], i.dst
        moving = source if from_index else target
        _touch(e, moving)
        e.forget()
        e.do(SPILL)
        place = _scalar_at(e, _index(e, moving.index, -1, _SCALARS))
        kind = f"i{32 * words}"
        if from_index:
            value = e.value(f"load {kind}, ptr {place}, align 4")
            if words == 2:
                e.set_scalar64(target, value)
            else:
                e.set_scalar(target, value)
            return
        value = e.scalar64(source) if words == 2 else e.scalar(source)
        e.do(f"store {kind} {value}, ptr {place}, align 4")
        e.do(RELOAD)
        e.forget()

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    return {
        "v_movrels_b32": _vector_move(-1, None),
        "v_movreld_b32": _vector_move(None, -1),
        "v_movrelsd_b32": _vector_move(-1, -1),
        "v_movrelsd_2_b32": _vector_move(0, 16),
        "v_swaprel_b32": _vector_swap,
        "s_movrelsd_2_b32": _scalar_move_both,
        "s_movrels_b32": _scalar_move(1, True),
        "s_movrels_b64": _scalar_move(2, True),
        "s_movreld_b32": _scalar_move(1, False),
        "s_movreld_b64": _scalar_move(2, False),
    }
