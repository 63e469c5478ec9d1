"""GA102, and GA103 to GA107 with the same files."""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay

BOOT = BootFacts(
    BootWay.FWSEC,
    chip_ids=(0x172, 0x173, 0x174, 0x176, 0x177),
    firmware="ga102",
    image="ga102",
    family="ga10x",
)
