"""Minima and maxima of a constant and a register are those of two registers, bit for bit."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from ugpu.hcq.objects import jit
from ugpu.virtual.amd.isa.translator.arithmetic.float import extreme
from ugpu.virtual.amd.isa.translator.registers import Registers
from ugpu.virtual.shader.text import constant

NUMBERS = (
    0, 0x8000_0000, 1, 0x8000_0001, 0x3F80_0000, 0xBF80_0000, 0x7F7F_FFFF, 0x7F80_0000, 0xFF80_0000,
)  # fmt: skip
VALUES = (*NUMBERS, 0x7FC0_0000, 0xFFC0_1234, 0x7F80_0001, 0xFFBF_FFFF, 0x4000_0000, 0xC000_0000)


def _compiled(name: str, ieee: bool, number: int, constant_first: bool, fixed: bool) -> jit.Loaded:
    e = Registers(1, frozenset(), 0, 32)
    e.ieee = ieee
    value = e.value("load <32 x float>, ptr %in, align 4")
    limit = constant("float", number)
    if not fixed:  # a register: not known at compile time
        bits = e.value("load i32, ptr %number")
        limit = e.convert("bitcast", "i32", "float", e.broadcast("i32", bits))
    pair = (limit, value) if constant_first else (value, limit)
    result = extreme(e, "float", name, *pair)
    text = ["define void @f(ptr %in, ptr %number, ptr %out) {", *e.lines,
            f"  store <32 x float> {result}, ptr %out, align 4", "  ret void", "}"]  # fmt: skip
    return jit.Loaded(jit.compile_object("\n".join([*text, *e.declarations]), jit.LIMITED, 0))


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("ieee", [False, True])
@pytest.mark.parametrize("constant_first", [False, True])
def test_a_constant_is_as_a_register(name: str, ieee: bool, constant_first: bool) -> None:
    values = np.zeros(32, np.uint32)
    values[: len(VALUES)] = VALUES
    general = _compiled(name, ieee, 0, constant_first, fixed=False)
    for number in NUMBERS:
        results = []
        for code in (general, _compiled(name, ieee, number, constant_first, fixed=True)):
            out = np.zeros(32, np.uint32)
            given = ctypes.c_uint32(number)
            function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(code.address("f"))
            function(values.ctypes.data, ctypes.addressof(given), out.ctypes.data)
            results.append(out)
        assert np.array_equal(results[0], results[1]), (hex(number), results)
