"""Facts of GFX 11.0 boards: data only; the virtual chips read it too.

Sources are named at each group.
"""

from __future__ import annotations

from ugpu.am.chips.generations import Doorbells, FirmwareFile, GenerationFacts, SmuInterface
from ugpu.am.chips.gfx11_evidence import EVIDENCE

# Versions that the kernel drives with these headers (Linux 6.12 amdgpu_discovery.c; gfxhub_v3_0_3.c
# and mmhub_v3_0_2.c for the two whose translation registers are elsewhere). Thermal and SMUIO
# registers of these chips are those of 13.0.2 and 13.0.6 (smu_v13_0.c, smuio_v13_0_6.c). SDMA
# registers are part of GC's.
_TABLES = {
    "GC": {(11, 0, 0): "gc_11_0_0", (11, 0, 2): "gc_11_0_0", (11, 0, 3): "gc_11_0_3"},
    "MMHUB": {(3, 0, 0): "mmhub_3_0_0", (3, 0, 2): "mmhub_3_0_2"},
    "NBIF": {(4, 3, 0): "nbio_4_3_0", (4, 3, 1): "nbio_4_3_0"},
    "MP0": dict.fromkeys([(13, 0, 0), (13, 0, 7), (13, 0, 10)], "mp_13_0_0"),
    "MP1": dict.fromkeys([(13, 0, 0), (13, 0, 7), (13, 0, 10)], "mp_13_0_0"),
    "OSSSYS": dict.fromkeys([(6, 0, 0), (6, 0, 1), (6, 0, 2)], "osssys_6_0_0"),
    "HDP": dict.fromkeys([(6, 0, 0), (6, 0, 1)], "hdp_6_0_0"),
    "ATHUB": dict.fromkeys([(3, 0, 0), (3, 0, 2)], "athub_3_0_0"),  # athub_v3_0.c
    "SMUIO": dict.fromkeys([(13, 0, 6), (13, 0, 8)], "smuio_13_0_6"),
    "THM": dict.fromkeys([(13, 0, 6), (13, 0, 8)], "thm_13_0_2"),
}
# Typical base vectors (observed in discovery tables of gfx11 parts; SMUIO and THM after Linux 6.12
# include/yellow_carp_offset.h).
_GC_BASES = (0x1260, 0xA000, 0x1C000, 0x2402C00)
_MP_BASES = (0x16000, 0xDC0000, 0xE00000, 0xE40000, 0x243FC00)

# SmuInterface's last members, of the board's table (smu_v13_0_0_pptable.h, which 13.0.7 shares).
# The percentage is overdrive_table.min[SMU_13_0_0_ODSETTING_POWERPERCENTAGE].
_BOARD_TABLE = (29, 832, "SkuTable.FanAbnormalTempLimitOffset", "SkuTable", 527)

