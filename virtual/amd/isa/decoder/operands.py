"""Operands of instructions: registers and constants, as encoded by gfx1100.

Source: RDNA3 ISA document, table of scalar source operands (0..127 scalar registers and named ones,
128..208 integers, 235..238 apertures, 240..248 floats, 255 literal, 256..511 vector registers).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.Enum):
    """Kind of location or constant of an operand."""

    SGPR = "sgpr"  # s[index : index + width]
    VGPR = "vgpr"  # v[index : index + width]
    TTMP = "ttmp"  # trap handler temporaries
    VCC = "vcc"  # index 0: vcc_lo (or the whole pair when width is 2), 1: vcc_hi
    EXEC = "exec"  # index 0: exec_lo (or the whole pair when width is 2), 1: exec_hi
    M0 = "m0"
    NULL = "null"  # reads zero, writes are dropped
    SCC = "scc"  # source 253: the condition code as 0 or 1
    VCCZ = "vccz"  # source 251
    EXECZ = "execz"  # source 252
    INTEGER = "integer"  # inline constant -16..64
    FLOAT = "float"  # inline constant 0.5, 1, 2, 4, their negatives, 1/(2 pi)
    LITERAL = "literal"  # the 32-bit word after the instruction
    APERTURE = "aperture"  # index 0 shared_base, 1 shared_limit, 2 private_base, 3 private_limit
    LDS_DIRECT = "lds_direct"  # source 254, not used by compute
    SPECIAL = "special"  # sources 230, 231 and 239: see `SPECIALS`; not used by compute


SPECIALS = {
    230: "src_flat_scratch_base_lo",
    231: "src_flat_scratch_base_hi",
    239: "src_pops_exiting_wave_id",
}


class Type(enum.Enum):
    """Interpretation of an operand by an instruction. The value is the suffix in LLVM's names."""

    B16 = "b16"
    B32 = "b32"
    B64 = "b64"
    B96 = "b96"
    B128 = "b128"
    B160 = "b160"
    B256 = "b256"
    B512 = "b512"
    B1024 = "b1024"
    F16 = "f16"
    BF16 = "bf16"
    F32 = "f32"
    F64 = "f64"
    PK_F16 = "pk_f16"  # two halves in one register
    PK_BF16 = "pk_bf16"
    PK_B16 = "pk_b16"
    MASK = "mask"  # one bit per lane of a wave of 32: a scalar register
    MASK64 = "mask64"  # one bit per lane of a wave of 64: a pair

    @property
    def bits(self) -> int:
        """Return the size of the value."""
        return _BITS[self]


_BITS = {
    Type.B16: 16, Type.B32: 32, Type.B64: 64, Type.B96: 96, Type.B128: 128, Type.B160: 160,
    Type.B256: 256,
    Type.B512: 512, Type.B1024: 1024, Type.F16: 16, Type.BF16: 16, Type.F32: 32, Type.F64: 64,
    Type.PK_F16: 32,
    Type.PK_BF16: 32, Type.PK_B16: 32, Type.MASK: 32, Type.MASK64: 64,
}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """One source or destination.

    index: register number (see `Kind`). width: 32-bit registers it covers (1 for a 16-bit value).
    value: for INTEGER, FLOAT and LITERAL the bits that the instruction uses, already converted to
    the operand's `type` (1.0 is 0x3C00 in an F16 operand, 0x3FF0000000000000 in an F64 one;
    integers are sign-extended to the type's size; a literal of a 64-bit float is its high half).
    high: a 16-bit operand is bits 16..31 of its register (for true16 encodings and VOP3 op_sel).
    neg, absolute: VOP3 and DPP source modifiers (absolute is applied first). Modifiers of packed
    instructions are in `Instruction.neg_lo`, `neg_hi`, `op_sel`, `op_sel_hi`.
    """

    kind: Kind
    index: int = 0
    width: int = 1
    type: Type = Type.B32
    value: int = 0
    high: bool = False
    neg: bool = False
    absolute: bool = False

    @property
    def is_constant(self) -> bool:
        """Return whether the operand is the constant `value`."""
        return self.kind in (Kind.INTEGER, Kind.FLOAT, Kind.LITERAL)

    @property
    def is_vector(self) -> bool:
        """Return whether each lane has its own value."""
        return self.kind is Kind.VGPR
