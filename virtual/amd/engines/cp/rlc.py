"""The run-list controller: autoload of the graphics firmware, safe mode, the clock counter.

Facts: Linux 6.12 gfx_v11_0.c (wait_for_rlc_autoload_complete, set_safe_mode), gc_11_0_0_sh_mask.h.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ugpu.virtual.amd.block import Block, Reset
from ugpu.virtual.amd.engines.engine import clock_ticks

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

SAFE_MODE_S = 20e-6
CP_LOADING = 0x8000_8000  # CP_STAT while firmware is loaded: CP_BUSY, PFP_BUSY

# GB_ADDR_CONFIG as IMU leaves it (Linux 6.12 imu_v11_0.c); a driver treats zero as an error.
ADDRESS_CONFIG = 0x545


class Rlc(Block):
    """The RLC. booted: AUTOLOAD_RLC has started all graphics firmware; cleared by a GFX reset.

    safe: the driver has put the RLC into safe mode.
    """

    def __init__(self, chip: Board) -> None:
        super().__init__(chip, "gc")
        self.booted = False
        self.loading = False
        self.safe = False
        self._count = 0
        self.on_read("RLC_RLCS_BOOTLOAD_STATUS", self._bootload_status)
        self.on_read("CP_STAT", self._cp_stat)
        self.on_write("RLC_SAFE_MODE", self._safe_mode)
        for name in ("RLC_CGCG_CGLS_CTRL", "RLC_CGTT_MGCG_OVERRIDE"):
            self.on_write(name, partial(self._gating, name))
        self.on_write("RLC_CAPTURE_GPU_CLOCK_COUNT", self._capture)
        self.on_read("RLC_GPU_CLOCK_COUNT_LSB", lambda: self._count & 0xFFFF_FFFF)
        self.on_read("RLC_GPU_CLOCK_COUNT_MSB", lambda: self._count >> 32)
        for name in ("RLC_RLCS_BOOTLOAD_STATUS", "CP_STAT"):
            self.chip.space.read_only("gc", name)

    def reset(self, scope: Reset) -> None:
        """Discard the firmware: the next AUTOLOAD_RLC starts again."""
        self.booted = False
        self.loading = False
        self.safe = False
        self.set("RLC_CNTL", 1)

    def autoload(self) -> None:
        """Start the autoload (PSP command AUTOLOAD_RLC), which ends after a delay."""
        self.loading = True
        self.booted = False
        delay = self.chip.options.delays.autoload
        if self.chip.faults.autoload_never:
            return
        if delay:
            self.chip.scheduler.after(delay, self._loaded)
        else:
            self._loaded()

    def _loaded(self) -> None:
        if self.loading:
            self.loading = False
            self.booted = True
            self.set("GB_ADDR_CONFIG", ADDRESS_CONFIG)

    def _bootload_status(self) -> int:
        register = self.chip.space.register("gc", "RLC_RLCS_BOOTLOAD_STATUS")
        if not self.booted:
            return register.encode(GFX_INIT_DONE=1) if self.loading else 0
        return register.encode(
            GFX_INIT_DONE=1, RLC_GPM_IRAM_LOADED=1, RLC_GPM_IRAM_DONE=1, BOOTLOAD_COMPLETE=1
        )

    def _cp_stat(self) -> int:
        return CP_LOADING if self.loading else 0

    def _safe_mode(self, value: int) -> None:
        """Handle CMD: MESSAGE 1 enters safe mode, 0 leaves it; a running RLC clears CMD."""
        ready = self.booted and self.get("RLC_CNTL") & 1
        if value & 1 and ready and not self.chip.faults.safe_mode_never:
            self.chip.scheduler.after(SAFE_MODE_S, self._acknowledge)

    def _acknowledge(self) -> None:
        mode = self.fields("RLC_SAFE_MODE")
        self.safe = bool(mode.MESSAGE & 1)
        self.set("RLC_SAFE_MODE", CMD=0, RESPONSE=mode.MESSAGE)

    def _gating(self, name: str, _value: int) -> None:
        """Note a change of clock gating outside safe mode, which drivers use for it
        (gfx_v11_0.c, update_gfx_clock_gating)."""
        if not self.safe:
            self.chip.note(f"{name} written outside RLC safe mode")

    def _capture(self, value: int) -> None:
        if value & 1:
            self._count = clock_ticks()
