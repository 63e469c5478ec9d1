"""Operands of the functions: tensors, and Python numbers beside a tensor."""

from __future__ import annotations

from typing import Any

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument


def array_of(operation: str, x: Any) -> Tensor:  # Any: checked here
    """Return an operand that must be a Tensor; BadArgument for another."""
    if not isinstance(x, Tensor):
        raise BadArgument(f"{operation}: expected a Tensor, got {type(x).__name__}")
    return x


def pair_of(operation: str, x1: Any, x2: Any) -> tuple[Tensor, Any]:  # Any: checked here
    """Return two operands, the first as a Tensor: a number beside a tensor is weak, as in
    compiler.dtype. BadArgument if neither is a Tensor."""
    if isinstance(x1, Tensor):
        return x1, x2
    if not isinstance(x2, Tensor) or not isinstance(x1, bool | int | float):
        found = f"{type(x1).__name__} and {type(x2).__name__}"
        raise BadArgument(f"{operation}: expected a Tensor and a Tensor or a number, got {found}")
    kind = dtypes.promote_scalar(x2.dtype, x1)
    return x2._new(x2._constant(operation, x1, kind, ())), x2
