"""Moves, selections and comparisons.

Source: PTX ISA 8.x, "Comparison and Selection Instructions" and "Data Movement and Conversion
Instructions": mov, cvta, isspacep.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import SIZES, Instruction, Pair, Vector
from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.translator.arithmetic.floats import as_float
from ugpu.virtual.nvidia.sm.translator.handler import FLOAT_TYPES, Handler, is_signed, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import FLOATS, Value, number

_ORDERED = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge",
            "equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge",
            "num": "ord", "nan": "uno"}  # fmt: skip
_SIGNED = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_UNSIGNED = {"eq": "eq", "ne": "ne", "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge",
             "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}  # fmt: skip


def _move(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    if len(i.operands) != 2:
        raise k.bad("expected two operands")
    target, source = i.operands
    if isinstance(target, Vector):
        _unpack(k, target, k.source(source, f"b{8 * SIZES[kind]}"))
    elif isinstance(source, Vector):
        k.write(target, _pack(k, source, 8 * SIZES[kind]))
    else:
        k.write(target, k.source(source, kind))


def _unpack(k: Kernel, target: Vector, value: Value) -> None:
    bits = value.width // len(target.items)
    if bits * len(target.items) != value.width or bits not in (8, 16, 32, 64):
        raise k.bad("the widths of the parts must add up to the width of the whole")
    parts = []
    for n in range(len(target.items)):
        moved = k.op("lshr", value, number(value.element, n * bits)) if n else value
        parts.append(k.cast("trunc", moved, f"i{bits}"))
    for operand, part in zip(target.items, parts, strict=True):
        k.write(operand, part)


def _pack(k: Kernel, source: Vector, bits: int) -> Value:
    each = bits // len(source.items)
    if each * len(source.items) != bits or each not in (8, 16, 32, 64):
        raise k.bad("the widths of the parts must add up to the width of the whole")
    element = f"i{bits}"
    result: Value = number(element, 0)
    for n, operand in enumerate(source.items):
        part = k.cast("zext", k.source(operand, f"b{each}"), element)
        part = k.op("shl", part, number(element, n * each)) if n else part
        result = k.op("or", result, part)
    return result


def _parameter_move(k: Kernel, i: Instruction) -> None:
    """Copy a call's parameter, which is a register here; see `flatten`."""
    kind = i.modifiers[0]
    targets, sources = i.operands
    assert isinstance(targets, Vector) and isinstance(sources, Vector)
    bits = f"b{8 * max(SIZES[kind], 2)}"
    for target, source in zip(targets.items, sources.items, strict=True):
        k.write(target, k.source(source, bits))


def _boolean(k: Kernel, i: Instruction, a: Value, b: Value) -> Value:
    """Combine two predicates; .ftz may come before the operation or after it."""
    operation = next((m for m in i.modifiers[1:] if m in ("and", "or", "xor")), "")
    if not operation:
        raise k.bad("expected .and, .or or .xor")
    return k.op(operation, a, b)


_PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}


def _compared(k: Kernel, i: Instruction, kind: str) -> list[Value]:
    """Compare the second operand with the third: one predicate, or one for each half of a pair."""
    if len(i.operands) < 3:
        raise k.bad("expected two operands to compare")
    if kind not in _PAIRS:
        return [_one(k, i, kind, *(k.source(operand, kind) for operand in i.operands[1:3]))]
    pairs = [k.source(operand, "b32") for operand in i.operands[1:3]]
    found = []
    for shift in (0, 16):
        halves = [k.cast("trunc", k.op("lshr", v, number("i32", shift)), "i16") for v in pairs]
        found.append(_one(k, i, _PAIRS[kind], *halves))
    return found


def _one(k: Kernel, i: Instruction, kind: str, a: Value, b: Value) -> Value:
    comparison = i.modifiers[0]
    if kind in FLOAT_TYPES:
        a, b = (as_float(k, each, kind, "ftz" in i.modifiers) for each in (a, b))
        predicates = _ORDERED
    else:
        predicates = _SIGNED if is_signed(kind) else _UNSIGNED
    if comparison not in predicates:
        raise k.bad(f".{comparison} is not a comparison of .{kind}")
    return k.cmp(predicates[comparison], a, b)


