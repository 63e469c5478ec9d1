"""Functions of each element. Each calls the method of Tensor that it documents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ugpu.compiler.array_api.operands import array_of, pair_of, real_of
from ugpu.compiler.tensor import Tensor
from ugpu.hcq.errors import BadArgument

Operand = Tensor | bool | int | float
Unary = Callable[[Tensor], Tensor]
Binary = Callable[[Operand, Operand], Tensor]
F = TypeVar("F", bound=Callable[..., Tensor])


def _unary(name: str, method: Callable[..., Any]) -> Unary:
    def function(x: Tensor, /) -> Tensor:
        given = array_of(name, x)
        result: Tensor = getattr(given, method.__name__)()
        return result

    return _named(function, name, method)


def _binary(name: str, method: Callable[..., Any]) -> Binary:
    def function(x1: Operand, x2: Operand, /) -> Tensor:
        left, right = pair_of(name, x1, x2)
        result: Tensor = getattr(left, method.__name__)(right)
        if result is NotImplemented:
            kinds = [x.dtype.name if hasattr(x, "dtype") else type(x).__name__ for x in (x1, x2)]
            raise BadArgument(f"{name}: operands must be real, got {kinds[0]} and {kinds[1]}")
        return result

    return _named(function, name, method)


def _named(function: F, name: str, method: Callable[..., Any]) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = method.__doc__ or f"Return the result of Tensor.{method.__name__}."
    return function


abs = _unary("abs", Tensor.abs)
acos = _unary("acos", Tensor.acos)
acosh = _unary("acosh", Tensor.acosh)
asin = _unary("asin", Tensor.asin)
asinh = _unary("asinh", Tensor.asinh)
atan = _unary("atan", Tensor.atan)
atanh = _unary("atanh", Tensor.atanh)
bitwise_invert = _unary("bitwise_invert", Tensor.__invert__)
ceil = _unary("ceil", Tensor.ceil)
conj = _unary("conj", Tensor.conj)
cos = _unary("cos", Tensor.cos)
cosh = _unary("cosh", Tensor.cosh)
exp = _unary("exp", Tensor.exp)
expm1 = _unary("expm1", Tensor.expm1)
floor = _unary("floor", Tensor.floor)
isfinite = _unary("isfinite", Tensor.isfinite)
isinf = _unary("isinf", Tensor.isinf)
isnan = _unary("isnan", Tensor.isnan)
log = _unary("log", Tensor.log)
log10 = _unary("log10", Tensor.log10)
log1p = _unary("log1p", Tensor.log1p)
log2 = _unary("log2", Tensor.log2)
logical_not = _unary("logical_not", Tensor.logical_not)
negative = _unary("negative", Tensor.neg)
positive = _unary("positive", Tensor.__pos__)
reciprocal = _unary("reciprocal", Tensor.reciprocal)
round = _unary("round", Tensor.round)
sign = _unary("sign", Tensor.sign)
signbit = _unary("signbit", Tensor.signbit)
sin = _unary("sin", Tensor.sin)
sinh = _unary("sinh", Tensor.sinh)
sqrt = _unary("sqrt", Tensor.sqrt)
square = _unary("square", Tensor.square)
tan = _unary("tan", Tensor.tan)
tanh = _unary("tanh", Tensor.tanh)
trunc = _unary("trunc", Tensor.trunc)

add = _binary("add", Tensor.add)
atan2 = _binary("atan2", Tensor.atan2)
bitwise_and = _binary("bitwise_and", Tensor.__and__)
bitwise_left_shift = _binary("bitwise_left_shift", Tensor.__lshift__)
bitwise_or = _binary("bitwise_or", Tensor.__or__)
bitwise_right_shift = _binary("bitwise_right_shift", Tensor.__rshift__)
bitwise_xor = _binary("bitwise_xor", Tensor.__xor__)
copysign = _binary("copysign", Tensor.copysign)
divide = _binary("divide", Tensor.div)
equal = _binary("equal", Tensor.__eq__)
floor_divide = _binary("floor_divide", Tensor.floor_divide)
greater = _binary("greater", Tensor.__gt__)
greater_equal = _binary("greater_equal", Tensor.__ge__)
hypot = _binary("hypot", Tensor.hypot)
less = _binary("less", Tensor.__lt__)
less_equal = _binary("less_equal", Tensor.__le__)
logaddexp = _binary("logaddexp", Tensor.logaddexp)
logical_and = _binary("logical_and", Tensor.logical_and)
logical_or = _binary("logical_or", Tensor.logical_or)
logical_xor = _binary("logical_xor", Tensor.logical_xor)
maximum = _binary("maximum", Tensor.maximum)
minimum = _binary("minimum", Tensor.minimum)
multiply = _binary("multiply", Tensor.mul)
nextafter = _binary("nextafter", Tensor.nextafter)
not_equal = _binary("not_equal", Tensor.__ne__)
pow = _binary("pow", Tensor.pow)
_remainder = _binary("remainder", Tensor.remainder)
subtract = _binary("subtract", Tensor.sub)


def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """Return x1 - floor(x1 / x2) * x2. A zero has the sign of x2; that of `%` has the sign of x1,
    as in PyTorch."""
    rest = _remainder(x1, x2)
    return (rest == 0).where(rest.copysign(x2), rest) if rest.dtype.kind == "f" else rest


def clip(x: Tensor, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Limit the elements to `min` and `max`, in the type of x; None means no limit."""
    return real_of("clip", x).clip(min, max).cast(x.dtype)


def real(x: Tensor, /) -> Tensor:
    """Return the real parts."""
    return array_of("real", x).real.clone()


def imag(x: Tensor, /) -> Tensor:
    """Return the imaginary parts, of a real tensor zeros."""
    return array_of("imag", x).imag.clone()
