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
    if chip.boot.way is BootWay.FSP:
        name = f"NV_THERM_I2CS_SCRATCH_{chip.facts.family.upper()}"
        with or_silent("FSP has not finished its start", remedy="power the card off and on"):
            chip.wait_bits(
                chip.nv[name], 0xFF, _DONE, unit="FSP", waiting_for="end of FSP's start",
                limit_s=_FSP_LIMIT_S,
            )  # fmt: skip
        return
    nv = chip.nv
    with or_silent(
        "the board's firmware (GFW) has not finished its start", remedy="power the card off and on"
    ):
        chip.wait_bits(
            nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_PRIV_LEVEL_MASK, 1, 1,
            unit="GFW", waiting_for="access to its progress", limit_s=_LIMIT_S,
        )  # fmt: skip
        chip.wait_bits(
            nv.NV_PGC6_AON_SECURE_SCRATCH_GROUP_05_0_GFW_BOOT, 0xFF, _DONE,
            unit="GFW", waiting_for="end of its start", limit_s=_LIMIT_S,
        )  # fmt: skip
