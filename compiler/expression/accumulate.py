"""Start values and steps of reductions."""

from __future__ import annotations

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType
from ugpu.compiler.expression.value import Value, const, rebuild, value

_OPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def identity(operation: str, dtype: DType) -> Value:
    """Return the result of reducing no elements."""
    if operation == "max":
        return const(dtypes.lowest(dtype), dtype)
    if operation == "min":
        return const(dtypes.highest(dtype), dtype)
    return const({"sum": 0, "prod": 1, "and": -1, "or": 0}[operation], dtype)


def combine(operation: str, left: Value, right: Value) -> Value:
    """Return one step. Float sums and products may be taken in any order."""
    free = left.dtype.is_float and operation in ("sum", "prod")
    arg = "reassoc" if free else None
    return value(_OPS[operation], left.dtype, (left, right), arg, left.lanes)


def multiply_add(left: Value, right: Value, total: Value) -> Value:
    """Return total + left * right; floats round once."""
    if total.dtype.is_float:
        return value("fma", total.dtype, (left, right, total), lanes=total.lanes)
    product = value("mul", total.dtype, (left, right), lanes=total.lanes)
    return value("add", total.dtype, (total, product), lanes=total.lanes)


def replace(root: Value, old: Value, new: Value) -> Value:
    """Return `root` with one node replaced: an epilogue whose reduction is now computed."""
    return rebuild(root, lambda node, _: new if node is old else None)
