"""Video instructions on pairs of halves and on four bytes of a register.

Source: PTX ISA 8.x, "SIMD Video Instructions": vadd, vsub, vabsdiff, vmin, vmax of 2 and 4 lanes.
Lane selectors and masks are refused.
"""

from __future__ import annotations

from nv.virtual.sm.ptx.module import Instruction
from nv.virtual.sm.translator.handler import Handler
from nv.virtual.sm.translator.kernel import Kernel
from nv.virtual.sm.translator.value import Value, number

_KINDS = ("u32", "s32")
_OPERATIONS = ("add", "sub", "absdiff", "min", "max")


def _lane(k: Kernel, register: Value, bits: int, place: int, kind: str) -> Value:
    """Extract a lane, extended to 32 bits by its type."""
    up = k.op("shl", register, number("i32", 32 - bits * (place + 1)))
    return k.op("ashr" if kind == "s32" else "lshr", up, number("i32", 32 - bits))


def _computed(k: Kernel, operation: str, a: Value, b: Value) -> Value:
    if operation in ("add", "sub"):
        return k.op(operation, a, b)
    if operation in ("min", "max"):
        less = k.cmp("slt", a, b)  # lanes of 16 bits or less: all of them fit
        return k.choose(less, a, b) if operation == "min" else k.choose(less, b, a)
    apart = k.op("sub", a, b)
    return k.call_op("smax", apart, k.op("sub", number("i32", 0), apart))


def _clamped(k: Kernel, value: Value, bits: int, kind: str) -> Value:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "s32" else (0, (1 << bits) - 1)
    return k.call_op("smin", k.call_op("smax", value, number("i32", low)), number("i32", high))


def _video(operation: str, lanes: int) -> Handler:
    bits = 32 // lanes

    def emit(k: Kernel, i: Instruction) -> None:
        types, flags = i.modifiers[:3], set(i.modifiers[3:])
        if len(types) != 3 or not set(types) <= set(_KINDS) or flags - {"sat", "add"}:
            raise k.unsupported()
        if len(flags) == 2 or len(i.operands) != 4:
            raise k.bad("a result and three operands are wanted, and .sat or .add at most")
        a, b, c = (k.source(operand, "b32") for operand in i.operands[1:])
        total: Value = c if "add" in flags else number("i32", 0)
        for place in range(lanes):
            one = _computed(
                k, operation, _lane(k, a, bits, place, types[1]), _lane(k, b, bits, place, types[2])
            )
            if "sat" in flags:
                one = _clamped(k, one, bits, types[0])
            if "add" in flags:
                total = k.op("add", total, one)
                continue
            low = k.op("and", one, number("i32", (1 << bits) - 1))
            total = k.op("or", total, k.op("shl", low, number("i32", bits * place)))
        k.write(i.operands[0], total)

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        f"v{operation}{lanes}": _video(operation, lanes)
        for operation in _OPERATIONS
        for lanes in (2, 4)
    }
