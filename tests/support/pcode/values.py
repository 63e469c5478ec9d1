"""Values of the pseudocode: numbers with a type, and what a test may not compare of them."""

from __future__ import annotations

from tests.support.pcode import numbers
from tests.support.pcode.numbers import FORMATS, Format

# Marks: which NaN is open; the function is approximated; nothing is stated.
ANY_NAN, NEAR, OPEN = 1, 2, 4
Marks = tuple[tuple[int, int, int], ...]  # lowest bit, width, marks


class Value:
    """A value. kind: "u", "i", "b" whole numbers, exact beyond their width; "f", "bf", "fp" the
    bits of a float; "power" 2 to the number; "pi" multiples of pi; "turns" the bits of an f64 that
    are to be multiplied by 2 pi."""

    __slots__ = ("kind", "marks", "number", "width")

    def __init__(self, kind: str, width: int, number: int, marks: Marks = ()) -> None:
        self.kind, self.width, self.number, self.marks = kind, width, number, marks

    def __repr__(self) -> str:
        return f"{self.kind}{self.width} {self.number:#x}"

    @property
    def form(self) -> Format:
        """The format of a float."""
        return FORMATS[self.kind, self.width]

    @property
    def floating(self) -> bool:
        """Whether it is a float."""
        return (self.kind, self.width) in FORMATS

    def raw(self, width: int) -> int:
        """Its bits."""
        return self.number & ((1 << width) - 1)

    @property
    def mark(self) -> int:
        """All marks."""
        result = 0
        for _, _, mark in self.marks:
            result |= mark
        return result


def truth(flag: bool) -> Value:
    """Return a bit."""
    return Value("u", 1, int(flag))


def real(kind: str, width: int, bits: int, mark: int = 0) -> Value:
    """Return a computed float; a NaN's payload is open."""
    if numbers.is_nan(FORMATS[kind, width], bits):
        mark |= ANY_NAN
    return Value(kind, width, bits, ((0, width, mark),) if mark else ())


def seen(value: Value, kind: str, width: int) -> Value:
    """Return the value's bits as another type."""
    if value.kind == kind and value.width == width:
        return value
    number = value.number & ((1 << width) - 1)
    if kind == "i" and number >> (width - 1):
        number -= 1 << width
    marks = tuple(mark for mark in value.marks if mark[0] + mark[1] <= width)
    return Value(kind, width, number, marks)


def cut(value: Value, high: int, low: int) -> Value:
    """Return bits high to low; reversed if low is the higher one."""
    if low > high:
        width = low - high + 1
        bits = value.number >> high & ((1 << width) - 1)
        return Value("u", width, int(f"{bits:0{width}b}"[::-1], 2))
    width = high - low + 1
    marks = tuple(
        (start - low, size, mark)
        for start, size, mark in value.marks
        if start >= low and start + size <= high + 1
    )
    return Value("u", width, value.number >> low & ((1 << width) - 1), marks)


def put(value: Value, high: int, low: int, part: Value) -> Value:
    """Return the value with some bits replaced."""
    if low > high:
        part = cut(part, 0, low - high)
        high, low = low, high
    width = high - low + 1
    mask = ((1 << width) - 1) << low
    number = (value.number & ~mask) | (part.raw(width) << low)
    marks = tuple(
        mark for mark in value.marks if mark[0] + mark[1] <= low or mark[0] > high
    ) + tuple((start + low, size, mark) for start, size, mark in part.marks)
    return Value("b", max(value.width, high + 1), number, marks)


def cast(value: Value, kind: str, width: int, mode: str) -> Value:
    """Convert: floats between formats, whole numbers to floats, and whole numbers to a width."""
    if value.kind in ("power", "pi", "turns"):
        return value
    if kind == "f":
        if value.floating:
            bits = numbers.convert(value.form, FORMATS[kind, width], value.number, mode)
            marks = tuple((0, width, mark) for _, _, mark in value.marks)
            return Value(kind, width, bits, marks)
        return Value(kind, width, numbers.from_int(FORMATS[kind, width], value.number, mode))
    number = value.number & ((1 << width) - 1)
    if kind == "i" and number >> (width - 1):
        number -= 1 << width
    return Value(kind, width, number, value.marks)
