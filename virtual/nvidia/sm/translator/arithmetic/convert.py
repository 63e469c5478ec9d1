"""Conversions: cvt between integers and floats of all widths.

Source: PTX ISA 8.x, "Data Movement and Conversion Instructions": cvt, cvt.pack.
"""

from __future__ import annotations

from ugpu.virtual.nvidia.sm.ptx.module import SIZES, Instruction, Operand, Register
from ugpu.virtual.nvidia.sm.translator.arithmetic import convert_small, rounding
from ugpu.virtual.nvidia.sm.translator.arithmetic.floats import as_float, float_to_half, narrowed
from ugpu.virtual.nvidia.sm.translator.arithmetic.rounding import flushed, rectified, saturated
from ugpu.virtual.nvidia.sm.translator.handler import Handler, is_signed
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number, real

_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGER_ROUNDING = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_DIRECTED = ("rz", "rm", "rp")
_KNOWN = frozenset(("ftz", "sat", "relu", "satfinite", "rn", "rna", "rni", *_DIRECTED,
                    *_INTEGER_ROUNDING))  # fmt: skip
_PAIRS = {"f16x2": "f16", "bf16x2": "bf16"}


def _convert(k: Kernel, i: Instruction) -> None:
    if i.modifiers and i.modifiers[0] == "pack":
        convert_small.pack(k, i)
        return
    if len(i.modifiers) < 2:
        raise k.bad("expected two types")
    target, source = i.modifiers[-2:]
    flags = set(i.modifiers[:-2])
    if flags - _KNOWN:
        raise k.unsupported("." + ".".join(sorted(flags - _KNOWN)))
    if target in _PAIRS and source == "f32":
        k.write(i.operands[0], _pair(k, i, _PAIRS[target], flags))
        return
    if target in convert_small.FORMATS or source in convert_small.FORMATS:
        k.write(i.operands[0], convert_small.pairs(k, i, target, source, flags))
        return
    if target == "tf32" and source == "f32":
        k.write(i.operands[0], _tensor_float(k, k.source(i.operands[1], "f32"), flags))
        return
    if target not in SIZES or source not in SIZES or target in _PAIRS or source in _PAIRS:
        raise k.unsupported()
    if len(i.operands) != 2:
        raise k.bad("expected two operands")
    value = _source(k, i.operands[1], source)
    if source in _FLOATS and target in _FLOATS:
        result = _float_to_float(k, value, target, source, flags)
    elif source in _FLOATS:
        result = _float_to_integer(k, value, target, source, flags)
    elif target in _FLOATS:
        result = _integer_to_float(k, value, target, source, flags)
    else:
        if "sat" in flags and not _may_leave(target, source):
            raise k.bad(".sat has no effect, since every value is in range")
        result = _integer_to_integer(k, value, target, source, "sat" in flags)
    _write(k, i.operands[0], result, target)


def _source(k: Kernel, operand: Operand, kind: str) -> Value:
    return k.source(operand, kind)


def _write(k: Kernel, operand: Operand, value: Value, kind: str) -> None:
    """Write a result to a register that may be wider; signed results are sign-extended."""
    if isinstance(operand, Register) and operand.type != "pred" and is_signed(kind):
        element = f"i{8 * SIZES[operand.type]}"
        value = k.resize(value, element, True)
    k.write(operand, value)


def _may_leave(target: str, source: str) -> bool:
    """Return whether a number of one integer type may be out of range for another."""
    wide, narrow = SIZES[target], SIZES[source]
    if is_signed(target) == is_signed(source):
        return narrow > wide
    return is_signed(source) or narrow >= wide


def _integer_to_integer(k: Kernel, value: Value, target: str, source: str, sat: bool) -> Value:
    element = f"i{8 * SIZES[target]}"
    if sat:
        width = 8 * SIZES[target]
        wide = k.resize(value, "i64", is_signed(source))
        if is_signed(source):
            low = -(1 << (width - 1)) if is_signed(target) else 0
            high = (1 << (width - 1 if is_signed(target) else width)) - 1
            high = min(high, (1 << 63) - 1)
            wide = k.call_op("smax", wide, number("i64", low))
            wide = k.call_op("smin", wide, number("i64", high))
        else:
            high = (1 << (width - 1 if is_signed(target) else width)) - 1
            wide = k.call_op("umin", wide, number("i64", high))
        return k.resize(wide, element, False)
    return k.resize(value, element, is_signed(source))


