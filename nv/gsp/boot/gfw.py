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
_DONE = 0xFF


def await_board_firmware(chip: GspChip) -> None:
    """Wait for the board's firmware; FirmwareSilent if it does not finish."""
    nv, remedy = chip.nv, "power the card off and on"
    if chip.boot.way is BootWay.FSP:
        scratch = nv[f"NV_THERM_I2CS_SCRATCH_{chip.facts.family.upper()}"]
        with or_silent("FSP has not finished its start", remedy=remedy):
            what = "end of FSP's start"
            chip.await_fields("FSP", scratch, what, _FSP_LIMIT_S, FSP_BOOT_COMPLETE=_DONE)
        return
    mask = nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK
    progress = nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_0_GFW_BOOT
    with or_silent("the board's firmware (GFW) has not finished its start", remedy=remedy):
        what = "access to its progress"
        chip.await_fields("GFW", mask, what, _LIMIT_S, READ_PROTECTION_LEVEL0=1)
        chip.await_fields("GFW", progress, "end of its start", _LIMIT_S, PROGRESS=_DONE)
