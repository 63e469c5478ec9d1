"""TU102, TU104 and TU106.

Source of the PCI ids: open-gpu-kernel-modules 595.45.04 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.boot import NISO_LOW, BootFacts, BootWay

_TU102 = (0x1E02, 0x1E04, 0x1E07, 0x1E09, 0x1E30, 0x1E36, 0x1E78)
_TU104 = (
    0x1E81, 0x1E82, 0x1E84, 0x1E87, 0x1E89, 0x1E90, 0x1E91, 0x1E93, 0x1EB0, 0x1EB1, 0x1EB5, 0x1EB6,
    0x1EB8, 0x1EC2, 0x1EC7, 0x1ED0, 0x1ED1, 0x1ED3, 0x1EF5,
)  # fmt: skip
_TU106 = (
    0x1F02, 0x1F03, 0x1F06, 0x1F07, 0x1F08, 0x1F0A, 0x1F0B, 0x1F10, 0x1F11, 0x1F12, 0x1F14, 0x1F15,
    0x1F36, 0x1F42, 0x1F47, 0x1F50, 0x1F51, 0x1F54, 0x1F55, 0x1F76,
)  # fmt: skip

BOOT = BootFacts(
    BootWay.FWSEC,
    chip_ids=(0x162, 0x164, 0x166),
    pci_ids=(*_TU102, *_TU104, *_TU106),
    firmware="tu102",
    image="tu102",
    family="tu10x",
    libos=2,
    dma=False,
    fuses=False,
    core="RISCV_CORE_SWITCH_STATUS",
    memory_mib=False,
    display_fuse="NV_FUSE_STATUS_OPT_DISPLAY_TURING",
    flush_page=NISO_LOW,
)
