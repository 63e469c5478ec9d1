"""Encodings by family: where opcode and operands are, for the generator's probes.

Source: the microcode formats of AMD's ISA documents (RDNA 2, 3, 3.5 and 4, CDNA 3 and 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Encoding:
    """One encoding.

    prefix: fixed bits of the first word, and what is fixed in later words, as one number. words: of
    an instruction without literal. opcode: lowest bit and width. fields: operands, by lowest bit
    and width. base: a value of each operand that is legal for most instructions; bases: further
    ones to try, as changes of fields and of other bits (name "bits").
    """

    prefix: int
    words: int
    opcode: tuple[int, int]
    fields: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    base: Mapping[str, int] = field(default_factory=dict)
    bases: Sequence[Mapping[str, int]] = ()
    most: int = 1 << 10  # opcodes from here on belong to another encoding

    @property
    def opcodes(self) -> range:
        """The opcodes to try."""
        return range(min(self.most, 1 << self.opcode[1]))

    def code(self, opcode: int, values: Mapping[str, int], bits: int = 0) -> int:
        """Return an instruction as a number. bits: flipped at the end."""
        result = self.prefix | opcode << self.opcode[0] | values.get("bits", 0)
        for name, (lsb, width) in self.fields.items():
            result |= (values.get(name, 0) & (1 << width) - 1) << lsb
        return result ^ bits


_S = {"sdst": 4, "ssrc0": 8, "ssrc1": 12}
_SCALAR = {
    "SOP1": Encoding(
        0xBE800000, 1, (8, 8), {"sdst": (16, 7), "ssrc0": (0, 8)}, _S,
        (
            {"ssrc0": 0x80}, {"ssrc0": 0xC1, "sdst": 0}, {"sdst": 0, "ssrc0": 0},
            {"ssrc0": 0x80, "sdst": 0},
        ),
    ),
    "SOP2": Encoding(
        0x80000000, 1, (23, 7), {"sdst": (16, 7), "ssrc0": (0, 8), "ssrc1": (8, 8)}, _S,
        most=0x60,
    ),
    "SOPC": Encoding(0xBF000000, 1, (16, 7), {"ssrc0": (0, 8), "ssrc1": (8, 8)}, _S),
    "SOPK": Encoding(
        0xB0000000, 1, (23, 5), {"sdst": (16, 7), "simm16": (0, 16)}, {"sdst": 4, "simm16": 1},
        ({"sdst": 0}, {"sdst": 124}), most=0x1D,
    ),
    "SOPP": Encoding(0xBF800000, 1, (16, 7), {"simm16": (0, 16)}, {}, ({"simm16": 1},)),
}  # fmt: skip
_SHORT = {
    "VOP1": Encoding(
        0x7E000000, 1, (9, 8), {"vdst": (17, 8), "src0": (0, 9)}, {"vdst": 4, "src0": 0x108},
        ({"vdst": 0, "src0": 0},),
    ),
    "VOP2": Encoding(
        0, 1, (25, 6), {"vdst": (17, 8), "src0": (0, 9), "vsrc1": (9, 8)},
        {"vdst": 4, "src0": 0x108, "vsrc1": 12}, most=0x3E,
    ),
    "VOPC": Encoding(
        0x7C000000, 1, (17, 8), {"src0": (0, 9), "vsrc1": (9, 8)}, {"src0": 0x108, "vsrc1": 12}
    ),
}  # fmt: skip
_LONG_FIELDS = {"vdst": (0, 8), "src0": (32, 9), "src1": (41, 9), "src2": (50, 9)}
_LONG_BASE = {"vdst": 4, "src0": 0x108, "src1": 0x110, "src2": 0x118}
_LONG = Encoding(
    0xD4000000, 2, (16, 10), _LONG_FIELDS, _LONG_BASE,
    (
        {"src2": 0}, {"src1": 0, "src2": 0}, {"src1": 4}, {"src1": 4, "src2": 6}, {"src2": 6},
        {"vdst": 0x6A, "src2": 0}, {"vdst": 0x7E, "src2": 0}, {"vdst": 6, "bits": 4 << 8},
        {"vdst": 6, "bits": 0x7C << 8}, {"src0": 0, "src1": 0, "src2": 0, "vdst": 0},
        {"src0": 0x80, "src1": 0, "src2": 0, "vdst": 4},
    ),
)  # fmt: skip
_PACKED = Encoding(
    0xCC000000, 2, (16, 7), _LONG_FIELDS, _LONG_BASE,
    tuple(
        {**change, "bits": 0x40 << 8 | 3 << 59}
        for change in ({}, {"src2": 0}, {"src2": 0x100}, {"src2": 0x128}, {"src2": 0x80})
    ),
)  # fmt: skip
_PARAMETERS = Encoding(0xCD000000, 2, (16, 7), _LONG_FIELDS, _LONG_BASE, most=6)
_LDS_FIELDS = {"addr": (32, 8), "data0": (40, 8), "data1": (48, 8), "vdst": (56, 8)}
_LDS_BASES: tuple[dict[str, int], ...] = (
    {}, {"data1": 0}, {"data1": 0, "vdst": 0}, {"data0": 0, "data1": 0}, {"vdst": 0},
    {"addr": 0, "data0": 0, "data1": 0}, {"addr": 0, "data1": 0, "vdst": 0},
    {"addr": 0, "data0": 0, "data1": 0, "vdst": 0}, {"data0": 0, "data1": 0, "vdst": 0},
)  # fmt: skip
_LDS = Encoding(
    0xD8000000, 2, (18, 8), _LDS_FIELDS, {"addr": 4, "data0": 8, "data1": 16, "vdst": 32},
    (*_LDS_BASES[1:], *({**change, "bits": 1 << 17} for change in _LDS_BASES)),
)  # fmt: skip
_NONE: tuple[dict[str, int], ...] = (
    {}, {"vdst": 0}, {"data": 0}, {"vdst": 0, "data": 0}, {"addr": 0, "data": 0},
    {"addr": 0, "vdst": 0}, {"addr": 0, "vdst": 0, "data": 0},
)  # fmt: skip


def _flat(prefix: int, null: int, returns: int, wide: int = 0) -> Encoding:
    """The 64-bit encoding of flat, global and scratch operations. returns: the bit of atomics."""
    fields = {"addr": (32, 8), "data": (40, 8), "saddr": (48, 7), "vdst": (56, 8)}
    base = {"addr": 4, "data": 8, "saddr": null, "vdst": 32, "bits": wide}
    bases = [{**change} for change in _NONE[1:]]
    bases += [{**change, "bits": returns | wide} for change in _NONE]
    bases += [{**change, "saddr": 0} for change in (*_NONE, *bases)]
    return Encoding(prefix, 2, (18, 7), fields, base, bases)


def _wide_memory(prefix: int, extra: int = 0) -> Encoding:
    """The 96-bit encoding of flat, global and scratch operations of gfx12."""
    fields = {"saddr": (0, 7), "vdst": (32, 8), "data": (55, 8), "addr": (64, 8)}
    base = {"addr": 4, "data": 8, "saddr": 0x7C, "vdst": 32, "bits": extra}
    bases = [{**change} for change in _NONE[1:]]
    bases += [{**change, "bits": 1 << 52 | extra} for change in _NONE]
    return Encoding(prefix, 3, (14, 8), fields, base, bases)


_BUFFER_FIELDS = {"vaddr": (32, 8), "vdata": (40, 8), "srsrc": (48, 5), "soffset": (56, 8)}
_BUFFER_BASE = {"vdata": 8, "srsrc": 2, "soffset": 0x80}
_BUFFER = Encoding(
    0xE0000000, 2, (18, 8), _BUFFER_FIELDS, _BUFFER_BASE,
    ({"bits": 1 << 14}, {"vdata": 0, "srsrc": 0, "soffset": 0}, {"bits": 1 << 16, "vdata": 0}),
)  # fmt: skip
_TYPED = Encoding(0xE8000000, 2, (15, 4), _BUFFER_FIELDS, {**_BUFFER_BASE, "bits": 1 << 19})
_WIDE_BUFFER = Encoding(
    0xC4000000, 3, (14, 8),
    {"soffset": (0, 7), "vdata": (32, 8), "srsrc": (41, 7), "vaddr": (64, 8)},
    {"vdata": 8, "srsrc": 8, "soffset": 0x7C, "bits": 1 << 55},
    ({"bits": 1 << 52 | 1 << 55}, {"vdata": 0, "srsrc": 0}),
)  # fmt: skip


def _scalar_memory(prefix: int, opcode: tuple[int, int], null: int) -> Encoding:
    fields = {"sdata": (6, 7), "sbase": (0, 6), "soffset": (57, 7)}
    base = {"sdata": 8, "sbase": 2, "soffset": null}
    changes = ({"sdata": 0, "sbase": 0}, {"sdata": 0}, {"sdata": 0, "sbase": 0, "soffset": 0})
    return Encoding(prefix, 2, opcode, fields, base, changes)


_PAIR_FIELDS = {
    "src0x": (0, 9),
    "vsrc1x": (9, 8),
    "src0y": (32, 9),
    "vsrc1y": (41, 8),
    "vdsty": (49, 7),
    "vdstx": (56, 8),
}
_PAIR_BASE = {"src0x": 0x104, "vsrc1x": 6, "src0y": 0x109, "vsrc1y": 7, "vdstx": 8, "vdsty": 5}
_MOVE = 8  # v_dual_mov_b32, whose second source must be 0
_PAIR_X = Encoding(
    0xC8000000 | _MOVE << 17, 2, (22, 4), _PAIR_FIELDS, {**_PAIR_BASE, "vsrc1y": 0},
    ({"vsrc1x": 0},),
)  # fmt: skip
_PAIR_Y = Encoding(
    0xC8000000 | _MOVE << 22, 2, (17, 5), _PAIR_FIELDS, {**_PAIR_BASE, "vsrc1x": 0},
    ({"vsrc1y": 0},),
)  # fmt: skip

_RDNA3 = {
    **_SCALAR, **_SHORT, "VOP3": _LONG, "VOP3P": _PACKED, "VINTERP": _PARAMETERS,
    "VOPDX": _PAIR_X, "VOPDY": _PAIR_Y, "DS": _LDS,
}  # fmt: skip
GFX11: Mapping[str, Encoding] = {
    **_RDNA3,
    "SMEM": _scalar_memory(0xF4000000, (18, 8), 0x7C),
    "FLAT": _flat(0xDC000000, 0x7C, 1 << 14),
    "SCRATCH": _flat(0xDC010000, 0x7C, 1 << 14, 1 << 55),
    "GLOBAL": _flat(0xDC020000, 0x7C, 1 << 14),
    "MUBUF": _BUFFER,
    "MTBUF": _TYPED,
}
GFX12: Mapping[str, Encoding] = {
    **_RDNA3,
    "SMEM": _scalar_memory(0xF4000000, (13, 6), 0x7C),
    "FLAT": _wide_memory(0xEC000000),
    "SCRATCH": _wide_memory(0xED000000, 1 << 49),
    "GLOBAL": _wide_memory(0xEE000000),
    "MUBUF": _WIDE_BUFFER,
}
GFX9: Mapping[str, Encoding] = {
    **_SCALAR,
    **_SHORT,
    "VOP3": replace(_LONG, prefix=0xD0000000),
    "VOP3P": replace(
        _PACKED, prefix=0xD3800000,
        bases=(*_PACKED.bases, {"src2": 0x120}, {"src2": 0x100}, {"src1": 0, "src2": 0}),
    ),
    "DS": replace(_LDS, opcode=(17, 8), bases=_LDS_BASES[1:]),
    "SMEM": replace(
        _scalar_memory(0xC0000000, (18, 8), 0),
        bases=({"bits": 1 << 17}, {"sdata": 0, "sbase": 0}),
    ),
    "FLAT": _flat(0xDC000000, 0x7F, 1 << 16),
    "SCRATCH": _flat(0xDC004000, 0x7F, 1 << 16, 1 << 13),
    "GLOBAL": _flat(0xDC008000, 0x7F, 1 << 16),
    "MUBUF": replace(_BUFFER, opcode=(18, 7)),
    "MTBUF": _TYPED,
}  # fmt: skip
GFX10: Mapping[str, Encoding] = {
    **_SCALAR,
    **_SHORT,
    "VOP3": _LONG,
    "VOP3P": _PACKED,
    "DS": _LDS,
    "SMEM": _scalar_memory(0xF4000000, (18, 8), 0x7D),
    "FLAT": _flat(0xDC000000, 0x7D, 1 << 16),
    "SCRATCH": _flat(0xDC004000, 0x7F, 1 << 16),
    "GLOBAL": _flat(0xDC008000, 0x7D, 1 << 16),
    "MUBUF": _BUFFER,
    "MTBUF": replace(_TYPED, opcode=(16, 3)),
}
