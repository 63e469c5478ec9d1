"""The element-wise operations of the tensor graph: translation of each to IR, and its cost.

The tensor layer has already brought the sources to one type. Floats of 16 and 8 bits are computed
in float32 and rounded after every operation, so that results do not depend on what was fused. A
number beside them, a constant or in memory ("number"), is a float32 that is not rounded first.

Elementary functions stay one operation of the IR ("function") while a kernel is built, so that
repeated ones are small and can be recognised; `expand` expands them for lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ugpu.compiler.dtype import DType, bool_, float32, float64, is_narrow
from ugpu.compiler.expression import functions, inverse, power, remainders
from ugpu.compiler.expression.doubles import exponential, trigonometric
from ugpu.compiler.expression.doubles import inverse as doubles_inverse
from ugpu.compiler.expression.value import Value, binary, cast, const, rebuild, value

Build = Callable[..., Value]


def _negate(source: Value) -> Value:
    return value("neg", source.dtype, (source,))


def _invert(source: Value) -> Value:
    ones = const(True, bool_) if source.dtype is bool_ else const(-1, source.dtype)
    return binary("xor", source, ones)


def _floordiv(left: Value, right: Value) -> Value:
    if left.dtype.is_float:
        return remainders.floor_quotient(left, right)
    return binary("floordiv", left, right)


def _remainder(left: Value, right: Value) -> Value:
    """The remainder with the divisor's sign."""
    if left.dtype.is_float:
        return remainders.remainder(left, right)
    return binary("mod", left, right)


def _reciprocal(source: Value) -> Value:
    return binary("div", const(1.0, source.dtype), source)


def _rsqrt(source: Value) -> Value:
    return binary("div", const(1.0, source.dtype), value("sqrt", source.dtype, (source,)))


def _power(left: Value, right: Value) -> Value:
    if left.dtype.is_float:
        return power.power(left, right)
    return power.integer_power(left, right)


WHOLE_POWERS = range(3, 9)  # operations "pow_3" to "pow_8"
_EXPONENTIAL = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sinh", "cosh", "tanh", "sigmoid",
    "softplus",
)  # fmt: skip
_TRIGONOMETRIC = ("sin", "cos", "tan")
_INVERSE = ("asin", "acos", "atan", "asinh", "acosh", "atanh", "erf")


def _by_width(name: str, single: object, double: object) -> Build:
    """Return the builder of a function that is another one on float64."""
    of_single: Build = getattr(single, name)
    of_double: Build = getattr(double, name)
    return lambda x: (of_double if x.dtype is float64 else of_single)(x)


_ELEMENTARY: Mapping[str, Build] = {
    **{name: _by_width(name, functions, exponential) for name in _EXPONENTIAL},
    **{name: _by_width(name, functions, trigonometric) for name in _TRIGONOMETRIC},
    **{name: _by_width(name, inverse, doubles_inverse) for name in _INVERSE},
    **{f"pow_{exponent}": partial(power.whole_power, exponent) for exponent in WHOLE_POWERS},
    "erfinv": inverse.erfinv,  # of float32 alone, as the next
    "gelu": inverse.gelu,
    "fmod": remainders.fmod,
}  # fmt: skip
_SAME_NAME = (
    "add", "sub", "mul", "div", "min", "max", "and", "or", "xor", "shl", "shr",
    "lt", "le", "eq", "ne",
)  # fmt: skip
_ROUNDING = ("sqrt", "floor", "ceil", "trunc", "round")
BUILDERS: Mapping[str, Build] = {
    **{op: partial(binary, op) for op in _SAME_NAME},
    **{op: partial(functions.unary, op) for op in _ROUNDING},
    "floordiv": _floordiv,
    "mod": _remainder,
    "neg": _negate,
    "abs": functions.absolute,
    "invert": _invert,
    "reciprocal": _reciprocal,
    "rsqrt": _rsqrt,
    "pow": _power,
    "where": functions.where,
    **_ELEMENTARY,
}
FUNCTIONS = frozenset(("pow", "floordiv", "mod", *_ELEMENTARY))
COMPARISONS = frozenset(("lt", "le", "eq", "ne"))
FREE = frozenset((
    "const", "number", "index", "load", "bitcast", "extract", "pack", "broadcast", "results",
))  # fmt: skip
# In additions; an operation not listed costs one.
COSTS: Mapping[str, int] = {
    "exp": 12, "exp2": 12, "expm1": 14, "log": 16, "log2": 16, "log10": 16, "log1p": 24,
    "sin": 40, "cos": 40, "tan": 44, "sinh": 24, "cosh": 16, "tanh": 24, "sigmoid": 16,
    "softplus": 30, "erfinv": 50,
    "asin": 16, "acos": 20, "atan": 18, "asinh": 34, "acosh": 32, "atanh": 30, "erf": 28,
    "gelu": 28,
    "pow": 80, "mod": 8, "floordiv": 8, "fmod": 106,  # mod and floordiv of floats: as fmod
    "div": 4, "sqrt": 4, "rsqrt": 6, "reciprocal": 4,
    **{f"pow_{exponent}": 12 for exponent in WHOLE_POWERS},
}  # fmt: skip


def price(op: str, dtype: DType) -> int:
    """Return the cost of an operation on sources of a type, in additions."""
    return (
        COSTS["fmod" if dtype.is_float and op in ("mod", "floordiv") else op] if op in COSTS else 1
    )


def build(op: str, dtype: DType, sources: list[Value]) -> Value:
    """Return the IR of one operation with result type `dtype`."""
    wide = [_wide(s) if is_narrow(s.dtype) and op != "where" else s for s in sources]
    if op in FUNCTIONS and (op == "pow" or wide[0].dtype.is_float):
        return cast(value("function", wide[0].dtype, wide, op), dtype)
    return cast(BUILDERS[op](*wide), dtype)


def _wide(narrow: Value) -> Value:
    """Return the float32 of a float of 16 or 8 bits."""
    return narrow.sources[0] if narrow.op == "number" else cast(narrow, float32)


def expand(root: Value) -> Value:
    """Replace every "function" and "number" in a value by simpler operations."""

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op == "number":  # something other than an operation reads it
            return cast(sources[0], node.dtype)
        return BUILDERS[node.arg](*sources) if node.op == "function" else None

    return rebuild(root, change)


def cost(node: Value) -> int:
    """Return the cost of one evaluation of a value's own operation (compiler.pattern.cost)."""
    if node.op in FREE:
        return 0
    return price(node.arg if node.op == "function" else node.op, node.dtype)
