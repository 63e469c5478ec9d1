"""Moves and conversions of category 1, translated to LLVM IR.

Sources: Mesa 25.0.7, src/freedreno/isa/ir3-cat1.xml, src/freedreno/ir3/ir3_compiler_nir.c
(create_cov: bytes are sign-extended, and Mesa masks where it needs zeros).
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.adreno.sp.operands import Kind, Op, Operand
from ugpu.virtual.adreno.sp.translator.registers import Handler, Registers, Unsupported
from ugpu.virtual.shader.text import constant

_ROUNDINGS = ("", "roundeven", "ceil", "floor")
_SHORT = ("f16", "u16", "s16", "u8")


def _to_integer(
    e: Registers, value: str, half: bool, target: str, rounding: int
) -> tuple[str, str]:
    """Convert a float to an integer; out of range to the nearest end, NaN to zero."""
    if half:
        value = e.convert("fpext", "half", "float", value)
    if rounding:
        value = e.intrinsic(_ROUNDINGS[rounding], "float", value)
    element = {"u8": "i8", "u16": "i16", "s16": "i16"}.get(target, "i32")
    kind = e.vector_of(element)
    name = "fptosi" if target.startswith("s") else "fptoui"
    function = f"llvm.{name}.sat.v{e.lanes}{element}.v{e.lanes}f32"
    found = e.call(kind, function, (e.vector_of("float"), value))
    if element == "i8":
        return e.convert("zext", "i8", "i16", found), "i16"
    return found, element


def converted(e: Registers, value: str, source: str, target: str, rounding: int) -> tuple[str, str]:
    """Convert bits (i16 or i32) from one type to another; return the new bits and their element
    type."""
    if "u8_32" in (source, target):
        raise Unsupported("moves of u8_32")
    element = "i16" if source in _SHORT else "i32"
    if source == "u8":
        value = e.binary("and", "i16", value, constant("i16", 0xFF))
        if target != "u8":
            eight = constant("i16", 8)
            value = e.binary("ashr", "i16", e.binary("shl", "i16", value, eight), eight)
            source = "s16"
    if source == target:
        return value, element
    if source[0] == "f":
        kind = "half" if source == "f16" else "float"
        value = e.convert("bitcast", element, kind, value)
        if target[0] != "f":
            return _to_integer(e, value, source == "f16", target, rounding)
        if rounding > 1:
            raise Unsupported("a conversion of floats not rounded to even")
        wanted = "half" if target == "f16" else "float"
        value = e.convert("fptrunc" if wanted == "half" else "fpext", kind, wanted, value)
        bits = "i16" if wanted == "half" else "i32"
        return e.convert("bitcast", wanted, bits, value), bits
    if target[0] == "f":
        operation = "sitofp" if source[0] == "s" else "uitofp"
        value = e.convert(operation, element, "float", value)
        if target == "f32":
            return e.convert("bitcast", "float", "i32", value), "i32"
        value = e.convert("fptrunc", "float", "half", value)
        return e.convert("bitcast", "half", "i16", value), "i16"
    if target in _SHORT:
        if element == "i32":
            value = e.convert("trunc", "i32", "i16", value)
        if target == "u8":
            value = e.binary("and", "i16", value, constant("i16", 0xFF))
        return value, "i16"
    if element == "i16":
        value = e.convert("sext" if source[0] == "s" else "zext", "i16", "i32", value)
    return value, "i32"


def _move(e: Registers, op: Op, turn: int) -> None:
    target, operand = op.moved
    source, wanted = op.types
    value = e.bits_of(operand.at(turn), floating=source == "f16")
    found, _ = converted(e, value, source, wanted, op.raw("ROUND"))
    e.store(target, turn, found)


def _move_lane(pick: Callable[[Registers, Op], str]) -> Handler:
    """Return an emitter that copies one lane's value to all lanes."""

    def emit(e: Registers, op: Op, turn: int) -> None:
        target, operand = op.moved
        source, wanted = op.types
        element = "i16" if operand.half else "i32"
        one = e.lane(element, e.bits_of(operand.at(turn)), pick(e, op))
        found, _ = converted(e, e.broadcast(element, one), source, wanted, op.raw("ROUND"))
        e.store(target, turn, found)

    return emit


def _immediate_lane(e: Registers, op: Op) -> str:
    return str(op.raw("SRC2") % e.lanes)


def _address_lane(e: Registers, op: Op) -> str:
    a0 = e.lane("i16", e.short(61 * 4), e.first())
    return e.value(f"and i32 {e.value(f'zext i16 {a0} to i32')}, {e.lanes - 1}")


def _several(e: Registers, op: Op, turn: int) -> None:
    """Emit swz, gat, sct: all sources are read before a destination is written."""
    source, wanted = op.types
    half, short = bool(op.raw("HALF")), bool(op.raw("DST_HALF"))
    first_in, first_out = op.raw("SRC0"), op.raw("DST0")
    if op.name == "swz":
        pairs = [(first_in, first_out), (op.raw("SRC1"), op.raw("DST1"))]
    elif op.name == "gat":
        sources = [first_in, *(op.raw(f"SRC{k}") for k in (1, 2, 3))]
        pairs = [(number, first_out + k) for k, number in enumerate(sources)]
    else:
        targets = [first_out, *(op.raw(f"DST{k}") for k in (1, 2, 3))]
        pairs = [(first_in + k, number) for k, number in enumerate(targets)]
    values = []
    for number, _ in pairs:
        value = e.bits_of(Operand(Kind.REGISTER, number, half))
        values.append(converted(e, value, source, wanted, op.raw("ROUND"))[0])
    for (_, number), value in zip(pairs, values, strict=True):
        e.store(Operand(Kind.REGISTER, number, short), 0, value)


def _active(e: Registers, op: Op, turn: int) -> None:
    """Emit movmsk: one bit for each active lane."""
    for part in range(op.raw("REPEAT") + 1):
        word = "0"
        if 32 * part < e.lanes:
            shifted = e.value(f"lshr {e.bits} {e.exec()}, {32 * part}")
            word = e.value(f"trunc {e.bits} {shifted} to i32")
        e.set_word(op.raw("DST") + part, e.broadcast("i32", word))


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    kinds = ("immed", "const", "gpr", "relgpr", "relconst")
    found: dict[str, Handler] = {f"mov-{kind}": _move for kind in kinds}
    found.update(dict.fromkeys(("swz", "gat", "sct"), _several))
    found["movs-immed"] = _move_lane(_immediate_lane)
    found["movs-a0"] = _move_lane(_address_lane)
    return found


def whole_handlers() -> dict[str, Handler]:
    """Return the emitters that do all repetitions themselves."""
    return {"movmsk": _active}
