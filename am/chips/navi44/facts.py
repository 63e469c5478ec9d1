"""Navi44: RX 9060 XT.

Sources: PCI ids, PCI ID repository; versions of blocks, clock gates, Linux 6.12
amdgpu_discovery.c, soc24.c; mode1, smu_v14_0_2_ppt.c; geometry, memory, clocks and power, AMD's
data sheet of the Radeon RX 9060 XT 16 GB; SMU firmware, linux-firmware of September 2026; vector
registers, LLVM AMDGPU.td. UNSURE: the versions of THM and SMUIO, chosen from those that the kernel
drives; the discovery table of a board would show them.
"""

from __future__ import annotations

from ugpu.am.chips.facts import BoardFacts, ChipFacts
from ugpu.am.chips.gfx12 import FACTS as GFX12

FACTS = ChipFacts(
    name="navi44",
    title="Navi44",
    isa="gfx1200",
    generation=GFX12,
    pci_ids=(0x7590,),
    products=("RX 9060 XT",),
    versions={
        "GC": (12, 0, 0),
        "MMHUB": (4, 1, 0),
        "NBIF": (6, 3, 1),
        "MP0": (14, 0, 2),
        "MP1": (14, 0, 2),
        "OSSSYS": (7, 0, 0),
        "HDP": (7, 0, 0),
        "ATHUB": (4, 1, 0),
        "SDMA0": (7, 0, 0),
        "SMUIO": (14, 0, 2),
        "THM": (14, 0, 2),
    },
    copy_engines=2,
    clock_gates=frozenset(
        [
            "GFX_CGCG",
            "GFX_CGLS",
            "GFX_MGCG",
            "GFX_FGCG",
            "REPEATER_FGCG",
            "GFX_PERF_CLK",
            "MC_MGCG",
            "MC_LS",
            "ATHUB_MGCG",
            "ATHUB_LS",
            "HDP_SD",
        ]
    ),
    mode1_by_debug=True,
    reservations_since=0x3B0E0D,  # Linux 6.18 amdgpu_psp.c, psp_update_fw_reservation
    marks={"psp_{}_sos.bin": 0x3B, "smu_{}.bin": 0x66, "gc_{}_imu.bin": 0xC2C},
    board=BoardFacts(
        vram=16 << 30,
        shader_engines=2,
        arrays_per_engine=2,
        wgps_per_array=4,
        channels=8,
        vector_registers=1536,
        smu_version=0x00664700,  # 102.71.0
        graphics_megahertz=3130,
        memory_megahertz=1258,
        power_limit=160,
    ),
)
