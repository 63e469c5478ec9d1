"""Relocations of AArch64, and jumps to code anywhere.

Facts: ELF for the Arm 64-bit Architecture (IHI 0056), "Relocation types" (static AArch64
relocations, the GOT and PLT32); instruction fields: Arm Architecture Reference Manual (DDI 0487),
C6.2 ADR, ADRP, ADD (immediate), B, BL, B.cond, TBZ, LDR (literal), LDR (immediate), MOVZ.
IP0 (x16) belongs to such jumps: Procedure Call Standard for the Arm 64-bit Architecture, 6.1.1.
"""

from __future__ import annotations

import struct

from ugpu.hcq.objects.linking import Rule

EM_AARCH64 = 183
JUMP_SIZE = 16

IMM26 = ((0, 26),)  # B, BL
IMM19 = ((5, 19),)  # B.cond, CBZ, LDR (literal)
IMM14 = ((5, 14),)  # TBZ, TBNZ
IMM16 = ((5, 16),)  # MOVZ, MOVK
ADR = ((29, 2), (5, 19))  # ADR, ADRP: immlo, immhi


def _low(shift: int, through: str = "symbol") -> Rule:
    """Return the rule for the low 12 bits of an address as the offset of a load or store of 1 <<
    shift bytes."""
    return Rule(4, through=through, shift=shift, fields=((10, 12 - shift),), low=12, exact=True)


def _branch(fields: tuple[tuple[int, int], ...], through: str = "symbol") -> Rule:
    return Rule(4, minus="place", through=through, shift=2, signed=True, fields=fields, exact=True)


def _part(number: int, checked: bool) -> Rule:
    """Return the rule for 16 bits of an address."""
    return Rule(4, shift=16 * number, signed=False if checked else None, fields=IMM16)


RELOCATIONS_AARCH64 = {
    257: Rule(8),  # R_AARCH64_ABS64
    258: Rule(4, signed=False),  # R_AARCH64_ABS32
    260: Rule(8, minus="place"),  # R_AARCH64_PREL64
    261: Rule(4, minus="place", signed=True),  # R_AARCH64_PREL32
    262: Rule(2, minus="place", signed=True),  # R_AARCH64_PREL16
    263: _part(0, True),  # R_AARCH64_MOVW_UABS_G0
    264: _part(0, False),  # R_AARCH64_MOVW_UABS_G0_NC
    265: _part(1, True),  # R_AARCH64_MOVW_UABS_G1
    266: _part(1, False),  # R_AARCH64_MOVW_UABS_G1_NC
    267: _part(2, True),  # R_AARCH64_MOVW_UABS_G2
    268: _part(2, False),  # R_AARCH64_MOVW_UABS_G2_NC
    269: _part(3, False),  # R_AARCH64_MOVW_UABS_G3
    273: _branch(IMM19),  # R_AARCH64_LD_PREL_LO19
    274: Rule(4, minus="place", signed=True, fields=ADR),  # R_AARCH64_ADR_PREL_LO21
    275: Rule(4, minus="page", shift=12, signed=True, fields=ADR),  # R_AARCH64_ADR_PREL_PG_HI21
    276: Rule(4, minus="page", shift=12, fields=ADR),  # R_AARCH64_ADR_PREL_PG_HI21_NC
    277: _low(0),  # R_AARCH64_ADD_ABS_LO12_NC
    278: _low(0),  # R_AARCH64_LDST8_ABS_LO12_NC
    279: _branch(IMM14),  # R_AARCH64_TSTBR14
    280: _branch(IMM19),  # R_AARCH64_CONDBR19
    282: _branch(IMM26, "call"),  # R_AARCH64_JUMP26
    283: _branch(IMM26, "call"),  # R_AARCH64_CALL26
    284: _low(1),  # R_AARCH64_LDST16_ABS_LO12_NC
    285: _low(2),  # R_AARCH64_LDST32_ABS_LO12_NC
    286: _low(3),  # R_AARCH64_LDST64_ABS_LO12_NC
    299: _low(4),  # R_AARCH64_LDST128_ABS_LO12_NC
    # R_AARCH64_ADR_GOT_PAGE, R_AARCH64_LD64_GOT_LO12_NC, R_AARCH64_PLT32
    311: Rule(4, minus="page", through="slot", shift=12, signed=True, fields=ADR),
    312: _low(3, "slot"),
    314: Rule(4, minus="place", through="call", signed=True),
}


def jump(address: int) -> bytes:
    """Return `ldr x16, #8; br x16` followed by the address."""
    return struct.pack("<IIQ", 0x58000050, 0xD61F0200, address)


def jump_through(distance: int) -> bytes:
    """Return `ldr x16, #distance; br x16`: a jump to the address that is stored `distance` bytes
    after its start, less than 1 MiB."""
    return struct.pack("<II", 0x58000010 | (distance // 4) << 5, 0xD61F0200)
