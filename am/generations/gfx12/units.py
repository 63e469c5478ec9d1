"""What blocks of GFX 12.0 chips do otherwise than those of GFX 11.0.

Sources: Linux 6.12 gfx_v12_0.c (golden settings, clock gating), mmhub_v4_1_0.c (clock gating of the
memory hub), sdma_v7_0.c and sdma_v7_0.h (packets, start and reset of a copy engine).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ugpu.am.packets import sdma
from ugpu.am.units.clocks import OVERRIDES, Clocks
from ugpu.am.units.gfx import Gfx
from ugpu.am.work.queue import CopyQueue
from ugpu.hcq.bare.chip import batched

_HUB = ("DISABLE_RDRET_TAP_CHAIN_FGCG", "DISABLE_WRRET_TAP_CHAIN_FGCG")
_FRONT = ("PFP", "ME")
_COMPRESS = 1 << 16  # SDMA_PKT_CONSTANT_FILL_HEADER_COMPRESS


class Gfx12(Gfx):
    """The graphics core. UNSURE: neither Linux nor tinygrad resets the command processors of this
    generation by GRBM; both pulse the resets of the MEC's pipes, which is all that is done here."""

    golden: ClassVar[Mapping[str, int]] = {"DB_MEM_CONFIG": 0x8000}

    @batched
    def start_front(self, starts: Mapping[str, int]) -> None:
        """As in the kernel (config_gfx_rs64), although no work goes there: they stay halted. There
        is one pipe of each (gfx_v12_0.c, sw_init), which is the one that is selected otherwise."""
        gc = self.chip.gc
        for engine in _FRONT:
            gc[f"CP_{engine}_PRGRM_CNTR_START"].write(starts[engine.lower()] >> 2 & 0xFFFF_FFFF)
            gc[f"CP_{engine}_PRGRM_CNTR_START_HI"].write(starts[engine.lower()] >> 34)
        resets = {f"{engine}_PIPE0_RESET": 1 for engine in _FRONT}
        gc.CP_ME_CNTL.update(**resets)
        gc.CP_ME_CNTL.update(**dict.fromkeys(resets, 0))

    def _strike(self, bits: tuple[str, ...]) -> None:
        """See the class."""


class Clocks12(Clocks):
    """Clock gating."""

    overrides: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **OVERRIDES,
        "REPEATER_FGCG": (*OVERRIDES["REPEATER_FGCG"], "RLC_REPEATER_FGCG_OVERRIDE"),
    }

    def _gate_hub(self) -> None:
        if "MC_MGCG" in self.chip.facts.clock_gates:
            for unit in ("DAGB0", "DAGB1"):
                register = self.chip.mmhub[f"{unit}_CNTL_MISC2"]
                register.update(**dict.fromkeys(_HUB, 0))


class Engine7(sdma.Engine):
    """A copy engine (SDMA 7.0). The kernel does not freeze it for a reset."""

    processor_reset = "RESET"
    polls = "MCU_WPTR_POLL_ENABLE"
    page: ClassVar[Mapping[str, int]] = {
        name: policy for name, policy in sdma.Engine.page.items() if name != "LLC_NOALLOC"
    }
    waits_fail = False
    freezes = ""


class Sdma7(sdma.Sdma):
    """Packets of SDMA 7.0: those of 6.0, but for a word about compression in a copy. Linux takes
    the same header for both."""

    copies: ClassVar[Mapping[str, int]] = {"CPV": 1}
    after_copy = (0,)
    fills = _COMPRESS


class CopyQueue7(CopyQueue):
    """A copy queue of SDMA 7.0."""

    packets = Sdma7
