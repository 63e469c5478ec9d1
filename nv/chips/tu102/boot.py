"""TU102, TU104 and TU106."""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay, FlushPage

BOOT = BootFacts(
    BootWay.FWSEC,
    chip_ids=(0x162, 0x164, 0x166),
    pci_ids=(),
    firmware="tu102",
    image="tu102",
    family="tu10x",
    libos=2,
    dma=False,
    riscv_status=True,
    memory_mib=False,
    display_fuse="NV_FUSE_STATUS_OPT_DISPLAY_TURING",
    flush_page=FlushPage.LOW,
)
