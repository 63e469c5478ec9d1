"""The element-wise operations of the tensor graph: how each becomes IR, and what it costs.

The tensor layer has already brought the sources to one type. Floats of 16 bits are computed in
float32 and rounded after every operation, so that results do not depend on what was fused.

Elementary functions stay one operation of the IR ("function") while a kernel is put together, so
that what is written twice is small and can be recognised; `expand` writes them out for lowering.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from compiler.dtype import DType, bool_, float32
from compiler.kernel import functions
from compiler.kernel.ir import Value, binary, cast, const, rebuild, value

Build = Callable[..., Value]


def _negate(source: Value) -> Value:
    return value("neg", source.dtype, (source,))


def _invert(source: Value) -> Value:
    ones = const(True, bool_) if source.dtype is bool_ else const(-1, source.dtype)
    return binary("xor", source, ones)


def _floordiv(left: Value, right: Value) -> Value:
    """As NumPy: floats as the rounded-down quotient left after taking the remainder away."""
    if not left.dtype.is_float:
        return binary("floordiv", left, right)
    quotient = binary("div", functions.sub(left, _remainder(left, right)), right)
    exact = value("round", left.dtype, (quotient,))
    return functions.where(
        functions.equal(right, 0.0),
        value("floor", left.dtype, (binary("div", left, right),)),
        exact,
    )


def _remainder(left: Value, right: Value) -> Value:
    """The remainder with the divisor's sign; for floats left - floor(left/right)*right, by one
    fma."""
    if not left.dtype.is_float:
        return binary("mod", left, right)
    quotient = value("floor", left.dtype, (binary("div", left, right),))
    rest = functions.fma(functions.unary("neg", quotient), right, left)
    # the quotient may have rounded across a whole number: bring the rest back into [0, right)
    apart = functions.less(functions.mul(rest, right), 0.0)
    rest = functions.where(apart, functions.add(rest, right), rest)
    size, limit = functions.absolute(rest), functions.absolute(right)
    past = binary("le", limit, size)
    rest = functions.where(past, functions.sub(rest, right), rest)
    infinite = binary(
        "and",
        functions.equal(limit, float("inf")),
        functions.less(functions.absolute(left), float("inf")),
    )
    opposite = functions.less(functions.mul(left, right), 0.0)
    return functions.where(infinite, functions.where(opposite, right, left), rest)


def _reciprocal(source: Value) -> Value:
    return binary("div", functions.real(1.0), source)


def _rsqrt(source: Value) -> Value:
    return binary("div", functions.real(1.0), value("sqrt", source.dtype, (source,)))


def _power(left: Value, right: Value) -> Value:
    if left.dtype.is_float:
        return functions.power(left, right)
    return functions.integer_power(left, right)


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
    "exp": functions.exp,
    "exp2": functions.exp2,
    "log": functions.log,
    "log2": functions.log2,
    "sin": functions.sin,
    "cos": functions.cos,
    "tanh": functions.tanh,
    "sigmoid": functions.sigmoid,
}
FUNCTIONS = frozenset(
    ("pow", "exp", "exp2", "log", "log2", "sin", "cos", "tanh", "sigmoid", "floordiv", "mod")
)
COMPARISONS = frozenset(("lt", "le", "eq", "ne"))
# In additions; what is not named costs one.
COSTS: Mapping[str, int] = {
    "exp": 12, "exp2": 12, "log": 16, "log2": 16, "sin": 40, "cos": 40, "tanh": 24, "sigmoid": 16,
    "pow": 60, "div": 4, "mod": 8, "floordiv": 8, "sqrt": 4, "rsqrt": 6, "reciprocal": 4,
}  # fmt: skip


def is_narrow(dtype: DType) -> bool:
    """A float that is stored in 16 bits and computed in 32."""
    return dtype.is_float and dtype is not float32


def build(op: str, dtype: DType, sources: list[Value]) -> Value:
    """The IR of one operation with result type `dtype`."""
    wide = [cast(s, float32) if is_narrow(s.dtype) and op != "where" else s for s in sources]
    if op in FUNCTIONS and (op == "pow" or wide[0].dtype.is_float):
        return cast(value("function", wide[0].dtype, wide, op), dtype)
    return cast(BUILDERS[op](*wide), dtype)


def expand(root: Value) -> Value:
    """Write out every "function" of a value by simpler operations."""

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        return BUILDERS[node.arg](*sources) if node.op == "function" else None

    return rebuild(root, change)


def cost(node: Value) -> int:
    """Of one evaluation of a value's own operation, in additions (compiler.schedule.cost)."""
    if node.op in ("const", "index", "load", "bitcast", "extract", "pack", "broadcast", "results"):
        return 0
    return COSTS.get(node.arg if node.op == "function" else node.op, 1)
