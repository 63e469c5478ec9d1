"""Floating-point building blocks: fused multiply-add, minimum, rounding of f64, category 4.

Source: Mesa 25.0.7, src/freedreno/isa/ir3-cat4.xml, ir3/ir3_nir_trig.py (sin and cos take radians).
UNSURE: results of category 4 are rounded correctly here; no public document gives the GPU's errors.
"""

from __future__ import annotations

import math
import struct

from ugpu.virtual.adreno.sp.operands import Op
from ugpu.virtual.adreno.sp.translator.registers import Handler, Registers, Unsupported
from ugpu.virtual.shader.lanes.every import PREFIX
from ugpu.virtual.shader.text import Text, constant


def narrow(e: Text, kind: str, value: str) -> str:
    """Round f64 to f32 or f16, once."""
    near = e.convert("fptrunc", "double", "float", value)
    if kind == "float":
        return near
    # Round to odd first, so that the second rounding gives the same result as a single one.
    back = e.convert("fpext", "float", "double", near)
    inexact = e.compare("one", "double", back, value)
    sizes = (e.intrinsic("fabs", "double", one) for one in (back, value))
    larger = e.convert("zext", "i1", "i32", e.compare("ogt", "double", *sizes))
    bits = e.convert("bitcast", "float", "i32", near)
    bits = e.binary("sub", "i32", bits, larger)
    bits = e.binary("or", "i32", bits, e.convert("zext", "i1", "i32", inexact))
    odd = e.convert("bitcast", "i32", "float", bits)
    return e.convert("fptrunc", "float", "half", odd)


def fused(e: Text, kind: str, a: str, b: str, c: str) -> str:
    """Multiply and add, rounded once."""
    if kind == "float":
        return e.intrinsic("fma", "float", a, b, c)
    wide = [e.convert("fpext", "half", "double", value) for value in (a, b, c)]
    return narrow(e, "half", e.intrinsic("fma", "double", *wide))


def minimum(e: Text, name: str, a: str, b: str) -> str:
    """Return the lesser ("min") or larger ("max") f32; the other operand where one is NaN."""
    return e.intrinsic(f"{name}num", "float", a, b)


def _double(value: float) -> str:
    return constant("double", int.from_bytes(struct.pack("<d", value), "little"))


def _by_function(name: str) -> Handler:
    def emit(e: Registers, op: Op, turn: int) -> None:
        value, half = _single(e, op, turn)
        value = e.by_passes("float", f"{PREFIX}{name}", (e.vector_of("float"), value))
        _finish(e, op, turn, value, half)

    return emit


def _single(e: Registers, op: Op, turn: int) -> tuple[str, bool]:
    (operand,) = op.sources
    value = e.source(operand.at(turn), floating=True)
    return (e.convert("fpext", "half", "float", value) if operand.half else value), operand.half


def _finish(e: Registers, op: Op, turn: int, value: str, half: bool) -> None:
    if op.flag("SAT"):
        raise Unsupported(f"(sat) of {op.name}")
    if half:
        e.result(op.target, turn, e.convert("fptrunc", "float", "half", value), "half")
    else:
        e.result(op.target, turn, value, "float")


def _reciprocal(e: Registers, op: Op, turn: int) -> None:
    value, half = _single(e, op, turn)
    one = constant("float", 0x3F800000)
    _finish(e, op, turn, e.binary("fdiv", "float", one, value), half)


def _root(e: Registers, op: Op, turn: int) -> None:
    value, half = _single(e, op, turn)
    _finish(e, op, turn, e.intrinsic("sqrt", "float", value), half)


def _reciprocal_root(e: Registers, op: Op, turn: int) -> None:
    value, half = _single(e, op, turn)
    wide = e.convert("fpext", "float", "double", value)
    wide = e.binary("fdiv", "double", _double(1.0), e.intrinsic("sqrt", "double", wide))
    if op.flag("SAT"):
        raise Unsupported(f"(sat) of {op.name}")
    kind = "half" if half else "float"
    e.result(op.target, turn, narrow(e, kind, wide), kind)


def _of_angle(name: str) -> Handler:
    def emit(e: Registers, op: Op, turn: int) -> None:
        value, half = _single(e, op, turn)
        wide = e.convert("fpext", "float", "double", value)
        turns = e.binary("fmul", "double", wide, _double(1 / math.tau))
        found = e.by_passes("float", f"{PREFIX}{name}_turns", (e.vector_of("double"), turns))
        _finish(e, op, turn, found, half)

    return emit


def handlers() -> dict[str, Handler]:
    """Return the emitters by instruction name."""
    return {
        "rcp": _reciprocal, "rsq": _reciprocal_root, "hrsq": _reciprocal_root, "sqrt": _root,
        "log2": _by_function("log2"), "hlog2": _by_function("log2"),
        "exp2": _by_function("exp2"), "hexp2": _by_function("exp2"),
        "sin": _of_angle("sin"), "cos": _of_angle("cos"),
    }  # fmt: skip
