"""Video instructions on pairs of halves and on four bytes of a register.

Source: PTX ISA 9.1, "SIMD Video Instructions": vadd, vsub, vavrg, vabsdiff, vmin, vmax, vset of 2
and 4 lanes, with selectors and masks.
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Operand, Register, Selected
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number

_KINDS = ("u32", "s32")
_OPERATIONS = ("add", "sub", "avrg", "absdiff", "min", "max")
_COMPARISONS = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


def register_of(k: Kernel, operand: Operand) -> tuple[Operand, str]:
    """Return an operand without its selector, and the selector."""
    if isinstance(operand, Selected):
        if operand.negated:
            raise k.bad("negative operands are not supported")
        return operand.register, operand.part
    return operand, ""


def computed(k: Kernel, operation: str, a: Value, b: Value) -> Value:
    """Return the result of an operation on numbers that are far from their type's limits."""
    one = number(a.element, 1)
    if operation in _COMPARISONS:
        return k.cast("zext", k.cmp(_COMPARISONS[operation], a, b), a.element)
    if operation in ("add", "sub"):
        return k.op(operation, a, b)
    if operation in ("min", "max"):
        return k.call_op(f"s{operation}", a, b)
    if operation == "avrg":  # halves are rounded up, for negative sums down
        total = k.op("add", a, b)
        whole = k.cmp("sge", total, number(a.element, 0))
        total = k.op("add", total, k.cast("zext", whole, a.element))
        return k.op("ashr", total, one)
    apart = k.op("sub", a, b)
    return k.call_op("smax", apart, k.op("sub", number(a.element, 0), apart))


def clamped(k: Kernel, value: Value, bits: int, kind: str) -> Value:
    """Limit a signed number to the range of `bits` of a type."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "s32" else (0, (1 << bits) - 1)
    least, most = number(value.element, low), number(value.element, high)
    return k.call_op("smin", k.call_op("smax", value, least), most)


def extracted(k: Kernel, register: Value, bits: int, place: int, kind: str) -> Value:
    """Return a lane of a register, extended to 32 bits by its type."""
    up = k.op("shl", register, number("i32", 32 - bits * (place + 1)))
    return k.op("ashr" if kind == "s32" else "lshr", up, number("i32", 32 - bits))


def _lanes_of(k: Kernel, part: str, count: int, usual: int) -> list[int]:
    """Return which lane of a and b each lane reads, lowest first. usual: without a selector."""
    if not part:
        return [usual + n for n in range(count)]
    letter, digits = part[0], part[1:]
    good = letter == ("h" if count == 2 else "b") and len(digits) == count and digits.isdigit()
    if not good or not all(int(digit) < 2 * count for digit in digits):
        raise k.bad(f".{part} selects no {count} parts of two registers")
    return [int(digit) for digit in reversed(digits)]


def _mask_of(k: Kernel, part: str, count: int) -> list[bool]:
    """Return which lanes of the result are written."""
    digits = part[1:]
    if not part:
        return [True] * count
    known = part[0] == ("h" if count == 2 else "b") and digits.isdigit()
    if not known or any(int(digit) >= count for digit in digits):
        raise k.bad(f".{part} names no parts of a result")
    return [str(n) in digits for n in range(count)]


def _video(operation: str, lanes: int) -> Handler:
    bits = 32 // lanes

    def emit(k: Kernel, i: Instruction) -> None:
        types, flags, what = _modifiers(k, i, operation)
        if len(flags) == 2 or len(i.operands) != 4:
            raise k.bad("expected a result and three operands, and .sat or .add at most")
        target, mask = register_of(k, i.operands[0])
        first, pick_a = register_of(k, i.operands[1])
        second, pick_b = register_of(k, i.operands[2])
        both = k.source(first, "b32"), k.source(second, "b32")
        c = k.source(i.operands[3], "b32")
        written = _mask_of(k, mask, lanes)
        from_a = _lanes_of(k, pick_a, lanes, 0)
        from_b = _lanes_of(k, pick_b, lanes, lanes)
        total: Value = c if "add" in flags else number("i32", 0)
        for place in range(lanes):
            low = number("i32", (1 << bits) - 1 << bits * place)
            if not written[place]:
                if "add" not in flags:
                    total = k.op("or", total, k.op("and", c, low))
                continue
            x = extracted(k, both[from_a[place] // lanes], bits, from_a[place] % lanes, types[1])
            y = extracted(k, both[from_b[place] // lanes], bits, from_b[place] % lanes, types[2])
            one = computed(k, what, x, y)
            if "sat" in flags:
                one = clamped(k, one, bits, types[0])
            if "add" in flags:
                total = k.op("add", total, one)
                continue
            moved = k.op("shl", one, number("i32", bits * place))
            total = k.op("or", total, k.op("and", moved, low))
        assert isinstance(target, Register) or target is i.operands[0]
        k.write(target, total)

    return emit


def _modifiers(k: Kernel, i: Instruction, operation: str) -> tuple[Sequence[str], set[str], str]:
    """Return the types of result and sources, the flags, and the operation."""
    if operation == "set":
        types, what, flags = ("u32", *i.modifiers[:2]), i.modifiers[2:3], set(i.modifiers[3:])
        if not what or what[0] not in _COMPARISONS or flags - {"add"}:
            raise k.unsupported()
        operation = what[0]
    else:
        types, flags = i.modifiers[:3], set(i.modifiers[3:])
    if len(types) != 3 or not set(types) <= set(_KINDS) or flags - {"sat", "add"}:
        raise k.unsupported()
    return types, flags, operation


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        f"v{operation}{lanes}": _video(operation, lanes)
        for operation in (*_OPERATIONS, "set")
        for lanes in (2, 4)
    }