def _float_to_integer(k: Kernel, value: Value, target: str, source: str, flags: set[str]) -> Value:
    modes = [flag for flag in flags if flag in _INTEGER_ROUNDING]
    if len(modes) != 1:
        raise k.bad("expected a rounding to an integer")
    x = as_float(k, value, source, "ftz" in flags)
    x = k.call_op(_INTEGER_ROUNDING[modes[0]], x)
    element = f"i{8 * SIZES[target]}"
    name = "fptosi.sat" if is_signed(target) else "fptoui.sat"
    short = {"float": "f32", "double": "f64"}[x.element]
    shape = "" if x.uniform else "v32"
    text = k.call(
        k.kind(element, x.uniform), f"llvm.{name}.{shape}{element}.{shape}{short}",
        (k.type_of(x), x.text),
    )  # fmt: skip
    result = Value(text, element, x.uniform)
    if source != "f64" and target not in ("s64", "u64"):
        return result  # NaN becomes 0
    highest = number(element, 1 << (8 * SIZES[target] - 1))
    return k.choose(k.cmp("uno", x, x), highest, result)


def _split(k: Kernel, value: Value, signed: bool) -> tuple[Value, Value]:
    """Return an integer as the nearest double and the exact rest."""
    if value.width <= 32:
        exact = k.cast("sitofp" if signed else "uitofp", value, "double")
        return exact, real("double", 0.0)
    high = k.op("ashr" if signed else "lshr", value, number("i64", 32))
    low = k.op("and", value, number("i64", 0xFFFF_FFFF))
    upper = k.op("fmul", k.cast("sitofp" if signed else "uitofp", high, "double"),
                 real("double", 2.0**32))  # fmt: skip
    lower = k.cast("uitofp", low, "double")
    total = k.op("fadd", upper, lower)
    return total, rounding.sum_error(k, upper, lower, total)


def _mode(k: Kernel, flags: set[str]) -> str:
    modes = flags & {"rn", *_DIRECTED}
    return modes.pop() if modes else "rn"


def _integer_to_float(k: Kernel, value: Value, target: str, source: str, flags: set[str]) -> Value:
    mode = _mode(k, flags)
    signed = is_signed(source)
    if mode == "rn" and target in ("f32", "f64"):
        element = {"f32": "float", "f64": "double"}[target]
        result = k.cast("sitofp" if signed else "uitofp", value, element)
    else:
        s, e = _split(k, value, signed)
        if target in ("f16", "bf16"):
            return _narrow(k, rounding.to_odd(k, s, e), target, mode)
        result = rounding.rounded(k, s, e, {"f32": "float", "f64": "double"}[target], mode)
    return saturated(k, result) if "sat" in flags else result


def _narrow(k: Kernel, value: Value, target: str, mode: str) -> Value:
    """Round a float or double to f16 or bf16 bits."""
    if mode == "rn":
        return narrowed(k, value, target)
    wide = rounding.odd_float(k, value) if value.element == "double" else value
    if target == "bf16":
        bits = k.bits_of(wide)
        cut = k.cast("trunc", k.op("lshr", bits, number("i32", 16)), "i16")
        if mode != "rz":  # away from zero if the mode requires it and bits are cut off
            rest = k.cmp("ne", k.op("and", bits, number("i32", 0xFFFF)), number("i32", 0))
            right = k.cmp("slt" if mode == "rm" else "sge", bits, number("i32", 0))
            cut = k.op("add", cut, k.cast("zext", k.op("and", rest, right), "i16"))
        return k.choose(k.cmp("uno", wide, wide), number("i16", 0x7FFF), cut)
    nearest = float_to_half(k, wide)
    back = as_float(k, nearest, "f16", False)
    error = k.op("fsub", wide, back)
    infinite = k.cmp("uno", error, error)  # both infinite
    error = k.choose(infinite, rounding.zero(error), error)
    half = k.cast("bitcast", nearest, "half")
    return k.bits_of(_steered_half(k, half, error, mode))


