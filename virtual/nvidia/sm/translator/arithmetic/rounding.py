"""Rounding in any direction: from a result and its error to the float that the mode requires.

The host only rounds to nearest even. A result is known as s + e, where s is the nearest double and
e has at least the right sign. The rounded float is s or its neighbour.
Sources: Knuth, TAOCP 2, 4.2.2 (the error of a sum); Boldo and Muller, "Exact and approximated error
of the FMA"; Boldo and Melquiond, "Emulation of a FMA ... rounding to odd".
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.virtual.nvidia.sm.translator.kernel import Kernel
from ugpu.virtual.nvidia.sm.translator.value import Value, number, real

_SIGN = {"i16": 0x8000, "i32": 1 << 31, "i64": 1 << 63}


def zero(value: Value) -> Value:
    """Return +0 of a value's type."""
    return number(value.element, 0)


def fma(k: Kernel, a: Value, b: Value, c: Value) -> Value:
    """Return a * b + c, rounded once to nearest."""
    return k.call_op("fma", a, b, c)


def sum_error(k: Kernel, a: Value, b: Value, s: Value) -> Value:
    """Return the error of s = a + b."""
    bb = k.op("fsub", s, a)
    left = k.op("fsub", a, k.op("fsub", s, bb))
    return k.op("fadd", left, k.op("fsub", b, bb))


def fma_error(k: Kernel, a: Value, b: Value, c: Value, s: Value) -> Value:
    """Return the error of s = a * b + c; at least its sign is exact."""
    product = k.op("fmul", a, b)
    product_error = fma(k, a, b, k.op("fneg", product))
    low = k.op("fadd", c, product_error)
    low_error = sum_error(k, c, product_error, low)
    high = k.op("fadd", product, low)
    high_error = sum_error(k, product, low, high)
    rest = k.op("fadd", k.op("fsub", high, s), high_error)
    return k.op("fadd", rest, low_error)


def to_odd(k: Kernel, s: Value, e: Value) -> Value:
    """Return s + e rounded to odd. Rounding the result to half the bits then rounds only once."""
    bits = k.bits_of(s)
    one = number(bits.element, 1)
    even = k.cmp("eq", k.op("and", bits, one), zero(bits))
    inexact = k.cmp("one", e, zero(e))
    wrong = k.op("and", even, inexact)
    inward = k.cmp("slt", k.op("xor", bits, k.bits_of(e)), zero(bits))
    step = k.choose(inward, number(bits.element, -1), one)
    moved = k.choose(wrong, k.op("add", bits, step), bits)
    return k.cast("bitcast", moved, s.element)


def odd_float(k: Kernel, s: Value) -> Value:
    """Round a double to an odd float."""
    nearest = k.cast("fptrunc", s, "float")
    error = k.op("fsub", s, k.cast("fpext", nearest, "double"))
    bits = k.bits_of(nearest)
    one = number("i32", 1)
    even = k.cmp("eq", k.op("and", bits, one), zero(bits))
    wrong = k.op("and", even, k.cmp("one", error, zero(error)))
    sign = k.cmp("slt", bits, zero(bits))
    toward = k.cmp("olt", error, zero(error))
    inward = k.op("xor", sign, toward)
    # From zero, only step away from it: the error has the sign of the zero.
    step = k.choose(inward, number("i32", -1), one)
    is_zero = k.cmp("eq", k.op("shl", bits, one), zero(bits))
    step = k.choose(is_zero, one, step)
    moved = k.choose(wrong, k.op("add", bits, step), bits)
    return k.cast("bitcast", moved, "float")


def steered(k: Kernel, nearest: Value, error: Value, mode: str) -> Value:
    """Move `nearest` to its neighbour if exact = nearest + error is beyond it. mode: rz, rm, rp.

    Only the sign of `error` counts.
    """
    bits = k.bits_of(nearest)
    one, sign = number(bits.element, 1), number(bits.element, _SIGN[bits.element])
    negative = k.cmp("slt", bits, zero(bits))
    below, above = k.cmp("olt", error, zero(error)), k.cmp("ogt", error, zero(error))
    is_zero = k.cmp("oeq", nearest, zero(nearest))
    smaller, larger = k.op("sub", bits, one), k.op("add", bits, one)
    if mode == "rm":
        at_zero = k.op("or", sign, one)
        moved = k.choose(is_zero, at_zero, k.choose(negative, larger, smaller))
        result = k.choose(below, moved, bits)
    elif mode == "rp":
        moved = k.choose(is_zero, one, k.choose(negative, smaller, larger))
        result = k.choose(above, moved, bits)
    else:
        inward = k.choose(negative, above, below)
        safe = k.op("and", inward, k.negate(is_zero))
        result = k.choose(safe, smaller, bits)
    moved_value = k.cast("bitcast", result, nearest.element)
    nan = k.cmp("uno", nearest, nearest)
    return k.choose(nan, nearest, moved_value)


def rounded(
    k: Kernel, s: Value, e: Value, element: str, mode: str, inputs: Sequence[Value] = ()
) -> Value:
    """Return s + e (doubles) as float or double, rounded by `mode`.

    inputs: if these are finite and s is not, s has overflowed.
    """
    finite = k.cmp("ord", e, e)
    e = k.choose(finite, e, zero(e))
    if element == "double":
        if mode == "rn":
            return s
        return steered(k, s, _of_overflow(k, s, e, inputs), mode)
    if mode == "rn":
        return k.cast("fptrunc", to_odd(k, s, e), "float")
    nearest = k.cast("fptrunc", s, "float")
    difference = k.op("fsub", s, k.cast("fpext", nearest, "double"))
    is_exact = k.cmp("oeq", difference, zero(e))
    sign = k.choose(is_exact, e, difference)
    return steered(k, nearest, sign, mode)


def _of_overflow(k: Kernel, s: Value, e: Value, inputs: Sequence[Value]) -> Value:
    """Return the error, or for an overflowed s an error that points back to the finite range."""
    if not inputs:
        return e
    infinity = real("double", float("inf"))
    over = k.cmp("oeq", k.call_op("fabs", s), infinity)
    for value in inputs:
        over = k.op("and", over, k.cmp("olt", k.call_op("fabs", value), infinity))
    return k.choose(over, k.op("fneg", s), e)


def flushed(k: Kernel, value: Value) -> Value:
    """Return zero of the same sign for a denormal float."""
    bits = k.bits_of(value)
    sign = number("i32", 1 << 31)
    magnitude = k.op("and", bits, number("i32", 0x7FFFFFFF))
    small = k.cmp("ult", magnitude, number("i32", 0x00800000))
    return k.cast("bitcast", k.choose(small, k.op("and", bits, sign), bits), "float")


def saturated(k: Kernel, value: Value) -> Value:
    """Limit to 0..1; a NaN becomes 0."""
    one = real(value.element, 1.0)
    positive = k.cmp("ogt", value, zero(value))
    low = k.choose(positive, value, zero(value))
    return k.choose(k.cmp("olt", low, one), low, one)


def rectified(k: Kernel, x: Value) -> Value:
    """Return zero in place of a negative number; NaN stays."""
    positive = k.cmp("ogt", x, zero(x))
    nan = k.cmp("uno", x, x)
    return k.choose(k.op("or", positive, nan), x, zero(x))
