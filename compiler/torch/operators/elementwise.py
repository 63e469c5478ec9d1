"""Operators on each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ugpu.compiler.dtype import DType, bool_
from ugpu.compiler.tensor import Tensor
from ugpu.compiler.torch.operators.registry import operator

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(Tensor, name)
        for name in (
            "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf",
            "exp", "exp2", "expm1", "floor", "frac", "isfinite", "isinf", "isnan", "log", "log10",
            "log1p", "log2", "neg", "reciprocal", "relu", "relu6", "rsqrt", "sigmoid",
            "sign", "signbit", "silu", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
            "hardsigmoid", "hardswish", "mish", "round", "logical_not", "celu", "leaky_relu",
            "atan2", "copysign", "fmod", "hypot", "logaddexp", "logical_and", "logical_or",
            "logical_xor", "maximum", "minimum", "nextafter", "xlogy", "lerp",
            "selu",
        )
    },
    "bitwise_not": lambda x: ~x,
    "log_sigmoid_forward": lambda x: (x.logsigmoid(), x),
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
    "mul": lambda x, y: x * y, "floor_divide": lambda x, y: x.div(y, rounding_mode="floor"),
    "bitwise_and": lambda x, y: x & y, "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y, "bitwise_left_shift": lambda x, y: x << y,
    "bitwise_right_shift": lambda x, y: x >> y, "__lshift__": lambda x, y: x << y,
    "__rshift__": lambda x, y: x >> y, "pow": lambda x, y: x**y,
    "fmax": lambda x, y: x.isnan().where(y, y.isnan().where(x, x.maximum(y))),
    "fmin": lambda x, y: x.isnan().where(y, y.isnan().where(x, x.minimum(y))),
    "remainder": lambda x, y: x % y,
    "rsub": lambda x, y, alpha=1: y - x * alpha,
}  # fmt: skip
for _name, _function in _FUNCTIONS.items():
    operator(_name)(_function)


@operator("add")
def add(self: Any, other: Any, alpha: Any = 1) -> Any:
    return self + (other if alpha == 1 else other * alpha)


@operator("sub")
def sub(self: Any, other: Any, alpha: Any = 1) -> Any:
    return self - (other if alpha == 1 else other * alpha)


@operator("div")
def div(self: Any, other: Any, rounding_mode: Any = None) -> Any:
    if not isinstance(self, Tensor):
        self = other.full_like(self)
    return self.div(other, rounding_mode=rounding_mode)


@operator("where")
def where(condition: Tensor, self: Any = 0, other: Any = 0) -> Tensor:
    return condition.cast(bool_).where(self, other)


@operator("clamp")
def clamp(self: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return self.clamp(min, max)


@operator("clamp_min")
def clamp_min(self: Tensor, min: Any) -> Tensor:
    return self.clamp(min, None)


@operator("clamp_max")
def clamp_max(self: Tensor, max: Any) -> Tensor:
    return self.clamp(None, max)


@operator("elu")
def elu(self: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    return (self > 0).where(self, ((self * input_scale).expm1()) * alpha) * scale


@operator("hardtanh")
def hardtanh(self: Tensor, min_val: Any = -1, max_val: Any = 1) -> Tensor:
    return self.clamp(min_val, max_val)


@operator("gelu")
def gelu(self: Tensor, approximate: Any = "none") -> Tensor:
    return self.gelu(approximate)


@operator("softplus")
def softplus(self: Tensor, beta: Any = 1, threshold: Any = 20) -> Tensor:
    return self.softplus(beta, threshold)


@operator("prelu", "_prelu_kernel")
def prelu(self: Tensor, weight: Tensor) -> Tensor:
    return (self > 0).where(self, self * weight)


@operator("addcmul")
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Any:
    return self + tensor1 * tensor2 * value


@operator("addcdiv")
def addcdiv(self: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Any:
    return self + tensor1 / tensor2 * value


@operator("convert_element_type", "to.dtype")
def convert(self: Tensor, dtype: DType, *others: Any, **placed: Any) -> Tensor:
    return self.cast(dtype)


@operator("_to_copy")
def to_copy(self: Tensor, dtype: DType | None = None) -> Tensor:
    return self if dtype is None else self.cast(dtype)


@operator(
    "alias",
    "clone",
    "detach",
    "detach_copy",
    "detach_",
    "lift_fresh_copy",
    "contiguous",
    "lift_fresh",
)
def same(self: Tensor) -> Tensor:
    return self


@operator("_assert_tensor_metadata")
def described(a: Tensor, *expected: Any, **named: Any) -> None:
    """A graph's claim about sizes and types, which its export has checked."""


@operator("copy.default")
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    return src.cast(self.dtype).expand(self.shape)


@operator("fill")
def fill(self: Tensor, value: Any) -> Any:
    filled = self.zeros_like() + value
    return filled.cast(self.dtype)
