"""Logic, shifts and bit fields.

Source: PTX ISA 8.x, "Logic and Shift Instructions" and the bit instructions among "Integer
Arithmetic Instructions".
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Integer, Pair
from ugpu.virtual.nvidia.sm.translator.handler import Handler, is_signed, only, sources, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number


def _type(k: Kernel, i: Instruction) -> str:
    """Return the type of a logic instruction (PTX ISA, "Logic and Shift Instructions")."""
    kind = type_of(k, i)
    if kind not in ("pred", "b16", "b32", "b64"):
        raise k.unsupported()
    return kind


def _logic(operation: str) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = _type(k, i)
        only(k, i)
        x, y = sources(k, i, kind, 2)
        k.write(i.operands[0], k.op(operation, x, y))

    return emit


def _not(k: Kernel, i: Instruction) -> None:
    kind = _type(k, i)
    only(k, i)
    (x,) = sources(k, i, kind, 1)
    k.write(i.operands[0], k.op("xor", x, number(x.element, -1)))


def _cnot(k: Kernel, i: Instruction) -> None:
    kind = _type(k, i)
    (x,) = sources(k, i, kind, 1)
    zero = k.cmp("eq", x, number(x.element, 0))
    k.write(i.operands[0], k.cast("zext", zero, x.element))


def _lop3(k: Kernel, i: Instruction) -> None:
    """lop3; with .or or .and also combine whether its result is not 0 with a predicate."""
    joins = only(k, i, "or", "and")
    if len(i.operands) != 5 + len(joins):
        raise k.bad("expected five operands, and a predicate to join with")
    table = i.operands[4]
    if not isinstance(table, Integer) or not 0 <= table.value <= 255:
        raise k.bad("the table must be a constant of 8 bits")
    a, b, c = (k.source(operand, "b32") for operand in i.operands[1:4])
    result: Value = number("i32", 0)
    ones = number("i32", -1)
    for row in range(8):
        if not table.value >> row & 1:
            continue
        term = ones
        for bit, value in ((4, a), (2, b), (1, c)):
            term = k.op("and", term, value if row & bit else k.op("xor", value, ones))
        result = k.op("or", result, term)
    target = i.operands[0]
    if not joins:
        k.write(target, result)
        return
    if not isinstance(target, Pair):
        raise k.bad("expected a result and a predicate")
    some = k.cmp("ne", result, number("i32", 0))
    k.write(target.second, k.op(next(iter(joins)), some, k.source(i.operands[5], "pred")))
    k.write(target.first, result)


def _shift(left: bool) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        only(k, i)
        if len(i.operands) != 3:
            raise k.bad("expected three operands")
        x = k.source(i.operands[1], kind)
        count = k.resize(k.source(i.operands[2], "u32"), x.element, False)
        if x.element == "i16":  # the count may not fit in 16 bits
            wide = k.source(i.operands[2], "u32")
            count = k.cast("trunc", k.call_op("umin", wide, number("i32", 0xFF)), "i16")
        k.write(i.operands[0], shift(k, left, is_signed(kind), x, count))

    return emit


def shift(k: Kernel, left: bool, signed: bool, x: Value, count: Value) -> Value:
    """Shift. Counts of the width or more clear the register, or fill it with the sign."""
    limit = number(x.element, x.width - 1)
    if count.bits is not None and count.bits < x.width:
        operation = "shl" if left else "ashr" if signed else "lshr"
        return k.op(operation, x, count)
    safe = k.call_op("umin", count, limit)
    if not left and signed:
        return k.op("ashr", x, safe)
    moved = k.op("shl" if left else "lshr", x, safe)
    beyond = k.cmp("ugt", count, limit)
    return k.choose(beyond, number(x.element, 0), moved)


def _funnel(k: Kernel, i: Instruction) -> None:
    flags = only(k, i, "l", "r", "wrap", "clamp")
    a, b, c = sources(k, i, "b32", 3)
    if "clamp" in flags:
        count = k.call_op("umin", c, number("i32", 32))
    else:
        count = k.op("and", c, number("i32", 31))
    both = k.op("or", k.cast("zext", a, "i64"),
                k.op("shl", k.cast("zext", b, "i64"), number("i64", 32)))  # fmt: skip
    wide = k.cast("zext", count, "i64")
    if "l" in flags:
        result = k.op("lshr", k.op("shl", both, wide), number("i64", 32))
    else:
        result = k.op("lshr", both, wide)
    k.write(i.operands[0], k.cast("trunc", result, "i32"))


def _count(intrinsic: str) -> Handler:
    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        (x,) = sources(k, i, kind, 1)
        found = k.call_op(intrinsic, x, extra="" if intrinsic == "ctpop" else "false")
        k.write(i.operands[0], k.resize(found, "i32", False))

    return emit


def _find(k: Kernel, i: Instruction) -> None:
    """Find the highest bit that is not a copy of the sign; all ones if there is none."""
    kind = type_of(k, i)
    flags = only(k, i, "shiftamt")
    (x,) = sources(k, i, kind, 1)
    if is_signed(kind):
        x = k.op("xor", x, k.op("ashr", x, number(x.element, x.width - 1)))
    zeros = k.resize(k.call_op("ctlz", x, extra="false"), "i32", False)
    none = k.cmp("eq", x, number(x.element, 0))
    place = zeros if "shiftamt" in flags else k.op("sub", number("i32", x.width - 1), zeros)
    k.write(i.operands[0], k.choose(none, number("i32", -1), place))


def _reverse(k: Kernel, i: Instruction) -> None:
    (x,) = sources(k, i, type_of(k, i), 1)
    k.write(i.operands[0], k.call_op("bitreverse", x))


def _byte(k: Kernel, value: Value) -> Value:
    return k.op("and", value, number("i32", 0xFF))


def _extract(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    only(k, i)
    if len(i.operands) != 4:
        raise k.bad("expected four operands")
    x = k.source(i.operands[1], kind)
    start, length = (_byte(k, k.source(operand, "u32")) for operand in i.operands[2:])
    end = k.op("sub", k.op("add", start, length), number("i32", 1))
    start, length, end = (k.resize(v, x.element, False) for v in (start, length, end))
    moved = shift(k, False, is_signed(kind), x, start)
    empty = k.cmp("eq", length, number(x.element, 0))
    room = k.op("sub", number(x.element, x.width), length)
    whole = k.cmp("uge", length, number(x.element, x.width))
    room = k.choose(k.op("or", whole, empty), number(x.element, 0), room)
    up = k.op("shl", moved, room)
    result = k.op("ashr" if is_signed(kind) else "lshr", up, room)
    if is_signed(kind):
        # Bits above the source are copies of its sign, which an arithmetic shift inserts.
        result = k.choose(whole, moved, result)
    k.write(i.operands[0], k.choose(empty, number(x.element, 0), result))


def _insert(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    if len(i.operands) != 5:
        raise k.bad("expected five operands")
    a, b = k.source(i.operands[1], kind), k.source(i.operands[2], kind)
    start, length = (_byte(k, k.source(operand, "u32")) for operand in i.operands[3:])
    start, length = (k.resize(v, a.element, False) for v in (start, length))
    one = number(a.element, 1)
    field = k.op("sub", shift(k, True, False, one, length), one)
    mask = shift(k, True, False, field, start)
    moved = k.op("and", shift(k, True, False, a, start), mask)
    kept = k.op("and", b, k.op("xor", mask, number(a.element, -1)))
    k.write(i.operands[0], k.op("or", moved, kept))


def _bit_mask(k: Kernel, i: Instruction) -> None:
    flags = only(k, i, "wrap", "clamp")
    start, length = sources(k, i, "b32", 2)
    if "wrap" in flags:
        start, length = (k.op("and", v, number("i32", 31)) for v in (start, length))
    one = number("i32", 1)
    field = k.op("sub", shift(k, True, False, one, length), one)
    k.write(i.operands[0], shift(k, True, False, field, start))


def _sign_extend(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    flags = only(k, i, "wrap", "clamp")
    x, length = sources(k, i, kind, 2)
    if "wrap" in flags:
        length = k.op("and", length, number("i32", 31))
    room = k.op("sub", number("i32", 32), length)
    zero = k.cmp("eq", length, number("i32", 0))
    whole = k.cmp("uge", length, number("i32", 32))
    safe = k.choose(k.op("or", zero, whole), number("i32", 0), room)
    up = k.op("shl", x, safe)
    result = k.op("ashr" if is_signed(kind) else "lshr", up, safe)
    k.write(i.operands[0], k.choose(zero, number("i32", 0), result))


def _find_nth(k: Kernel, i: Instruction) -> None:
    """fns: find the n-th set bit of a mask, counted upwards from a base, or downwards for a
    negative n; n = 0 tests the base itself. The result is all ones if there is none."""
    mask, base, count = sources(k, i, "b32", 3)
    zero, one = number("i32", 0), number("i32", 1)
    down = k.cmp("slt", count, zero)
    wanted = k.op("sub", k.choose(down, k.op("sub", zero, count), count), one)
    itself = k.cmp("eq", count, zero)
    result: Value = number("i32", -1)
    seen = {True: zero, False: zero}
    for place in range(32):
        for upwards, here in ((True, place), (False, 31 - place)):
            inside = k.cmp("ule" if upwards else "uge", base, number("i32", here))
            inside = k.op("and", inside, k.cmp("ult", base, number("i32", 32)) if not upwards
                          else inside)  # fmt: skip
            bit = k.op("and", k.op("lshr", mask, number("i32", here)), one)
            some = k.op("and", inside, k.cmp("ne", bit, zero))
            found = k.op("and", some, k.cmp("eq", seen[upwards], wanted))
            alike = k.negate(down) if upwards else down
            found = k.op("and", k.op("and", found, alike), k.negate(itself))
            if upwards:  # n = 0
                same = k.op("and", itself, k.cmp("eq", base, number("i32", here)))
                found = k.op("or", found, k.op("and", same, k.cmp("ne", bit, zero)))
            result = k.choose(found, number("i32", here), result)
            seen[upwards] = k.op("add", seen[upwards], k.cast("zext", some, "i32"))
    k.write(i.operands[0], result)


_MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


def _permute(k: Kernel, i: Instruction) -> None:
    mode = [m for m in i.modifiers if m in _MODES]
    a, b, c = sources(k, i, "b32", 3)
    both = k.op("or", k.cast("zext", a, "i64"),
                k.op("shl", k.cast("zext", b, "i64"), number("i64", 32)))  # fmt: skip
    result: Value = number("i32", 0)
    for byte in range(4):
        replicate = None
        if mode:
            selector = _mode_selector(k, mode[0], c, byte)
        else:
            selector = k.op("lshr", c, number("i32", 4 * byte))
            replicate = k.op("and", selector, number("i32", 8))
        place = k.op("shl", k.op("and", selector, number("i32", 7)), number("i32", 3))
        picked = k.op("lshr", both, k.cast("zext", place, "i64"))
        picked = _byte(k, k.cast("trunc", picked, "i32"))
        if replicate is not None:
            sign = k.op("ashr", k.op("shl", picked, number("i32", 24)), number("i32", 31))
            signs = k.cmp("ne", replicate, number("i32", 0))
            picked = k.choose(signs, _byte(k, sign), picked)
        result = k.op("or", result, k.op("shl", picked, number("i32", 8 * byte)))
    k.write(i.operands[0], result)


def _mode_selector(k: Kernel, mode: str, c: Value, byte: int) -> Value:
    """Return the index of the byte that a mode selects by the two low bits of c."""
    table = {
        "f4e": [byte + c for c in range(4)],
        "b4e": [(c - byte) & 7 for c in range(4)],
        "rc8": list(range(4)),
        "ecl": [max(byte, c) for c in range(4)],
        "ecr": [min(byte, c) for c in range(4)],
        "rc16": [(c & 1) * 2 + (byte & 1) for c in range(4)],
    }[mode]
    low = k.op("and", c, number("i32", 3))
    result: Value = number("i32", table[0])
    for value in range(1, 4):
        same = k.cmp("eq", low, number("i32", value))
        result = k.choose(same, number("i32", table[value]), result)
    return result


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "and": _logic("and"), "or": _logic("or"), "xor": _logic("xor"), "not": _not, "cnot": _cnot,
        "lop3": _lop3, "shl": _shift(True), "shr": _shift(False), "shf": _funnel,
        "popc": _count("ctpop"), "clz": _count("ctlz"), "bfind": _find, "brev": _reverse,
        "bfe": _extract, "bfi": _insert, "bmsk": _bit_mask, "szext": _sign_extend,
        "prmt": _permute, "fns": _find_nth,
    }  # fmt: skip
