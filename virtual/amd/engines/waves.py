"""State of waves as the driver reads it, by index (SQ_IND_INDEX.INDEX, SQ_WAVE_*).

Facts: gc_11_0_0_offset.h, ixSQ_WAVE_*; Linux 6.12 gfx_v11_0.c (wave_read_wave_data).
"""

from __future__ import annotations

from ugpu.virtual.amd.shader import Ending, Outcome, ShaderWave

# Indices that all generations have.
VALID_AND_IDLE, MODE, STATUS, GPR_ALLOC, LDS_ALLOC = 0x0B, 0x101, 0x102, 0x105, 0x106
HW_ID1, HW_ID2 = 0x117, 0x118
# Units of VGPR_SIZE (minus one) and LDS_SIZE for waves of any size: vector registers, bytes.
# Source: Linux 6.12 cwsr_trap_handler_gfx10.asm, get_vgpr_size_bytes and get_lds_size_bytes.
VGPR_UNIT, LDS_UNIT = 4, 256
SLOTS = 32  # limit of wave numbers in a group
SCALARS = 0x200  # first index of the scalar registers: M0 is 0x27D, EXEC 0x27E
VECTORS = 0x400  # first index of the vector registers, for lane WORKITEM_ID (gfx_v11_0.c)
VALID, FATAL_HALT = 1 << 16, 1 << 23  # bits of STATUS that all generations have
_TRAPSTS, _PC_LO, _PC_HI, _IB_STS2 = 0x103, 0x108, 0x109, 0x11C
_IN_BARRIER, _HALT = 1 << 12, 1 << 13
_ILLEGAL = 1 << 11
_WAVE64 = 1 << 11  # bit of IB_STS2


def execz_and_vccz(wave: ShaderWave) -> int:
    """Return the bits of STATUS that say that EXEC and VCC are zero."""
    wide = not wave.dispatch.wave32
    execute = wave.scalars[126] | (wave.scalars[127] << 32 if wide else 0)
    condition = wave.scalars[106] | (wave.scalars[107] << 32 if wide else 0)
    return (not execute) << 9 | (not condition) << 10


class WaveRegisters:
    """The registers of a generation: those of GFX 11. flags: registers with bits for the way in
    which a wave ended beside others."""

    flags: tuple[int, ...] = (STATUS,)

    def running(self, wave: ShaderWave) -> dict[int, int]:
        """Return the values of a wave that runs or stands, by index."""
        status = VALID | wave.scc | execz_and_vccz(wave) | (_IN_BARRIER if wave.waits else 0)
        return {
            **allocation(wave),
            STATUS: status,
            _IB_STS2: 0 if wave.dispatch.wave32 else _WAVE64,
            _PC_LO: wave.pc & 0xFFFF_FFFF,
            _PC_HI: wave.pc >> 32,
        }

    def standing(self, wave: Outcome) -> dict[int, int]:
        """Return the values of a halted wave, by index."""
        values = self.halted(wave)
        if wave.state is None:
            return values
        stands = self.running(wave.state)
        for number in self.flags:
            values[number] |= stands[number]
        return stands | values

    def halted(self, wave: Outcome) -> dict[int, int]:
        """Return what the way in which a wave ended says of it."""
        asked = wave.ending is Ending.HALTED  # by s_sethalt
        return {
            STATUS: VALID | _HALT | (0 if asked else FATAL_HALT),
            _TRAPSTS: _ILLEGAL if wave.ending is Ending.ILLEGAL_INSTRUCTION else 0,
            _PC_LO: wave.pc & 0xFFFF_FFFF,
            _PC_HI: wave.pc >> 32,
        }


def allocation(wave: ShaderWave) -> dict[int, int]:
    """Return the mode and the registers and LDS that a wave has."""
    return {
        MODE: wave.dispatch.rsrc1 >> 12 & 0xFF,  # FLOAT_MODE
        GPR_ALLOC: max(wave.vgprs // VGPR_UNIT - 1, 0) << 12,
        LDS_ALLOC: -(-wave.lds_bytes // LDS_UNIT) << 12,
    }


def word(wave: ShaderWave, index: int, lane: int) -> dict[int, int]:
    """Return {index: value} if `index` selects a scalar or vector register, else {}."""
    if 0 <= index - SCALARS < len(wave.scalars):
        return {index: wave.scalars[index - SCALARS]}
    lanes = wave.vectors.get(index - VECTORS, ())
    return {index: lanes[lane]} if lane < len(lanes) else {}


def sit(there: dict[int, dict[int, int]], number: int, state: dict[int, int]) -> None:
    """Put a wave into the first free slot, starting at its wave number."""
    slots = ((number + step) % SLOTS for step in range(SLOTS))
    slot = next((slot for slot in slots if slot not in there), None)
    if slot is not None:
        there[slot] = state
