"""Approximations: ex2, lg2, sin, cos, tanh, rsqrt.

All are computed in f64 and rounded to f32, so that they err by half a unit in the last place, with
rare exceptions. The chip's own units err by up to 2**-22 (ex2, lg2, rsqrt), 2**-20.5 absolute (sin,
cos within -pi..pi) and 2**-11 (tanh).
Source: PTX ISA 8.x, the pages of the instructions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ugpu.virtual.nvidia.sm.runtime.resolve import PREFIX
from ugpu.virtual.nvidia.sm.translator.arithmetic.floats import operation
from ugpu.virtual.nvidia.sm.translator.handler import Handler
from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, real


def _function(name: str) -> Handler:
    def compute(k: Kernel, v: Sequence[Value], mode: str) -> Value:
        return k.by_lanes(PREFIX + name, "float", v[0])

    return operation(1, compute, "approx")


def _turns(name: str) -> Handler:
    """Return a handler of sine or cosine: the native functions take revolutions in f64."""

    def compute(k: Kernel, v: Sequence[Value], mode: str) -> Value:
        wide = k.cast("fpext", v[0], "double")
        turns = k.op("fmul", wide, real("double", 1 / (2 * math.pi)))
        return k.by_lanes(f"{PREFIX}{name}_turns", "float", turns)

    return operation(1, compute, "approx")


def _inverse_root(k: Kernel, v: Sequence[Value], mode: str) -> Value:
    wide = k.cast("fpext", v[0], "double") if v[0].element == "float" else v[0]
    result = k.op("fdiv", real("double", 1.0), k.call_op("sqrt", wide))
    return k.cast("fptrunc", result, "float") if v[0].element == "float" else result


def handlers() -> dict[str, Handler]:
    """Return the emitters by name."""
    return {
        "ex2": _function("exp2"), "lg2": _function("log2"), "tanh": _function("tanh"),
        "sin": _turns("sin"), "cos": _turns("cos"), "rsqrt": operation(1, _inverse_root, "approx"),
    }  # fmt: skip
