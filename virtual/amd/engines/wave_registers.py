"""The registers of a wave behind SQ_IND_INDEX, as the tables of the chip's generation place them.

Facts: ixSQ_WAVE_* of gc_11_0_0_offset.h and gc_12_0_0_offset.h; units of sizes, Linux 6.12
cwsr_trap_handler_gfx10.asm, get_vgpr_size_bytes and get_lds_size_bytes.
"""

from __future__ import annotations

from ugpu.hcq.registers.fields import RegisterMap
from ugpu.virtual.amd.shader import Ending, Outcome, ShaderWave

# Units of VGPR_SIZE (minus one) and LDS_SIZE for waves of any size: vector registers, bytes.
VGPR_UNIT, LDS_UNIT = 4, 256
_FLOAT_MODE, _FLOAT_MASK = 12, 0xFF  # of COMPUTE_PGM_RSRC1, and of SQ_WAVE_MODE
# Where a field is: the first of these registers that has it in the generation's table.
_PLACES = {
    "VALID": ("STATUS",),
    "SCC": ("STATUS", "STATE_PRIV"),
    "EXECZ": ("STATUS",),
    "VCCZ": ("STATUS",),
    "IN_BARRIER": ("STATUS",),
    "HALT": ("STATUS", "STATE_PRIV"),
    "FATAL_HALT": ("STATUS",),
    "ILLEGAL_INST": ("TRAPSTS", "EXCP_FLAG_PRIV"),
    "WAVE64": ("IB_STS2", "STATUS"),
    "VGPR_SIZE": ("GPR_ALLOC",),
    "LDS_SIZE": ("LDS_ALLOC",),
    "PC_LO": ("PC_LO",),
    "PC_HI": ("PC_HI",),
    "VM_ID": ("HW_ID2",),
}


class WaveRegisters:
    """Values of a wave's registers, by index in SQ_IND_INDEX.

    valid_and_idle, identity: indices of VALID_AND_IDLE and HW_ID1. table: of the generation.
    """

    def __init__(self, table: RegisterMap) -> None:
        self._fields = {
            field: (table[name], field)
            for field, registers in _PLACES.items()
            for name in [f"SQ_WAVE_{register}" for register in reversed(registers)]
            if name in table and field in table[name].fields
        }
        self._mode = table["SQ_WAVE_MODE"].offset
        self.valid_and_idle = table["SQ_WAVE_VALID_AND_IDLE"].offset
        self.identity = table["SQ_WAVE_HW_ID1"].offset

    def _encode(self, **facts: int) -> dict[int, int]:
        """Return the registers that have these fields; a field that the generation lacks is
        nowhere."""
        values: dict[int, int] = {}
        for name, value in facts.items():
            if name in self._fields:
                register, field = self._fields[name]
                mask = (1 << register.fields[field].width) - 1
                before = values.get(register.offset, 0)
                values[register.offset] = before | int(register.encode(**{field: value & mask}))
        return values

    def owner(self, vmid: int) -> dict[int, int]:
        """HW_ID2; only its VMID is modelled."""
        return self._encode(VM_ID=vmid)

    def running(self, wave: ShaderWave) -> dict[int, int]:
        """The registers of a wave that runs, or where it stands."""
        narrow = wave.dispatch.wave32
        execute = wave.scalars[126] | (0 if narrow else wave.scalars[127] << 32)
        condition = wave.scalars[106] | (0 if narrow else wave.scalars[107] << 32)
        return self._encode(
            VALID=1,
            SCC=wave.scc,
            EXECZ=int(not execute),
            VCCZ=int(not condition),
            IN_BARRIER=int(bool(wave.waits)),
            WAVE64=int(not narrow),
            VGPR_SIZE=max(wave.vgprs // VGPR_UNIT - 1, 0),
            LDS_SIZE=-(-wave.lds_bytes // LDS_UNIT),
            PC_LO=wave.pc & 0xFFFF_FFFF,
            PC_HI=wave.pc >> 32,
        ) | {self._mode: wave.dispatch.rsrc1 >> _FLOAT_MODE & _FLOAT_MASK}

    def halted(self, wave: Outcome) -> dict[int, int]:
        """The registers of a wave that has stopped, with those of where it stands."""
        stopped = self._encode(
            VALID=1,
            HALT=1,
            FATAL_HALT=int(wave.ending is not Ending.HALTED),  # that is s_sethalt's
            ILLEGAL_INST=int(wave.ending is Ending.ILLEGAL_INSTRUCTION),
        )
        place = self._encode(PC_LO=wave.pc & 0xFFFF_FFFF, PC_HI=wave.pc >> 32)
        stands = {} if wave.state is None else self.running(wave.state)
        both = {index: stands.get(index, 0) | value for index, value in stopped.items()}
        return stands | both | place
