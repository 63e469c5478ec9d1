"""GB202, and GB203 to GB207 with the same files.

Source of the PCI ids: open-gpu-kernel-modules 595.45.04 README.md.
"""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay, FlushPage

_GB202 = (0x2B85, 0x2B87, 0x2B8C)
_GB203 = (0x2C02, 0x2C05, 0x2C18, 0x2C19, 0x2C34, 0x2C58, 0x2C59)
_GB205 = (0x2F04, 0x2F18, 0x2F38, 0x2F58)
_GB206 = (0x2D04, 0x2D05, 0x2D18, 0x2D19, 0x2D30, 0x2D39, 0x2D58, 0x2D59, 0x2D79)
_GB207 = (0x2D83, 0x2D98, 0x2DB8, 0x2DD8)

_FLUSH = "NV_PFB_FBHUB0_PCIE_FLUSH_SYSMEM_ADDR"

BOOT = BootFacts(
    BootWay.FSP,
    chip_ids=(0x1B2, 0x1B3, 0x1B5, 0x1B6, 0x1B7),
    pci_ids=(*_GB202, *_GB203, *_GB205, *_GB206, *_GB207),
    firmware="gb202",
    image="ga102",
    family="gb20x",
    display_fuse="",
    flush_page=FlushPage(f"{_FLUSH}_LO", f"{_FLUSH}_HI", shift=0),
    mirror=0x92000,
    bus_bits=52,
    wide_window=True,
    rearm=False,
    doorbell_enable=True,
    prescrubbed=0,
    releases=("570.144",),
    non_wpr=0x220000,
    pmu_reserved=0x1820000,
    frts_from_end=0x1C00000,
    trust_version=2,
)
