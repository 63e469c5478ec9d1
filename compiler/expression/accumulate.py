"""Start values and steps of reductions."""

from __future__ import annotations

from ugpu.compiler.dtype import DType, float32, highest, int32, lowest
from ugpu.compiler.expression.value import Value, binary, const, rebuild, value

_OPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def identity(operation: str, dtype: DType) -> Value:
    """Return the result of reducing no elements."""
    if operation == "max":
        return const(lowest(dtype), dtype)
    if operation == "min":
        return const(highest(dtype), dtype)
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


def is_keyed(operation: str, dtype: DType) -> bool:
    """Return whether a host finds an extreme among integers of the same order (`key`): a step is
    one instruction, where one of floats, with NaN and both zeros, is a chain of five."""
    return dtype is float32 and operation in ("max", "min")


def key(number: Value, operation: str) -> Value:
    """Return an int32 of a float32's order; NaN wins."""
    bits = _flipped(value("bitcast", int32, (number,)))
    winner = highest(int32) if operation == "max" else lowest(int32)
    return value("where", int32, (binary("ne", number, number), const(winner, int32), bits))


def of_key(bits: Value) -> Value:
    """Return the float32 of a key."""
    return value("bitcast", float32, (_flipped(bits),))


def _flipped(bits: Value) -> Value:
    """Convert a float's bits to its key, and back: below zero, all bits but the sign flip."""
    sign = binary("shr", bits, const(31, int32))
    return binary("xor", bits, binary("and", sign, const(highest(int32), int32)))


def total_type(operation: str, dtype: DType) -> DType:
    """Return the type in which a host's total of one row is kept (see `advanced`)."""
    return int32 if is_keyed(operation, dtype) else dtype


def advanced(operation: str, total: Value, element: Value) -> Value:
    """Return a total of `total_type` with one more element. A product of floats that is summed may
    be rounded together with the sum."""
    if is_keyed(operation, element.dtype):
        element = key(element, operation)
    elif operation == "sum" and element.op == "mul" and element.dtype.is_float:
        element = value("mul", element.dtype, element.sources, "contract", element.lanes)
    return combine(operation, total, element)


def ended(operation: str, dtype: DType, total: Value) -> Value:
    """Return the result of a total of `total_type`."""
    return of_key(total) if is_keyed(operation, dtype) else total
