"""Numbers as sums of two floats: the rounded one, and what it lost.

T. Dekker, "A floating-point technique for extending the available precision", Numerische Mathematik
18 (1971); D. Knuth, "The Art of Computer Programming", volume 2, 4.2.2; products and quotients with
a fused multiply-add.
"""

from __future__ import annotations

from ugpu.compiler.dtype import float64
from ugpu.compiler.expression.functions import add, div, fma, mul, sub, unary
from ugpu.compiler.expression.value import Value, const

Pair = tuple[Value, Value]


def real(number: float) -> Value:
    return const(number, float64)


def summed(left: Value, right: Value) -> Pair:
    """Return a sum of any two numbers."""
    total = add(left, right)
    part = sub(total, left)
    return total, add(sub(left, sub(total, part)), sub(right, part))


def nearly(large: Value, small: Value) -> Pair:
    """Return a sum of two numbers, the first the larger one, or zero."""
    total = add(large, small)
    return total, add(sub(large, total), small)


def product(left: Value, right: Value | tuple[float, float]) -> Pair:
    """Return a product; the right number may be a constant of two parts."""
    first = right if isinstance(right, Value) else real(right[0])
    total = mul(left, first)
    lost = fma(left, first, unary("neg", total))
    return total, lost if isinstance(right, Value) else fma(left, right[1], lost)


def quotient(left: Pair, right: Pair) -> Value:
    """Return left / right, rounded nearly once."""
    plain = div(left[0], right[0])
    minus = unary("neg", plain)
    rest = add(fma(minus, right[0], left[0]), fma(minus, right[1], left[1]))
    return add(plain, div(rest, right[0]))
