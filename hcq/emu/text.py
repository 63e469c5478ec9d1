"""LLVM IR as text, one function body at a time."""

from __future__ import annotations

VECTOR = "<32 x i32>"
ELEMENT_BITS = {
    "i1": 1, "i8": 8, "i16": 16, "half": 16, "bfloat": 16, "i32": 32, "float": 32, "i64": 64,
    "double": 64, "i128": 128,
}  # fmt: skip
_INTEGER = {"half": "i16", "bfloat": "i16", "float": "i32", "double": "i64"}


def vector_of(element: str) -> str:
    """Return the type of a register of 32 lanes of `element`."""
    return f"<32 x {element}>"


def integer_of(element: str) -> str:
    """Return the integer type as wide as `element`."""
    return _INTEGER.get(element, element)


def constant(element: str, bits: int) -> str:
    """Return a constant vector whose lanes all hold `bits`."""
    integer = integer_of(element)
    bits &= (1 << ELEMENT_BITS[element]) - 1
    text = f"splat ({integer} {bits})"
    if integer == element:
        return text
    return f"bitcast (<32 x {integer}> {text} to <32 x {element}>)"


def lanes(values: list[int], element: str = "i32") -> str:
    """Return a constant vector with one value a lane."""
    return "<" + ", ".join(f"{element} {value}" for value in values) + ">"


class Text:
    """Collect the lines of one function and the declarations it needs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self._names = 0

    def value(self, expression: str) -> str:
        """Append an instruction with a result; return the result's name."""
        self._names += 1
        name = f"%t{self._names}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def do(self, line: str) -> None:
        """Append an instruction without a result."""
        self.lines.append("  " + line)

    def new_label(self, stem: str) -> str:
        """Return a fresh label."""
        self._names += 1
        return f"{stem}{self._names}"

    def begin(self, label: str) -> None:
        """Start the block `label`."""
        self.lines.append(f"{label}:")

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """Call `function` with (type, value) pairs; declare it. Return the result's name, or ""."""
        types = ", ".join(kind for kind, _ in arguments)
        self.declarations.add(f"declare {result} @{function}({types})")
        passed = ", ".join(f"{kind} {value}" for kind, value in arguments)
        text = f"call {result} @{function}({passed})"
        if result == "void":
            self.do(text)
            return ""
        return self.value(text)

    def unary(self, operation: str, element: str, a: str) -> str:
        """Apply a one-operand instruction such as fneg to vectors."""
        return self.value(f"{operation} <32 x {element}> {a}")

    def binary(self, operation: str, element: str, a: str, b: str) -> str:
        """Apply a two-operand instruction to vectors."""
        return self.value(f"{operation} <32 x {element}> {a}, {b}")

    def compare(self, predicate: str, element: str, a: str, b: str) -> str:
        """Compare vectors; `predicate` as in LLVM ("olt", "ult", "eq"), by the element's kind."""
        operation = "icmp" if element.startswith("i") else "fcmp"
        return self.value(f"{operation} {predicate} <32 x {element}> {a}, {b}")

    def select(self, condition: str, element: str, a: str, b: str) -> str:
        """Choose by lane."""
        kind = vector_of(element)
        return self.value(f"select <32 x i1> {condition}, {kind} {a}, {kind} {b}")

    def convert(self, operation: str, source: str, target: str, a: str) -> str:
        """Convert between element types (trunc, zext, sext, fpext, bitcast, ...)."""
        if source == target:
            return a
        return self.value(f"{operation} <32 x {source}> {a} to <32 x {target}>")

    def intrinsic(self, name: str, element: str, *arguments: str) -> str:
        """Call an intrinsic overloaded on one vector type, all arguments of that type."""
        suffix = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}.get(
            element, element
        )
        kind = vector_of(element)
        return self.call(kind, f"llvm.{name}.v32{suffix}", *((kind, a) for a in arguments))

    def broadcast(self, element: str, scalar: str) -> str:
        """Return a vector whose lanes all hold a scalar."""
        one = self.value(f"insertelement <32 x {element}> poison, {element} {scalar}, i32 0")
        kind = vector_of(element)
        return self.value(f"shufflevector {kind} {one}, {kind} poison, <32 x i32> zeroinitializer")

    def shuffle(self, element: str, a: str, indices: list[int]) -> str:
        """Permute the lanes of one vector."""
        kind = vector_of(element)
        return self.value(f"shufflevector {kind} {a}, {kind} poison, <32 x i32> {lanes(indices)}")
