"""What Mesa's constant folding says of NIR's operations (nir_constant_expressions.py), by the
function nir_eval_const_opcode of the package tinymesa. It shares nothing with ir3, nor with us.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.compiler.codegen.adreno.mesa import library

Array = NDArray[Any]
_VALUE = 8  # bytes of union nir_const_value
_MOST = 16  # components of one evaluation (NIR_MAX_VEC_COMPONENTS)


def folded(name: str, bits: int, result: Any, *sources: Array) -> Array:
    """Evaluate an operation, element by element. bits: of the sources that have no size of their
    own. result: the dtype of what it gives; bool for one bit."""
    mesa = library()
    number, count = mesa.tables.operations[name]
    assert count == len(sources), name
    evaluate = mesa._function("nir_eval_const_opcode", None, ctypes.c_uint, ctypes.c_void_p,
                              ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p,
                              ctypes.c_uint)  # fmt: skip
    size = len(sources[0])
    found = np.empty(size, result)
    for start in range(0, size, _MOST):
        most = min(_MOST, size - start)
        values = [_values(source[start : start + most]) for source in sources]
        pointers = (ctypes.c_void_p * count)(*(value.ctypes.data for value in values))
        target = np.zeros((_MOST, _VALUE), np.uint8)
        evaluate(number, target.ctypes.data, most, bits, ctypes.addressof(pointers), 0)
        width = found.dtype.itemsize
        found[start : start + most] = target[:most, :width].copy().view(result)[:, 0]
    return found


def _values(elements: Array) -> Array:
    raw = np.zeros((_MOST, _VALUE), np.uint8)
    width = elements.dtype.itemsize
    raw[: len(elements), :width] = np.ascontiguousarray(elements).view(np.uint8).reshape(-1, width)
    return raw
