"""GH100."""

from __future__ import annotations

from ugpu.nv.chips.boot import BootFacts, BootWay, FlushPage

BOOT = BootFacts(
    BootWay.FSP,
    chip_ids=(0x180,),
    pci_ids=(),
    firmware="gh100",
    image="ga102",
    family="gh100",
    display_fuse="",
    flush_page=FlushPage.FBHUB,
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
