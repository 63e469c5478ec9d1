"""Adreno 750, as in the Snapdragon 8 Gen 3.

Sources: Mesa 25.0.7 src/freedreno/common/freedreno_devices.py, entry FD750, and
src/freedreno/ir3/ir3_compiler.c (constants); chip id and gmem, Linux 7.3
drivers/gpu/drm/msm/adreno/a6xx_catalog.c.
"""

from __future__ import annotations

from qcom.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="a750",
    gpu_id=750,
    chip_ids=(0x43051401,),
    generation=7,
    step=3,
    shader_processors=6,
    registers=96,
    wave_base=64,
    max_waves=16,
    wave_granularity=2,
    constants=512,
    local_memory=32 << 10,
    fibers=128 * 32,
    instruction_cache=127,
    gmem=3 << 20,
    highest_bank_bit=16,
    scalar_unit=True,
    products=("Snapdragon 8 Gen 3",),
)
