"""Synthetic firmware of GFX 12.0 chips, in the formats of linux-firmware.

Facts: headers of the files of linux-firmware, September 2026: SDMA 3.0, RLC 2.2, one uni_mes image
for both pipes of the scheduler; Linux 6.12 psp_v14_0.c (parts of the PSP's container).
"""

from __future__ import annotations

import struct
from functools import cache

from ugpu.am.chips.facts import ChipFacts
from ugpu.virtual.amd.firmware.images import (
    ARRAY,
    BOOT_PARTS,
    FIRMWARE_TYPES,
    SPL,
    Maker,
    firmware_file,
    imu,
    labelled,
    processor,
    psp,
    scheduler,
    smu,
    toc,
    trusted,
)
from ugpu.virtual.amd.firmware.interface import FirmwareInterface, LoaderStep

# Of MES. From 0x5A on it takes REMOVE_QUEUE after a reset (mes_v12_0.c); linux-firmware had 0x76 in
# April 2025 and 0x93 in September 2026. UNSURE: otherwise invented; from interface 2 on write
# pointers are MC addresses.
SCHEDULER = 2 << 12 | 0x6E
_PARTS = (*BOOT_PARTS, SPL, ("IPKEYMGR_DRV", 11, 0x2100))


def _sdma(maker: Maker) -> bytes:
    """Build SDMA, header 3.0: one image."""
    image = maker.image("SDMA_TH0", 0x5100)
    extension = struct.pack("<III", 60, ARRAY, len(image))
    return firmware_file((3, 0), extension, image, len(image))


def _rlc(maker: Maker) -> bytes:
    """Build RLC, header 2.2: RLC_G, then IRAM and DRAM at offsets in the file."""
    parts = [
        maker.image(kind, size)
        for kind, size in (("RLC_G", 0x5700), ("RLC_IRAM", 0x3300), ("RLC_DRAM", 0x1D00))
    ]
    extension = bytearray(172 - 32)
    place = ARRAY
    for field, part in zip((None, 156, 164), parts, strict=True):
        if field is not None:
            struct.pack_into("<II", extension, field - 32, len(part), place)
        place += len(part)
    return firmware_file((2, 2), bytes(extension), b"".join(parts), len(parts[0]))


@cache
def _files(seed: int, secure_os: int) -> tuple[tuple[str, str, bytes], ...]:
    """Build the files: the pattern of each one's name, the block that it is for, the content.
    secure_os: its version."""
    maker = Maker(seed)
    return (
        ("psp_{}_sos.bin", "MP0", psp(maker, _PARTS, secure_os)),
        ("smu_{}.bin", "MP1", smu(maker)),
        ("sdma_{}.bin", "SDMA0", _sdma(maker)),
        ("gc_{}_toc.bin", "GC", toc(maker)),
        # From version 2090 on it does not need PCIe atomics (kfd_device.c).
        ("gc_{}_mec.bin", "GC", processor(maker, "RS64_MEC", 0x7100, 0xD00)),
        ("gc_{}_pfp.bin", "GC", processor(maker, "RS64_PFP", 0x3500)),
        ("gc_{}_me.bin", "GC", processor(maker, "RS64_ME", 0x2F00)),
        ("gc_{}_imu.bin", "GC", imu(maker)),
        ("gc_{}_rlc.bin", "GC", _rlc(maker)),
        ("psp_{}_ta.bin", "MP0", trusted(maker)),
        ("gc_{}_uni_mes.bin", "GC", scheduler(maker, "MES", SCHEDULER)),
    )


def synthetic_set(facts: ChipFacts, seed: int = 0) -> dict[str, bytes]:
    """Build all files that a chip's bring-up needs, keyed by their linux-firmware names."""
    return labelled(facts, _files(seed, facts.reservations_since))


FIRMWARE = FirmwareInterface(
    # psp_v14_0.c. tinygrad's AM driver does not load the key manager, and boots boards.
    loader=(
        LoaderStep(0x80000, ("KDB",)),
        LoaderStep(0x1000_0000, ("SPL",), optional=True),
        LoaderStep(0x10000, ("SYS_DRV",)),
        LoaderStep(0xB0000, ("SOC_DRV",)),
        LoaderStep(0xD0000, ("INTF_DRV",)),
        LoaderStep(0xC0000, ("DBG_DRV",)),
        LoaderStep(0xE0000, ("RAS_DRV",), optional=True),
        LoaderStep(0xF0000, ("IPKEYMGR_DRV",), optional=True),
        LoaderStep(0x20000, ("SOS",)),
    ),
    types={**FIRMWARE_TYPES, 81: "MES", 82: "MES_STACK"},  # one image for both pipes
    # UNSURE: whether RLC waits for the images of PFP and ME on a board used for compute alone.
    # tinygrad's AM driver, which loads no image without need, loads them from GFX 12 on.
    needed=frozenset({
        "SMU", "SDMA_TH0", "RS64_PFP", "RS64_PFP_STACK", "RS64_ME", "RS64_ME_STACK", "RS64_MEC",
        "RS64_MEC_STACK", "IMU_I", "IMU_D", "RLC_IRAM", "RLC_DRAM", "RLC_G",
    }),
    again=frozenset(),  # there is no mode2 (smu_v14_0_2_ppt.c)
    secure_os_version=0,
    files=synthetic_set,
    own_region=True,
)  # fmt: skip
