"""A PTX module as data: the parser creates it, the translator reads it.

Source: PTX ISA 8.x, chapters "Syntax", "State Spaces, Types, and Variables", "Instruction
Operands" and "Directives".
"""

from __future__ import annotations

from dataclasses import dataclass, field

SIZES = {
    "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "f16x2": 4,
    "bf16x2": 4, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "tf32": 4, "b64": 8, "u64": 8, "s64": 8,
    "f64": 8, "f32x2": 8, "b128": 16, "e4m3x2": 2, "e5m2x2": 2, "u16x2": 4, "s16x2": 4,
    "e3m2x2": 2, "e2m3x2": 2, "e2m1x2": 1, "ue8m0x2": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Register:
    """A virtual register. name: unique within its function. type: "b32", "pred", ..."""

    name: str
    type: str


@dataclass(frozen=True)
class Special:
    """A predefined register, without the percent sign: "tid.x"."""

    name: str


@dataclass(frozen=True)
class Integer:
    """An integer constant."""

    value: int


@dataclass(frozen=True)
class Real:
    """A floating-point constant. single: the bits of an f32, if it was written as one."""

    value: float
    single: int | None = None


@dataclass(frozen=True)
class Name:
    """A variable, function or label."""

    name: str


@dataclass(frozen=True)
class Address:
    """Address in brackets: base + offset in bytes."""

    base: Register | Name | Integer
    offset: int


@dataclass(frozen=True)
class Vector:
    """Operands in braces."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Sink:
    """The operand `_`: a result that is discarded."""


@dataclass(frozen=True)
class Inverted:
    """A predicate written with `!`."""

    register: Register


@dataclass(frozen=True)
class Selected:
    """A part of a register, or its negative, as in video instructions: `%r1.b0`, `-%r2.h1`.

    part: "b0", "h10", ... or "" for all of it.
    """

    register: Register
    part: str
    negated: bool = False


@dataclass(frozen=True)
class Pair:
    """Two results written `d|p`."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Arguments:
    """Operands in parentheses, of a call."""

    items: tuple[Operand, ...]


Operand = (
    Register | Special | Integer | Real | Name | Address | Vector | Sink | Inverted | Pair
    | Arguments | Selected
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction.

    index: its number in the function. line: in the text, from 1. guard: predicate; the instruction
    executes where it is true, or false if `negated`. name, modifiers: "ld" and ("global", "v4",
    "f32").
    """

    index: int
    line: int
    guard: Register | None
    negated: bool
    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]

    @property
    def opcode(self) -> str:
        """The operation as written, without its operands."""
        return ".".join((self.name, *self.modifiers))


@dataclass(frozen=True)
class Reference:
    """A variable's address within initial data. at: byte offset. generic: as a generic address."""

    at: int
    name: str
    addend: int
    generic: bool


@dataclass(frozen=True)
class Variable:
    """A variable or parameter. size: bytes; None for an array without a size."""

    name: str
    space: str
    type: str
    align: int
    size: int | None
    line: int
    initial: bytes = b""
    references: tuple[Reference, ...] = ()
    external: bool = False


@dataclass
class Function:
    """A kernel (`.entry`) or device function (`.func`). A mere declaration has no body."""

    name: str
    entry: bool
    line: int
    parameters: list[Variable] = field(default_factory=list)
    results: list[Variable] = field(default_factory=list)
    registers: dict[str, Register] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    body: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    defined: bool = False
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Module:
    """A whole PTX text."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
