"""Adreno 618, as in the Snapdragon 730.

Sources: Mesa 25.0.7 src/freedreno/common/freedreno_devices.py, entry 615, 616, 618 and 619, and
src/freedreno/ir3/ir3_compiler.c (constants); chip id and gmem, Linux 7.3
drivers/gpu/drm/msm/adreno/a6xx_catalog.c.
"""

from __future__ import annotations

from ugpu.qcom.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="a618",
    gpu_id=618,
    chip_ids=(0x06010800,),
    generation=6,
    step=1,
    shader_processors=1,
    registers=96,
    wave_base=64,
    max_waves=16,
    wave_granularity=2,
    constants=256,
    local_memory=32 << 10,
    fibers=128 * 16,
    instruction_cache=64,
    gmem=512 << 10,
    highest_bank_bit=14,
    register_base=0x500_0000,
    products=("Snapdragon 730",),
    has_lpac=False,
    settings=(
        ("SP_DBG_ECO_CNTL", 0x0),
        ("TPL1_DBG_ECO_CNTL", 0x108000),
        ("SP_CHICKEN_BITS", 0x430),
        ("UCHE_UNKNOWN_0E12", 0x1),
        ("UCHE_CLIENT_PF", 0x4),
        ("HLSQ_DBG_ECO_CNTL", 0x80000),
    ),
)
