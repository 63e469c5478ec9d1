"""GA102, and GA103 to GA107 with the same files.

Source of the PCI ids: open-gpu-kernel-modules 595.45.04 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay

BOOT = BootFacts(
    BootWay.FWSEC,
    chip_ids=(0x172, 0x173, 0x174, 0x176, 0x177),
    pci_ids=(0x2203, 0x2204, 0x2206, 0x2208, 0x220A, 0x2216, 0x2230, 0x2235),
    firmware="ga102",
    image="ga102",
    family="ga10x",
)
