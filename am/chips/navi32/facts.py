"""Navi32: RX 7800 XT and RX 7700 XT.

Sources: PCI ids, PCI ID repository; versions of GC, MP0, MP1 and SDMA, Linux 6.12 gfx_v11_0.c,
gfxhub_v3_0_3.c, psp_v13_0.c, smu_v13_0_0_ppt.c (mode1 by the debug mailbox too), sdma_v6_0.c; clock
gates, soc21.c; geometry, memory and clocks, a Radeon RX 7800 XT. UNSURE: versions of the other
blocks, chosen from those that the kernel drives alike, and the SMU firmware's; the discovery table
and the kernel's log of a board would show them.
"""

from __future__ import annotations

from ugpu.am.chips.facts import BoardFacts, ChipFacts
from ugpu.am.chips.gfx11 import FACTS as GFX11

FACTS = ChipFacts(
    name="navi32",
    title="Navi32",
    isa="gfx1101",
    generation=GFX11,
    pci_ids=(0x747E,),
    products=("RX 7800 XT", "RX 7700 XT"),
    versions={
        "GC": (11, 0, 3),
        "MMHUB": (3, 0, 0),
        "ATHUB": (3, 0, 0),
        "NBIF": (4, 3, 0),
        "MP0": (13, 0, 10),
        "MP1": (13, 0, 10),
        "OSSSYS": (6, 0, 0),
        "HDP": (6, 0, 0),
        "SDMA0": (6, 0, 3),
        "SMUIO": (13, 0, 6),
        "THM": (13, 0, 6),
    },
    copy_engines=2,
    clock_gates=frozenset(
        {"GFX_CGCG", "GFX_CGLS", "GFX_MGCG", "REPEATER_FGCG", "HDP_SD", "ATHUB_MGCG", "ATHUB_LS"}
    ),
    mode1_by_debug=True,
    mode2_since=0x502005,  # 80.32.5 (smu_v13_0_10.c)
    marks={"psp_{}_sos.bin": 0x32, "smu_{}.bin": 0x50, "gc_{}_imu.bin": 0xB20},
    board=BoardFacts(
        vram=16 << 30,
        shader_engines=3,
        arrays_per_engine=2,
        wgps_per_array=5,
        channels=16,
        vector_registers=1536,
        smu_version=0x00505100,  # 80.81.0
        graphics_megahertz=2430,
        memory_megahertz=1219,
        power_limit=263,
    ),
)
