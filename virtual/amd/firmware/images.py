"""Firmware for the virtual chip: generated at run time in the vendor's file formats, and signed.

The files have the formats of linux-firmware. Each image inside carries a header in the style of the
security processor's ("$PS1") and a keyed digest that only this model creates and checks. Facts:
Linux 6.12 amdgpu_ucode.h (file headers), amdgpu_ucode.c (where each part begins).
"""

from __future__ import annotations

import hashlib
import random
import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import cache

from ugpu.am.chips.facts import ChipFacts

HEADER = 256
_DIGEST = 256  # bytes reserved for the digest, which itself has 64 bytes
_MAGIC = b"$PS1"
_KEY = b"virtual cards: the vendor's key"
ARRAY = 256  # ucode_array_offset_bytes of all these files
VERSION = 0x0013_0042  # of all images
# Of GFX 11's MES. Bits 11:0 are the firmware's version, 23:12 the version of its interface
# (amdgpu_mes.h). From 0x47 on it maps the kernel's queues itself. UNSURE: otherwise invented; from
# interface 2 on write pointers are MC addresses.
SCHEDULER = 2 << 12 | 0x4B
_BLOCK = 12  # place of ip_version_major and ip_version_minor in a file
MEC_START = 0x3000  # byte address at which the MEC's program begins (ucode_start_addr)
# Bootloader components: (kind, fw_type in the SOS container, bytes of body).
BOOT_PARTS = (
    ("KDB", 3, 0x1A00),
    ("TOC", 4, 0x700),
    ("SYS_DRV", 2, 0x6300),
    ("SOC_DRV", 7, 0x4D00),
    ("INTF_DRV", 8, 0x2B00),
    ("DBG_DRV", 9, 0x1900),
    ("RAS_DRV", 10, 0x3500),
    ("SOS", 1, 0xD500),
)

SPL = ("SPL", 5, 0x1C00)
_WITHOUT_SPL = (13, 0, 10)  # MP0 whose container has none (linux-firmware, September 2026)

# psp_gfx_fw_type -> kind of image.
FIRMWARE_TYPES = {
    7: "RLC_V",
    8: "RLC_G",
    18: "SMU",
    25: "RLC_P",
    26: "RLC_IRAM",
    33: "MES",
    34: "MES_STACK",
    48: "RLC_DRAM",
    68: "IMU_I",
    69: "IMU_D",
    71: "SDMA_TH0",
    72: "SDMA_TH1",
    81: "MES_KIQ",
    82: "MES_KIQ_STACK",
    87: "RS64_PFP",
    88: "RS64_ME",
    89: "RS64_MEC",
    90: "RS64_PFP_STACK",
    91: "RS64_PFP_STACK",
    92: "RS64_ME_STACK",
    93: "RS64_ME_STACK",
    94: "RS64_MEC_STACK",
    95: "RS64_MEC_STACK",
    96: "RS64_MEC_STACK",
    97: "RS64_MEC_STACK",
}
# All kinds that a fault plan can make the PSP refuse.
FIRMWARE_KINDS = frozenset({
    "ASD", SPL[0], "IPKEYMGR_DRV", *FIRMWARE_TYPES.values(), *(kind for kind, _, _ in BOOT_PARTS),
})  # fmt: skip


def _digest(kind: str, signed: bytes) -> bytes:
    return hashlib.blake2b(signed, key=_KEY, person=kind.encode()[:16]).digest()


def sign(kind: str, body: bytes, version: int) -> bytes:
    """Wrap a body: 256 bytes of header, the body, 256 bytes with the digest."""
    total = HEADER + len(body) + _DIGEST
    header = bytearray(HEADER)
    struct.pack_into("<4sII", header, 0x10, _MAGIC, len(body), 0)
    struct.pack_into("<I", header, 0x60, version)
    struct.pack_into("<I", header, 0x6C, total)
    signed = bytes(header) + body
    return signed + _digest(kind, signed).ljust(_DIGEST, b"\x00")