def _steered_half(k: Kernel, nearest: Value, error: Value, mode: str) -> Value:
    """Return the result of `rounding.steered` for an f16 whose error is a float."""
    bits = k.bits_of(nearest)
    one, sign = number("i16", 1), number("i16", 0x8000)
    negative = k.cmp("slt", bits, number("i16", 0))
    is_zero = k.cmp("eq", k.op("shl", bits, one), number("i16", 0))
    below, above = k.cmp("olt", error, rounding.zero(error)), k.cmp(
        "ogt", error, rounding.zero(error))  # fmt: skip
    smaller, larger = k.op("sub", bits, one), k.op("add", bits, one)
    if mode == "rm":
        moved = k.choose(is_zero, k.op("or", sign, one), k.choose(negative, larger, smaller))
        result = k.choose(below, moved, bits)
    elif mode == "rp":
        moved = k.choose(is_zero, one, k.choose(negative, smaller, larger))
        result = k.choose(above, moved, bits)
    else:
        inward = k.choose(negative, above, below)
        result = k.choose(k.op("and", inward, k.negate(is_zero)), smaller, bits)
    return k.cast("bitcast", result, "half")


def _float_to_float(k: Kernel, value: Value, target: str, source: str, flags: set[str]) -> Value:
    x = as_float(k, value, source, "ftz" in flags)
    to_integer = [flag for flag in flags if flag in _INTEGER_ROUNDING]
    if to_integer:
        x = k.call_op(_INTEGER_ROUNDING[to_integer[0]], x)
    mode = _mode(k, flags)
    if "sat" in flags:
        x = saturated(k, x)
    if "relu" in flags:
        x = rectified(k, x)
    if target in ("f16", "bf16"):
        if target == source:
            return value if not flags & {"sat", "relu", *to_integer} else narrowed(k, x, target)
        result = _narrow(k, x, target, mode)
        return _finite(k, result, _MOST[target]) if "satfinite" in flags else result
    if target == "f64":
        return k.cast("fpext", x, "double")
    if x.element == "double":
        if mode == "rn":
            x = k.cast("fptrunc", x, "float")
        else:
            x = rounding.rounded(k, x, real("double", 0.0), "float", mode)
    return flushed(k, x) if "ftz" in flags else x


_MOST = {"f16": 0x7BFF, "bf16": 0x7F7F, "tf32": 0x7F7FE000}
_INFINITE = {"f16": 0x7C00, "bf16": 0x7F80, "tf32": 0x7F800000}


def _finite(k: Kernel, value: Value, most: int) -> Value:
    """Replace an infinity by the largest number. most: its bits."""
    sign = k.op("and", value, number(value.element, 1 << (value.width - 1)))
    size = k.op("xor", value, sign)
    infinite = next(bits for kind, bits in _INFINITE.items() if _MOST[kind] == most)
    found = k.cmp("eq", size, number(value.element, infinite))
    return k.choose(found, k.op("or", sign, number(value.element, most)), value)


def _pair(k: Kernel, i: Instruction, kind: str, flags: set[str]) -> Value:
    """Convert two f32 to a pair of halves; the first operand becomes the upper half."""
    if len(i.operands) != 3:
        raise k.bad("expected three operands")
    mode = _mode(k, flags)
    parts = []
    for operand in i.operands[1:]:
        x = k.source(operand, "f32")
        if "relu" in flags:
            x = rectified(k, x)
        part = _narrow(k, x, kind, mode)
        if "satfinite" in flags:
            part = _finite(k, part, _MOST[kind])
        parts.append(k.cast("zext", part, "i32"))
    return k.op("or", parts[1], k.op("shl", parts[0], number("i32", 16)))


def _tensor_float(k: Kernel, value: Value, flags: set[str]) -> Value:
    """Round to the 10 bits of fraction of tf32; the lower 13 bits become zero."""
    if "relu" in flags:
        value = rectified(k, value)
    bits = k.bits_of(value)
    if "rna" in flags:
        more = k.op("add", bits, number("i32", 0x1000))
    elif "rz" in flags:
        more = bits
    else:
        odd = k.op("and", k.op("lshr", bits, number("i32", 13)), number("i32", 1))
        more = k.op("add", k.op("add", bits, number("i32", 0xFFF)), odd)
    cut = k.op("and", more, number("i32", ~0x1FFF))
    special = k.op("and", bits, number("i32", 0x7F800000))
    keep = k.cmp("eq", special, number("i32", 0x7F800000))
    nan = k.choose(k.cmp("uno", value, value), number("i32", 0x7FFFE000), bits)
    result = k.choose(keep, nan, cut)
    return _finite(k, result, _MOST["tf32"]) if "satfinite" in flags else result


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {"cvt": _convert}
