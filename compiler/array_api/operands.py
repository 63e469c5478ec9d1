"""Operands of the functions: tensors, and Python numbers beside a tensor."""

from __future__ import annotations

from typing import Any, cast

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.complex.tensor import ComplexTensor
from ugpu.compiler.methods.core import is_complex
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Array = Tensor | ComplexTensor


def array_of(operation: str, x: Any) -> Tensor:  # Any: checked here
    """Return an operand that must be a Tensor; BadArgument for another. A ComplexTensor is returned
    too: it has the methods of Tensor that have a meaning for it, and names the others when they are
    called."""
    if not isinstance(x, Tensor | ComplexTensor):
        raise BadArgument(f"{operation}: expected a Tensor, got {type(x).__name__}")
    return cast("Tensor", x)


def real_of(operation: str, x: Any) -> Tensor:  # Any: checked here
    """Return an operand that must be real; BadArgument for another."""
    if not isinstance(x, Tensor):
        kind = x.dtype.name if isinstance(x, ComplexTensor) else type(x).__name__
        raise BadArgument(f"{operation}: expected a real Tensor, got {kind}")
    return x


def any_complex(*given: Any) -> ComplexTensor | None:  # Any: looked at here
    """Return the first operand that is a ComplexTensor; None if all are real."""
    return next((each for each in given if isinstance(each, ComplexTensor)), None)


def pair_of(operation: str, x1: Any, x2: Any) -> tuple[Tensor, Any]:  # Any: checked here
    """Return two operands, the first as a Tensor: a number beside a tensor is weak, as in
    compiler.dtype. If one is complex the first is a ComplexTensor. BadArgument if neither is a
    tensor."""
    first = any_complex(x1, x2)
    if first is None and isinstance(x1, Tensor) and is_complex(x2):
        first = ComplexTensor(x1)
    if first is None and isinstance(x2, Tensor) and is_complex(x1):
        first = ComplexTensor(x2)
    if first is not None:
        return cast("Tensor", first._lifted(operation, x1)), x2
    if isinstance(x1, Tensor):
        return x1, x2
    if not isinstance(x2, Tensor) or not isinstance(x1, bool | int | float):
        found = f"{type(x1).__name__} and {type(x2).__name__}"
        raise BadArgument(f"{operation}: expected a Tensor and a Tensor or a number, got {found}")
    kind = dtypes.promote_scalar(x2.dtype, x1)
    return x2._new(x2._constant(operation, x1, kind, ())), x2