def image_size(header: bytes) -> int | None:
    """Return the total size stated in an image's header; None if `header` is not a header."""
    if len(header) < HEADER or header[0x10:0x14] != _MAGIC:
        return None
    (body,) = struct.unpack_from("<I", header, 0x14)
    (total,) = struct.unpack_from("<I", header, 0x6C)
    return int(total) if total == HEADER + body + _DIGEST else None


def verify(kind: str, image: bytes) -> bool:
    """Return whether an image is complete, of kind `kind`, and correctly signed."""
    if image_size(image) != len(image):
        return False
    signed, digest = image[:-_DIGEST], image[-_DIGEST:]
    return digest == _digest(kind, signed).ljust(_DIGEST, b"\x00")


class Maker:
    """Build images with seeded content."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def image(self, kind: str, size: int, version: int = VERSION) -> bytes:
        """Build one signed image with a body of `size` bytes."""
        return sign(kind, self._random.randbytes(size), version)


def firmware_file(
    header_version: tuple[int, int],
    extension: bytes,
    payload: bytes,
    first: int,
    version: int = VERSION,
) -> bytes:
    """Build a file for no block yet (see `labelled`): common header, extension, and payload at 256.
    first: ucode_size_bytes."""
    common = struct.pack(
        "<IIHHHHIIII",
        ARRAY + len(payload),
        32 + len(extension),
        *header_version,
        0,
        0,
        version,
        first,
        ARRAY,
        zlib.crc32(payload),
    )
    return (common + extension).ljust(ARRAY, b"\x00") + payload


def psp(
    maker: Maker, parts: Sequence[tuple[str, int, int]], secure_os_version: int = VERSION
) -> bytes:
    """Build the PSP container, header 2.0: entries of type, version, payload offset, size."""
    entries, payload = b"", b""
    for kind, number, size in parts:
        image = maker.image(kind, size)
        version = secure_os_version if kind == "SOS" else VERSION
        entries += struct.pack("<IIII", number, version, len(payload), len(image))
        payload += image
    return firmware_file(
        (2, 0), struct.pack("<I", len(parts)) + entries, payload, len(payload), secure_os_version
    )


def toc(maker: Maker) -> bytes:
    """Build the table of contents, header 1.0."""
    image = maker.image("TOC", 0x700)
    return firmware_file((1, 0), struct.pack("<III", 1, 0, len(image)), image, len(image))


def smu(maker: Maker) -> bytes:
    """Build SMU, header 2.1, without power-play tables."""
    image = maker.image("SMU", 0x9300)
    return firmware_file((2, 1), struct.pack("<III", 0, 0, ARRAY), image, len(image))


def _sdma(maker: Maker) -> bytes:
    """Build SDMA, header 2.0: the context thread, then the control thread."""
    context, control = maker.image("SDMA_TH0", 0x4100), maker.image("SDMA_TH1", 0x2500)
    extension = struct.pack(
        "<IIIIIIII", 60, len(context), 0, 0, ARRAY + len(context), len(control), 0, 0
    )
    payload = context + control
    return firmware_file((2, 0), extension, payload, len(payload))


def processor(maker: Maker, kind: str, code_size: int, step: int = 0x200) -> bytes:
    """Build MEC, PFP or ME, header 2.0: code, and the initial data of each pipe.

    step: added to the version.
    """
    code, data = maker.image(kind, code_size), maker.image(kind + "_STACK", 0x1100)
    extension = struct.pack(
        "<IIIIIII", 29, len(code), ARRAY, len(data), ARRAY + len(code), MEC_START, 0
    )
    # From version 509 on the MEC does not need PCIe atomics (Linux 6.12 kfd_device.c).
    return firmware_file((2, 0), extension, code + data, len(code), VERSION + step)


def _rlc(maker: Maker) -> bytes:
    """Build RLC, header 2.3: RLC_G, then IRAM, DRAM, RLC_P and RLC_V at offsets in the file."""
    parts = [
        maker.image(kind, size)
        for kind, size in (
            ("RLC_G", 0x5700),
            ("RLC_IRAM", 0x3300),
            ("RLC_DRAM", 0x1D00),
            ("RLC_P", 0x2100),
            ("RLC_V", 0x0F00),
        )
    ]
    offsets = [ARRAY + sum(map(len, parts[:at])) for at in range(len(parts))]
    extension = bytearray(204 - 32)

    def put(at: int, part: int) -> None:
        struct.pack_into("<II", extension, at - 32, len(parts[part]), offsets[part])

    put(156, 1)
    put(164, 2)
    put(180, 3)
    put(196, 4)
    return firmware_file((2, 3), bytes(extension), b"".join(parts), len(parts[0]))


def imu(maker: Maker) -> bytes:
    """Build IMU, header 1.0: instruction memory, then data memory."""
    code, data = maker.image("IMU_I", 0x2D00), maker.image("IMU_D", 0x1300)
    extension = struct.pack("<IIII", len(code), ARRAY, len(data), ARRAY + len(code))
    return firmware_file((1, 0), extension, code + data, len(code) + len(data))


def trusted(maker: Maker) -> bytes:
    """Build trusted applications, header 2.0: only the driver that runs all others (ASD)."""
    image = maker.image("ASD", 0x4300)
    entry = struct.pack("<IIIII", 1, 1, VERSION, 0, len(image))
    return firmware_file((2, 0), entry, image, len(image))


def scheduler(maker: Maker, kind: str, version: int) -> bytes:
    """Build MES, header 1.0: code, then data, and the start address of each. The file's header has
    no version (linux-firmware, September 2026); the code's has the firmware's."""
    code = maker.image(kind, 0x4900, version & 0xFFF)
    data = maker.image(kind + "_STACK", 0x1500)
    extension = struct.pack(
        "<10I", 0x54, len(code), ARRAY, 0x54, len(data), ARRAY + len(code), MEC_START, 0, 0, 0
    )
    return firmware_file((1, 0), extension, code + data, len(code), version=0)


def labelled(facts: ChipFacts, files: Iterable[tuple[str, str, bytes]]) -> dict[str, bytes]:
    """Name files (pattern, block, content) after a chip's blocks, whose major versions their
    headers get: those of linux-firmware have 0 as the minor one."""
    named = {}
    for pattern, block, image in files:
        major = struct.pack("<HH", facts.versions[block][0], 0)
        named[facts.image_name(pattern, block)] = image[:_BLOCK] + major + image[_BLOCK + 4 :]
    return named


def synthetic_set(facts: ChipFacts, seed: int = 0) -> dict[str, bytes]:
    """Build all files that a chip's bring-up needs, keyed by their linux-firmware names."""
    with_spl = facts.versions["MP0"] != _WITHOUT_SPL
    return labelled(facts, _files(seed, (*BOOT_PARTS, SPL) if with_spl else BOOT_PARTS))


