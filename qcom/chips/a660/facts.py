"""Adreno 660, as in the Snapdragon 888.

Sources: Mesa 25.0.7 src/freedreno/common/freedreno_devices.py, entry 660, and
src/freedreno/ir3/ir3_compiler.c (constants); chip id and gmem, Linux 7.3
drivers/gpu/drm/msm/adreno/a6xx_catalog.c.
"""

from __future__ import annotations

from ugpu.qcom.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="a660",
    gpu_id=660,
    chip_ids=(0x06060001,),
    generation=6,
    step=4,
    shader_processors=3,
    registers=64,
    wave_base=64,
    max_waves=16,
    wave_granularity=2,
    constants=256,
    local_memory=32 << 10,
    fibers=128 * 32,
    instruction_cache=127,
    gmem=3 << 19,
    highest_bank_bit=16,
    scalar_unit=True,
    predication_nops=True,
    products=("Snapdragon 888",),
    has_lpac=True,
    settings=(
        ("SP_DBG_ECO_CNTL", 0x1000000),
        ("TPL1_DBG_ECO_CNTL", 0x5008000),
        ("SP_CHICKEN_BITS", 0x1400),
        ("UCHE_UNKNOWN_0E12", 0x1),
        ("UCHE_CLIENT_PF", 0x84),
        ("HLSQ_DBG_ECO_CNTL", 0x0),
    ),
)
