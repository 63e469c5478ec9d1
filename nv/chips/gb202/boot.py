"""GB202, and GB203 to GB207 with the same files."""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay, FlushPage

BOOT = BootFacts(
    BootWay.FSP,
    chip_ids=(0x1B2, 0x1B3, 0x1B5, 0x1B6, 0x1B7),
    pci_ids=(),
    firmware="gb202",
    image="ga102",
    family="gb20x",
    display_fuse="",
    flush_page=FlushPage.FBHUB0,
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
