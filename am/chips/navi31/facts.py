"""Navi31: RX 7900 XTX, XT and GRE.

Sources: PCI ids, PCI ID repository; versions of blocks, clock gates, Linux 6.12 amdgpu_discovery.c,
soc21.c; mode1, smu_v13_0_0_ppt.c; geometry, memory and clocks, a Radeon RX 7900 XTX.
"""

from __future__ import annotations

from ugpu.am.chips.facts import BoardFacts, ChipFacts
from ugpu.am.chips.gfx11 import FACTS as GFX11

FACTS = ChipFacts(
    name="navi31",
    title="Navi31",
    isa="gfx1100",
    generation=GFX11,
    pci_ids=(0x744C,),
    products=("RX 7900 XTX", "RX 7900 XT", "RX 7900 GRE"),
    versions={
        "GC": (11, 0, 0),
        "MMHUB": (3, 0, 0),
        "NBIF": (4, 3, 0),
        "MP0": (13, 0, 0),
        "MP1": (13, 0, 0),
        "OSSSYS": (6, 0, 0),
        "HDP": (6, 0, 0),
        "ATHUB": (3, 0, 0),
        "SDMA0": (6, 0, 0),
        "SMUIO": (13, 0, 6),
        "THM": (13, 0, 6),
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
            "IH_CG",
            "HDP_SD",
        ]
    ),
    mode1_since=0x4E2900,  # 78.41
    marks={"psp_{}_sos.bin": 0x31, "smu_{}.bin": 0x4E, "gc_{}_imu.bin": 0xB1F},
    kickers=frozenset({(0x744B, 0x00)}),  # Linux after 6.12, amdgpu_ucode.c, kicker_device_list
    board=BoardFacts(
        vram=24 << 30,
        shader_engines=6,
        arrays_per_engine=2,
        wgps_per_array=4,
        channels=24,
        vector_registers=1536,
        smu_version=0x004E7500,  # 78.117.0
        graphics_megahertz=2526,
        memory_megahertz=1249,
        power_limit=339,
    ),
)
