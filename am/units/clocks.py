"""Clock gating of the graphics core, HDP, MMHUB, ATHUB and IH: idle units get no clock.

Without it the chip reports a busy graphics core while it does nothing, and draws the power of a
busy one. Registers, values and order: Linux 6.12 gfx_v11_0.c (update_gfx_clock_gating), hdp_v6_0.c,
mmhub_v3_0.c, athub_v3_0.c, ih_v6_0.c. The chip's facts list what it can gate (soc21.c, cg_flags).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ugpu.am.chip.chip import Chip
from ugpu.am.packets.sdma import Engine
from ugpu.am.units.gfx import IDLE_INTERRUPTS, Gfx
from ugpu.hcq.bare.chip import batched

_IDLE_THRESHOLD, _COMPENSATION_DELAY = 0x36, 0xF
_POLL_FREQUENCY, _IDLE_POLLS = 0x100, 0x90
OVERRIDES = {
    "GFX_MGCG": ("GRBM_CGTT_SCLK_OVERRIDE", "RLC_CGTT_SCLK_OVERRIDE", "GFXIP_MGCG_OVERRIDE"),
    "REPEATER_FGCG": ("GFXIP_REPEATER_FGCG_OVERRIDE",),
    "GFX_FGCG": ("GFXIP_FGCG_OVERRIDE",),
    "GFX_PERF_CLK": ("PERFMON_CLOCK_STATE",),
}
_HUB = {"MC_MGCG": "ENABLE", "MC_LS": "MEM_LS_ENABLE"}  # of MM_ATC_L2_MISC_CG
_TRANSLATION = {"ATHUB_MGCG": "CG_ENABLE", "ATHUB_LS": "CG_MEM_LS_ENABLE"}
_INTERRUPTS = ("DBUS_MUX", "OSSSYS_SHARE", "LIMIT_SMN", "DYN", "REG")
_POWER_MODES = ("POWER_CTRL_EN", "POWER_LS_EN", "POWER_DS_EN", "POWER_SD_EN")


class Clocks:
    """Gate the clocks of one chip. The RLC and the engines' firmware are up. overrides: fields of
    RLC_CGTT_MGCG_OVERRIDE for each feature that not all chips have."""

    overrides: ClassVar[Mapping[str, tuple[str, ...]]] = OVERRIDES

    def __init__(self, chip: Chip, gfx: Gfx, engines: Sequence[Engine]) -> None:
        self.chip = chip
        self.gfx = gfx
        self.engines = engines

    def gate(self) -> None:
        """Let every unit gate its clocks. ORDER: the graphics core is gated in RLC safe mode."""
        gates = self.chip.facts.clock_gates
        self._gate_hdp()
        self._gate_hub()
        translation = [name for gate, name in _TRANSLATION.items() if gate in gates]
        for athub in self.chip.instances("ATHUB") if translation else ():
            athub.ATHUB_MISC_CNTL.update(**dict.fromkeys(translation, 1))
        if "IH_CG" in gates:
            overrides = (f"{name}_CLK_SOFT_OVERRIDE" for name in _INTERRUPTS)
            self.chip.osssys.IH_CLK_CTRL.update(**dict.fromkeys(overrides, 0))
        with self.gfx.safe_mode():
            self._gate_graphics()

    def _gate_hub(self) -> None:
        gates = self.chip.facts.clock_gates
        hub = [name for gate, name in _HUB.items() if gate in gates]
        if hub:
            self.chip.mmhub.MM_ATC_L2_MISC_CG.update(**dict.fromkeys(hub, 1))

    @batched
    def _gate_hdp(self) -> None:
        """Shut HDP's memories down while they are idle. ORDER: its clock is forced on and all modes
        are off while the mode changes."""
        hdp = self.chip.hdp
        hdp.HDP_CLK_CNTL.update(RC_MEM_CLK_SOFT_OVERRIDE=1)
        off = {f"{unit}_MEM_{mode}": 0 for unit in ("ATOMIC", "RC") for mode in _POWER_MODES}
        hdp.HDP_MEM_POWER_CTRL.update(**off)
        hdp.HDP_MEM_POWER_CTRL.update(
            ATOMIC_MEM_POWER_SD_EN=1,
            RC_MEM_POWER_SD_EN=1,
            ATOMIC_MEM_POWER_CTRL_EN=1,
            RC_MEM_POWER_CTRL_EN=1,
        )
        hdp.HDP_CLK_CNTL.update(RC_MEM_CLK_SOFT_OVERRIDE=0)

    @batched
    def _gate_graphics(self) -> None:
        gc = self.chip.gc
        gc.RLC_CGTT_MGCG_OVERRIDE.update(GFXIP_CGCG_OVERRIDE=0, GFXIP_CGLS_OVERRIDE=0)
        gc.RLC_CGCG_CGLS_CTRL.update(
            CGCG_GFX_IDLE_THRESHOLD=_IDLE_THRESHOLD,
            CGCG_EN=1,
            CGLS_REP_COMPANSAT_DELAY=_COMPENSATION_DELAY,
            CGLS_EN=1,
        )
        gc.CP_RB_WPTR_POLL_CNTL.update(POLL_FREQUENCY=_POLL_FREQUENCY, IDLE_POLL_COUNT=_IDLE_POLLS)
        gc.CP_INT_CNTL.update(**dict.fromkeys(IDLE_INTERRUPTS, 1))
        for engine in self.engines:
            engine.register("RLC_CGCG_CTRL").update(CGCG_INT_ENABLE=1)
        gates = self.chip.facts.clock_gates
        gated = [name for gate, names in self.overrides.items() if gate in gates for name in names]
        gc.RLC_CGTT_MGCG_OVERRIDE.update(**dict.fromkeys(gated, 0))
