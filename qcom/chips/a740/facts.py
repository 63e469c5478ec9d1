"""Adreno 740, as in the Snapdragon 8 Gen 2.

Sources: Mesa 25.0.7 src/freedreno/common/freedreno_devices.py, entry FD740, and
src/freedreno/ir3/ir3_compiler.c (constants); chip id and gmem, Linux 7.3
drivers/gpu/drm/msm/adreno/a6xx_catalog.c.
"""

from __future__ import annotations

from ugpu.qcom.chips.facts import ChipFacts

FACTS = ChipFacts(
    name="a740",
    gpu_id=740,
    chip_ids=(0x43050A01,),
    generation=7,
    step=2,
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
    predication_nops=True,
    products=("Snapdragon 8 Gen 2",),
    has_lpac=True,
    wide_atomics=True,
    settings=(
        ("SP_DBG_ECO_CNTL", 0x10000000),
        ("TPL1_DBG_ECO_CNTL", 0x11100000),
        ("SP_CHICKEN_BITS", 0x10001400),
        ("UCHE_UNKNOWN_0E12", 0x0),
        ("UCHE_CLIENT_PF", 0x84),
        ("UCHE_CACHE_WAYS", 0x40004),
        ("TPL1_DBG_ECO_CNTL1", 0x40724),
        ("SP_UNKNOWN_AE08", 0x400),
        ("SP_UNKNOWN_AE09", 0x430800),
        ("SP_UNKNOWN_AE0A", 0x0),
        ("UCHE_UNKNOWN_0E10", 0x0),
        ("UCHE_UNKNOWN_0E11", 0x0),
        ("SP_UNKNOWN_AE6C", 0x0),
        ("SP_UNKNOWN_AE06", 0x0),
        ("SP_UNKNOWN_AE6A", 0x0),
        ("SP_UNKNOWN_AE6B", 0x80),
        ("SP_UNKNOWN_AE73", 0x0),
        ("SP_UNKNOWN_AB02", 0x0),
        ("SP_UNKNOWN_AB01", 0x0),
        ("SP_UNKNOWN_AB22", 0x0),
        ("SP_UNKNOWN_B310", 0x0),
    ),
)
