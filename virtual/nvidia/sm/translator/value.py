"""Values of a warp in LLVM IR: one number a lane, or one number for all lanes.

A uniform value is a scalar in IR, and an operation on uniform values only is scalar code. A varying
value is a vector of 32 lanes. In an operation on both, the scalar is broadcast.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.virtual.shader.text import ELEMENT_BITS, Text, constant, integer_of, lanes

_SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
FLOATS = ("half", "bfloat", "float", "double")
SPREAD = "<32 x i32> zeroinitializer"


@dataclass(frozen=True)
class Value:
    """An operand of LLVM IR. element: type of one lane. bits: value of a constant."""

    text: str
    element: str
    uniform: bool
    bits: int | None = None

    @property
    def width(self) -> int:
        """Bits of one lane."""
        return ELEMENT_BITS[self.element]


def number(element: str, bits: int) -> Value:
    """Return a constant given by its bits."""
    bits &= (1 << ELEMENT_BITS[element]) - 1
    if element == "i1":
        return Value("true" if bits else "false", element, True, bits)
    integer = integer_of(element)
    if integer == element:
        return Value(str(bits), element, True, bits)
    return Value(f"bitcast ({integer} {bits} to {element})", element, True, bits)


def real(element: str, value: float) -> Value:
    """Return a floating-point constant."""
    form, integer = {"float": ("<f", "<I"), "double": ("<d", "<Q"), "half": ("<e", "<H")}[element]
    return number(element, struct.unpack(integer, struct.pack(form, value))[0])


class Lanes(Text):
    """IR text with operations on values."""

    def __init__(self) -> None:
        super().__init__()
        self._spread: dict[tuple[str, str], str] = {}

    def begin(self, label: str) -> None:
        """Start the block `label`."""
        super().begin(label)
        self._spread.clear()

    def kind(self, element: str, uniform: bool) -> str:
        """Return the LLVM type."""
        return element if uniform else f"<32 x {element}>"

    def type_of(self, value: Value) -> str:
        """Return a value's LLVM type."""
        return self.kind(value.element, value.uniform)

    def vec(self, value: Value) -> str:
        """Return the text of a value as a vector."""
        if not value.uniform:
            return value.text
        if value.bits is not None:
            return constant(value.element, value.bits)
        key = value.element, value.text
        if key not in self._spread:
            self._spread[key] = self.broadcast(value.element, value.text)
        return self._spread[key]

    def varying(self, value: Value) -> Value:
        """Return a value as one number a lane."""
        return Value(self.vec(value), value.element, False)

    def scalar(self, value: Value) -> Value:
        """Return lane 0 of a value."""
        if value.uniform:
            return value
        text = self.value(f"extractelement <32 x {value.element}> {value.text}, i32 0")
        return Value(text, value.element, True)

    def _same(self, *values: Value) -> tuple[bool, list[str]]:
        uniform = all(value.uniform for value in values)
        return uniform, [value.text if uniform else self.vec(value) for value in values]

    def op(self, operation: str, *values: Value) -> Value:
        """Apply an instruction of one or two operands of equal type: "add", "fneg" ..."""
        uniform, texts = self._same(*values)
        element = values[0].element
        text = self.value(f"{operation} {self.kind(element, uniform)} {', '.join(texts)}")
        return Value(text, element, uniform)

    def cmp(self, predicate: str, a: Value, b: Value) -> Value:
        """Compare: "ult", "slt", "oeq" ..."""
        operation = "fcmp" if a.element in FLOATS else "icmp"
        uniform, (x, y) = self._same(a, b)
        text = self.value(f"{operation} {predicate} {self.kind(a.element, uniform)} {x}, {y}")
        return Value(text, "i1", uniform)

    def choose(self, condition: Value, a: Value, b: Value) -> Value:
        """Return a where the condition is true, else b."""
        uniform, (c, x, y) = self._same(condition, a, b)
        kind = self.kind(a.element, uniform)
        text = self.value(f"select {self.kind('i1', uniform)} {c}, {kind} {x}, {kind} {y}")
        return Value(text, a.element, uniform)

    def cast(self, operation: str, value: Value, element: str) -> Value:
        """Convert: "zext", "bitcast", "fptrunc" ..."""
        if value.element == element:
            return value
        if value.bits is not None and operation in ("bitcast", "trunc", "zext"):
            return number(element, value.bits)
        source, target = self.type_of(value), self.kind(element, value.uniform)
        return Value(self.value(f"{operation} {source} {value.text} to {target}"), element,
                     value.uniform)  # fmt: skip

    def bits_of(self, value: Value) -> Value:
        """Return a float as the integer of the same bits."""
        return self.cast("bitcast", value, integer_of(value.element))

    def resize(self, value: Value, element: str, signed: bool) -> Value:
        """Truncate or extend an integer."""
        width = ELEMENT_BITS[element]
        if width == value.width:
            return value
        if width < value.width:
            return self.cast("trunc", value, element)
        return self.cast("sext" if signed else "zext", value, element)

    def call_op(self, name: str, *values: Value, extra: str = "") -> Value:
        """Call an LLVM intrinsic overloaded on one type; extra: a last i1 argument."""
        uniform, texts = self._same(*values)
        element = values[0].element
        suffix = _SUFFIX.get(element, element)
        kind = self.kind(element, uniform)
        arguments = [(kind, text) for text in texts]
        if extra:
            arguments.append(("i1", extra))
        overload = suffix if uniform else f"v32{suffix}"
        return Value(self.call(kind, f"llvm.{name}.{overload}", *arguments), element, uniform)

    def by_lanes(self, function: str, element: str, *values: Value) -> Value:
        """Call a function of vectors. The result of uniform arguments is uniform."""
        uniform = all(value.uniform for value in values)
        arguments = [(f"<32 x {value.element}>", self.vec(value)) for value in values]
        text = self.call(f"<32 x {element}>", function, *arguments)
        result = Value(text, element, False)
        return self.scalar(result) if uniform else result

    def each(self, values: list[int], element: str = "i32") -> Value:
        """Return a constant with one number a lane."""
        return Value(lanes(values, element), element, False)

    def mask_bits(self, condition: Value) -> str:
        """Return a condition as i32, one bit a lane."""
        if condition.bits is not None:
            return "-1" if condition.bits else "0"
        if condition.uniform:
            return self.value(f"sext i1 {condition.text} to i32")
        return self.value(f"bitcast <32 x i1> {condition.text} to i32")

    def from_bits(self, bits: str) -> Value:
        """Return an i32 with one bit a lane as a condition."""
        if bits == "-1":
            return number("i1", 1)
        return Value(self.value(f"bitcast i32 {bits} to <32 x i1>"), "i1", False)

    def negate(self, condition: Value) -> Value:
        """Return the inverse of a condition."""
        if condition.bits is not None:
            return number("i1", condition.bits ^ 1)
        return self.op("xor", condition, number("i1", 1))
