"""Adreno X1-85, as in the Snapdragon X Elite.

Sources: Mesa 25.0.7 src/freedreno/common/freedreno_devices.py, entry Adreno X1-85, and
src/freedreno/ir3/ir3_compiler.c (constants); chip id and gmem, Linux 7.3
drivers/gpu/drm/msm/adreno/a6xx_catalog.c.
Its constant file has half the usual size (compute_constlen_quirk).
"""

from __future__ import annotations

from qcom.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="x185",
    gpu_id=0,
    chip_ids=(0x43050C01,),
    generation=7,
    step=2,
    shader_processors=6,
    registers=96,
    wave_base=64,
    max_waves=16,
    wave_granularity=2,
    constants=256,
    local_memory=32 << 10,
    fibers=128 * 32,
    instruction_cache=127,
    gmem=3 << 20,
    highest_bank_bit=16,
    scalar_unit=True,
    products=("Snapdragon X Elite",),
)
