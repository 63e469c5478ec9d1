"""Facts of Navi31 (RX 7900 XTX/XT, gfx1100): data only, no behaviour; the virtual chip may read it.

Sources are named at each group. Bases and register indices are in dwords, sizes in bytes.
"""

from __future__ import annotations

NAME = "navi31"
ISA = "gfx1100"

# ---- PCI --------------------------------------------------------------------------------------
# PCI ID repository, vendor 1002 (AMD/ATI): Navi 31 [Radeon RX 7900 XT/7900 XTX/7900 GRE].
VENDOR = 0x1002
PCI_IDS = (0x744C,)
CLASS_CODE = 0x030000  # display controller, VGA compatible
# Linux 6.12 amdgpu_device.c: BAR0/1 VRAM aperture, BAR2/3 doorbells, BAR5 registers.
VRAM_BAR = 0
DOORBELL_BAR = 2
REGISTER_BAR = 5

# ---- IP blocks --------------------------------------------------------------------------------
# Versions as IP discovery states them for this chip (Linux 6.12 amdgpu_discovery.c cases).
IP_VERSIONS = {
    "GC": (11, 0, 0),
    "MMHUB": (3, 0, 0),
    "NBIF": (4, 3, 0),
    "MP0": (13, 0, 0),
    "MP1": (13, 0, 0),
    "OSSSYS": (6, 0, 0),
    "HDP": (6, 0, 0),
    "SDMA0": (6, 0, 0),
    "SMUIO": (13, 0, 6),
    "THM": (13, 0, 6),
}
# IP block -> table in am/regs. The kernel reads thermal and SMUIO registers of this chip by the
# headers of 13.0.2 and 13.0.6 (smu_v13_0.c, smuio_v13_0_6.c). SDMA registers are part of GC's.
REGISTER_TABLES = {
    "GC": "gc_11_0_0",
    "MMHUB": "mmhub_3_0_0",
    "NBIF": "nbio_4_3_0",
    "MP0": "mp_13_0_0",
    "MP1": "mp_13_0_0",
    "OSSSYS": "osssys_6_0_0",
    "HDP": "hdp_6_0_0",
    "SMUIO": "smuio_13_0_6",
    "THM": "thm_13_0_2",
}
WAVE_REGISTER_TABLE = "gc_11_0_0_indirect"  # SQ_WAVE_* by index
# Hardware ids in the discovery table (Linux 6.12 include/soc15_hw_ip.h).
HARDWARE_IDS = {
    "MP1": 1,
    "THM": 3,
    "SMUIO": 4,
    "GC": 11,
    "MMHUB": 34,
    "OSSSYS": 40,
    "HDP": 41,
    "SDMA0": 42,
    "SDMA1": 43,
    "NBIF": 108,
    "MP0": 255,
}
# Typical base vectors, one entry per segment (observed in discovery tables of gfx11 parts; SMUIO
# and THM after Linux 6.12 include/yellow_carp_offset.h). The driver uses discovery's alone.
TYPICAL_BASES = {
    "GC": (0x1260, 0xA000, 0x1C000, 0x2402C00),
    "MMHUB": (0x1A000, 0x2408800),
    "NBIF": (0x0, 0x14, 0xD20, 0x10400, 0x241B000, 0x4040000),
    "MP0": (0x16000, 0xDC0000, 0xE00000, 0xE40000, 0x243FC00),
    "MP1": (0x16000, 0xDC0000, 0xE00000, 0xE40000, 0x243FC00),
    "OSSSYS": (0x10A0, 0x240A000),
    "HDP": (0xF20, 0x240A400),
    "SDMA0": (0x1260, 0xA000, 0x1C000, 0x2402C00),
    "SDMA1": (0x1260, 0xA000, 0x1C000, 0x2402C00),
    "SMUIO": (0x16800, 0x16A00, 0x2401000, 0x440000),
    "THM": (0x16600, 0x2400C00),
}

# ---- registers needed before discovery (Linux 6.12 amdgpu_discovery.c), absolute dword indices
RCC_CONFIG_MEMSIZE = 0x0DE3  # VRAM in MB
MP0_SMN_C2PMSG_33 = 0x16061  # bit 31: the board's own firmware (IFWI) has finished
IP_DISCOVERY_VERSION = 0x16A00
IFWI_LIMIT_S = 2.0  # the kernel waits 2000 times 1 ms

# ---- memory -----------------------------------------------------------------------------------
# Linux 6.12 amdgpu_discovery.h: the discovery table lies this far below the end of VRAM.
DISCOVERY_OFFSET = 0x10000
DISCOVERY_SIZE = 0x2800
RESERVED_VRAM = 64 << 20  # at the end of VRAM; firmware's own (TMR, discovery, bootloader)
PHYSICAL_BITS = 44  # what a page table entry and the DMA mask can address
VIRTUAL_BITS = 48

