"""Adreno 640, as in the Snapdragon 855.

Sources: Mesa 25.0.7 src/freedreno/common/freedreno_devices.py, entry 640, and
src/freedreno/ir3/ir3_compiler.c (constants); chip id and gmem, Linux 7.3
drivers/gpu/drm/msm/adreno/a6xx_catalog.c.
"""

from __future__ import annotations

from ugpu.qcom.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="a640",
    gpu_id=640,
    chip_ids=(0x06040001,),
    generation=6,
    step=2,
    shader_processors=2,
    registers=96,
    wave_base=64,
    max_waves=16,
    wave_granularity=2,
    constants=256,
    local_memory=32 << 10,
    fibers=128 * 64,
    instruction_cache=64,
    gmem=1 << 20,
    highest_bank_bit=15,
    register_base=0x2C0_0000,
    products=("Snapdragon 855",),
    has_lpac=False,
    settings=(
        ("SP_DBG_ECO_CNTL", 0x0),
        ("TPL1_DBG_ECO_CNTL", 0x8000),
        ("SP_CHICKEN_BITS", 0x420),
        ("UCHE_UNKNOWN_0E12", 0x1),
        ("UCHE_CLIENT_PF", 0x4),
        ("HLSQ_DBG_ECO_CNTL", 0x0),
    ),
)
