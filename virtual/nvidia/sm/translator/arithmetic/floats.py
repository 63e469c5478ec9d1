"""Floating-point arithmetic: f32, f64, f16 and bf16, alone and in pairs.

f16 and bf16 are computed in f32 (fma in f64) and rounded once. NaN results have the host's payload,
not always the chip's 0x7FFFFFFF.
Source: PTX ISA 8.x, "Floating Point Instructions" and "Half Precision Floating Point Instructions".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.translator.arithmetic import rounding
from ugpu.virtual.nvidia.sm.translator.arithmetic.rounding import flushed, saturated
from ugpu.virtual.nvidia.sm.translator.handler import ROUNDINGS, Handler, type_of
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Lanes, Value, number, real

Compute = Callable[[Kernel, Sequence[Value], str], Value]
_HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def half_to_float(k: Lanes, bits: Value) -> Value:
    """Return f16 bits (i16) as float."""
    return k.cast("fpext", k.cast("bitcast", bits, "half"), "float")


def brain_to_float(k: Lanes, bits: Value) -> Value:
    """Return bf16 bits (i16) as float."""
    raised = k.op("shl", k.cast("zext", bits, "i32"), number("i32", 16))
    return k.cast("bitcast", raised, "float")


def float_to_half(k: Lanes, value: Value) -> Value:
    """Round a float to f16 bits, to nearest even."""
    return k.cast("bitcast", k.cast("fptrunc", value, "half"), "i16")


def float_to_brain(k: Lanes, value: Value) -> Value:
    """Round a float to bf16 bits, to nearest even; a NaN becomes 0x7FFF."""
    bits = k.bits_of(value)
    odd = k.op("and", k.op("lshr", bits, number("i32", 16)), number("i32", 1))
    more = k.op("add", k.op("add", bits, number("i32", 0x7FFF)), odd)
    high = k.cast("trunc", k.op("lshr", more, number("i32", 16)), "i16")
    return k.choose(k.cmp("uno", value, value), number("i16", 0x7FFF), high)


def as_float(k: Kernel, value: Value, kind: str, flush: bool) -> Value:
    """Return an operand as the float or double to compute with."""
    if kind == "f16":
        return half_to_float(k, value)
    if kind == "bf16":
        return brain_to_float(k, value)
    return flushed(k, value) if flush and kind == "f32" else value


def _flush_half(k: Kernel, bits: Value) -> Value:
    magnitude = k.op("and", bits, number("i16", 0x7FFF))
    small = k.cmp("ult", magnitude, number("i16", 0x0400))
    return k.choose(small, k.op("and", bits, number("i16", 0x8000)), bits)


def narrowed(k: Kernel, value: Value, kind: str) -> Value:
    """Round a computed float or double to f16 or bf16 bits."""
    if value.element == "double":
        value = rounding.odd_float(k, value)
    return float_to_half(k, value) if kind == "f16" else float_to_brain(k, value)


def _finish(k: Kernel, value: Value, kind: str, flags: set[str]) -> Value:
    """Apply the modifiers of a result; return the value for the register."""
    if "sat" in flags:
        value = saturated(k, value)
    if "relu" in flags:
        positive = k.cmp("ogt", value, rounding.zero(value))
        nan = k.cmp("uno", value, value)
        value = k.choose(k.op("or", positive, nan), value, rounding.zero(value))
    if kind in ("f16", "bf16"):
        bits = narrowed(k, value, kind)
        return _flush_half(k, bits) if "ftz" in flags and kind == "f16" else bits
    return flushed(k, value) if "ftz" in flags and kind == "f32" else value


def operation(count: int, compute: Compute, *extra: str, mixed: bool = False) -> Handler:
    """Return a handler that computes `count` operands of the instruction's type.

    mixed: there is a form `.f32.f16` and `.f32.bf16`, whose last operand and result are f32.
    """
    allowed = {"ftz", "sat", "relu", *ROUNDINGS, *extra}

    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        flags = set(i.modifiers[:-1])
        narrow = ""
        if mixed and "f32" in flags and kind in ("f16", "bf16"):
            narrow, kind = kind, "f32"
            flags.remove("f32")
        if flags - allowed:
            raise k.unsupported("." + ".".join(sorted(flags - allowed)))
        modes = flags & set(ROUNDINGS)
        mode = modes.pop() if modes else "rn"
        if mode == "rna" or (mode != "rn" and kind in _HALVES):
            raise k.bad(f".{mode} with .{kind}")
        if len(i.operands) != count + 1:
            raise k.bad(f"expected {count + 1} operands, got {len(i.operands)}")
        if kind in ("f16x2", "bf16x2"):
            values = [k.source(operand, "b32") for operand in i.operands[1:]]
            parts = []
            for shift in (0, 16):
                moved = [k.cast("trunc", k.op("lshr", v, number("i32", shift)), "i16")
                         for v in values]  # fmt: skip
                parts.append(_one(k, compute, moved, kind[:-2], flags, mode))
            low, high = (k.cast("zext", part, "i32") for part in parts)
            result = k.op("or", low, k.op("shl", high, number("i32", 16)))
        elif kind == "f32x2":
            values = [k.source(operand, "b64") for operand in i.operands[1:]]
            parts = []
            for shift in (0, 32):
                moved = [
                    k.cast("bitcast", k.cast("trunc", k.op("lshr", v, number("i64", shift)), "i32"),
                           "float")
                    for v in values
                ]  # fmt: skip
                parts.append(k.bits_of(_one(k, compute, moved, "f32", flags, mode)))
            low, high = (k.cast("zext", part, "i64") for part in parts)
            result = k.op("or", low, k.op("shl", high, number("i64", 32)))
        elif narrow:
            values = [
                as_float(k, k.source(operand, narrow), narrow, flush=False)
                for operand in i.operands[1:-1]
            ]
            values.append(k.source(i.operands[-1], kind))
            result = _one(k, compute, values, kind, flags, mode)
        elif kind in ("f16", "bf16", "f32", "f64"):
            values = [k.source(operand, kind) for operand in i.operands[1:]]
            result = _one(k, compute, values, kind, flags, mode)
        else:
            raise k.unsupported()
        k.write(i.operands[0], result)

    return emit


def _one(
    k: Kernel, compute: Compute, values: Sequence[Value], kind: str, flags: set[str], mode: str
) -> Value:
    if kind == "f16" and "ftz" in flags:
        values = [_flush_half(k, value) for value in values]
    floats = [as_float(k, value, kind, "ftz" in flags) for value in values]
    return _finish(k, compute(k, floats, "half" if kind in ("f16", "bf16") else mode), kind, flags)


def _wide(k: Kernel, values: Sequence[Value]) -> list[Value]:
    return [k.cast("fpext", v, "double") if v.element == "float" else v for v in values]


def _add(k: Kernel, v: Sequence[Value], mode: str) -> Value:
    if mode in ("rn", "half"):
        return k.op("fadd", v[0], v[1])
    a, b = _wide(k, v)
    total = k.op("fadd", a, b)
    error = rounding.sum_error(k, a, b, total)
    result = rounding.rounded(k, total, error, v[0].element, mode, (a, b))
    return _zero_sign(k, result, total, v[0], v[1], mode)


def _zero_sign(k: Kernel, result: Value, total: Value, a: Value, b: Value, mode: str) -> Value:
    """Fix the sign of zero: rounded to minus infinity, a sum of opposites is -0. total: the sum
    before its last rounding."""
    if mode != "rm":
        return result
    signs = k.op("or", k.bits_of(a), k.bits_of(b))
    sign = number(signs.element, 1 << (signs.width - 1))
    bits = k.op("or", k.bits_of(result), k.op("and", signs, sign))
    is_zero = k.cmp("oeq", total, rounding.zero(total))
    return k.choose(is_zero, k.cast("bitcast", bits, result.element), result)


def _subtract(k: Kernel, v: Sequence[Value], mode: str) -> Value:
    if mode in ("rn", "half"):
        return k.op("fsub", v[0], v[1])
    return _add(k, (v[0], k.op("fneg", v[1])), mode)


def _multiply(k: Kernel, v: Sequence[Value], mode: str) -> Value:
    if mode in ("rn", "half"):
        return k.op("fmul", v[0], v[1])
    a, b = _wide(k, v)
    product = k.op("fmul", a, b)
    error = rounding.fma(k, a, b, k.op("fneg", product))
    return rounding.rounded(k, product, error, v[0].element, mode, (a, b))


def fused(k: Kernel, v: Sequence[Value], mode: str) -> Value:
    """Multiply and add with one rounding; for halves the result is an odd double."""
    if mode == "rn":
        return rounding.fma(k, v[0], v[1], v[2])
    a, b, c = _wide(k, v)
    total = rounding.fma(k, a, b, c)
    error = rounding.fma_error(k, a, b, c, total)
    if mode == "half":
        finite = k.cmp("ord", error, error)
        return rounding.to_odd(k, total, k.choose(finite, error, rounding.zero(error)))
    result = rounding.rounded(k, total, error, v[0].element, mode, (a, b, c))
    product = k.op("fmul", a, b)
    if v[0].element == "float":
        sign = k.cast("bitcast", k.op("and", k.cast("trunc", k.op(
            "lshr", k.bits_of(product), number("i64", 32)), "i32"), number("i32", 1 << 31)),
            "float")  # fmt: skip
    else:
        sign = product
    return _zero_sign(k, result, total, sign, v[2], mode)


def _quotient(k: Kernel, v: Sequence[Value], mode: str) -> Value:
    if mode in ("rn", "half"):
        return k.op("fdiv", v[0], v[1])
    a, b = _wide(k, v)
    quotient = k.op("fdiv", a, b)
    rest = rounding.fma(k, k.op("fneg", quotient), b, a)
    signed = k.op("xor", k.bits_of(rest), k.op("and", k.bits_of(b), number("i64", 1 << 63)))
    error = k.cast("bitcast", signed, "double")
    return rounding.rounded(k, quotient, error, v[0].element, mode)


def _reciprocal(k: Kernel, v: Sequence[Value], mode: str) -> Value:
    return _quotient(k, (real(v[0].element, 1.0), v[0]), mode)


def _root(k: Kernel, v: Sequence[Value], mode: str) -> Value:
    if mode in ("rn", "half"):
        return k.call_op("sqrt", v[0])
    (a,) = _wide(k, v)
    root = k.call_op("sqrt", a)
    error = rounding.fma(k, k.op("fneg", root), root, a)
    return rounding.rounded(k, root, error, v[0].element, mode)


def _extreme(which: str) -> Handler:
    def compute(nan: bool, cross: bool) -> Compute:
        name = f"{which}imum" if nan else f"{which}imumnum"

        def function(k: Kernel, v: Sequence[Value], mode: str) -> Value:
            values = [k.call_op("fabs", x) for x in v] if cross else list(v)
            result = values[0]
            for other in values[1:]:
                result = k.call_op(name, result, other)
            if cross:
                signs = k.bits_of(v[0])
                for other in v[1:]:
                    signs = k.op("xor", signs, k.bits_of(other))
                result = k.call_op("copysign", result, k.cast("bitcast", signs, result.element))
            return result

        return function

    def emit(k: Kernel, i: Instruction) -> None:
        function = compute("NaN" in i.modifiers, "xorsign" in i.modifiers)
        count = len(i.operands) - 1
        if count not in (2, 3):
            raise k.bad("expected three operands")
        operation(count, function, "NaN", "xorsign", "abs")(k, i)

    return emit


def _sign(operation_name: str) -> Handler:
    """Return a handler of abs or neg: only the sign bit changes, also of a NaN."""

    def emit(k: Kernel, i: Instruction) -> None:
        kind = type_of(k, i)
        if set(i.modifiers[:-1]) - {"ftz"}:
            raise k.unsupported()
        if len(i.operands) != 2:
            raise k.bad("expected two operands")
        value = k.source(i.operands[1], kind)
        if kind == "f32" and "ftz" in i.modifiers:
            value = flushed(k, value)
        elif kind == "f16" and "ftz" in i.modifiers:
            value = _flush_half(k, value)
        bits = k.bits_of(value)
        sign = {"f16": 0x8000, "bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000,
                "f32": 1 << 31, "f64": 1 << 63}.get(kind)  # fmt: skip
        if sign is None:
            raise k.unsupported()
        if operation_name == "neg":
            result = k.op("xor", bits, number(bits.element, sign))
        else:
            result = k.op("and", bits, number(bits.element, ~sign))
        k.write(i.operands[0], result)

    return emit


def _copy_sign(k: Kernel, i: Instruction) -> None:
    """copysign d, a, b: return b with the sign of a."""
    kind = type_of(k, i)
    a, b = k.source(i.operands[1], kind), k.source(i.operands[2], kind)
    k.write(i.operands[0], k.call_op("copysign", b, a))


def _test(k: Kernel, i: Instruction) -> None:
    kind = type_of(k, i)
    if len(i.modifiers) != 2 or kind not in ("f32", "f64"):
        raise k.unsupported()
    value = k.source(i.operands[1], kind)
    magnitude = k.call_op("fabs", value)
    infinity = real(value.element, float("inf"))
    tiny = real(value.element, 2.0**-126 if kind == "f32" else 2.0**-1022)
    finite = k.cmp("olt", magnitude, infinity)
    nan = k.cmp("uno", value, value)
    below = k.cmp("olt", magnitude, tiny)
    results = {
        "finite": lambda: finite,
        "infinite": lambda: k.cmp("oeq", magnitude, infinity),
        "number": lambda: k.negate(nan),
        "notanumber": lambda: nan,
        "normal": lambda: k.op("and", finite, k.cmp("oge", magnitude, tiny)),
        "subnormal": lambda: k.op("and", below, k.cmp("one", value, rounding.zero(value))),
    }
    if i.modifiers[0] not in results:
        raise k.unsupported()
    k.write(i.operands[0], results[i.modifiers[0]]())


def _mul_add(k: Kernel, i: Instruction) -> None:
    """fma, and mad of floats, which is the same on these chips."""
    operation(3, fused, mixed=True)(k, i)


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "add": operation(2, _add, mixed=True), "sub": operation(2, _subtract, mixed=True),
        "mul": operation(2, _multiply),
        "fma": _mul_add, "mad": _mul_add, "div": operation(2, _quotient, "full", "approx"),
        "rcp": operation(1, _reciprocal, "approx"), "sqrt": operation(1, _root, "approx"),
        "min": _extreme("min"), "max": _extreme("max"), "abs": _sign("abs"), "neg": _sign("neg"),
        "copysign": _copy_sign, "testp": _test,
    }  # fmt: skip
