"""Operators of the pseudocode on values."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.pcode import numbers
from tests.support.pcode.numbers import FORMATS
from tests.support.pcode.values import Value, real, truth

TWO_OVER_PI = 1201  # bits that the unit has


class Unsupported(Exception):
    """The pseudocode has something that this compiler does not."""


def _alike(a: Value, b: Value) -> tuple[Value, Value]:
    """Return two operands of which one is a float as floats of the wider format."""
    if not a.floating:
        return Value(b.kind, b.width, numbers.from_int(b.form, a.number)), b
    if not b.floating:
        return a, Value(a.kind, a.width, numbers.from_int(a.form, b.number))
    if a.kind == b.kind and a.width == b.width:
        return a, b
    wider = a if a.width > b.width else b
    first, second = (
        Value(wider.kind, wider.width, numbers.convert(x.form, wider.form, x.number), x.marks)
        for x in (a, b)
    )
    return first, second


def add(a: Value, b: Value, mode: str) -> Value:
    """a + b."""
    if a.floating or b.floating:
        a, b = _alike(a, b)
        bits = numbers.total(a.form, a.number, b.number, mode)
        return real(a.kind, a.width, bits, a.mark | b.mark)
    return Value(_kind(a, b), max(a.width, b.width), a.number + b.number)


def subtract(a: Value, b: Value, mode: str) -> Value:
    """a - b."""
    if a.floating or b.floating:
        return add(a, negate(b), mode)
    return Value(_kind(a, b), max(a.width, b.width), a.number - b.number)


def multiply(a: Value, b: Value, mode: str) -> Value:
    """a * b; by a power of two as ldexp, and by multiples of pi as an angle."""
    if a.kind == "power":
        a, b = b, a
    if b.kind == "power":
        return real(a.kind, a.width, numbers.scaled(a.form, a.number, b.number, mode), a.mark)
    if a.kind == "pi":
        return Value("pi", 0, a.number * round(numbers.to_float(b.form, b.number)))
    if b.kind == "pi":
        return Value("turns", a.width, a.number, a.marks)
    if a.floating or b.floating:
        a, b = _alike(a, b)
        bits = numbers.product(a.form, a.number, b.number, mode)
        return real(a.kind, a.width, bits, a.mark | b.mark)
    return Value(_kind(a, b), max(a.width, b.width), a.number * b.number)


def divide(a: Value, b: Value, mode: str) -> Value:
    """a / b of floats; 2 / pi, of which more bits are needed than a float has."""
    if b.kind == "pi":
        return Value("two over pi", 0, 0)
    a, b = _alike(a, b)
    bits = numbers.quotient(a.form, a.number, b.number, mode)
    return real(a.kind, a.width, bits, a.mark | b.mark)


def power(a: Value, b: Value, mode: str) -> Value:
    """2 ** n, kept as it is: it may be beyond the format."""
    if numbers.to_float(a.form, a.number) != 2.0 or b.floating:
        raise Unsupported("** of something else than 2 and a whole number")
    return Value("power", 0, b.number)


def negate(a: Value) -> Value:
    """-a."""
    if a.floating:
        return Value(a.kind, a.width, a.number ^ a.form.sign, a.marks)
    return Value(a.kind, a.width, -a.number)


def invert(a: Value) -> Value:
    """~a, within its width."""
    return Value(a.kind, a.width, ~a.number & ((1 << a.width) - 1) if a.width else ~a.number)


def _kind(a: Value, b: Value) -> str:
    return "i" if "i" in (a.kind, b.kind) else "u"


def _and(a: Value, b: Value, mode: str) -> Value:
    """a & b; of the bits of 2/pi the whole part, which has as many bits as a double."""
    number = a.number >> (TWO_OVER_PI - 53) if a.width == TWO_OVER_PI else a.number
    return Value(_kind(a, b), max(a.width, b.width), number & b.number)


def _bitwise(apply: Callable[[int, int], int]) -> Callable[[Value, Value, str], Value]:
    def operate(a: Value, b: Value, mode: str) -> Value:
        return Value(_kind(a, b), max(a.width, b.width), apply(a.number, b.number))

    return operate


def _shift_left(a: Value, b: Value, mode: str) -> Value:
    number = a.number << b.number
    if a.width == TWO_OVER_PI:
        number &= (1 << TWO_OVER_PI) - 1
    return Value(a.kind, a.width, number)


def _shift_right(a: Value, b: Value, mode: str) -> Value:
    return Value(a.kind, a.width, a.number >> b.number)


def _comparison(accepted: tuple[int, ...], unordered: bool) -> Callable[[Value, Value, str], Value]:
    def operate(a: Value, b: Value, mode: str) -> Value:
        if "denormal" in (a.kind, b.kind):
            x = b if a.kind == "denormal" else a
            return truth(not numbers.exponent(x.form, x.number) and x.number & ~x.form.sign != 0)
        if a.floating or b.floating:
            a, b = _alike(a, b)
            order = numbers.compare(a.form, a.number, b.number)
            return truth(unordered if order is None else order in accepted)
        return truth((a.number > b.number) - (a.number < b.number) in accepted)

    return operate


BINARY: dict[str, Callable[[Value, Value, str], Value]] = {
    "+": add, "-": subtract, "*": multiply, "/": divide, "**": power,
    "<<": _shift_left, ">>": _shift_right,
    "&": _and, "|": _bitwise(int.__or__), "^": _bitwise(int.__xor__),
    "==": _comparison((0,), False), "!=": _comparison((-1, 1), True),
    "<>": _comparison((-1, 1), False), "<": _comparison((-1,), False),
    "<=": _comparison((-1, 0), False), ">": _comparison((1,), False),
    ">=": _comparison((0, 1), False),
}  # fmt: skip
LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!=", "<>"), ("<", "<=", ">", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/"),
)  # fmt: skip
"""Binary operators by precedence, the weakest first."""


def constant(name: str, width: int) -> Value | None:
    """Return a constant of the document by name, in a width."""
    form = FORMATS["f", width]
    bits = {
        "INF": form.infinity, "NAN": form.nan,
        "MAX_FLOAT_F32": 0x7F7F_FFFF, "OVERFLOW_F32": 0x7F80_0000, "UNDERFLOW_F32": 0,
        "OVERFLOW_F64": 0x7FF0 << 48, "UNDERFLOW_F64": 0,
    }.get(name)  # fmt: skip
    if name == "DENORM":
        return Value("denormal", width, 0)
    if name == "PI":
        return Value("pi", 0, 1)
    if bits is None:
        return None
    size = int(name[-2:]) if name[-3:-2] == "F" else width
    return Value("f", size, bits)
