"""The decoded instruction: one class with the fields of all encodings.

Names are LLVM's mnemonics (LLVM 22) without the _e32, _e64, _dpp suffix: the encoding is in
`Instruction.format` and `Instruction.dpp`. Source: RDNA3 and RDNA4 ISA documents, "Microcode
formats".
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ugpu.virtual.amd.isa.decoder.operands import Operand


class Format(enum.Enum):
    """The encodings of gfx11 and gfx12."""

    SOP1 = "SOP1"
    SOP2 = "SOP2"
    SOPK = "SOPK"
    SOPC = "SOPC"
    SOPP = "SOPP"
    SMEM = "SMEM"
    VOP1 = "VOP1"
    VOP2 = "VOP2"
    VOPC = "VOPC"
    VOP3 = "VOP3"  # also VOP1, VOP2 and VOPC opcodes in their 64-bit encoding
    VOP3SD = "VOP3SD"
    VOP3P = "VOP3P"
    VOPD = "VOPD"
    VINTERP = "VINTERP"
    LDSDIR = "LDSDIR"
    DS = "DS"
    FLAT = "FLAT"
    GLOBAL = "GLOBAL"
    SCRATCH = "SCRATCH"
    MUBUF = "MUBUF"
    MTBUF = "MTBUF"
    MIMG = "MIMG"
    EXP = "EXP"


@dataclass(frozen=True)
class Dpp16:
    """Data-parallel primitive of the first source: lanes permuted within rows of 16.

    control: the 9-bit DPP_CTRL. 0x000..0x0FF quad_perm, 0x101..0x10F row_shl, 0x111..0x11F row_shr,
    0x121..0x12F row_ror, 0x140 row_mirror, 0x141 row_half_mirror, 0x150..0x15F row_share,
    0x160..0x16F row_xmask. row_mask, bank_mask: lanes of disabled rows and banks keep their old
    destination. bound_ctrl: an invalid source lane reads 0 (else the lane is not written).
    fetch_inactive: lanes that EXEC disables may be read; else they count as invalid.
    """

    control: int
    row_mask: int
    bank_mask: int
    bound_ctrl: bool
    fetch_inactive: bool


@dataclass(frozen=True)
class Dpp8:
    """Data-parallel primitive of the first source: any permutation within groups of eight lanes.

    selectors[i] is the source lane within the group for lane i.
    """

    selectors: tuple[int, ...]
    fetch_inactive: bool


@dataclass(frozen=True)
class Instruction:
    """One instruction. `pc` and `branch_target` are byte offsets into the code.

    name: of the operation, which targets share. mnemonic: LLVM's name on this target.

    dst: vector, or scalar for SOP*, SMEM and the readlane family; None if nothing is written.
    For memory operations dst is the returned data (None for stores and atomics without return).
    sdst: the lane mask of VOPC (VCC, a scalar register, or EXEC for v_cmpx) and the carry or flag
    of VOP3SD and of the carry forms of VOP2 (VCC).
    srcs: in LLVM's textual order. Literals of fmaak/fmamk are included; a VCC that the text shows
    (v_cndmask_b32, v_add_co_ci_u32, ...) is the last source. Accumulators that are tied to dst
    (v_fmac, v_dot2acc) and the VCC read by v_div_fmas are not listed. For SMEM: (sbase,). Empty for
    vector memory, whose operands are named below.

    omod: 0 none, 1 times 2, 2 times 4, 3 divided by 2. clamp: as encoded.
    op_sel, op_sel_hi, neg_lo, neg_hi: VOP3P, one bit per source (v_fma_mix*: also as type, `high`,
    `neg` and `absolute` of its operands, which are sufficient). VOP3 op_sel appears as
    `Operand.high` and also raw in `op_sel` (bit 3 of VOP3: the destination's half).
    addr, data, data1, saddr: vector memory. addr is None for "off". saddr None for "off".
    srsrc, soffset: MUBUF; soffset also SMEM (None if absent).
    offset: bytes, signed where the encoding is. offset0, offset1: DS pairs, in elements.
    scope, hint: gfx12's memory encodings: SCOPE (0 CU, 1 SE, 2 DEV, 3 SYS) and TH. scaled,
    volatile: bits that LLVM shows as scale_offset and nv. wide: an encoding of memory of gfx12.
    x, y: the halves of a VOPD, each an Instruction of format VOPD with its own dst and srcs.
    """

    pc: int
    size: int
    words: tuple[int, ...]
    name: str
    format: Format
    mnemonic: str = ""
    opcode: int = 0
    dst: Operand | None = None
    sdst: Operand | None = None
    srcs: tuple[Operand, ...] = ()
    # scalar immediates
    simm16: int = 0  # unsigned, as encoded
    branch_target: int | None = None
    # vector modifiers
    omod: int = 0
    clamp: bool = False
    op_sel: tuple[int, ...] = ()
    op_sel_hi: tuple[int, ...] = ()
    neg_lo: tuple[int, ...] = ()
    neg_hi: tuple[int, ...] = ()
    dpp: Dpp16 | Dpp8 | None = None
    x: Instruction | None = None
    y: Instruction | None = None
    # memory
    addr: Operand | None = None
    data: Operand | None = None
    data1: Operand | None = None
    saddr: Operand | None = None
    srsrc: Operand | None = None
    soffset: Operand | None = None
    offset: int = 0
    offset0: int = 0
    offset1: int = 0
    glc: bool = False
    slc: bool = False
    dlc: bool = False
    gds: bool = False
    offen: bool = False
    idxen: bool = False
    tfe: bool = False
    scope: int = 0
    hint: int = 0
    scaled: bool = False
    volatile: bool = False
    wide: bool = False

    @property
    def always_offset(self) -> bool:
        """Whether LLVM shows an offset of 0 beside an offset register: scalar memory of gfx12."""
        return self.format is Format.SMEM and self.wide

    @property
    def simm16_signed(self) -> int:
        """Return the 16-bit immediate, sign-extended."""
        return self.simm16 - 0x10000 if self.simm16 & 0x8000 else self.simm16

    @property
    def next_pc(self) -> int:
        """Return the byte offset of the instruction that follows."""
        return self.pc + self.size


class UnknownInstruction(Exception):
    """Words that are not a known instruction of the target, or an instruction that is truncated.

    pc: byte offset. words: the words found (at most four).
    """

    def __init__(self, pc: int, words: tuple[int, ...], reason: str) -> None:
        super().__init__(f"{reason} at {pc:#x}: {' '.join(f'{word:08x}' for word in words)}")
        self.pc = pc
        self.words = words
        self.reason = reason
