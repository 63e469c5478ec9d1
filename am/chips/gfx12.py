"""Facts that GFX 12.0 chips share; their virtual chips read them too.

Sources are named at each group. Versions of blocks: Linux 6.12 amdgpu_discovery.c. UNSURE: no
discovery table of a board is public. The bases are those of gfx11 parts, as another user-space
driver's model of a Navi44 has them, but for MP1's second one (see there).
"""

from __future__ import annotations

from ugpu.am.chips.generations import Doorbells, FirmwareFile, GenerationFacts, SmuInterface
from ugpu.am.chips.gfx12_evidence import EVIDENCE

# The kernel drives each of them with these headers. SDMA registers are part of GC's.
_TABLES = {
    "GC": {(12, 0, 0): "gc_12_0_0", (12, 0, 1): "gc_12_0_0"},
    "MMHUB": {(4, 1, 0): "mmhub_4_1_0"},
    "NBIF": {(6, 3, 1): "nbif_6_3_1"},
    "MP0": dict.fromkeys([(14, 0, 2), (14, 0, 3)], "mp_14_0_2"),
    "MP1": dict.fromkeys([(14, 0, 2), (14, 0, 3)], "mp_14_0_2"),
    "OSSSYS": {(7, 0, 0): "osssys_7_0_0"},
    "HDP": {(7, 0, 0): "hdp_7_0_0"},
    "ATHUB": {(4, 1, 0): "athub_4_1_0"},
    "SMUIO": {(14, 0, 2): "smuio_14_0_2"},
    "THM": dict.fromkeys([(14, 0, 2), (14, 0, 3)], "thm_14_0_2"),  # smu_v14_0.c
}
_GC_BASES = (0x1260, 0xA000, 0x1C000, 0x2402C00)
# Linux reaches the SMU's mailboxes as segment 1 + 0x82 (mp_14_0_2_offset.h), tinygrad on the same
# boards as segment 0 + 0x282 (its header of MP 11): so the second base is the first one + 0x200.
_MP_BASES = (0x16000, 0x16200, 0xE00000, 0xE40000, 0x243FC00)

