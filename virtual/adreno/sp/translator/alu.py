"""Arithmetic of categories 2 and 3, translated to LLVM IR.

Sources: Mesa 25.0.7, src/freedreno/isa/ir3-cat2.xml and ir3-cat3.xml, src/freedreno/ir3/
ir3_compiler_nir.c with src/compiler/nir/nir_opcodes.py (what Mesa uses each instruction for).
UNSURE: no public document describes how mad.f32 rounds (once, here), nor whether subnormal numbers
are flushed (they are kept here); results from a board would.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.adreno.sp.operands import Op
from ugpu.virtual.adreno.sp.translator.floats import fused, minimum
from ugpu.virtual.adreno.sp.translator.registers import Handler, Registers, Unsupported
from ugpu.virtual.shader.text import constant

CONDITIONS = ("lt", "le", "gt", "ge", "eq", "ne")
_Binary = Callable[[Registers, str, str, str], str]


def _plain(operation: str) -> _Binary:
    return lambda e, element, a, b: e.binary(operation, element, a, b)


def _called(name: str) -> _Binary:
    return lambda e, element, a, b: e.intrinsic(name, element, a, b)


def _shift(operation: str) -> _Binary:
    def emit(e: Registers, element: str, a: str, b: str) -> str:
        most = constant(element, int(element[1:]) - 1)
        return e.binary(operation, element, a, e.binary("and", element, b, most))

    return emit


def _low_product(e: Registers, element: str, a: str, b: str) -> str:
    if element == "i16":
        return e.binary("mul", element, a, b)
    low = constant(element, 0xFFFF)
    return e.binary("mul", element, e.binary("and", element, a, low),
                    e.binary("and", element, b, low))  # fmt: skip


def _cut24(e: Registers, element: str, value: str, signed: bool) -> str:
    if element == "i16":
        return value
    if not signed:
        return e.binary("and", element, value, constant(element, 0xFFFFFF))
    eight = constant(element, 8)
    return e.binary("ashr", element, e.binary("shl", element, value, eight), eight)


def product24(signed: bool) -> _Binary:
    """Return the low half of a product of 24-bit numbers."""

    def emit(e: Registers, element: str, a: str, b: str) -> str:
        a, b = (_cut24(e, element, value, signed) for value in (a, b))
        return e.binary("mul", element, a, b)

    return emit


def _bit(e: Registers, element: str, a: str, b: str) -> str:
    return e.binary("and", element, _shift("lshr")(e, element, a, b), constant(element, 1))


_TWO: dict[str, _Binary] = {
    "add": _plain("add"), "sub": _plain("sub"), "and.b": _plain("and"), "or.b": _plain("or"),
    "xor.b": _plain("xor"), "min.u": _called("umin"), "max.u": _called("umax"),
    "min.s": _called("smin"), "max.s": _called("smax"), "mul.u24": product24(False),
    "mul.s24": product24(True), "mull.u": _low_product, "shl.b": _shift("shl"),
    "shr.b": _shift("lshr"), "ashr.b": _shift("ashr"), "getbit.b": _bit,
}  # fmt: skip
_SATURATED = {
    "add.u": "uadd.sat", "add.s": "sadd.sat", "sub.u": "usub.sat", "sub.s": "ssub.sat",
}  # fmt: skip
_FLOATS = {"add.f": "fadd", "mul.f": "fmul"}
_ROUNDED = {
    "floor.f": "floor", "ceil.f": "ceil", "rndne.f": "roundeven", "rndaz.f": "round",
    "trunc.f": "trunc",
}  # fmt: skip


def saturated(e: Registers, element: str, value: str) -> str:
    """Clamp to 0..1; NaN becomes 0."""
    zero, one = constant(element, 0), constant(element, 0x3F800000)
    value = e.select(e.compare("ogt", element, value, zero), element, value, zero)
    return e.select(e.compare("olt", element, value, one), element, value, one)


def _floats(e: Registers, op: Op, turn: int) -> list[str]:
    """Read sources as f32. Halves are widened, since f32 arithmetic rounded to f16 is exact."""
    found = []
    for operand in op.sources:
        value = e.source(operand.at(turn), floating=True)
        found.append(e.convert("fpext", "half", "float", value) if operand.half else value)
    return found


def float_result(e: Registers, op: Op, turn: int, value: str) -> None:
    """Write an f32 result."""
    if op.flag("SAT"):
        value = saturated(e, "float", value)
    if not op.full and not op.target.half:  # computed in f16, then widened
        value = e.convert("fptrunc", "float", "half", value)
        e.result(op.target, turn, value, "half")
        return
    e.result(op.target, turn, value, "float")


def _float_two(e: Registers, op: Op, turn: int) -> None:
    a, b = _floats(e, op, turn)
    if op.name in ("min.f", "max.f"):
        value = minimum(e, op.name[:3], a, b)
    else:
        value = e.binary(_FLOATS[op.name], "float", a, b)
    float_result(e, op, turn, value)


def _float_one(e: Registers, op: Op, turn: int) -> None:
    (value,) = _floats(e, op, turn)
    if op.name == "sign.f":
        one = e.intrinsic("copysign", "float", constant("float", 0x3F800000), value)
        number = e.compare("one", "float", value, constant("float", 0))
        zero = e.compare("oeq", "float", value, constant("float", 0))
        value = e.select(zero, "float", value, constant("float", 0))  # of NaN 0, as NIR's fsign
        value = e.select(number, "float", one, value)
    elif op.name != "absneg.f":
        value = e.intrinsic(_ROUNDED[op.name], "float", value)
    float_result(e, op, turn, value)


def _compare(e: Registers, op: Op, turn: int) -> None:
    condition = op.raw("COND")
    if condition >= len(CONDITIONS):
        raise Unsupported(f"condition {condition}")
    name = CONDITIONS[condition]
    if op.name.endswith(".f"):
        a, b = _floats(e, op, turn)
        kind, predicate = "float", "une" if name == "ne" else "o" + name
    else:
        a, b = (e.source(operand.at(turn)) for operand in op.sources)
        kind = "i32" if op.full else "i16"
        predicate = name if name in ("eq", "ne") else op.name[-1] + name
    truth = e.compare(predicate, kind, a, b)
    if op.target.number >= 62 * 4 and not op.target.number >= 63 * 4:
        e.set_predicate(op.target.number, truth)
        return
    element = "i16" if op.target.half else "i32"
    e.store(op.target, turn, e.convert("zext", "i1", element, truth))


def _integer_two(e: Registers, op: Op, turn: int) -> None:
    element = "i32" if op.full else "i16"
    bitwise = op.name.endswith(".b")
    a, b = (e.source(operand.at(turn), bitwise=bitwise) for operand in op.sources)
    if op.flag("SAT"):
        if op.name not in _SATURATED:
            raise Unsupported(f"(sat) of {op.name}")
        value = e.intrinsic(_SATURATED[op.name], element, a, b)
    else:
        operation = _TWO.get(op.name) or _TWO[op.name[:3]]
        value = operation(e, element, a, b)
    _integer_result(e, op, turn, value, element)


def _integer_result(e: Registers, op: Op, turn: int, value: str, element: str) -> None:
    """Write an integer; to a wider target it is extended as the operation's kind requires."""
    if element == "i16" and not op.target.half and ".s" in op.name:
        value, element = e.convert("sext", "i16", "i32", value), "i32"
    e.result(op.target, turn, value, element)


