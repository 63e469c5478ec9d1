"""The tables, their headers, and known errors in the headers.

Paths are relative to a Linux source tree. A table is named after the version its header carries;
which version of a block a chip has is a fact of the chip (am/chips/*/facts.py), not of this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ugpu.tools.clang2py.registers import RegisterSource

#: The Debian package the headers come from; its point releases replace each other, so no version.
PACKAGE = "linux-source-6.12"

AMD = "drivers/gpu/drm/amd"
ASIC_REG = f"{AMD}/include/asic_reg"
POWER = f"{AMD}/pm/swsmu/inc/pmfw_if"
SOURCES = f"{AMD}/include/ivsrcid"
UAPI = "include/uapi"

AMD_FOLDER = "am/regs"
UAPI_FOLDER = "hcq/uapi"

AMD_LICENCE = "Facts (c) Advanced Micro Devices, Inc., under the MIT licence."
UAPI_LICENCE = "Facts of the Linux user-space interface, GPL-2.0 WITH Linux-syscall-note."

TYPES = "#include <linux/types.h>\n"
KERNEL_SIZE = "typedef unsigned long __kernel_size_t;\n"


@dataclass(frozen=True)
class RegisterTable:
    """One table of registers; `headers` lacks `_offset.h` and `_sh_mask.h`."""

    name: str
    headers: str
    prefix: str = "reg"
    source: RegisterSource = field(default_factory=RegisterSource)

    @property
    def inputs(self) -> tuple[str, str]:
        """The two headers."""
        return f"{self.headers}_offset.h", f"{self.headers}_sh_mask.h"


@dataclass(frozen=True)
class HeaderTable:
    """The structures and constants of one C header."""

    name: str
    header: str
    folder: str = AMD_FOLDER
    licence: str = AMD_LICENCE
    before: str = TYPES
    #: further headers that the header includes: they count as inputs
    includes: Sequence[str] = ()
    include_folder: str = ""
    #: only names and numbers: the header includes kernel internals
    names_only: bool = False
    #: structures of the kernel's own memory, without meaning outside of it
    leave_out: Sequence[str] = ()
    word_bits: int = 32
    #: structure -> size in bytes, from the interface's description: a wrong variant stops here
    sizes: tuple[tuple[str, int], ...] = ()
    #: SDMA packet headers describe packets by macros and comments
    packets: bool = False
    #: whether editors get a stub of its names
    completed: bool = True

    @property
    def inputs(self) -> tuple[str, ...]:
        """The header and its includes."""
        return (self.header, *self.includes)


REGISTER_TABLES = (
    RegisterTable(
        "gc_11_0_0",
        f"{ASIC_REG}/gc/gc_11_0_0",
        source=RegisterSource(
            # The mask has bits 25 and 26, the shift is 27.
            wrong_shifts=("GL1C_UTCL0_CNTL1__FORCE_IN_ORDER",),
            missing_masks=(
                "SQ_CONFIG__DISABLE_SGPR_RD_KILL",
                "SQ_CONFIG__WCLK_HYSTERESIS_CNT",
            ),
            # As in gc_11_0_3_offset.h.
            missing_segments={"GFX_IMU_FUSESTRAP": 1},
        ),
    ),
    # Behind SQ_IND_INDEX and its kind: wave state, counters of shader engines. The offset is an
    # index, the segment has no meaning.
    RegisterTable("gc_11_0_0_indirect", f"{ASIC_REG}/gc/gc_11_0_0", prefix="ix"),
    # GC 11.0.3 has its translation registers (GCVM, GCMC) elsewhere: amdgpu/gfxhub_v3_0_3.c.
    RegisterTable("gc_11_0_3", f"{ASIC_REG}/gc/gc_11_0_3"),
    RegisterTable("athub_3_0_0", f"{ASIC_REG}/athub/athub_3_0_0"),
    RegisterTable("mmhub_3_0_0", f"{ASIC_REG}/mmhub/mmhub_3_0_0"),
    RegisterTable("mmhub_3_0_2", f"{ASIC_REG}/mmhub/mmhub_3_0_2"),
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
    # The header that the kernel's own gfx 11.0 code uses (amdgpu/gfx_v11_0.c).
    RegisterTable("smuio_13_0_6", f"{ASIC_REG}/smuio/smuio_13_0_6"),
    # The only thm 13 header there is; on gfx 11 the kernel asks the SMU for temperatures.
    RegisterTable("thm_13_0_2", f"{ASIC_REG}/thm/thm_13_0_2"),
    # GFX 12: amdgpu/gfx_v12_0.c, sdma_v7_0.c (both engines are in GC's table), gfxhub_v12_0.c.
    RegisterTable(
        "gc_12_0_0",
        f"{ASIC_REG}/gc/gc_12_0_0",
        # As its neighbours, and as in GC 11.
        source=RegisterSource(missing_segments={"RLC_RLCS_DSM_TRIG": 1}),
    ),
    RegisterTable(
        "gc_12_0_0_indirect",
        f"{ASIC_REG}/gc/gc_12_0_0",
        prefix="ix",
        source=RegisterSource(too_wide=("PACKER_CONTROL__Rsvd_63_8",)),
    ),
    RegisterTable("athub_4_1_0", f"{ASIC_REG}/athub/athub_4_1_0"),
    RegisterTable(
        "mmhub_4_1_0",
        f"{ASIC_REG}/mmhub/mmhub_4_1_0",
        # Of registers that the kernel does not use, except two fields of MMVM_L2_CNTL5.
        source=RegisterSource(
            missing_masks=("DAGB?_*", "PCTL_STATUS__*", "MMVM_L2_CNTL5__UTCL2_*")
        ),
    ),
    RegisterTable("nbif_6_3_1", f"{ASIC_REG}/nbif/nbif_6_3_1"),
    RegisterTable("mp_14_0_2", f"{ASIC_REG}/mp/mp_14_0_2"),
    RegisterTable("osssys_7_0_0", f"{ASIC_REG}/oss/osssys_7_0_0"),
    RegisterTable("hdp_7_0_0", f"{ASIC_REG}/hdp/hdp_7_0_0"),
    RegisterTable(
        "smuio_14_0_2",
        f"{ASIC_REG}/smuio/smuio_14_0_2",
        source=RegisterSource(
            missing_masks=("CKSVII2C*", "ROM_CNTL__*", "SMUIO_MCM_CONFIG__DIE_CONFIG")
        ),
    ),
    RegisterTable("thm_14_0_2", f"{ASIC_REG}/thm/thm_14_0_2"),
)

HEADER_TABLES = (
    HeaderTable(
        "discovery",
        f"{AMD}/include/discovery.h",
        # Without this macro the header silently omits its bitfields.
        before=TYPES + "#define LITTLEENDIAN_CPU 1\n",
        sizes=(
            ("ip_v4", 8),
            ("ip_v3", 8),
            ("binary_header", 60),
            ("ip_discovery_header", 80),
            ("die_header", 4),
        ),
    ),
    HeaderTable(
        "psp_gfx_if",
        f"{AMD}/amdgpu/psp_gfx_if.h",
        sizes=(("psp_gfx_cmd_resp", 1024), ("psp_gfx_rb_frame", 64), ("psp_gfx_ctrl", 32)),
    ),
    HeaderTable(
        "amdgpu_ucode",
        f"{AMD}/amdgpu/amdgpu_ucode.h",
        includes=(f"{AMD}/amdgpu/amdgpu_socbb.h",),
        before=TYPES + "#define __printf(a, b)\nstruct mutex { int unused; };\n",
        leave_out=("amdgpu_firmware", "amdgpu_firmware_info", "kicker_device"),
        sizes=(
            ("common_firmware_header", 32),
            ("psp_fw_bin_desc", 16),
            ("gfx_firmware_header_v2_0", 60),
            ("sdma_firmware_header_v2_0", 64),
            ("rlc_firmware_header_v2_3", 204),
            ("imu_firmware_header_v1_0", 48),
        ),
    ),
    HeaderTable(
        "v11_structs",
        f"{AMD}/include/v11_structs.h",
        sizes=(("v11_compute_mqd", 2048), ("v11_gfx_mqd", 2048), ("v11_sdma_mqd", 512)),
    ),
    HeaderTable(
        "v12_structs",
        f"{AMD}/include/v12_structs.h",
        sizes=(("v12_compute_mqd", 2048), ("v12_gfx_mqd", 2048), ("v12_sdma_mqd", 512)),
    ),
    HeaderTable("mes_v11_api_def", f"{AMD}/include/mes_v11_api_def.h"),
    HeaderTable("mes_v12_api_def", f"{AMD}/include/mes_v12_api_def.h"),
    HeaderTable("smu_v13_0_0_ppsmc", f"{POWER}/smu_v13_0_0_ppsmc.h"),
    HeaderTable("smu13_driver_if_v13_0_0", f"{POWER}/smu13_driver_if_v13_0_0.h"),
    HeaderTable("smu_v13_0_7_ppsmc", f"{POWER}/smu_v13_0_7_ppsmc.h"),
    HeaderTable("smu13_driver_if_v13_0_7", f"{POWER}/smu13_driver_if_v13_0_7.h"),
    HeaderTable("smu_v14_0_2_ppsmc", f"{POWER}/smu_v14_0_2_ppsmc.h"),
    HeaderTable("smu14_driver_if_v14_0", f"{POWER}/smu14_driver_if_v14_0.h"),
    HeaderTable("soc15_hw_ip", f"{AMD}/include/soc15_hw_ip.h"),
    HeaderTable("soc15_ih_clientid", f"{AMD}/include/soc15_ih_clientid.h"),
    # 11,000 names, of which a compute driver needs a dozen: no stub, which would be half a
    # megabyte.
    HeaderTable("soc21_enum", f"{AMD}/include/soc21_enum.h", completed=False),
    HeaderTable("irqsrcs_gfx_11_0_0", f"{SOURCES}/gfx/irqsrcs_gfx_11_0_0.h"),
    HeaderTable("irqsrcs_sdma0_5_0", f"{SOURCES}/sdma0/irqsrcs_sdma0_5_0.h"),
    HeaderTable("irqsrcs_vmc_1_0", f"{SOURCES}/vmc/irqsrcs_vmc_1_0.h"),
    HeaderTable("nvd", f"{AMD}/amdgpu/nvd.h"),
    HeaderTable(
        "sdma_v6_0_0_pkt_open",
        f"{AMD}/amdgpu/sdma_v6_0_0_pkt_open.h",
        packets=True,
        sizes=(("SDMA_PKT_COPY_LINEAR", 28), ("SDMA_PKT_FENCE", 16), ("SDMA_PKT_TRAP", 8)),
    ),
    HeaderTable("amdgpu_doorbell", f"{AMD}/amdgpu/amdgpu_doorbell.h", names_only=True),
    HeaderTable("amdgpu_vm", f"{AMD}/amdgpu/amdgpu_vm.h", names_only=True, word_bits=64),
    HeaderTable(
        "vfio",
        f"{UAPI}/linux/vfio.h",
        folder=UAPI_FOLDER,
        licence=UAPI_LICENCE,
        includes=(f"{UAPI}/linux/ioctl.h", f"{UAPI}/asm-generic/ioctl.h"),
        include_folder=UAPI,
        sizes=(("vfio_device_info", 24), ("vfio_region_info", 32), ("vfio_irq_set", 20)),
    ),
    HeaderTable("pci_regs", f"{UAPI}/linux/pci_regs.h", folder=UAPI_FOLDER, licence=UAPI_LICENCE),
    HeaderTable(
        "msm_drm",
        f"{UAPI}/drm/msm_drm.h",
        folder=UAPI_FOLDER,
        licence=UAPI_LICENCE,
        before=TYPES + KERNEL_SIZE,
        includes=(f"{UAPI}/drm/drm.h", f"{UAPI}/drm/drm_mode.h"),
        include_folder=UAPI,
        sizes=(("drm_msm_param", 24), ("drm_msm_gem_new", 16), ("drm_msm_gem_submit", 72)),
    ),
)


@dataclass(frozen=True)
class Plan:
    """The output of one run; register tables are in the first folder."""

    folders: tuple[str, ...]
    registers: tuple[RegisterTable, ...]
    headers: tuple[HeaderTable, ...]

    def inputs(self, folder: str | None = None) -> tuple[str, ...]:
        """All headers, or those of one folder's tables, in order."""
        paths: list[str] = []
        if folder in (None, self.folders[0]):
            paths += [path for table in self.registers for path in table.inputs]
        for header in self.headers:
            if folder in (None, header.folder):
                paths += header.inputs
        return tuple(dict.fromkeys(paths))


PLAN = Plan((AMD_FOLDER, UAPI_FOLDER), REGISTER_TABLES, HEADER_TABLES)
