"""Navi33: RX 7600 and its mobile variants.

Sources: PCI ids, PCI ID repository; versions of GC, MMHUB, MP0, MP1 and SDMA, Linux 6.12
gfx_v11_0.c, mmhub_v3_0_2.c, psp_v13_0.c, smu_v13_0_7_ppt.c, sdma_v6_0.c; clock gates, soc21.c;
geometry and SMU firmware, the kernel's log of a Radeon RX 7600; vector registers, LLVM AMDGPU.td
(gfx1102 lacks the larger file). UNSURE: versions of the other blocks, chosen from those that the
kernel drives alike; the discovery table of a board would show them.
"""

from __future__ import annotations

from ugpu.am.chips.facts import BoardFacts, ChipFacts
from ugpu.am.chips.gfx11 import FACTS as GFX11

FACTS = ChipFacts(
    name="navi33",
    title="Navi33",
    isa="gfx1102",
    generation=GFX11,
    pci_ids=(0x7480, 0x7483),
    products=("RX 7600 XT", "RX 7600"),
    versions={
        "GC": (11, 0, 2),
        "MMHUB": (3, 0, 2),
        "ATHUB": (3, 0, 2),
        "NBIF": (4, 3, 1),
        "MP0": (13, 0, 7),
        "MP1": (13, 0, 7),
        "OSSSYS": (6, 0, 2),
        "HDP": (6, 0, 1),
        "SDMA0": (6, 0, 2),
        "SMUIO": (13, 0, 6),
        "THM": (13, 0, 6),
    },
    copy_engines=2,
    clock_gates=frozenset(
        {"GFX_CGCG", "GFX_CGLS", "REPEATER_FGCG", "HDP_SD", "ATHUB_MGCG", "ATHUB_LS", "IH_CG"}
    ),
    marks={"psp_{}_sos.bin": 0x33, "smu_{}.bin": 0x52, "gc_{}_imu.bin": 0xB21},
    board=BoardFacts(
        vram=8 << 30,
        shader_engines=2,
        arrays_per_engine=2,
        wgps_per_array=4,
        channels=8,
        vector_registers=1024,
        smu_version=0x00524500,  # 82.69.0
        graphics_megahertz=2655,
        memory_megahertz=1124,
        power_limit=165,
    ),
)
