"""Navi48: RX 9070 XT, 9070 and 9070 GRE, Radeon AI PRO R9700.

Sources: PCI ids, PCI ID repository; versions of blocks, clock gates, Linux 6.12
amdgpu_discovery.c, soc24.c; mode1, smu_v14_0_2_ppt.c; geometry, memory, clocks and power, AMD's
data sheet of the Radeon RX 9070 XT; SMU firmware, linux-firmware of September 2026; vector
registers, LLVM AMDGPU.td. UNSURE: the versions of THM and SMUIO, chosen from those that the kernel
drives; the discovery table of a board would show them.
"""

from __future__ import annotations

from ugpu.am.chips.facts import BoardFacts, ChipFacts
from ugpu.am.chips.gfx12 import FACTS as GFX12

FACTS = ChipFacts(
    name="navi48",
    title="Navi48",
    isa="gfx1201",
    generation=GFX12,
    pci_ids=(0x7550, 0x7551),
    products=("RX 9070 XT", "RX 9070", "RX 9070 GRE", "AI PRO R9700"),
    versions={
        "GC": (12, 0, 1),
        "MMHUB": (4, 1, 0),
        "NBIF": (6, 3, 1),
        "MP0": (14, 0, 3),
        "MP1": (14, 0, 3),
        "OSSSYS": (7, 0, 0),
        "HDP": (7, 0, 0),
        "ATHUB": (4, 1, 0),
        "SDMA0": (7, 0, 1),
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
    reservations_since=0x3A0E14,  # Linux 6.18 amdgpu_psp.c, psp_update_fw_reservation
    kickers=frozenset({(0x7551, 0xC8)}),  # Linux after 6.12, amdgpu_ucode.c, kicker_device_list
    marks={"psp_{}_sos.bin": 0x3A, "smu_{}.bin": 0x68, "gc_{}_imu.bin": 0xC30},
    board=BoardFacts(
        vram=16 << 30,
        shader_engines=4,
        arrays_per_engine=2,
        wgps_per_array=4,
        channels=16,
        vector_registers=1536,
        smu_version=0x00685000,  # 104.80.0
        graphics_megahertz=2970,
        memory_megahertz=1258,
        power_limit=304,
    ),
)