def _leading(e: Registers, element: str, value: str) -> str:
    """Count leading zeros; all ones for zero, as Mesa's lowering of find_msb expects."""
    if element != "i32":
        raise Unsupported("leading zeros of a half register")
    count = e.call(e.vector, f"llvm.ctlz.v{e.lanes}i32", (e.vector, value), ("i1", "false"))
    none = e.compare("eq", "i32", value, constant("i32", 0))
    return e.select(none, "i32", constant("i32", -1), count)


def _integer_one(e: Registers, op: Op, turn: int) -> None:
    element = "i32" if op.full else "i16"
    (operand,) = op.sources
    value = e.source(operand.at(turn), bitwise=op.name.endswith(".b"))
    if op.name == "not.b":
        value = e.binary("xor", element, value, constant(element, -1))
    elif op.name == "bfrev.b":
        value = e.intrinsic("bitreverse", element, value)
    elif op.name == "cbits.b":
        value = e.intrinsic("ctpop", element, value)
    elif op.name == "clz.b":
        value = _leading(e, element, value)
    elif op.name == "clz.s":
        sign = e.binary("ashr", element, value, constant(element, 31))
        value = _leading(e, element, e.binary("xor", element, value, sign))
    _integer_result(e, op, turn, value, element)


# ---- category 3 ----------------------------------------------------------------------------------


def _fused_add(e: Registers, op: Op, turn: int) -> None:
    a, b, c = (e.source(operand.at(turn), floating=True) for operand in op.sources)
    half = op.name == "mad.f16"
    value = fused(e, "half" if half else "float", a, b, c)
    if op.flag("SAT"):
        if half:
            value = e.convert("fpext", "half", "float", value)
        value = saturated(e, "float", value)
        e.result(op.target, turn, value, "float")
        return
    e.result(op.target, turn, value, "half" if half else "float")


def _product_add(e: Registers, op: Op, turn: int) -> None:
    if op.flag("SAT") or (op.name in ("mad.u16", "mad.s16") and not op.target.half):
        raise Unsupported(f"{op.name} with (sat), or widened")
    element = "i32" if op.full else "i16"
    a, b, c = (e.source(operand.at(turn)) for operand in op.sources)
    if op.name.endswith("24"):
        product = product24("s" in op.name)(e, element, a, b)
    else:
        product = e.binary("mul", element, a, b)
    e.result(op.target, turn, e.binary("add", element, product, c), element)


