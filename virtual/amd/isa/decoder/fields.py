"""The words of one instruction, and the operand fields that all encodings share."""

from __future__ import annotations

import struct
from typing import Any

from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction, UnknownInstruction
from ugpu.virtual.amd.isa.decoder.operands import SPECIALS, Kind, Operand, Type
from ugpu.virtual.amd.isa.targets.table import Row, Table
from ugpu.virtual.amd.isa.targets.target import Target

_FLOATS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0}
_INVERSE_2PI = {16: 0x3118, 32: 0x3E22F983, 64: 0x3FC45F306DC9C882}
_BF16_INVERSE_2PI = 0x3E22
_TYPES = {kind.value: kind for kind in Type}
_FLOAT64 = (Type.F64,)
_HALVES = (Type.F16, Type.PK_F16, Type.B16)
_BRAINS = (Type.BF16, Type.PK_BF16)


def sized(name: str) -> Type:
    """Return the operand type for a name in an opcode table."""
    return _TYPES[name]


class Words:
    """The instruction at one offset of the code, whose words are read on demand.

    target: the instruction set. lanes: lanes of the wave that executes it, 32 or 64. mask: the type
    of its lane masks.

    Every method raises UnknownInstruction if the code ends too early or a field is invalid.
    """

    def __init__(self, code: bytes, pc: int, lanes: int, target: Target) -> None:
        self.code = code
        self.target = target
        self.lanes = lanes
        self.mask = Type.MASK64 if lanes == 64 else Type.MASK
        self.pc = pc
        self.taken: list[int] = []
        self.literal_value: int | None = None
        self.first = self.next()

    def next(self) -> int:
        """Read the next word."""
        at = self.pc + 4 * len(self.taken)
        if at < 0 or at + 4 > len(self.code):
            raise self.unknown("truncated instruction")
        word: int = struct.unpack_from("<I", self.code, at)[0]
        self.taken.append(word)
        return word

    def literal(self) -> int:
        """Read the literal; an instruction has at most one, which its operands share."""
        if self.literal_value is None:
            self.literal_value = self.next()
        return self.literal_value

    def unknown(self, reason: str) -> UnknownInstruction:
        """Create the error for this instruction."""
        return UnknownInstruction(self.pc, tuple(self.taken), reason)

    def look_up(self, encoding: str, opcode: int) -> Row:
        """Return the row of an opcode in the target's table of an encoding."""
        table: Table = self.target.table(encoding)
        row = table.get(opcode)
        if row is None:
            raise self.unknown("unknown opcode")
        return row

    def check(self, fixed: int, value: int) -> None:
        """Compare bits of the words read so far, the first word lowest."""
        number = sum(word << 32 * place for place, word in enumerate(self.taken[:3]))
        if number & fixed != value:
            raise self.unknown("reserved bits, or modifiers that the instruction does not have")

    def check_source(self, row: Row, number: int, code: int) -> None:
        """Check that a source, by its code of 8 or 9 bits, is of a kind that the row allows."""
        kind = "v" if code >= 256 else "l" if code == 255 else "s"
        if 128 <= code <= 208 or 240 <= code <= 248:
            kind = "i"
        if kind not in row.kinds[number]:
            raise self.unknown(f"source {number} must not be of this kind")

    # Any: the fields of Instruction have many types, which it does not check at run time.
    def finish(self, encoding: Format, row: Row, opcode: int, **fields: Any) -> Instruction:
        """Create the instruction from all the words read."""
        self.check(row.fixed, row.value)
        return self.made(
            encoding,
            fields.pop("name", row.operation),
            fields.pop("mnemonic", row.name),
            opcode,
            **fields,
        )

    # Any: as for `finish`.
    def made(
        self, encoding: Format, name: str, mnemonic: str, opcode: int, **fields: Any
    ) -> Instruction:
        """Create an instruction without a row of its own, such as a pair."""
        return Instruction(
            pc=self.pc,
            size=4 * len(self.taken),
            words=tuple(self.taken),
            name=name,
            format=encoding,
            mnemonic=mnemonic,
            opcode=opcode,
            **fields,
        )

    def vector(self, index: int, width: int = 1, kind: Type = Type.B32) -> Operand:
        """Return v[index : index + width]."""
        if index + width > 256:
            raise self.unknown("vector registers beyond v255")
        return Operand(Kind.VGPR, index, width, kind)

    def scalar_register(self, code: int, width: int, kind: Type) -> Operand | None:
        """Return the register (or pair, ...) of a 7-bit scalar code; None if it is not a register.

        Pairs begin at even registers, wider operands at multiples of four.
        """
        if width > 1 and code % min(width + (width & 1), 4) and code != 124:
            raise self.unknown("scalar registers not aligned")
        if code < 106:
            if code + width > 106:
                raise self.unknown("scalar registers beyond s105")
            return Operand(Kind.SGPR, code, width, kind)
        if 108 <= code < 124:
            if code + width > 124:
                raise self.unknown("registers beyond ttmp15")
            return Operand(Kind.TTMP, code - 108, width, kind)
        if code == 124:
            return Operand(Kind.NULL, 0, width, kind)
        if code == 125 and width == 1:
            return Operand(Kind.M0, 0, 1, kind)
        for base, pair in ((106, Kind.VCC), (126, Kind.EXEC)):
            if code in (base, base + 1) and code - base + width <= 2:
                return Operand(pair, code - base, width, kind)
        return None

    def scalar_destination(self, code: int, kind: Type) -> Operand:
        """Return a scalar destination."""
        found = self.scalar_register(code, max(1, kind.bits // 32), kind)
        if found is None:
            raise self.unknown("unknown scalar destination")
        return found


def literal_bits(value: int, kind: Type, signed: bool) -> int:
    """Return the value of the literal word for an operand of a type."""
    if kind in _FLOAT64:
        return value << 32
    if kind.bits == 16:
        return value & 0xFFFF
    if kind.bits == 64 and signed and value >> 31:
        return value | 0xFFFF_FFFF_0000_0000
    return value


def _float_bits(code: int, kind: Type) -> int:
    brain = kind in _BRAINS
    size = 16 if brain or kind in _HALVES else 64 if kind.bits == 64 else 32
    if code == 248:
        return _BF16_INVERSE_2PI if brain else _INVERSE_2PI[size]
    value = _FLOATS[code]
    if brain:
        return int(struct.unpack("<I", struct.pack("<f", value))[0]) >> 16
    packed = struct.pack({16: "<e", 32: "<f", 64: "<d"}[size], value)
    return int.from_bytes(packed, "little")


def scalar_source(
    words: Words, code: int, kind: Type, signed: bool = False, *, vector: bool = False
) -> Operand:
    """Return the operand of an 8-bit scalar source code; reads the literal if the code is one.

    signed: sign-extend a literal of a 64-bit integer (for names that end in i64). vector: of a
    vector instruction.
    """
    width = max(1, kind.bits // 32)
    if code < 128:
        found = words.scalar_register(code, width, kind)
        if found is None:
            raise words.unknown("unknown scalar source")
        return found
    if code <= 208:
        number = code - 128 if code <= 192 else 192 - code
        bits = 64 if kind.bits == 64 else 16 if kind.bits == 16 else 32
        return Operand(Kind.INTEGER, code, width, kind, number & (1 << bits) - 1)
    if 240 <= code <= 248:
        return Operand(Kind.FLOAT, code, width, kind, _float_bits(code, kind))
    if code == 255:
        return Operand(Kind.LITERAL, code, width, kind, literal_bits(words.literal(), kind, signed))
    if 235 <= code <= 238:
        return Operand(Kind.APERTURE, code - 235, width, kind)
    if code in SPECIALS and not (code == 231 and width > 1):
        return Operand(Kind.SPECIAL, code, width, kind)
    special = {251: Kind.VCCZ, 252: Kind.EXECZ, 253: Kind.SCC}.get(code)
    if code == 254 and vector and width == 1:
        special = Kind.LDS_DIRECT
    if special is None:
        raise words.unknown("unknown source")
    return Operand(special, 0, width, kind)
