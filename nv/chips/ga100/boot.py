"""GA100: booter makes the protected region; FWSEC runs only when the GPU is handed back."""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay

BOOT = BootFacts(
    BootWay.BOOTER,
    chip_ids=(0x170,),
    pci_ids=(),
    firmware="ga100",
    image="tu102",
    family="ga100",
    libos=2,
    dma=False,
    riscv_status=True,
    memory_mib=False,
    display_fuse="",
    prescrubbed=0,
)
