"""Element-wise operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.onnx.operators.registry import operator
from ugpu.compiler.onnx.package import DTYPES, STRING
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import NotSupported

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": Tensor.abs, "Acos": Tensor.acos, "Acosh": Tensor.acosh, "Asin": Tensor.asin,
    "Asinh": Tensor.asinh, "Atan": Tensor.atan, "Atanh": Tensor.atanh, "Ceil": Tensor.ceil,
    "Cos": Tensor.cos, "Cosh": Tensor.cosh, "Erf": Tensor.erf, "Exp": Tensor.exp,
    "Floor": Tensor.floor, "HardSwish": Tensor.hardswish, "Identity": lambda x: x,
    "IsNaN": Tensor.isnan, "Log": Tensor.log, "Mish": Tensor.mish, "Neg": Tensor.neg,
    "Not": Tensor.logical_not, "Reciprocal": Tensor.reciprocal, "Relu": Tensor.relu,
    "Round": Tensor.round, "Sigmoid": Tensor.sigmoid, "Sign": Tensor.sign, "Sin": Tensor.sin,
    "Sinh": Tensor.sinh, "Softplus": Tensor.softplus, "Softsign": Tensor.softsign,
    "Sqrt": Tensor.sqrt, "Tan": Tensor.tan, "Tanh": Tensor.tanh,
    "BitwiseNot": lambda x: ~x,
}  # fmt: skip
for _name, _function in _FUNCTIONS.items():
    operator(_name)(_function)

_PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y,
    "And": Tensor.logical_and, "Or": Tensor.logical_or, "Xor": Tensor.logical_xor,
    "Equal": lambda x, y: x == y, "Greater": lambda x, y: x > y, "Less": lambda x, y: x < y,
    "GreaterOrEqual": lambda x, y: x >= y, "LessOrEqual": lambda x, y: x <= y,
    "BitwiseAnd": lambda x, y: x & y, "BitwiseOr": lambda x, y: x | y,
    "BitwiseXor": lambda x, y: x ^ y,
}  # fmt: skip
for _name, _pair in _PAIRS.items():
    operator(_name)(_pair)


@operator("Div")
def div(x: Tensor, y: Tensor) -> Tensor:
    """Integers are rounded towards zero."""
    return x.div(y) if x.dtype.is_float else x.div(y, rounding_mode="trunc")


@operator("Mod")
def mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    return x.fmod(y) if fmod else x.remainder(y)


@operator("Pow")
def power(x: Tensor, y: Tensor) -> Tensor:
    """The result has the base's type."""
    if x.dtype.is_integer and y.dtype.is_float:
        return x.cast("float32").pow(y).cast(x.dtype)
    if y.dtype.is_integer and x.dtype.is_float:
        y = y.cast("float32")
    return x.pow(y).cast(x.dtype)


@operator("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    shifted: Tensor = x << y if direction == "LEFT" else x >> y
    return shifted


@operator("Max")
def maximum(*inputs: Tensor) -> Tensor:
    return reduce(Tensor.maximum, inputs)


@operator("Min")
def minimum(*inputs: Tensor) -> Tensor:
    return reduce(Tensor.minimum, inputs)


@operator("Sum")
def total(*inputs: Tensor) -> Tensor:
    return reduce(Tensor.add, inputs)


@operator("Mean")
def mean(*inputs: Tensor) -> Tensor:
    return (reduce(Tensor.add, inputs) / len(inputs)).cast(inputs[0].dtype)


@operator("Clip")
def clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *,
    min: float | None = None, max: float | None = None,
) -> Tensor:  # fmt: skip
    for bound in (low, min):
        x = x if bound is None else x.maximum(bound)
    for bound in (high, max):
        x = x if bound is None else x.minimum(bound)
    return x


@operator("Where")
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return condition.where(x, y)


@operator("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    result = x.isinf()
    if not detect_negative:
        result = result & (x > 0)
    if not detect_positive:
        result = result & (x < 0)
    return result


@operator("BitCast")
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    if to == STRING or to not in DTYPES:
        raise NotSupported(f"ONNX operator BitCast: element type {to}")
    if x.dtype is dtypes.bool_:
        x = x.cast("uint8")
    return x.cast("bool") if DTYPES[to] == "bool" else x.bitcast(DTYPES[to])


# ---- activations ---------------------------------------------------------------------------------


@operator("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x.celu(alpha)


@operator("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x.elu(alpha)


@operator("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x.gelu("tanh" if approximate == "tanh" else "none")


@operator("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (x * alpha + beta).clamp(0.0, 1.0)


@operator("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return x.leaky_relu(alpha)


@operator("PRelu")
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return (x < 0).where(x * slope, x)


@operator("Selu")
def selu(x: Tensor, *, alpha: float = 1.6732632, gamma: float = 1.0507010) -> Tensor:
    return (x > 0).where(x * gamma, (x.exp() * alpha - alpha) * gamma)


@operator("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    inner = (x > lambd).where(x - bias, 0)
    return (x < -lambd).where(x + bias, inner).cast(x.dtype)


@operator("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * (x * alpha).sigmoid()


@operator("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return (x > alpha).where(x, 0).cast(x.dtype)


# ---- made of nothing -----------------------------------------------------------------------------


@operator("ConstantOfShape", host=(0,))
def constant_of_shape(shape: Any, *, value: Any = None, device: Any) -> Tensor:
    one = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    kind = dtypes.from_numpy(one.dtype)
    return Tensor.full([int(n) for n in shape], one[0].item(), device=device, dtype=kind)


@operator("EyeLike")
def eye_like(x: Tensor, *, dtype: int = 0, k: int = 0) -> Tensor:
    rows, columns = x.shape
    down = Tensor.arange(rows, device=x.device).unsqueeze(1)
    across = Tensor.arange(columns, device=x.device)
    equal: Tensor = down + k == across
    return equal.cast(DTYPES[dtype] if dtype else x.dtype)


@operator("Range", host=(0, 1, 2))
def span(start: Any, limit: Any, delta: Any, *, device: Any, stash_type: int = 1) -> Tensor:
    first, end, step = (each.item() for each in (start, limit, delta))
    kind = dtypes.from_numpy(np.asarray(start).dtype)
    count = max(0, math.ceil((end - first) / step))
    places = Tensor.arange(count, device=device)
    result: Tensor = (places.float() if kind.is_float else places) * step + first
    return result.cast(kind)