# ---- geometry ---------------------------------------------------------------------------------
# Linux 6.12 gfx_v11_0.c: one MEC of four pipes with four queues each.
MEC_PIPES = 4
QUEUES_PER_PIPE = 4
SDMA_ENGINES = 2
WAVE_SIZE = 32
LDS_BYTES = 65536
MAX_THREADS_PER_GROUP = 1024
SCRATCH_WAVES_PER_CU = 32  # 16 wave slots per SIMD, two SIMDs per CU
CLOCK_HERTZ = 100e6  # the counter RELEASE_MEM and SDMA write; gfx11 xclk

# ---- doorbells (Linux 6.12 amdgpu_doorbell.h, NAVI10 assignment): index of 64-bit slots -------
DOORBELL_MEC_RING0 = 0x003
DOORBELL_MEC_FIRST = 0x000  # range that the MEC listens to: KIQ ...
DOORBELL_MEC_LAST = 0x08A  # ... to the last user queue
DOORBELL_SDMA_ENGINE0 = 0x100
DOORBELL_SDMA_STRIDE = 0xA
DOORBELL_SDMA_RANGE = 20  # dwords per engine (soc21.c)

# ---- firmware ---------------------------------------------------------------------------------
# linux-firmware, folder amdgpu/.
FIRMWARE_FILES = (
    "psp_13_0_0_sos.bin",
    "smu_13_0_0.bin",
    "gc_11_0_0_toc.bin",
    "sdma_6_0_0.bin",
    "gc_11_0_0_mec.bin",
    "gc_11_0_0_imu.bin",
    "gc_11_0_0_rlc.bin",
)
FIRMWARE_OPTIONAL = ("gc_11_0_0_toc.bin",)  # the SOS container usually has the TOC
SOS_TYPE = 1  # enum psp_fw_type, amdgpu_ucode.h
TOC_TYPE = 4
# Bootloader commands in order: (name, command written to C2PMSG_35, fw_type in the SOS container).
# Linux 6.12 psp_v13_0.c hands the key database to the SPL step too; missing parts are skipped.
BOOT_COMPONENTS = (
    ("key database", 0x80000, 3),
    ("security patch level", 0x10000000, 3),
    ("system driver", 0x10000, 2),
    ("SoC driver", 0xB0000, 7),
    ("interface driver", 0xD0000, 8),
    ("debug driver", 0xC0000, 9),
    ("RAS driver", 0xE0000, 10),
    ("secure OS", 0x20000, 1),
)
# Whether the bootloader shows a refused component in the low bits of C2PMSG_35 at once: from PSP
# 13.0.6 on (Linux 6.12 psp_v13_0.c, wait_for_bootloader).
BOOTLOADER_TELLS_REFUSAL = False
# Images sent by LOAD_IP_FW after the TMR, in order: (psp_gfx_fw_type, name of the part in our
# parsed set). Order of a recorded transcript of an existing user-space driver; RLC_G last (Linux
# 6.12 amdgpu_psp.c).
IP_FIRMWARE = (
    (72, "sdma_ucode_th1"),
    (71, "sdma_ucode_th0"),
    (89, "rs64_mec"),
    (94, "rs64_mec_p0_stack"),
    (95, "rs64_mec_p1_stack"),
    (96, "rs64_mec_p2_stack"),
    (97, "rs64_mec_p3_stack"),
    (68, "imu_i"),
    (69, "imu_d"),
    (26, "rlc_iram"),
    (48, "rlc_dram_boot"),
    (25, "rlc_p"),
    (7, "rlc_v"),
    (8, "rlc_g"),
)
SMU_FIRMWARE = (18, "smu")  # before the TMR on MP0 13.0.0 (Linux 6.12 amdgpu_psp.c)
SMU_DRIVER_IF_VERSION = 0x3D  # Linux 6.12 smu13_driver_if_v13_0_0.h; another only warns
SMU_MODE1_SINCE = 0x4E2900  # firmware 78.41 (smu_v13_0_0_ppt.c)
SMU_MODE1_MESSAGE = 0x2F  # PPSMC_MSG_Mode1Reset, smu_v13_0_0_ppsmc.h
# DEBUGSMC_MSG_Mode1Reset (Linux commit 29b1b0b06def, tinygrad 0.14); the header of Linux 6.12 calls
# message 2 GetDebugData. UNSURE: that firmware of that age answers and does not reset; a board with
# an SMU older than 78.100 would settle it.
SMU_DEBUG_MODE1_MESSAGE = 2
# SMN address of MP1_FIRMWARE_FLAGS, bit 0: the SMU's firmware listens (smu_v13_0_check_fw_status).
SMU_FIRMWARE_FLAGS = 0x03B00000 | 0x03010024
MODE1_QUIET_S = 0.5  # no MMIO this long after mode1 (Linux 6.12 smu_v13_0.c)
