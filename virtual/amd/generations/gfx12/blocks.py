"""Blocks of GFX 12.0 cards whose registers differ from those of GFX 11.0.

Source: gc_12_0_0, mp_14_0_2 and nbif_6_3_1 register headers; Linux 6.12 nbif_v6_3_1.c,
psp_v14_0.c, gfxhub_v12_0.c, sdma_v7_0.c, gfx_v12_0.c.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ugpu.virtual.amd.bus.nbio import Nbio
from ugpu.virtual.amd.engines import waves
from ugpu.virtual.amd.engines.gfx import Gfx
from ugpu.virtual.amd.engines.sdma.engine import Sdma
from ugpu.virtual.amd.engines.waves import WaveRegisters
from ugpu.virtual.amd.firmware.psp import Psp
from ugpu.virtual.amd.memory.gmc import Hub
from ugpu.virtual.amd.shader import Ending, Outcome, ShaderWave

_STATE_PRIV, _EXCP_FLAG_PRIV, _PC_LO, _PC_HI = 0x104, 0x111, 0x140, 0x141
_HALT = 1 << 14  # of STATE_PRIV
_ILLEGAL = 1 << 6  # of EXCP_FLAG_PRIV
_WAVE64 = 1 << 29  # of STATUS
_F8_MODE = 1 << 8  # of SH_MEM_CONFIG


class Nbif6(Nbio):
    """Registers of the bus interface; doorbell routes have other names and places."""

    route = "GDC_S2A0_S2A_DOORBELL_ENTRY_{}_CTRL"


class Psp14(Psp):
    """The security processor, whose mailboxes are named after MPASP."""

    prefix = "MPASP_SMN_C2PMSG_"
    shown = (81,)  # the header has no number 58


class Hub12(Hub):
    """A hub whose fault status has two registers."""

    fault_status = "L2_PROTECTION_FAULT_STATUS_LO32"


class Waves12(WaveRegisters):
    """State of waves. UNSURE: BARRIER_COMPLETE of a wave that waits; here it is 0 throughout."""

    flags = (waves.STATUS, _STATE_PRIV)

    def running(self, wave: ShaderWave) -> dict[int, int]:
        """Return the values of a wave that runs or stands, by index."""
        return {
            **waves.allocation(wave),
            waves.STATUS: waves.VALID
            | waves.execz_and_vccz(wave)
            | (0 if wave.dispatch.wave32 else _WAVE64),
            _STATE_PRIV: wave.scc << 9,
            _PC_LO: wave.pc & 0xFFFF_FFFF,
            _PC_HI: wave.pc >> 32,
        }

    def halted(self, wave: Outcome) -> dict[int, int]:
        """Return what the way in which a wave ended says of it."""
        asked = wave.ending is Ending.HALTED  # by s_sethalt
        return {
            waves.STATUS: waves.VALID | (0 if asked else waves.FATAL_HALT),
            _STATE_PRIV: _HALT,
            _EXCP_FLAG_PRIV: _ILLEGAL if wave.ending is Ending.ILLEGAL_INSTRUCTION else 0,
            _PC_LO: wave.pc & 0xFFFF_FFFF,
            _PC_HI: wave.pc >> 32,
        }


class Gfx12(Gfx):
    """The graphics core."""

    waves: ClassVar[WaveRegisters] = Waves12()

    def _write_per_vmid(self, name: str, value: int) -> None:
        if name == "SH_MEM_CONFIG" and value & _F8_MODE:
            self.chip.fault("SH_MEM_CONFIG.F8_MODE 1: 8-bit floats other than OCP's, not modelled")
        super()._write_per_vmid(name, value)


class Sdma7(Sdma):
    """A copy engine with an MCU.

    UNSURE: values at power-on, because the kernel has no header of defaults for these registers:
    those of SDMA 6.0 where the fields are the same. A board that no driver has touched would show
    them.
    """

    control = "MCU_CNTL"
    stopped = 3  # HALT, RESET
    freeze_field = "MCU_FREEZE"
    power_on: ClassVar[Mapping[str, int]] = {
        "CNTL": 0x00002440,
        "UTCL1_CNTL": 0x2C000288,
        "UTCL1_PAGE": 0x0000EC00,
        "MCU_CNTL": 0x00000001,
    }
    idle = 0x4E1EE557  # everything idle and empty, UCODE_INIT_DONE
