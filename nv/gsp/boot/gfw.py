"""Step "gfw-boot": the board's own firmware (GFW, from Hopper on FSP) must have finished.

Sources: Linux 7.3 nova-core gfw.rs, nouveau subdev/gsp/ga100.c; open-gpu-kernel-modules 570.144
kernel_gsp_tu102.c, kern_fsp_gh100.c.
"""

from __future__ import annotations

from ugpu.hcq.bare.stages import or_silent
from ugpu.nv.chips.boot import BootWay
from ugpu.nv.gsp.chip.chip import GspChip

_LIMIT_S = 4.0  # TIMEOUT: nouveau and nova-core; GFW takes 1 to 2 s after power-on
_FSP_LIMIT_S = 5.0
_DONE = (0xFF, 0xFF)  # mask and value


def await_board_firmware(chip: GspChip) -> None:
    """Wait for the board's firmware; FirmwareSilent if it does not finish."""
    nv, remedy = chip.nv, "power the card off and on"
    if chip.boot.way is BootWay.FSP:
        scratch = nv[f"NV_THERM_I2CS_SCRATCH_{chip.facts.family.upper()}"]
        with or_silent("FSP has not finished its start", remedy=remedy):
            chip.await_bits("FSP", scratch, _DONE, "end of FSP's start", _FSP_LIMIT_S)
        return
    mask = nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK
    progress = nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_0_GFW_BOOT
    with or_silent("the board's firmware (GFW) has not finished its start", remedy=remedy):
        chip.await_bits("GFW", mask, (1, 1), "access to its progress", _LIMIT_S)
        chip.await_bits("GFW", progress, _DONE, "end of its start", _LIMIT_S)