def _set_predicate(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    target = i.operands[0]
    if kind == "pred" or len(i.operands) not in (3, 4):
        raise k.unsupported()
    if kind in _PAIRS and not isinstance(target, Pair):
        raise k.bad(f".{kind} requires two predicates, p|q")
    found = _compared(k, i, kind)
    targets = (target.first, target.second) if isinstance(target, Pair) else (target,)
    if len(targets) > len(found):
        found.append(k.negate(found[0]))
    if len(i.operands) == 4:
        c = k.source(i.operands[3], "pred")
        found = [_boolean(k, i, each, c) for each in found]
    for operand, value in zip(targets, found, strict=True):
        k.write(operand, value)


_ONE = {"f32": 0x3F800000, "f16": 0x3C00, "bf16": 0x3F80}
_TARGETS = {
    "f16": ("u16", "s16", "u32", "s32", "f16"), "bf16": ("u16", "s16", "u32", "s32", "bf16"),
    "f16x2": ("u32", "s32", "f16x2"), "bf16x2": ("u32", "s32", "bf16x2"),
}  # fmt: skip
_USUAL_TARGETS = ("u32", "s32", "f32", "f16", "bf16")


def _set(k: Kernel, i: Instruction) -> None:
    """Compare to a number: all ones or 1.0 for true; the halves of a pair separately."""
    kind = type_of(k, i)
    target = i.modifiers[-2]
    if target not in _TARGETS.get(kind, _USUAL_TARGETS):
        raise k.unsupported()
    found = _compared(k, i, kind)
    if len(i.operands) == 4:
        c = k.source(i.operands[3], "pred")
        found = [_boolean(k, i, each, c) for each in found]
    bits = 8 * SIZES[target] // len(found)
    true = _ONE.get(_PAIRS.get(target, target), -1)
    parts = [k.choose(each, number(f"i{bits}", true), number(f"i{bits}", 0)) for each in found]
    if len(parts) == 1:
        k.write(i.operands[0], parts[0])
        return
    low, high = (k.cast("zext", part, "i32") for part in parts)
    k.write(i.operands[0], k.op("or", low, k.op("shl", high, number("i32", 16))))


def _select(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    if len(i.operands) != 4:
        raise k.bad("expected four operands")
    a, b = k.source(i.operands[1], kind), k.source(i.operands[2], kind)
    c = k.source(i.operands[3], "pred")
    k.write(i.operands[0], k.choose(c, a, b))


def _select_by_sign(k: Kernel, i: Instruction) -> None:
    """slct: return a if c is at least zero, else b."""
    types = [m for m in i.modifiers if m != "ftz"]
    if len(types) != 2 or len(i.operands) != 4:
        raise k.bad("expected two types and four operands")
    a, b = k.source(i.operands[1], types[0]), k.source(i.operands[2], types[0])
    c = k.source(i.operands[3], types[1])
    if c.element in FLOATS:
        c = as_float(k, c, types[1], "ftz" in i.modifiers)
        chosen = k.cmp("oge", c, number(c.element, 0))
    else:
        chosen = k.cmp("sge", c, number(c.element, 0))
    k.write(i.operands[0], k.choose(chosen, a, b))


_WINDOWS = {"shared": layout.SHARED_WINDOW, "local": layout.LOCAL_WINDOW}


def space_of(modifiers: tuple[str, ...]) -> str:
    """Return the state space in the modifiers, or "" for generic addresses."""
    for modifier in modifiers:
        stem = modifier.split("::")[0]
        if stem in ("global", "shared", "local", "const", "param"):
            return modifier if modifier == "shared::cluster" else stem
    return ""


def _convert_address(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    space = space_of(i.modifiers)
    space = "shared" if space == "shared::cluster" else space
    value = k.source(i.operands[1], kind)
    if space in _WINDOWS:
        window = k.context_value(_WINDOWS[space], "i64")
        if value.element != "i64":
            raise k.bad("addresses have 64 bits")
        value = k.op("sub" if "to" in i.modifiers else "add", value, window)
    k.write(i.operands[0], value)


def _is_space(k: Kernel, i: Instruction) -> None:
    space = space_of(i.modifiers)
    address = k.source(i.operands[1], "u64")
    inside = {}
    for name, offset in _WINDOWS.items():
        at = k.op("sub", address, k.context_value(offset, "i64"))
        inside[name] = k.cmp("ult", at, number("i64", layout.GENERIC_WINDOW_SIZE))
    # The memory of each rank, including the own one, follows the group's own shared memory.
    at = k.op("sub", address, k.context_value(_WINDOWS["shared"], "i64"))
    place = k.op("lshr", at, number("i64", layout.CLUSTER_SHIFT))
    ranks = k.context_value(layout.CLUSTER_SIZE)
    own = k.op("add", k.context_value(layout.RANK), number("i32", 1))
    mapped = k.cmp("eq", place, k.resize(own, "i64", False))
    inside["shared"] = k.op("or", inside["shared"], mapped)
    inside["shared::cluster"] = k.cmp("ule", place, k.resize(ranks, "i64", False))
    module = k.cmp("uge", address, number("i64", layout.MODULE_WINDOW))
    if space in inside:
        result = inside[space]
    elif space == "global":
        result = k.negate(k.op("or", inside["shared::cluster"], inside["local"]))
    else:
        result = module
    k.write(i.operands[0], result)


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "mov": _move, "parameter.move": _parameter_move, "setp": _set_predicate, "set": _set,
        "selp": _select, "slct": _select_by_sign, "cvta": _convert_address,
        "isspacep": _is_space,
    }  # fmt: skip