FACTS = GenerationFacts(
    name="gfx11",
    vendor=0x1002,
    class_code=0x030000,  # display controller, VGA compatible
    # Linux 6.12 amdgpu_device.c: BAR0/1 VRAM aperture, BAR2/3 doorbells, BAR5 registers. 256 MiB of
    # VRAM is what the card offers without Resizable BAR.
    vram_bar=0,
    doorbell_bar=2,
    register_bar=5,
    least_bars=((0, 256 << 20), (2, 4096), (5, 512 << 10)),
    by_clock=((5, 0x378C), (5, 0x448C), (5, 0x58244)),
    register_tables=_TABLES,
    wave_register_table="gc_11_0_0_indirect",  # SQ_WAVE_* by index, for all (gfx_v11_0.c)
    psp_mailbox="MP0_SMN_C2PMSG",
    hub_fault_status="L2_PROTECTION_FAULT_STATUS",
    copy_processor="F32_CNTL",
    doorbell_route="S2A_DOORBELL_ENTRY",
    evidence=EVIDENCE,
    naming_blocks=frozenset({"GC", "MP0", "MP1", "SDMA0"}),
    # Sensors come from the SMU; in ATHUB, ugpu changes only the gating of its clock.
    optional_blocks=frozenset({"SMUIO", "THM", "ATHUB"}),
    # Linux 6.12 include/soc15_hw_ip.h.
    hardware_ids={
        "MP1": 1,
        "THM": 3,
        "SMUIO": 4,
        "GC": 11,
        "MMHUB": 34,
        "ATHUB": 35,
        "OSSSYS": 40,
        "HDP": 41,
        "SDMA0": 42,
        "SDMA1": 43,
        "NBIF": 108,
        "MP0": 255,
    },
    typical_bases={
        "GC": _GC_BASES,
        "MMHUB": (0x1A000, 0x2408800),
        "NBIF": (0x0, 0x14, 0xD20, 0x10400, 0x241B000, 0x4040000),
        "MP0": _MP_BASES,
        "MP1": _MP_BASES,
        "OSSSYS": (0x10A0, 0x240A000),
        "HDP": (0xF20, 0x240A400),
        "ATHUB": (0xC00, 0x2408C00),
        "SDMA0": _GC_BASES,
        "SDMA1": _GC_BASES,
        "SMUIO": (0x16800, 0x16A00, 0x2401000, 0x440000),
        "THM": (0x16600, 0x2400C00),
    },
    # Linux 6.12 amdgpu_discovery.c: absolute indices.
    memory_size_register=0x0DE3,  # RCC_CONFIG_MEMSIZE: VRAM in MB
    ifwi_neighbours=(2, 48),  # to C2PMSG_35 and C2PMSG_81; all between are mailboxes
    ifwi_register=0x16061,  # MP0_SMN_C2PMSG_33, bit 31: the board's own firmware has finished
    discovery_version_register=0x16A00,
    ifwi_limit_s=2.0,  # the kernel waits 2000 times 1 ms
    # Linux 6.12 amdgpu_discovery.h: the discovery table lies this far below the end of VRAM.
    discovery_offset=0x10000,
    discovery_size=0x2800,
    reserved_vram=64 << 20,  # at the end of VRAM; firmware's own (TMR, discovery, bootloader)
    physical_bits=44,  # of a page table entry; Linux 6.12 gmc_v11_0.c: and of the DMA mask
    virtual_bits=48,
    # Linux 6.12 gfx_v11_0.c: one MEC of four pipes with four queues each.
    compute_pipes=4,
    queues_per_pipe=4,
    wave_size=32,
    local_memory=65536,
    max_threads_per_group=1024,
    scratch_waves_per_cu=32,  # 16 wave slots per SIMD, two SIMDs per CU
    clock_hertz=100e6,  # the counter RELEASE_MEM and SDMA write; gfx11 xclk
    # Linux 6.12 amdgpu_doorbell.h, NAVI10 assignment; soc21.c for the range of SDMA.
    doorbells=Doorbells(
        compute_ring0=0x003,
        compute_first=0x000,
        compute_last=0x08A,
        copy_engine0=0x100,
        copy_stride=0xA,
        copy_range=20,
    ),
    boot_time_tmr=False,  # amdgpu_psp.c, psp_early_init
    # linux-firmware, folder amdgpu/. The PSP's container usually has the TOC.
    firmware=(
        FirmwareFile("psp_{}_sos.bin", "MP0", kicker=True, marked=True),
        FirmwareFile("smu_{}.bin", "MP1", kicker=True, marked=True),
        FirmwareFile("gc_{}_toc.bin", "GC", optional=True),
        FirmwareFile("sdma_{}.bin", "SDMA0", headers=((2, 0),)),
        FirmwareFile("gc_{}_mec.bin", "GC"),
        FirmwareFile("gc_{}_imu.bin", "GC", kicker=True, marked=True),
        FirmwareFile("gc_{}_rlc.bin", "GC", kicker=True),
    ),
    secure_os_type=1,  # enum psp_fw_type, amdgpu_ucode.h
    toc_type=4,
    # Missing parts are skipped (Linux 6.12 amdgpu_psp.c): Navi31's and Navi33's have no drivers of
    # SoC, interface, debug and RAS, Navi32's no SPL (linux-firmware, September 2026). psp_v13_0.c
    # passes the key database to the SPL step too.
    boot_components=(
        ("key database", 0x80000, 3),
        ("security patch level", 0x10000000, 3),
        ("system driver", 0x10000, 2),
        ("SoC driver", 0xB0000, 7),
        ("interface driver", 0xD0000, 8),
        ("debug driver", 0xC0000, 9),
        ("RAS driver", 0xE0000, 10),
        ("secure OS", 0x20000, 1),
    ),
    boot_gates={0x10000000: 5},
    # Whether the bootloader reports a refused component in the low bits of C2PMSG_35 at once: the
    # kernel checks from PSP 13.0.6 on, for the server parts alone (psp_v13_0.c,
    # wait_for_bootloader).
    bootloader_tells_refusal=False,
    # Order of a recorded transcript of an existing user-space driver; RLC_G last (amdgpu_psp.c).
    ip_firmware=(
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
    ),
    smu_firmware=(18, "smu"),  # before the TMR (Linux 6.12 amdgpu_psp.c)
    mode2_firmware=("imu_i", "imu_d"),  # smu_v13_0_10.c; autoload starts the rest from the TMR
    # Linux 6.12 amdgpu_smu.c: 13.0.10 is driven by smu_v13_0_0_ppt.c. Another version only warns.
    smu_interfaces={
        (13, 0, 0): SmuInterface(
            "smu_v13_0_0_ppsmc", "smu13_driver_if_v13_0_0", 0x3D, *_BOARD_TABLE
        ),
        (13, 0, 7): SmuInterface(
            "smu_v13_0_7_ppsmc", "smu13_driver_if_v13_0_7", 0x35, *_BOARD_TABLE
        ),
        (13, 0, 10): SmuInterface(
            "smu_v13_0_0_ppsmc", "smu13_driver_if_v13_0_0", 0x3D, *_BOARD_TABLE
        ),
    },
    # DEBUGSMC_MSG_Mode1Reset (Linux commit 29b1b0b06def, tinygrad 0.14); the header of Linux 6.12
    # calls message 2 GetDebugData, smu_v13_0_0_ppt.c sends it to 13.0.10. UNSURE: whether 13.0.0
    # firmware of that age answers without a reset; a board with an SMU older than 78.100 would
    # settle it.
    smu_debug_mode1_message=2,
    # SMN address of MP1_FIRMWARE_FLAGS, bit 0: the SMU listens (smu_v13_0_check_fw_status).
    smu_firmware_flags=0x03B00000 | 0x03010024,
    mode1_quiet_s=0.5,  # no MMIO this long after mode1 (Linux 6.12 smu_v13_0.c)
)
