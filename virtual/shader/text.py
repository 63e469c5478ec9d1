"""LLVM IR as text, one function body at a time: the builder of all shader cores.

Registers of a wave are vectors with one element per lane. Memory is accessed by PASS lanes at a
time: a wave with more lanes is split into passes for an access, the lowest lanes first, and the
results are joined again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PASS = 32  # lanes that the functions for memory take at a time
VECTOR = f"<{PASS} x i32>"
LANES = "lanes"  # stands for the type of a number with one bit a lane
# For branches that are nearly always (never) taken; every module of native code has them.
PROFILES = (
    '!0 = !{!"branch_weights", i32 1000, i32 1}\n!1 = !{!"branch_weights", i32 1, i32 1000}\n'
)
ELEMENT_BITS = {
    "i1": 1, "i8": 8, "i16": 16, "half": 16, "bfloat": 16, "i32": 32, "float": 32, "i64": 64,
    "double": 64, "i128": 128,
}  # fmt: skip
_CONSTANT = re.compile(r"splat \(\w+ bitcast \(i\d+ (\d+) to \w+\)\)")
_INTEGER = {"half": "i16", "bfloat": "i16", "float": "i32", "double": "i64"}
_SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def integer_of(element: str) -> str:
    """Return the integer type as wide as `element`."""
    return _INTEGER.get(element, element)


def suffix_of(element: str) -> str:
    """Return the spelling of `element` in names of intrinsics."""
    return _SUFFIX.get(element, element)


def constant(element: str, bits: int) -> str:
    """Return a constant vector, of any number of lanes, that all hold `bits`."""
    integer = integer_of(element)
    bits &= (1 << ELEMENT_BITS[element]) - 1
    if integer == element:
        return f"splat ({integer} {bits})"
    return f"splat ({element} bitcast ({integer} {bits} to {element}))"


def bits_of(value: str) -> int | None:
    """Return the bits of a constant float vector, None for a value that is not constant."""
    match = _CONSTANT.fullmatch(value)
    return None if match is None else int(match[1])


def lanes(values: list[int], element: str = "i32") -> str:
    """Return a constant vector with one value a lane."""
    return "<" + ", ".join(f"{element} {value}" for value in values) + ">"


def field(name: str, offset: int, kind: str) -> str:
    """Return the lines that load a field of the worker context as %name."""
    return (
        f"  %{name}.p = getelementptr i8, ptr %context, i64 {offset}\n"
        f"  %{name} = load {kind}, ptr %{name}.p\n"
    )


def splat(name: str, kind: str, scalar: str) -> str:
    """Return the lines that make %name a vector of PASS equal scalars."""
    vector = f"<{PASS} x {kind}>"
    return (
        f"  %{name}.1 = insertelement {vector} poison, {kind} {scalar}, i32 0\n"
        f"  %{name} = shufflevector {vector} %{name}.1, {vector} poison,"
        f" {VECTOR} zeroinitializer\n"
    )


class Text:
    """Collect the lines of one function and the declarations it needs.

    lanes: number of lanes of its vectors, a multiple of PASS. prefix: of the names it makes, unique
    in a function.
    """

    def __init__(self, lanes: int = PASS, prefix: str = "t") -> None:
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.lanes = lanes
        self.vector = self.vector_of("i32")
        self.bits = f"i{lanes}"  # one bit a lane, as one number
        self.passes = range(lanes // PASS)
        self._prefix = prefix
        self._names = 0

    def text(self) -> str:
        """Return all lines."""
        return "\n".join(self.lines)

    def vector_of(self, element: str) -> str:
        """Return the type of a register whose lanes hold `element`."""
        return f"<{self.lanes} x {element}>"

    def value(self, expression: str) -> str:
        """Append an instruction with a result; return the result's name."""
        self._names += 1
        name = f"%{self._prefix}{self._names}"
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

    # -- vectors of all lanes --------------------------------------------------------------------

    def unary(self, operation: str, element: str, a: str) -> str:
        """Apply a one-operand instruction such as fneg to vectors."""
        return self.value(f"{operation} {self.vector_of(element)} {a}")

    def binary(self, operation: str, element: str, a: str, b: str) -> str:
        """Apply a two-operand instruction to vectors."""
        return self.value(f"{operation} {self.vector_of(element)} {a}, {b}")

    def compare(self, predicate: str, element: str, a: str, b: str) -> str:
        """Compare vectors; `predicate` as in LLVM ("olt", "ult", "eq"), by the element's kind."""
        operation = "icmp" if element.startswith("i") else "fcmp"
        return self.value(f"{operation} {predicate} {self.vector_of(element)} {a}, {b}")

    def select(self, condition: str, element: str, a: str, b: str) -> str:
        """Choose by lane."""
        kind = self.vector_of(element)
        return self.value(f"select {self.vector_of('i1')} {condition}, {kind} {a}, {kind} {b}")

    def convert(self, operation: str, source: str, target: str, a: str) -> str:
        """Convert between element types (trunc, zext, sext, fpext, bitcast, ...)."""
        if source == target:
            return a
        return self.value(f"{operation} {self.vector_of(source)} {a} to {self.vector_of(target)}")

    def intrinsic(self, name: str, element: str, *arguments: str) -> str:
        """Call an intrinsic overloaded on one vector type, all arguments of that type."""
        kind = self.vector_of(element)
        function = f"llvm.{name}.v{self.lanes}{suffix_of(element)}"
        return self.call(kind, function, *((kind, a) for a in arguments))

    def broadcast(self, element: str, scalar: str) -> str:
        """Return a vector whose lanes all hold a scalar."""
        kind = self.vector_of(element)
        one = self.value(f"insertelement {kind} poison, {element} {scalar}, i32 0")
        return self.value(
            f"shufflevector {kind} {one}, {kind} poison, {self.vector} zeroinitializer"
        )

    def lane(self, element: str, a: str, index: str | int) -> str:
        """Return one lane of a vector, by its number (i32)."""
        return self.value(f"extractelement {self.vector_of(element)} {a}, i32 {index}")

    def shuffle(self, element: str, a: str, indices: list[int]) -> str:
        """Permute the lanes of one vector."""
        kind = self.vector_of(element)
        return self.value(
            f"shufflevector {kind} {a}, {kind} poison, {self.vector} {lanes(indices)}"
        )

    def as_bits(self, mask: str) -> str:
        """Return a condition of each lane as one number, one bit a lane."""
        return self.value(f"bitcast {self.vector_of('i1')} {mask} to {self.bits}")

    def as_mask(self, bits: str) -> str:
        """Return a number with one bit a lane as a condition of each lane."""
        return self.value(f"bitcast {self.bits} {bits} to {self.vector_of('i1')}")

    # -- passes ----------------------------------------------------------------------------------

    def cut(self, element: str, a: str) -> list[str]:
        """Split a vector of all lanes into one vector for each pass."""
        if self.lanes == PASS:
            return [a]
        kind = self.vector_of(element)
        return [
            self.value(
                f"shufflevector {kind} {a}, {kind} poison, {VECTOR}"
                f" {lanes(list(range(first, first + PASS)))}"
            )
            for first in range(0, self.lanes, PASS)
        ]

    def cut_bits(self, bits: str) -> list[str]:
        """Split a number with one bit a lane into one i32 for each pass."""
        if self.lanes == PASS:
            return [bits]
        if bits == "-1":
            return [bits] * (self.lanes // PASS)
        found = []
        for first in range(0, self.lanes, PASS):
            moved = self.value(f"lshr {self.bits} {bits}, {first}") if first else bits
            found.append(self.value(f"trunc {self.bits} {moved} to i32"))
        return found

    def whole(self, element: str, parts: list[str]) -> str:
        """Join the vectors of all passes."""
        size = PASS
        while len(parts) > 1:
            kind, order = f"<{size} x {element}>", lanes(list(range(2 * size)))
            size *= 2
            parts = [
                self.value(f"shufflevector {kind} {a}, {kind} {b}, <{size} x i32> {order}")
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
        return parts[0]

    def cut_arguments(self, arguments: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
        """Split the (type, value) pairs of a call into those of one call for each pass: vectors of
        all lanes and, for the type LANES, numbers with one bit a lane. Other arguments go into
        every pass."""
        found: list[list[tuple[str, str]]] = [[] for _ in self.passes]
        for kind, value in arguments:
            element = kind.removeprefix(f"<{self.lanes} x ").removesuffix(">")
            if kind == LANES:
                kind, parts = "i32", self.cut_bits(value)
            elif kind.startswith("<"):
                kind, parts = f"<{PASS} x {element}>", self.cut(element, value)
            else:
                parts = [value] * len(found)
            for one, part in zip(found, parts, strict=True):
                one.append((kind, part))
        return found

    def by_passes(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """Call a function of PASS lanes for each pass, see `cut_arguments`. Return their joined
        results, a vector of `result` unless that is empty."""
        kind = f"<{PASS} x {result}>" if result else "void"
        parts = [self.call(kind, function, *one) for one in self.cut_arguments(arguments)]
        return self.whole(result, parts) if result else ""
