"""Integer arithmetic.

Source: PTX ISA 8.x, "Integer Arithmetic Instructions" and "Extended-Precision Integer Arithmetic
Instructions".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.translator.handler import Handler, is_signed, only, sources, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.operands import CARRY
from ugpu.virtual.nvidia.sm.translator.value import Value, number

_WIDER = {"i16": "i32", "i32": "i64"}


def _packed(kind: str) -> bool:
    return kind in ("u16x2", "s16x2")


def _halves(k: Kernel, value: Value, signed: bool) -> tuple[Value, Value]:
    """Split an i32 into its 16-bit halves, low first."""
    low = k.cast("trunc", value, "i16")
    high = k.cast("trunc", k.op("lshr", value, number("i32", 16)), "i16")
    return low, high


def _joined(k: Kernel, low: Value, high: Value) -> Value:
    up = k.op("shl", k.cast("zext", high, "i32"), number("i32", 16))
    return k.op("or", k.cast("zext", low, "i32"), up)


def _add_sub(operation: str) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        flags = only(k, i, "sat", "cc")
        if _packed(kind):
            a, b = (_halves(k, v, False) for v in sources(k, i, "b32", 2))
            result = _joined(k, k.op(operation, a[0], b[0]), k.op(operation, a[1], b[1]))
            k.write(i.operands[0], result)
            return
        x, y = sources(k, i, kind, 2)
        if "sat" in flags:
            if kind != "s32":
                raise k.bad(".sat requires .s32")
            result = k.call_op(f"s{operation}.sat", x, y)
        else:
            result = k.op(operation, x, y)
        if "cc" in flags:  # after a subtraction the carry means that there was no borrow
            carry = k.cmp("ult", result, x) if operation == "add" else k.cmp("uge", x, y)
            k.write(CARRY, carry)
        k.write(i.operands[0], result)

    return emit


def _with_carry(operation: str) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        flags = only(k, i, "cc")
        x, y = sources(k, i, kind, 2)
        carry = k.source(CARRY, "pred")
        if operation == "sub":  # x - y - borrow = x + ~y + carry
            y = k.op("xor", y, number(y.element, -1))
        first = k.op("add", x, y)
        total = k.op("add", first, k.cast("zext", carry, x.element))
        if "cc" in flags:
            over = k.op("or", k.cmp("ult", first, x), k.cmp("ult", total, first))
            k.write(CARRY, over)
        k.write(i.operands[0], total)

    return emit


def _high(k: Kernel, x: Value, y: Value, signed: bool) -> Value:
    """Return the upper half of the product."""
    if x.element == "i64":
        return _high64(k, x, y, signed)
    wide = _WIDER[x.element]
    extend = "sext" if signed else "zext"
    product = k.op("mul", k.cast(extend, x, wide), k.cast(extend, y, wide))
    moved = k.op("lshr", product, number(wide, x.width))
    return k.cast("trunc", moved, x.element)


def _high64(k: Kernel, x: Value, y: Value, signed: bool) -> Value:
    """Return the upper 64 bits from products of 32-bit halves."""
    low_mask, half = number("i64", 0xFFFF_FFFF), number("i64", 32)
    xl, xh = k.op("and", x, low_mask), k.op("lshr", x, half)
    yl, yh = k.op("and", y, low_mask), k.op("lshr", y, half)
    ll, lh = k.op("mul", xl, yl), k.op("mul", xl, yh)
    hl, hh = k.op("mul", xh, yl), k.op("mul", xh, yh)
    middle = k.op("add", k.op("lshr", ll, half), k.op("and", lh, low_mask))
    middle = k.op("add", middle, k.op("and", hl, low_mask))
    high = k.op("add", hh, k.op("lshr", lh, half))
    high = k.op("add", high, k.op("lshr", hl, half))
    high = k.op("add", high, k.op("lshr", middle, half))
    if signed:
        shift = number("i64", 63)
        high = k.op("sub", high, k.op("and", k.op("ashr", x, shift), y))
        high = k.op("sub", high, k.op("and", k.op("ashr", y, shift), x))
    return high


def _product(k: Kernel, i: Instruction, x: Value, y: Value, kind: str, flags: set[str]) -> Value:
    if "lo" in flags:
        return k.op("mul", x, y)
    if "hi" in flags:
        return _high(k, x, y, is_signed(kind))
    if "wide" in flags:
        if x.element not in _WIDER:
            raise k.bad("no type is twice as wide")
        wide = _WIDER[x.element]
        extend = "sext" if is_signed(kind) else "zext"
        return k.op("mul", k.cast(extend, x, wide), k.cast(extend, y, wide))
    raise k.bad("expected .lo, .hi or .wide")


def _multiply(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    flags = only(k, i, "lo", "hi", "wide")
    x, y = sources(k, i, kind, 2)
    k.write(i.operands[0], _product(k, i, x, y, kind, flags))


def _multiply_add(carry_in: bool) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        flags = only(k, i, "lo", "hi", "wide", "sat", "cc")
        if len(i.operands) != 4:
            raise k.bad("expected four operands")
        x, y = (k.source(operand, kind) for operand in i.operands[1:3])
        product = _product(k, i, x, y, kind, flags)
        c = k.source(i.operands[3], f"b{product.width}")
        if "sat" in flags:
            if kind != "s32" or "hi" not in flags:
                raise k.bad(".sat requires .hi.s32")
            k.write(i.operands[0], k.call_op("sadd.sat", product, c))
            return
        first = total = k.op("add", product, c)
        if carry_in:
            carried = k.cast("zext", k.source(CARRY, "pred"), first.element)
            total = k.op("add", first, carried)
        if "cc" in flags:
            over = k.cmp("ult", first, product)
            k.write(CARRY, k.op("or", over, k.cmp("ult", total, first)) if carry_in else over)
        k.write(i.operands[0], total)

    return emit


def _multiply24(add: bool) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        flags = only(k, i, "lo", "hi", "sat")
        if kind not in ("u32", "s32"):
            raise k.bad("the type must be .u32 or .s32")
        operands = sources(k, i, kind, 3 if add else 2)
        eight = number("i32", 8)
        right = "ashr" if is_signed(kind) else "lshr"
        x, y = (k.op(right, k.op("shl", v, eight), eight) for v in operands[:2])
        if "lo" in flags:
            result = k.op("mul", x, y)
        else:
            extend = "sext" if is_signed(kind) else "zext"
            wide = k.op("mul", k.cast(extend, x, "i64"), k.cast(extend, y, "i64"))
            result = k.cast("trunc", k.op("lshr", wide, number("i64", 16)), "i32")
        if add:
            saturates = "sat" in flags
            result = (
                k.call_op("sadd.sat", result, operands[2]) if saturates
                else k.op("add", result, operands[2])
            )  # fmt: skip
        k.write(i.operands[0], result)

    return emit


def _divide(remainder: bool) -> Handler:
    """Return a handler of division. Division by zero is undefined; this chip returns all ones, and
    the dividend as remainder."""

    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        only(k, i)
        x, y = sources(k, i, kind, 2)
        zero = k.cmp("eq", y, number(y.element, 0))
        safe = k.choose(zero, number(y.element, 1), y)
        operation = ("srem" if remainder else "sdiv") if is_signed(kind) else (
            "urem" if remainder else "udiv")  # fmt: skip
        wraps = None
        if is_signed(kind):  # the least number divided by -1 is out of range
            least = number(x.element, 1 << (x.width - 1))
            wraps = k.op("and", k.cmp("eq", x, least), k.cmp("eq", y, number(y.element, -1)))
            safe = k.choose(wraps, number(y.element, 1), safe)
        result = k.op(operation, x, safe)
        if wraps is not None and remainder:
            result = k.choose(wraps, number(x.element, 0), result)
        other = x if remainder else number(x.element, -1)
        k.write(i.operands[0], k.choose(zero, other, result))

    return emit


def _absolute(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    only(k, i)
    (x,) = sources(k, i, kind, 1)
    k.write(i.operands[0], k.call_op("abs", x, extra="false"))


def _negate(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    only(k, i)
    (x,) = sources(k, i, kind, 1)
    k.write(i.operands[0], k.op("sub", number(x.element, 0), x))


def _extreme(which: str) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        flags = only(k, i, "relu")
        name = ("s" if is_signed(kind) else "u") + which
        if _packed(kind):
            a, b = (_halves(k, v, is_signed(kind)) for v in sources(k, i, "b32", 2))
            parts = [k.call_op(name, x, y) for x, y in zip(a, b, strict=True)]
            if "relu" in flags:
                parts = [k.call_op("smax", part, number("i16", 0)) for part in parts]
            k.write(i.operands[0], _joined(k, *parts))
            return
        x, y = sources(k, i, kind, 2)
        result = k.call_op(name, x, y)
        if "relu" in flags:
            result = k.call_op("smax", result, number(x.element, 0))
        k.write(i.operands[0], result)

    return emit


def _sad(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    only(k, i)
    x, y, c = sources(k, i, kind, 3)
    sign = "s" if is_signed(kind) else "u"
    difference = k.op("sub", k.call_op(f"{sign}max", x, y), k.call_op(f"{sign}min", x, y))
    k.write(i.operands[0], k.op("add", c, difference))


def _dot(bits: int) -> Handler:
    """Return a handler of dp4a or dp2a: sum of products of bytes with bytes, or 16-bit halves."""

    def emit(k: Kernel, i: Instruction) -> None:
        if len(i.operands) != 4:
            raise k.bad("expected four operands")
        kinds = [m for m in i.modifiers if m in ("u32", "s32")]
        if len(kinds) != 2:
            raise k.bad("expected two types")
        high = 2 if "hi" in i.modifiers else 0
        a, b, total = (k.source(operand, "b32") for operand in i.operands[1:])
        for n in range(4 if bits == 8 else 2):
            x = _field(k, a, n * bits, bits, is_signed(kinds[0]))
            y = _field(k, b, 8 * (n + (high if bits == 16 else 0)), 8, is_signed(kinds[1]))
            total = k.op("add", total, k.op("mul", x, y))
        k.write(i.operands[0], total)

    return emit


def _field(k: Kernel, value: Value, start: int, bits: int, signed: bool) -> Value:
    up = k.op("shl", value, number("i32", 32 - bits - start))
    return k.op("ashr" if signed else "lshr", up, number("i32", 32 - bits))


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "add": _add_sub("add"), "sub": _add_sub("sub"), "addc": _with_carry("add"),
        "subc": _with_carry("sub"), "mul": _multiply, "mad": _multiply_add(False),
        "madc": _multiply_add(True), "mul24": _multiply24(False), "mad24": _multiply24(True),
        "div": _divide(False), "rem": _divide(True), "abs": _absolute, "neg": _negate,
        "min": _extreme("min"), "max": _extreme("max"), "sad": _sad, "dp4a": _dot(8),
        "dp2a": _dot(16),
    }  # fmt: skip
