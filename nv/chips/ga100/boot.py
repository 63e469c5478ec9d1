"""GA100: booter makes the protected region; FWSEC runs only when the GPU is handed back.

Source of the PCI ids: open-gpu-kernel-modules 595.45.04 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay

_IDS = (
    0x20B0, 0x20B2, 0x20B3, 0x20B5, 0x20B6, 0x20B7, 0x20BD, 0x20F1, 0x20F3, 0x20F5, 0x20F6, 0x20FD,
)  # fmt: skip

BOOT = BootFacts(
    BootWay.BOOTER,
    chip_ids=(0x170,),
    pci_ids=_IDS,
    firmware="ga100",
    image="tu102",
    family="ga100",
    libos=2,
    dma=False,
    core="RISCV_CORE_SWITCH_STATUS",
    memory_mib=False,
    display_fuse="",
    prescrubbed=0,
)