def _shifted_product(e: Registers, op: Op, turn: int) -> None:
    """Multiply the lower half of the first source by the upper half of the second, shifted left by
    16.

    Mesa's nir_opt_algebraic.py drops the product of imadsh_mix16 where the first source's lower
    half or the second's upper half is zero, and the rest of such code computes products on boards.
    The constant folding of imadsh_mix16 in Mesa 25.2.7 ignores the product, so it shows nothing.
    """
    if op.flag("SAT") or op.target.half:
        raise Unsupported(f"{op.name} with (sat), or narrowed")
    a, b, c = (e.source(operand.at(turn)) for operand in op.sources)
    sixteen = constant("i32", 16)
    high = e.binary("lshr", "i32", b, sixteen)
    product = e.binary("shl", "i32", _low_product(e, "i32", a, high), sixteen)
    e.result(op.target, turn, e.binary("add", "i32", product, c), "i32")


def _select(e: Registers, op: Op, turn: int) -> None:
    if any(operand.negate for operand in op.sources) or op.flag("SAT"):
        raise Unsupported("sel.b with modifiers")
    element = "i32" if op.full else "i16"
    a, chosen, c = (e.source(operand.at(turn)) for operand in op.sources)
    truth = e.compare("ne", element, chosen, constant(element, 0))
    e.result(op.target, turn, e.select(truth, element, a, c), element)


def _sum(e: Registers, op: Op, turn: int) -> None:
    """Emit sad.s16 and sad.s32, which add three numbers: Mesa's iadd3."""
    if op.flag("SAT"):
        raise Unsupported("(sat) of a sum of three")
    element = "i32" if op.full else "i16"
    a, b, c = (e.source(operand.at(turn)) for operand in op.sources)
    value = e.binary("add", element, e.binary("add", element, a, b), c)
    _integer_result(e, op, turn, value, element)


def _shift_then(e: Registers, op: Op, turn: int) -> None:
    element = "i32" if op.full else "i16"
    a, b, c = (e.source(operand.at(turn), bitwise=True) for operand in op.sources)
    if op.name == "andg":
        value = e.binary("and", element, b, a)
    else:
        value = _shift("shl" if op.name.startswith("shl") else "lshr")(e, element, b, a)
    operation = "and" if op.name.endswith("m") else "or"
    e.result(op.target, turn, e.binary(operation, element, value, c), element)


def _dot(e: Registers, op: Op, turn: int) -> None:
    """Add products of bytes to the third source. SRC_SIGN: the first source has signed bytes."""
    a, b, c = (e.source(operand.at(turn)) for operand in op.sources)
    mixed, upper = bool(op.raw("SRC_SIGN")), bool(op.raw("SRC_PACK"))
    bytes_of = range(4) if op.name == "dp4acc" else range(2 * upper, 2 * upper + 2)
    total = constant("i32", 0)
    for place in bytes_of:
        left = e.binary("shl", "i32", a, constant("i32", 24 - 8 * place))
        left = e.binary("ashr" if mixed else "lshr", "i32", left, constant("i32", 24))
        right = e.binary("lshr", "i32", b, constant("i32", 8 * place))
        right = e.binary("and", "i32", right, constant("i32", 255))
        total = e.binary("add", "i32", total, e.binary("mul", "i32", left, right))
    if op.flag("SAT"):
        value = e.intrinsic("sadd.sat" if mixed else "uadd.sat", "i32", total, c)
    else:
        value = e.binary("add", "i32", total, c)
    e.result(op.target, turn, value, "i32")


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    found: dict[str, Handler] = {}
    found.update(dict.fromkeys(("add.f", "mul.f", "min.f", "max.f"), _float_two))
    found.update(dict.fromkeys(("sign.f", "absneg.f", *_ROUNDED), _float_one))
    found.update(dict.fromkeys(("cmps.f", "cmps.u", "cmps.s"), _compare))
    two = ("add.u", "add.s", "sub.u", "sub.s", *(name for name in _TWO if "." in name))
    found.update(dict.fromkeys(two, _integer_two))
    one = ("absneg.s", "not.b", "bfrev.b", "cbits.b", "clz.b", "clz.s")
    found.update(dict.fromkeys(one, _integer_one))
    found.update(dict.fromkeys(("mad.f16", "mad.f32"), _fused_add))
    found.update(dict.fromkeys(("mad.u16", "mad.s16", "mad.u24", "mad.s24"), _product_add))
    found["madsh.m16"] = _shifted_product
    found.update(dict.fromkeys(("sel.b16", "sel.b32"), _select))
    found.update(dict.fromkeys(("sad.s16", "sad.s32"), _sum))
    found.update(dict.fromkeys(("shrm", "shlm", "shrg", "shlg", "andg"), _shift_then))
    found.update(dict.fromkeys(("dp2acc", "dp4acc"), _dot))
    return found
