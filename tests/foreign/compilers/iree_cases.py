"""Operators in MLIR's linalg for IREE's compiler, with what NumPy says of them.

Each function of MODULE becomes one kernel. Its bindings are its arguments and then its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Operator:
    """text: the body of a function. arguments: its inputs, shape and type. result: its shape and
    type. numpy: what it should be, in f64. tolerance: relative and absolute."""

    text: str
    arguments: tuple[tuple[tuple[int, ...], str], ...]
    result: tuple[tuple[int, ...], str]
    numpy: Callable[..., Array]
    tolerance: float = 1e-5


DTYPES = {"f32": "f4", "f16": "f2", "i32": "i4", "i8": "i1"}


def tensor(shape: tuple[int, ...], kind: str) -> str:
    """Return a tensor's type."""
    return f"tensor<{'x'.join(map(str, shape))}x{kind}>"


def _generic(lines: str, shape: tuple[int, ...], kind: str, count: int) -> str:
    """An elementwise operator of `count` sources %x, %y; its lines end in %r."""
    axes = ", ".join(f"d{n}" for n in range(len(shape)))
    maps = ", ".join([f"affine_map<({axes}) -> ({axes})>"] * (count + 1))
    ty = tensor(shape, kind)
    names = ["%a", "%b"][:count]
    return f"""
  %e = tensor.empty() : {ty}
  %t = linalg.generic {{indexing_maps = [{maps}],
      iterator_types = [{", ".join(['"parallel"'] * len(shape))}]}}
      ins({", ".join(names)} : {", ".join([ty] * count)}) outs(%e : {ty}) {{
    ^bb0({", ".join(f"%{name} : {kind}" for name in "xy"[:count])}, %o : {kind}):
      {lines}
      linalg.yield %r : {kind}
  }} -> {ty}
  return %t : {ty}"""


def _product(name: str, shapes: tuple[tuple[int, ...], ...], kind: str, total: str) -> Operator:
    """A product with sums of another type, from zero."""
    left, right, out = shapes
    zero = "0" if total.startswith("i") else "0.0"
    types = f"{tensor(left, kind)}, {tensor(right, kind)}"
    ty = tensor(out, total)
    attributes = "" if "conv" not in name else " {strides = dense<1> : vector<2xi64>}"
    text = f"""
  %z = arith.constant {zero} : {total}
  %e = tensor.empty() : {ty}
  %f = linalg.fill ins(%z : {total}) outs(%e : {ty}) -> {ty}
  %t = linalg.{name}{attributes} ins(%a, %b : {types}) outs(%f : {ty}) -> {ty}
  return %t : {ty}"""
    function = _convolved if "conv" in name else np.matmul
    return Operator(text, ((left, kind), (right, kind)), (out, total), function, 1e-4)


def _convolved(image: Array, filters: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(image, filters.shape[:2], (1, 2))
    return np.einsum("nhwcij,ijcf->nhwf", windows, filters)


def _softmax(x: Array) -> Array:
    raised = np.exp(x - x.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


_SUM = """
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<20xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<20xf32>) -> tensor<20xf32>
  %t = linalg.reduce { arith.addf } ins(%a : tensor<20x300xf32>) outs(%f : tensor<20xf32>)
      dimensions = [1]
  return %t : tensor<20xf32>"""
_TRANSPOSED = """
  %e = tensor.empty() : tensor<72x40xi32>
  %t = linalg.transpose ins(%a : tensor<40x72xi32>) outs(%e : tensor<72x40xi32>)
      permutation = [1, 0]
  return %t : tensor<72x40xi32>"""
_SOFT = """
  %e = tensor.empty() : tensor<12x96xf32>
  %t = linalg.softmax dimension(1) ins(%a : tensor<12x96xf32>) outs(%e : tensor<12x96xf32>)
      -> tensor<12x96xf32>
  return %t : tensor<12x96xf32>"""
_FUNCTIONS = """%0 = math.sin %x : f32
      %1 = math.exp %x : f32
      %2 = math.erf %x : f32
      %3 = math.tanh %x : f32
      %4 = arith.addf %0, %1 : f32
      %5 = arith.addf %2, %3 : f32
      %r = arith.addf %4, %5 : f32"""
_CHOICE = """%0 = arith.cmpi slt, %x, %y : i32
      %1 = arith.muli %x, %y : i32
      %2 = arith.shrsi %x, %y : i32
      %r = arith.select %0, %1, %2 : i32"""


def _functions(x: Array) -> Array:
    error = np.array([math.erf(value) for value in x.ravel()]).reshape(x.shape)
    found: Array = np.sin(x) + np.exp(x) + error + np.tanh(x)
    return found


def _choice(x: Array, y: Array) -> Array:
    x, y = x.astype("i8"), y.astype("i8")
    return np.where(x < y, x * y, x >> np.clip(y, 0, 31)).astype("i4")


def _elementwise(
    lines: str, kind: str, count: int, function: Callable[..., Array], shape: tuple[int, ...]
) -> Operator:
    text = _generic(lines, shape, kind, count)
    return Operator(text, ((shape, kind),) * count, (shape, kind), function)


OPERATORS = {
    "add": _elementwise("%r = arith.addf %x, %y : f32", "f32", 2, np.add, (1000,)),
    "halves": _elementwise("%r = arith.mulf %x, %y : f16", "f16", 2, np.multiply, (24, 50)),
    "functions": _elementwise(_FUNCTIONS, "f32", 1, _functions, (10, 64)),
    "choice": _elementwise(_CHOICE, "i32", 2, _choice, (512,)),
    "sum": Operator(_SUM, (((20, 300), "f32"),), ((20,), "f32"), lambda x: x.sum(1), 1e-4),
    "softmax": Operator(_SOFT, (((12, 96), "f32"),), ((12, 96), "f32"), _softmax),
    "transpose": Operator(_TRANSPOSED, (((40, 72), "i32"),), ((72, 40), "i32"), np.transpose),
    "matmul_f16": _product("matmul", ((64, 96), (96, 64), (64, 64)), "f16", "f32"),
    "matmul_f32": _product("matmul", ((48, 40), (40, 32), (48, 32)), "f32", "f32"),
    "matmul_i8": _product("matmul", ((64, 64), (64, 64), (64, 64)), "i8", "i32"),
    "batch_f16": _product("batch_matmul", ((3, 32, 64), (3, 64, 48), (3, 32, 48)), "f16", "f32"),
    "conv": _product(
        "conv_2d_nhwc_hwcf", ((1, 10, 10, 16), (3, 3, 16, 32), (1, 8, 8, 32)), "f32", "f32"
    ),
}  # fmt: skip


def module() -> str:
    """Return all functions as one module."""
    functions = []
    for name, operator in OPERATORS.items():
        given = ", ".join(
            f"%{letter}: {tensor(*argument)}"
            for letter, argument in zip("ab", operator.arguments, strict=False)
        )
        functions.append(
            f"func.func @{name}({given}) -> {tensor(*operator.result)} {{{operator.text}\n}}"
        )
    return "\n".join(functions)