@cache
def _files(
    seed: int, container: tuple[tuple[str, int, int], ...]
) -> tuple[tuple[str, str, bytes], ...]:
    """Build the files: the pattern of each one's name, the block that it is for, the content."""
    maker = Maker(seed)
    return (
        ("psp_{}_sos.bin", "MP0", psp(maker, container)),
        ("smu_{}.bin", "MP1", smu(maker)),
        ("sdma_{}.bin", "SDMA0", _sdma(maker)),
        ("gc_{}_toc.bin", "GC", toc(maker)),
        ("gc_{}_mec.bin", "GC", processor(maker, "RS64_MEC", 0x7100)),
        ("gc_{}_pfp.bin", "GC", processor(maker, "RS64_PFP", 0x3500)),
        ("gc_{}_me.bin", "GC", processor(maker, "RS64_ME", 0x2F00)),
        ("gc_{}_imu.bin", "GC", imu(maker)),
        ("gc_{}_rlc.bin", "GC", _rlc(maker)),
        ("psp_{}_ta.bin", "MP0", trusted(maker)),
        ("gc_{}_mes_2.bin", "GC", scheduler(maker, "MES", SCHEDULER)),
        ("gc_{}_mes1.bin", "GC", scheduler(maker, "MES_KIQ", SCHEDULER)),
    )
