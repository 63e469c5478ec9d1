"""Adreno 630, as in the Snapdragon 845.

Sources: Mesa 25.0.7 src/freedreno/common/freedreno_devices.py, entry 630, and
src/freedreno/ir3/ir3_compiler.c (constants); chip id and gmem, Linux 7.3
drivers/gpu/drm/msm/adreno/a6xx_catalog.c.
"""

from __future__ import annotations

from ugpu.qcom.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="a630",
    gpu_id=630,
    chip_ids=(0x06030001, 0x06030002),
    generation=6,
    step=1,
    shader_processors=2,
    registers=96,
    wave_base=64,
    max_waves=16,
    wave_granularity=2,
    constants=256,
    local_memory=32 << 10,
    fibers=128 * 16,
    instruction_cache=64,
    gmem=1 << 20,
    highest_bank_bit=15,
    register_base=0x500_0000,
    products=("Snapdragon 845",),
    has_lpac=False,
    settings=(
        ("SP_DBG_ECO_CNTL", 0x0),
        ("TPL1_DBG_ECO_CNTL", 0x108000),
        ("SP_CHICKEN_BITS", 0x1430),
        ("UCHE_UNKNOWN_0E12", 0x10000001),
        ("UCHE_CLIENT_PF", 0x4),
        ("HLSQ_DBG_ECO_CNTL", 0x80000),
    ),
)
