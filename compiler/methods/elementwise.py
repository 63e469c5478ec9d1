"""Tensor: operations on each element."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType, bool_, float32
from ugpu.compiler.expression.elementary import WHOLE_POWERS
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.series import EXACT
from ugpu.compiler.methods.core import Scalar, TensorCore, broadcast, is_complex, number_of
from ugpu.hcq.errors import BadArgument

# No number decides how they are computed; a power of integers is a few products if it is known.
HELD = frozenset(("add", "sub", "mul", "max", "min", "floordiv", "mod", "pow"))


class Elementwise(TensorCore):
    """Arithmetic with broadcasting, comparisons, functions, casts. Operands: tensors of the same
    device, Python scalars, NumPy scalars and arrays."""

    __slots__ = ()

    def _binary(self, op: str, other: Any, name: str = "", reverse: bool = False) -> Self:
        combined = partial(self._combined, op, name, reverse)
        return self._again_with((op, reverse), other, combined, op in HELD)

    def _again_with(
        self, name: tuple[object, ...], other: Any, method: Callable[[Any], Self], holds: bool
    ) -> Self:
        """Return what `_again` does for a method of self and an operand of any kind. holds: see
        `_again_with_numbers`."""
        if isinstance(other, TensorCore):
            return self._again(name, (other,), partial(method, other))
        kind = type(other)
        if kind is float or kind is int:
            return self._again_with_numbers(name, (other,), method, holds)
        if is_complex(other):
            combined: Self = self._with_complex(name, other)
            return combined
        return method(other)

    def _combined(self, op: str, name: str, reverse: bool, other: Any) -> Self:
        dtype, (left, right) = self._operands(name or op, other, exact=op in EXACT)
        if dtype is bool_ and op in ("sub", "floordiv", "mod"):
            raise BadArgument(
                f"{name or op}: bools are not supported; cast them, or use logical operations"
            )
        if reverse:
            left, right = right, left
        return self._new(graph.elementwise(op, dtype, left, right))

    def _compare(self, op: str, other: Any, swap: bool = False) -> Self:
        compared = partial(self._compared, op, swap)
        return self._again_with(("compare", op, swap), other, compared, True)

    def _compared(self, op: str, swap: bool, other: Any) -> Self:
        if type(other) is int and self.dtype.is_integer:
            above = other > dtypes.highest(self.dtype)
            if above or other < dtypes.lowest(self.dtype):  # the result is the same for all
                answer = op == "ne" if op in ("eq", "ne") else above is not swap
                return self._new(graph.full(answer, bool_, self.shape))
        _, (left, right) = self._operands(op, other)
        if swap:
            left, right = right, left
        return self._new(graph.elementwise(op, bool_, left, right))

    def _bitwise(self, op: str, other: Any, reverse: bool = False) -> Self:
        combined = partial(self._of_bits, op, reverse)
        return self._again_with(("bits", op, reverse), other, combined, True)

    def _of_bits(self, op: str, reverse: bool, other: Any) -> Self:
        dtype, (left, right) = self._operands(op, other)
        if dtype.is_float or (op in ("shl", "shr") and dtype is bool_):
            raise BadArgument(f"{op}: expected integers, got {dtype.name}")
        if reverse:
            left, right = right, left
        return self._new(graph.elementwise(op, dtype, left, right))

    def _function(self, op: str) -> Self:
        """Apply a real function: integers become float32."""
        return self._again((op,), (), lambda: self._of_reals(op))

    def _of_reals(self, op: str) -> Self:
        dtype = dtypes.float_dtype(self.dtype)
        return self._new(graph.elementwise(op, dtype, graph.cast(self.node, dtype)))

    def _real(self) -> Self:
        """Return it in the float type in which it is computed."""
        return self.cast(dtypes.wide(self.dtype))

    def _rounding(self, op: str) -> Self:
        return self._function(op) if self.dtype.is_float else self._new(self.node)

    # ---- arithmetic ----------------------------------------------------------------------------

    def add(self, other: Any, *, alpha: Scalar = 1) -> Self:
        """Return `self + alpha * other`, with broadcasting."""
        return self._binary("add", other if alpha == 1 else self._scaled("add", other, alpha))

    def sub(self, other: Any, *, alpha: Scalar = 1) -> Self:
        """Return `self - alpha * other`, with broadcasting."""
        return self._binary("sub", other if alpha == 1 else self._scaled("sub", other, alpha))

    def _scaled(self, operation: str, other: Any, alpha: Scalar) -> Any:
        factor = number_of(operation, "alpha", alpha)
        lifted = self._lift(operation, other)
        return (
            self._new(lifted.node) * factor if isinstance(lifted, TensorCore) else lifted * factor
        )

    def mul(self, other: Any) -> Self:
        """Return `self * other`, with broadcasting."""
        return self._binary("mul", other)

    def div(
        self,
        other: Any,
        reverse: bool = False,
        *,
        rounding_mode: Literal["trunc", "floor"] | None = None,
    ) -> Self:
        """Return the quotient; integers give float32. rounding_mode: round it down or towards zero
        to an integer, in the operands' type; an integer divided by zero then gives zero."""
        if rounding_mode not in (None, "trunc", "floor"):
            raise BadArgument(
                f"div: rounding_mode must be 'trunc', 'floor' or None, got {rounding_mode!r}"
            )
        if rounding_mode is not None:
            return self._whole_quotient(other, reverse, rounding_mode == "floor")
        quotient = partial(self._quotient, reverse)
        return self._again_with(("div", reverse), other, quotient, True)

    def _quotient(self, reverse: bool, other: Any) -> Self:
        common, _ = self._operands("div", other)
        dtype = dtypes.float_dtype(common)
        _, (left, right) = self._operands("div", other, common=dtype, exact=True)
        if reverse:
            left, right = right, left
        return self._new(graph.elementwise("div", dtype, left, right))

    def _whole_quotient(self, other: Any, reverse: bool, down: bool) -> Self:
        lower = self._binary("floordiv", other, "div", reverse=reverse)
        if down:
            return lower
        if lower.dtype.is_float:
            return self.div(other, reverse)._rounding("trunc")
        # one more than the floor, where the quotient is negative and not exact
        rest = self._binary("mod", other, "div", reverse=reverse)
        return lower + (rest._compare("ne", 0) & (lower < 0)).cast(lower.dtype)

    def floor_divide(self, other: Any) -> Self:
        """Return the quotient rounded down; an integer divided by zero gives zero."""
        return self._binary("floordiv", other, "floor_divide")

    def remainder(self, other: Any) -> Self:
        """Return the remainder with the divisor's sign; an integer modulo zero gives zero."""
        return self._binary("mod", other, "remainder")

    def pow(self, other: Any, reverse: bool = False) -> Self:
        """Return the power. A small integer exponent that is a Python number is computed by
        products, rounded once; integers wrap, and a negative exponent of an integer raises an
        error."""
        if self.dtype is bool_:
            common = self._common("pow", other)
            if common is bool_:
                raise BadArgument("pow: bools are not supported; cast them")
            return self.cast(common).pow(other, reverse)
        if isinstance(other, int | float) and not isinstance(other, bool) and not reverse:
            known = self._known_power(other)
            if known is not None:
                return known
        return self._binary("pow", other, reverse=reverse)

    def _known_power(self, exponent: Scalar) -> Self | None:
        """Return the power by something faster or more exact than pow; None if there is none."""
        if not self.dtype.is_float:
            if isinstance(exponent, int) and exponent < 0:
                raise BadArgument("pow: integers cannot be raised to a negative integer power")
            small = isinstance(exponent, int) and exponent <= max(WHOLE_POWERS)
            return self._whole_power(int(exponent)) if small else None
        if exponent in (0.5, -0.5):
            size = self.abs()  # of -0 and minus infinity the power is positive, as in C
            root = size.sqrt() if exponent > 0 else size.rsqrt()
            found = ((self < 0) & (self > -math.inf)).where(math.nan, root)
            return found._ruled("power", [self], exponent)
        if exponent in (-1, -2):
            inverse = self._function("reciprocal")
            return inverse if exponent == -1 else inverse * inverse
        if exponent in (0, 1, 2):
            return self._whole_power(int(exponent))
        if exponent in WHOLE_POWERS:
            return self._function(f"pow_{int(exponent)}")
        return None

    def _whole_power(self, exponent: int) -> Self:
        if exponent == 0:
            return self._new(graph.full(1, self.dtype, self.shape))
        if exponent == 1:
            return self._same()
        half = self._whole_power(exponent // 2)
        square = half * half
        return square * self if exponent % 2 else square

    def maximum(self, other: Any) -> Self:
        """Return the larger of two, with broadcasting; NaN if either is NaN."""
        return self._binary("max", other, "maximum")

    def minimum(self, other: Any) -> Self:
        """Return the smaller of two, with broadcasting; NaN if either is NaN."""
        return self._binary("min", other, "minimum")

    def neg(self) -> Self:
        """Return `-self`."""
        if self.dtype is bool_:
            raise BadArgument("neg: bools are not supported; use logical_not")
        return self._of_same_type("neg")

    def abs(self) -> Self:
        """Return the absolute value. Unsigned integers are unchanged."""
        return self._of_same_type("abs")

    def _of_same_type(self, op: str) -> Self:
        return self._again(
            ("same type", op),
            (),
            lambda: self._new(graph.elementwise(op, self.dtype, self.node)),
        )

    # ---- functions -----------------------------------------------------------------------------

    def exp(self) -> Self:
        """Return e to the power of each element."""
        return self._function("exp")

    def log(self) -> Self:
        """Return the natural logarithm."""
        return self._function("log")

    def sqrt(self) -> Self:
        """Return the square root; NaN for negative numbers."""
        return self._function("sqrt")

    def rsqrt(self) -> Self:
        """Return 1 / sqrt(x)."""
        return self._function("rsqrt")

    def sigmoid(self) -> Self:
        """Return 1 / (1 + exp(-x))."""
        return self._function("sigmoid")

    def square(self) -> Self:
        """Return x * x; of bools as int64."""
        return self.cast(dtypes.int64) if self.dtype is bool_ else self * self

    # ---- comparisons and logic -----------------------------------------------------------------

    def isnan(self) -> Self:
        """Return whether each element is NaN."""
        return self._compare("ne", self)

    def isinf(self) -> Self:
        """Return whether each element is infinite."""
        return self.abs()._compare("eq", float("inf"))

    def isfinite(self) -> Self:
        """Return whether each element is neither infinite nor NaN."""
        return self.abs()._compare("lt", float("inf"))

    def where(self, input: Any, other: Any) -> Self:
        """Return `input` where self is true, otherwise `other` (torch.where with self as the
        condition)."""
        if self.dtype is not bool_:
            raise BadArgument(f"where: the condition must be bool, got {self.dtype.name}")
        chosen = self._chosen
        method: Callable[..., Self] = chosen
        tensors: tuple[TensorCore, ...] = ()
        numbers: tuple[Any, ...] = (input, other)
        if isinstance(input, TensorCore):
            if isinstance(other, TensorCore):
                return self._again(("where",), (input, other), partial(chosen, input, other))
            tensors, numbers, method = (input,), (other,), partial(chosen, input)
        elif isinstance(other, TensorCore):
            tensors, numbers, method = (other,), (input,), partial(chosen, other=other)
        holds = True
        for number in numbers:
            if not isinstance(number, int | float):  # an array
                return chosen(input, other)
            holds = holds and type(number) is not bool
        dtype = tensors[0].dtype if tensors else dtypes.promote(*map(dtypes.of_scalar, numbers))
        name = ("where", bool(tensors) and tensors[0] is input)
        return self._again_with_numbers(name, numbers, method, holds, tensors, dtype)

    def _chosen(self, input: Any, other: Any) -> Self:
        yes, no = self._lift("where", input), self._lift("where", other)
        if isinstance(yes, TensorCore):
            dtype = (
                dtypes.promote(yes.dtype, no.dtype)
                if isinstance(no, TensorCore)
                else dtypes.promote_scalar(yes.dtype, no)
            )
        elif isinstance(no, TensorCore):
            dtype = dtypes.promote_scalar(no.dtype, yes)
        else:
            dtype = dtypes.promote(dtypes.of_scalar(yes), dtypes.of_scalar(no))
        _, (_, first, second) = self._operands("where", yes, no, common=dtype)
        condition = broadcast(self.node, first.shape)
        return self._new(graph.elementwise("where", dtype, condition, first, second))

    def logical_not(self) -> Self:
        """Return whether each element is 0."""
        return self._new(graph.elementwise("invert", bool_, graph.cast(self.node, bool_)))

    def logical_and(self, other: Any) -> Self:
        """Return whether both elements are true (not 0)."""
        return self._logical("and", other)

    def logical_or(self, other: Any) -> Self:
        """Return whether at least one element is true (not 0)."""
        return self._logical("or", other)

    def logical_xor(self, other: Any) -> Self:
        """Return whether exactly one element is true (not 0)."""
        return self._logical("xor", other)

    def _logical(self, op: str, other: Any) -> Self:
        _, nodes = self._operands(f"logical_{op}", other)
        left, right = (graph.cast(node, bool_) for node in nodes)
        return self._new(graph.elementwise(op, bool_, left, right))

    # ---- types ---------------------------------------------------------------------------------

    def cast(self, dtype: Any) -> Self:
        """Convert to another type. Floats are rounded towards zero to integers; values out of range
        become the nearest limit, NaN becomes 0. Integers wrap."""
        wanted = dtypes.as_dtype(dtype)
        if wanted is self.dtype:
            return self._new(self.node)
        dtypes.require(wanted, self.device.target)
        return self._again(
            ("cast", wanted.name), (), lambda: self._new(graph.cast(self.node, wanted))
        )

    def bitcast(self, dtype: Any) -> Self:
        """Reinterpret the bits as another type of the same size."""
        wanted: DType = dtypes.as_dtype(dtype)
        if wanted.itemsize != self.dtype.itemsize or bool_ in (wanted, self.dtype):
            raise BadArgument(
                f"bitcast: types must have the same width, got {self.dtype.name} and {wanted.name}"
            )
        if wanted is self.dtype:
            return self._same()
        return self._new(graph.bitcast(self.node, wanted))

    def double(self) -> Self:
        """Convert to float64."""
        return self.cast(dtypes.float64)

    def float(self) -> Self:
        """Convert to float32."""
        return self.cast(float32)

    def half(self) -> Self:
        """Convert to float16."""
        return self.cast(dtypes.float16)

    def bfloat16(self) -> Self:
        """Convert to bfloat16."""
        return self.cast(dtypes.bfloat16)

    def int(self) -> Self:
        """Convert to int32; floats are rounded towards 0."""
        return self.cast(dtypes.int32)

    def long(self) -> Self:
        """Convert to int64; floats are rounded towards 0."""
        return self.cast(dtypes.int64)

    def bool(self) -> Self:
        """Convert to bool: whether each element is not 0."""
        return self.cast(bool_)

    # ---- operators -----------------------------------------------------------------------------

    def __add__(self, other: Any) -> Self:
        return self.add(other)

    def __radd__(self, other: Any) -> Self:
        return self.add(other)

    def __sub__(self, other: Any) -> Self:
        return self.sub(other)

    def __rsub__(self, other: Any) -> Self:
        return self._binary("sub", other, reverse=True)

    def __mul__(self, other: Any) -> Self:
        return self.mul(other)

    def __rmul__(self, other: Any) -> Self:
        return self.mul(other)

    def __truediv__(self, other: Any) -> Self:
        return self.div(other)

    def __rtruediv__(self, other: Any) -> Self:
        return self.div(other, reverse=True)

    def __floordiv__(self, other: Any) -> Self:
        return self.floor_divide(other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._binary("floordiv", other, "floor_divide", reverse=True)

    def __mod__(self, other: Any) -> Self:
        return self.remainder(other)

    def __rmod__(self, other: Any) -> Self:
        return self._binary("mod", other, "remainder", reverse=True)

    def __pow__(self, other: Any) -> Self:
        return self.pow(other)

    def __rpow__(self, other: Any) -> Self:
        return self.pow(other, reverse=True)

    def __pos__(self) -> Self:
        return self._same()

    def __neg__(self) -> Self:
        return self.neg()

    def __abs__(self) -> Self:
        return self.abs()

    def __invert__(self) -> Self:
        if self.dtype.is_float:
            raise BadArgument(f"invert: expected integers or bools, got {self.dtype.name}")
        return self._of_same_type("invert")

    def __and__(self, other: Any) -> Self:
        return self._bitwise("and", other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Self:
        return self._bitwise("or", other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Self:
        return self._bitwise("xor", other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Self:
        return self._bitwise("shl", other)

    def __rshift__(self, other: Any) -> Self:
        return self._bitwise("shr", other)

    def __rlshift__(self, other: Any) -> Self:
        return self._bitwise("shl", other, reverse=True)

    def __rrshift__(self, other: Any) -> Self:
        return self._bitwise("shr", other, reverse=True)

    def __lt__(self, other: Any) -> Self:
        return self._compare("lt", other)

    def __le__(self, other: Any) -> Self:
        return self._compare("le", other)

    def __gt__(self, other: Any) -> Self:
        return self._compare("lt", other, swap=True)

    def __ge__(self, other: Any) -> Self:
        return self._compare("le", other, swap=True)

    # Any: tensors compare element by element, where Python expects a bool. Comparisons with None, a
    # string and the like are left to Python: they are not equal.
    def __eq__(self, other: object) -> Any:
        return self._compare("eq", other) if self._is_operand(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return self._compare("ne", other) if self._is_operand(other) else NotImplemented

    __hash__ = object.__hash__
