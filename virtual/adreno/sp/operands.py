"""Operands of decoded ir3 instructions: registers, constants and immediates, with their modifiers.

Source: Mesa 25.0.7, src/freedreno/isa/ir3-common.xml and ir3-cat*.xml.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, replace
from functools import cached_property

from ugpu.virtual.adreno.isa.decoder.decode import Instruction

# Registers are numbered GPR * 4 + component.
SHARED = 48 * 4  # r48.x: registers from here on belong to the wave, not to a thread
SHARED_END = 56 * 4
A0, A1 = 61 * 4, 61 * 4 + 1
P0 = 62 * 4
NONE = 63 * 4
SEPARATE = 512  # a half register that is not half of a full one has its number plus this
TYPES = ("f16", "f32", "u16", "u32", "s16", "s32", "u8", "u8_32")
WIDE = 6  # of atomics: u64 in place of u8
# Values of the float look-up table; its f32 and f16 bits are rounded from them.
_E, _PI = 2.718281828459045, 3.141592653589793
_LOG2_E, _LOG2_10 = 1.4426950408889634, 3.321928094887362
FLUT = (
    0.0, 0.5, 1.0, 2.0, _E, _PI, 1 / _PI, 1 / _LOG2_E, _LOG2_E, 1 / _LOG2_10,
    _LOG2_10, 4.0,
)  # fmt: skip


class Kind(enum.Enum):
    """Location of an operand."""

    REGISTER = "register"
    CONSTANT = "constant"
    RELATIVE = "register by a0.x"
    RELATIVE_CONSTANT = "constant by a0.x"
    IMMEDIATE = "immediate"


@dataclass(frozen=True)
class Operand:
    """An operand. number: of a register or constant; the offset to a0.x; an immediate's bits. half:
    16 bits wide. step: (r), the next register at each repetition."""

    kind: Kind
    number: int
    half: bool
    step: bool = False
    negate: bool = False
    absolute: bool = False

    def at(self, turn: int) -> Operand:
        """Return the operand of a repetition."""
        if not turn or not self.step or self.kind is Kind.IMMEDIATE:
            return self
        return replace(self, number=self.number + turn)


class Op:
    """One instruction of a program: its index, its encoding, its operands. merged: half registers
    are halves of full ones (MERGEDREGS)."""

    def __init__(self, index: int, scope: Instruction, merged: bool = True) -> None:
        self.index, self.scope, self.merged = index, scope, merged
        self.name = scope.name
        self.category = scope.bits >> 61
        self.ss, self.sy, self.jp = (self._flag(name) for name in ("SS", "SY", "JP"))
        repeated = self.category in (1, 2, 3, 4) and scope.has("REPEAT")
        self.repeat = scope.raw("REPEAT") if repeated else 0

    def _flag(self, name: str) -> bool:
        return self.scope.has(name) and bool(self.scope.raw(name))

    @property
    def text(self) -> str:
        """Return the text as Mesa's disassembler prints it."""
        return self.scope.text()

    def flag(self, name: str) -> bool:
        """Return a field of one bit; False where the encoding has none."""
        return self._flag(name)

    def raw(self, name: str) -> int:
        """Return a field's bits."""
        return self.scope.raw(name)

    # ---- categories 2 to 4 ---------------------------------------------------------------------

    @cached_property
    def full(self) -> bool:
        """Return whether the sources are 32 bits wide."""
        return bool(self.scope.raw("FULL"))

    @cached_property
    def target(self) -> Operand:
        """Return the destination of an instruction of category 2, 3 or 4."""
        number = self.scope.raw("DST")
        half = bool(self.scope.raw("DST_HALF")) if self.scope.has("DST_HALF") else False
        return Operand(Kind.REGISTER, number, half, step=True)

    @cached_property
    def sources(self) -> tuple[Operand, ...]:
        """Return the sources of an instruction of category 2, 3 or 4."""
        if self.category == 3:
            return self._three()
        names = ("SRC",) if self.category == 4 else ("SRC1", "SRC2")
        return tuple(self._multi(name) for name in names if self.scope.has(name))

    @property
    def _packed_nops(self) -> bool:
        """Return whether the (r) flags count nops, as they do without repetition."""
        return self.category in (2, 3) and self.repeat == 0

    def _step(self, name: str) -> bool:
        return not self._packed_nops and self._flag(name + "_R")

    def _multi(self, name: str) -> Operand:
        scope = self.scope.inner(name)
        half, step = not self.full, self._step(name)
        modifiers = scope.raw("ABSNEG")
        marks = {"step": step, "negate": bool(modifiers & 1), "absolute": bool(modifiers & 2)}
        if scope.name == "#multisrc-gpr":
            return Operand(Kind.REGISTER, scope.raw("SRC"), half, **marks)
        if scope.name == "#multisrc-const":
            return Operand(Kind.CONSTANT, scope.raw("SRC"), half, **marks)
        if scope.name == "#multisrc-relative-gpr":
            return Operand(Kind.RELATIVE, scope.inner("SRC").signed("OFFSET"), half, **marks)
        if scope.name == "#multisrc-relative-const":
            number = scope.inner("SRC").signed("OFFSET")
            return Operand(Kind.RELATIVE_CONSTANT, number, half, **marks)
        if scope.name == "#mulitsrc-immed":
            return Operand(Kind.IMMEDIATE, scope.signed("IMMED"), half, **marks)
        value = FLUT[scope.raw("IMMED")] if scope.raw("IMMED") < len(FLUT) else 0.0
        return Operand(Kind.IMMEDIATE, float_bits(value, half), half, **marks)

    def _three(self) -> tuple[Operand, ...]:
        half = not self.full
        found = []
        for name in ("SRC1", "SRC2", "SRC3"):
            step = self._step(name)
            negate = self.scope.has(name + "_NEG") and bool(self.scope.raw(name + "_NEG"))
            scope = self.scope.inner(name)
            kind = Kind.REGISTER
            if name == "SRC2":
                number = self.scope.raw(name)
            elif scope.name == "#cat3-src-gpr":
                number = scope.raw("SRC")
            elif scope.name == "#cat3-src-relative-gpr":
                kind, number = Kind.RELATIVE, scope.signed("OFFSET")
            elif scope.name == "#cat3-src-relative-const":
                kind, number = Kind.RELATIVE_CONSTANT, scope.signed("OFFSET")
            elif scope.raw("IMMED_ENCODING") if scope.has("IMMED_ENCODING") else False:
                kind, number = Kind.IMMEDIATE, scope.raw("IMMED")
            else:
                kind, number = Kind.CONSTANT, scope.bits & 0x7FF
            found.append(Operand(kind, number, half, step, negate))
        return tuple(found)

    # ---- category 1 ----------------------------------------------------------------------------

    @cached_property
    def types(self) -> tuple[str, str]:
        """Return source and destination type of a move."""
        return TYPES[self.scope.raw("SRC_TYPE")], TYPES[self.scope.raw("DST_TYPE")]

    @cached_property
    def moved(self) -> tuple[Operand, Operand]:
        """Return destination and source of a mov, cov or movs."""
        scope = self.scope
        half, wide = bool(scope.raw("HALF")), bool(scope.raw("DST_HALF"))
        relative = bool(scope.raw("DST_REL")) if scope.has("DST_REL") else False
        kind = Kind.RELATIVE if relative else Kind.REGISTER
        target = Operand(kind, scope.raw("DST"), wide, step=True)
        step = self._flag("SRC_R")
        inner = scope.inner("SRC")
        if self.name == "mov-immed":
            return target, Operand(Kind.IMMEDIATE, scope.bits & 0xFFFFFFFF, half)
        if self.name == "mov-const":
            return target, Operand(Kind.CONSTANT, inner.raw("CONST"), half, step)
        if self.name == "mov-relgpr":
            return target, Operand(Kind.RELATIVE, inner.inner("SRC").signed("OFFSET"), half, step)
        if self.name == "mov-relconst":
            number = inner.inner("SRC").signed("OFFSET")
            return target, Operand(Kind.RELATIVE_CONSTANT, number, half, step)
        return target, Operand(Kind.REGISTER, inner.raw("SRC"), half, step)


def float_bits(value: float, half: bool) -> int:
    """Return the bits of a float of 16 or 32 bits."""
    return int.from_bytes(struct.pack("<e" if half else "<f", value), "little")