FACTS = GenerationFacts(
    name="gfx12",
    vendor=0x1002,
    class_code=0x030000,  # display controller, VGA compatible
    # Linux 6.12 amdgpu_device.c: BAR0/1 VRAM aperture, BAR2/3 doorbells, BAR5 registers. 256 MiB of
    # VRAM is what the card offers without Resizable BAR.
    vram_bar=0,
    doorbell_bar=2,
    register_bar=5,
    least_bars=((0, 256 << 20), (2, 4096), (5, 512 << 10)),
    by_clock=((5, 0x378C), (5, 0x4484), (5, 0x58244)),
    register_tables=_TABLES,
    wave_register_table="gc_12_0_0_indirect",  # SQ_WAVE_* by index (gfx_v12_0.c)
    psp_mailbox="MPASP_SMN_C2PMSG",
    hub_fault_status="L2_PROTECTION_FAULT_STATUS_LO32",
    copy_processor="MCU_CNTL",
    doorbell_route="GDC_S2A0_S2A_DOORBELL_ENTRY",
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
    ifwi_neighbours=(2,),  # to C2PMSG_35; between it and C2PMSG_81 are places without a register
    ifwi_register=0x16061,  # mailbox 33, bit 31: the board's own firmware has finished
    discovery_version_register=0x16A00,
    ifwi_limit_s=2.0,  # the kernel waits 2000 times 1 ms
    # Linux 6.12 amdgpu_discovery.h: the discovery table lies this far below the end of VRAM.
    discovery_offset=0x10000,
    discovery_size=0x2800,
    reserved_vram=64 << 20,  # at the end of VRAM; firmware's own (TMR, discovery, bootloader)
    physical_bits=44,  # of a page table entry; Linux 6.12 gmc_v12_0.c: and of the DMA mask
    virtual_bits=48,
    # Linux 6.12 gfx_v12_0.c: one MEC of two pipes with four queues each.
    compute_pipes=2,
    queues_per_pipe=4,
    wave_size=32,
    local_memory=65536,
    max_threads_per_group=1024,
    scratch_waves_per_cu=32,  # 16 wave slots per SIMD, two SIMDs per CU
    clock_hertz=100e6,  # the counter RELEASE_MEM and SDMA write; the xclk of soc24.c
    # Linux 6.12 amdgpu_doorbell.h, NAVI10 assignment; nbif_v6_3_1.c for the range of SDMA.
    doorbells=Doorbells(
        compute_ring0=0x003,
        compute_first=0x000,
        compute_last=0x08A,
        copy_engine0=0x100,
        copy_stride=0xA,
        copy_range=20,
    ),
    boot_time_tmr=True,  # amdgpu_psp.c, psp_early_init
    # linux-firmware, folder amdgpu/. The PSP's container usually has the TOC.
    firmware=(
        FirmwareFile("psp_{}_sos.bin", "MP0", kicker=True, marked=True),
        FirmwareFile("smu_{}.bin", "MP1", kicker=True, marked=True),
        FirmwareFile("gc_{}_toc.bin", "GC", optional=True),
        FirmwareFile("sdma_{}.bin", "SDMA0", headers=((3, 0),)),
        FirmwareFile("gc_{}_pfp.bin", "GC"),
        FirmwareFile("gc_{}_me.bin", "GC"),
        FirmwareFile("gc_{}_mec.bin", "GC"),
        FirmwareFile("gc_{}_imu.bin", "GC", kicker=True, marked=True),
        FirmwareFile("gc_{}_rlc.bin", "GC", kicker=True),
    ),
    secure_os_type=1,  # enum psp_fw_type, amdgpu_ucode.h
    toc_type=4,
    # Linux 6.12 psp_v14_0.c; missing parts are skipped.
    boot_components=(
        ("key database", 0x80000, 3),
        ("security patch level", 0x10000000, 5),
        ("system driver", 0x10000, 2),
        ("SoC driver", 0xB0000, 7),
        ("interface driver", 0xD0000, 8),
        ("debug driver", 0xC0000, 9),
        ("RAS driver", 0xE0000, 10),
        ("IP key manager", 0xF0000, 11),
        ("secure OS", 0x20000, 1),
    ),
    boot_gates={},
    # psp_v14_0.c, wait_for_bootloader, looks at bit 31 alone.
    bootloader_tells_refusal=False,
    # Linux 6.12 amdgpu_psp.c: SDMA has one image, and the MEC's data one for each of two pipes
    # (gfx_v12_0.c); the RLC has no further parts. RLC_G is last. The engines of graphics, PFP and
    # ME, are loaded too: tinygrad, which uses none, loads them on boards of this generation alone.
    ip_firmware=(
        (71, "sdma_ucode_th0"),
        (87, "rs64_pfp"),
        (90, "rs64_pfp_p0_stack"),
        (88, "rs64_me"),
        (92, "rs64_me_p0_stack"),
        (89, "rs64_mec"),
        (94, "rs64_mec_p0_stack"),
        (95, "rs64_mec_p1_stack"),
        (68, "imu_i"),
        (69, "imu_d"),
        (26, "rlc_iram"),
        (48, "rlc_dram_boot"),
        (8, "rlc_g"),
    ),
    smu_firmware=(18, "smu"),  # after the TOC; there is no TMR to give (Linux 6.12 amdgpu_psp.c)
    mode2_firmware=(),  # smu_v14_0_2_ppt.c has no mode2
    # Linux 6.12 amdgpu_smu.c: both are driven by smu_v14_0_2_ppt.c. Another version only warns:
    # released firmware reports 0x32.
    smu_interfaces=dict.fromkeys(
        [(14, 0, 2), (14, 0, 3)],
        SmuInterface(
            messages="smu_v14_0_2_ppsmc",
            tables="smu14_driver_if_v14_0",
            version=0x2E,
            # smu_v14_0_2_pptable.h
            shutdown_place=43,
            pptable_place=1344,
            fan_offset="CustomSkuTable.FanAbnormalTempLimitOffset",
            power_limits="CustomSkuTable",
            power_floor_place=4124,  # SkuTable.OverDriveLimitsBasicMin.Ppt
        ),
    ),
    smu_debug_mode1_message=2,  # DEBUGSMC_MSG_Mode1Reset, smu_v14_0_2_ppt.c
    # SMN address of MP1_FIRMWARE_FLAGS, bit 0: the SMU listens (smu_v14_0_check_fw_status).
    smu_firmware_flags=0x03B00000 | 0x03010024,
    mode1_quiet_s=1.0,  # no MMIO this long after mode1 (smu_v14_0_2_mode1_reset)
)
