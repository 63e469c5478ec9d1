"""Video instructions on one number: vadd, vsub, vabsdiff, vmin, vmax, vshl, vshr, vmad, vset.

Numbers are extended to 128 bits, so that intermediate results of the ISA's pseudocode do not
overflow.
Source: PTX ISA 9.1, "Scalar Video Instructions".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Operand, Selected
from ugpu.virtual.nvidia.sm.translator.arithmetic.video import (
    clamped,
    computed,
    extracted,
    register_of,
)
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number

_WIDE = "i128"
_PARTS = {f"b{n}": (8, n) for n in range(4)} | {f"h{n}": (16, n) for n in range(2)}
_SECOND = ("add", "min", "max")
_SCALES = {"shr7": 7, "shr15": 15}


def _part(k: Kernel, part: str) -> tuple[int, int]:
    """Return the number of bits of a part of a register, and its position."""
    if part and part not in _PARTS:
        raise k.bad(f".{part} is not a part of a register")
    return _PARTS.get(part, (32, 0))


def _given(k: Kernel, operand: Operand, kind: str) -> Value:
    """Return a source operand or a part of it, extended by its type."""
    register, part = register_of(k, operand)
    value = extracted(k, k.source(register, "b32"), *_part(k, part), kind)
    return k.resize(value, _WIDE, kind == "s32")


def _finish(k: Kernel, i: Instruction, value: Value, kind: str, flags: set[str]) -> None:
    """Clamp, apply the secondary operation or merge, and write the result."""
    target, part = register_of(k, i.operands[0])
    bits, place = _part(k, part)
    second = flags & set(_SECOND)
    if len(i.operands) != 3 + (bool(second) or bool(part)) or len(second) + bool(part) > 1:
        raise k.bad("the wrong number of operands for a second operation, or a part of the result")
    if "sat" in flags:
        value = clamped(k, value, bits, kind)
    if second:
        c = k.resize(k.source(i.operands[3], "b32"), _WIDE, kind == "s32")
        value = computed(k, next(iter(second)), value, c)
    result = k.cast("trunc", value, "i32")
    if part:
        hole = number("i32", (1 << bits) - 1 << bits * place)
        kept = k.op("and", k.source(i.operands[3], "b32"), k.op("xor", hole, number("i32", -1)))
        moved = k.op("and", k.op("shl", result, number("i32", bits * place)), hole)
        result = k.op("or", kept, moved)
    k.write(target, result)


def _types(k: Kernel, i: Instruction, *allowed: str) -> tuple[tuple[str, ...], set[str]]:
    """Return the three types, and the flags after them."""
    types, flags = i.modifiers[:3], set(i.modifiers[3:])
    if len(types) != 3 or not set(types) <= {"u32", "s32"} or flags - set(allowed):
        raise k.unsupported()
    if len(i.operands) < 3:
        raise k.bad("expected a result and two operands")
    return types, flags


def _scalar(operation: str) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        types, flags = _types(k, i, "sat", *_SECOND)
        a, b = (_given(k, i.operands[1 + n], types[1 + n]) for n in range(2))
        _finish(k, i, computed(k, operation, a, b), types[0], flags)

    return emit


def _shift(left: bool) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        types, flags = _types(k, i, "sat", "clamp", "wrap", *_SECOND)
        if len(flags & {"clamp", "wrap"}) != 1 or types[2] != "u32":
            raise k.unsupported()
        a, count = (_given(k, i.operands[1 + n], types[1 + n]) for n in range(2))
        if "clamp" in flags:
            count = k.call_op("umin", count, number(_WIDE, 32))
        else:
            count = k.op("and", count, number(_WIDE, 31))
        _finish(k, i, k.op("shl" if left else "ashr", a, count), types[0], flags)

    return emit


def _compare(k: Kernel, i: Instruction) -> None:
    types, rest = i.modifiers[:2], i.modifiers[2:]
    known = rest and rest[0] in ("eq", "ne", "lt", "le", "gt", "ge")
    if not known or not set(types) <= {"u32", "s32"} or set(rest[1:]) - set(_SECOND):
        raise k.unsupported()
    if len(i.operands) < 3:
        raise k.bad("expected a result and two operands")
    a, b = (_given(k, i.operands[1 + n], types[n]) for n in range(2))
    _finish(k, i, computed(k, rest[0], a, b), "u32", set(rest[1:]))


def _multiply_add(k: Kernel, i: Instruction) -> None:
    """vmad: a product plus or minus an addend, shifted and clamped."""
    types, flags = _types(k, i, "sat", "po", *_SCALES)
    if len(i.operands) != 4 or len(flags & set(_SCALES)) > 1:
        raise k.bad("expected a result and three operands, and one scale at most")
    negative = []
    plain: list[Operand] = []
    for operand in i.operands[1:]:
        minus = isinstance(operand, Selected) and operand.negated
        negative.append(minus)
        if isinstance(operand, Selected):
            plain.append(Selected(operand.register, operand.part) if operand.part
                         else operand.register)  # fmt: skip
        else:
            plain.append(operand)
    turned, less = negative[0] != negative[1], negative[2]
    if (turned and less) or ("po" in flags and any(negative)):
        raise k.bad(
            "at most one of the product and the addend may be negative, and neither with .po"
        )
    signed = "s32" in types[1:] or turned or less
    product = k.op("mul", _given(k, plain[0], types[1]), _given(k, plain[1], types[2]))
    register, part = register_of(k, plain[2])
    if part:
        raise k.bad("the addend must be a whole register")
    c = k.source(register, "b32")
    ones = number(_WIDE, -1)
    if turned:
        product = k.op("xor", product, ones)
    elif less:
        c = k.op("xor", c, number("i32", -1))
    total = k.op("add", product, k.resize(c, _WIDE, signed))
    if turned or less or "po" in flags:
        total = k.op("add", total, number(_WIDE, 1))
    for scale in flags & set(_SCALES):
        total = k.op("ashr", total, number(_WIDE, _SCALES[scale]))
    if "sat" in flags:
        total = clamped(k, total, 32, "s32" if signed else "u32")
    k.write(i.operands[0], k.cast("trunc", total, "i32"))


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        **{f"v{name}": _scalar(name) for name in ("add", "sub", "absdiff", "min", "max")},
        "vshl": _shift(True), "vshr": _shift(False), "vset": _compare, "vmad": _multiply_add,
    }  # fmt: skip
