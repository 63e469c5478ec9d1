"""AD102, and AD103 to AD107 with the same files.

Source of the PCI ids: open-gpu-kernel-modules 595.45.04 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay

_AD102 = (0x2684, 0x2685, 0x2689, 0x26B1, 0x26B2, 0x26B3, 0x26B5, 0x26B9, 0x26BA)
_AD103 = (0x2702, 0x2704, 0x2705, 0x2709, 0x2717, 0x2757)
_AD104 = (0x2782, 0x2783, 0x2786, 0x2788, 0x27A0, 0x27B0, 0x27B2, 0x27BA, 0x27E0)
_AD106 = (0x2803, 0x2805, 0x2808, 0x2820, 0x2860)

BOOT = BootFacts(
    BootWay.FWSEC,
    chip_ids=(0x192, 0x193, 0x194, 0x196, 0x197),
    pci_ids=(*_AD102, *_AD103, *_AD104, *_AD106),
    firmware="ad102",
    image="ga102",
    family="ad10x",
    scrubber=True,
)
