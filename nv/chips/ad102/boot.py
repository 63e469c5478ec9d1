"""AD102, and AD103 to AD107 with the same files."""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay

BOOT = BootFacts(
    BootWay.FWSEC,
    chip_ids=(0x192, 0x193, 0x194, 0x196, 0x197),
    firmware="ad102",
    image="ga102",
    family="ad10x",
    scrubber=True,
)
