"""GH100.

Source of the PCI ids: open-gpu-kernel-modules 595.45.04 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay, FlushPage

_IDS = (
    0x230E, 0x2321, 0x2322, 0x2324, 0x2329, 0x232C, 0x2330, 0x2331, 0x2335, 0x2339, 0x233A, 0x233B,
)  # fmt: skip

_FLUSH = "NV_PFB_FBHUB_PCIE_FLUSH_SYSMEM_ADDR"

BOOT = BootFacts(
    BootWay.FSP,
    chip_ids=(0x180,),
    pci_ids=_IDS,
    firmware="gh100",
    image="ga102",
    family="gh100",
    display_fuse="",
    flush_page=FlushPage(f"{_FLUSH}_LO", f"{_FLUSH}_HI"),
    mirror=0x92000,
    bus_bits=52,
    wide_window=True,
    rearm=False,
    prescrubbed=0,
    releases=("570.144",),
    non_wpr=0x200000,
    frts_from_end=0x200000,
    trust_version=1,
)
