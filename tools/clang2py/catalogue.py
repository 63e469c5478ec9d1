"""What is generated from which header, and what is known to be wrong in the headers.

Paths are relative to a Linux source tree. A table is named after the version its header carries; which version of
a block a chip has is a fact of the chip (am/chips/*/facts.py), not of this file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.clang2py.registers import RegisterSource

AMD = "drivers/gpu/drm/amd"
ASIC_REG = f"{AMD}/include/asic_reg"


@dataclass(frozen=True)
class RegisterTable:
    """One table of registers: the block's headers without `_offset.h`/`_sh_mask.h`, and the macros' prefix."""

    name: str
    headers: str
    prefix: str = "reg"
    source: RegisterSource = field(default_factory=RegisterSource)


REGISTER_TABLES = (
    RegisterTable(
        "gc_11_0_0",
        f"{ASIC_REG}/gc/gc_11_0_0",
        source=RegisterSource(
            # The mask says bits 25 and 26, the shift says 27.
            wrong_shifts=("GL1C_UTCL0_CNTL1__FORCE_IN_ORDER",),
            # UNSURE: the registers around it are all in segment 1; reading it on a chip would settle it.
            missing_segments={"GFX_IMU_FUSESTRAP": 1},
        ),
    ),
    # Behind SQ_IND_INDEX and its kind: wave state, per-SE counters. The offset is an index, the segment is void.
    RegisterTable(
        "gc_11_0_0_indirect",
        f"{ASIC_REG}/gc/gc_11_0_0",
        prefix="ix",
    ),
    RegisterTable("mmhub_3_0_0", f"{ASIC_REG}/mmhub/mmhub_3_0_0"),
    RegisterTable(
        "nbio_4_3_0",
        f"{ASIC_REG}/nbio/nbio_4_3_0",
        # This field has a mask and no shift at all.
        source=RegisterSource(
            wrong_shifts=("PCIE_LC_RXRECOVER_RXSTANDBY_CNTL__LC_RX_L0S_STANDBY_EN",)
        ),
    ),
    RegisterTable("mp_13_0_0", f"{ASIC_REG}/mp/mp_13_0_0"),
    RegisterTable("osssys_6_0_0", f"{ASIC_REG}/oss/osssys_6_0_0"),
    RegisterTable("hdp_6_0_0", f"{ASIC_REG}/hdp/hdp_6_0_0"),
    # The header the kernel's own gfx 11.0 code uses (amdgpu/gfx_v11_0.c).
    RegisterTable("smuio_13_0_6", f"{ASIC_REG}/smuio/smuio_13_0_6"),
    # The only thm 13 header there is; the kernel reads temperatures of gfx 11 through the SMU.
    RegisterTable("thm_13_0_2", f"{ASIC_REG}/thm/thm_13_0_2"),
)
