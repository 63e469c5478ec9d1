"""The IP discovery binary that the board's firmware leaves near the end of VRAM.

Facts: Linux 6.12 include/discovery.h (layout, signatures), amdgpu_discovery.c (checksums),
soc15_hw_ip.h (hardware ids). The layout is written by hand, to detect a wrong generated layout.
"""

from __future__ import annotations

import struct

from ugpu.am.chips.facts import ChipFacts
from ugpu.virtual.amd.options import ChipOptions

_BINARY_SIGNATURE = 0x28211407
_IPS_SIGNATURE = 0x53445049
_GC_SIGNATURE = 0x4347
_HARVEST_SIGNATURE = 0x56524148
_BINARY_HEADER = 0x0C + 6 * 8
_Ip = tuple[int, int, tuple[int, int, int], tuple[int, ...]]  # id, instance, version, bases
# Hardware ids of the blocks that the driver has to find (soc15_hw_ip.h).
_BLOCKS = {
    "MP1": 1, "THM": 3, "SMUIO": 4, "GC": 11, "MMHUB": 34, "ATHUB": 35, "OSSSYS": 40, "HDP": 41,
    "NBIF": 108, "MP0": 255,
}  # fmt: skip
_SDMA = (42, 43)
# Blocks that compute does not use; a driver skips unknown ids (199 is unassigned;
# Linux rejects ids from HW_ID_MAX, 300, on with a message).
_OTHERS: tuple[_Ip, ...] = (
    (12, 0, (4, 0, 0), (0x7800, 0x7E00, 0x2403000)),
    (12, 1, (4, 0, 0), (0x7A00, 0x9000, 0x2403800)),
    (28, 0, (5, 0, 0), ()),
    (46, 0, (4, 3, 0), (0x7000, 0x240B800, 0x7C0)),
    (91, 0, (6, 0, 0), (0x45000, 0x2441C00)),
    (150, 0, (8, 10, 0), (0x14000, 0x2425800)),
    (150, 2, (8, 10, 0), (0x54000, 0x2425C00)),
    (271, 0, (3, 2, 0), (0x12, 0xC0, 0x34C0, 0x9000)),
    (199, 7, (1, 2, 3), (0xABCDE,)),
)


def _ips(facts: ChipFacts) -> list[_Ip]:
    """Return all blocks of a chip ordered by id; the unassigned id is last."""
    bases, versions = facts.generation.typical_bases, facts.versions
    found = [(number, 0, versions[name], bases[name]) for name, number in _BLOCKS.items()
             if name in versions]  # fmt: skip
    for engine, number in enumerate(_SDMA[: facts.copy_engines]):
        found.append((number, 0, versions["SDMA0"], bases[f"SDMA{engine}"]))
    return sorted([*found, *_OTHERS], key=lambda ip: (ip[0] == _OTHERS[-1][0], ip[0]))


def byte_sum(data: bytes) -> int:
    """Return the format's checksum: the 16-bit sum of all bytes."""
    return sum(data) & 0xFFFF


def _ip_table(ips: list[_Ip], version: int, start: int) -> bytes:
    """Build table 0: one die with all IPs. start: the table's offset in the binary."""
    wide = version >= 4
    header_size = 0x0E + 16 * 4 + 2
    entries = b""
    for hardware_id, instance, (major, minor, revision), bases in ips:
        entries += struct.pack(
            "<HBBBBBB", hardware_id, instance, len(bases), major, minor, revision, 0
        )
        entries += struct.pack(f"<{len(bases)}{'Q' if wide else 'I'}", *bases)
    die = struct.pack("<HH", 0, len(ips)) + entries
    dies = struct.pack("<HH", 0, start + header_size) + bytes(15 * 4)
    header = struct.pack("<IHHIH", _IPS_SIGNATURE, version, header_size + len(die), 0x12345678, 1)
    return header + dies + struct.pack("<H", 1 if wide else 0) + die


def _gc_table(facts: ChipFacts, options: ChipOptions) -> bytes:
    """Build table 1, version 1.2: sizes of the shader array (gc_info_v1_2)."""
    fields = (
        options.shader_engines,
        options.wgps_per_array,  # WGP0 per array
        0,  # WGP1 per array
        4,  # render backends per engine
        facts.board.channels,  # GL2 channels
        facts.board.vector_registers,  # GPRs
        32,  # geometry threads
        32,
        1024,
        1024,
        1,
        32,  # wave size
        16,  # waves per SIMD
        32,  # scratch slots per CU
        64,  # LDS in KB
        1,
        options.arrays_per_engine,
        1,
        4,
        # 1.1
        8,
        2,
        96,
        # 1.2
        2,
        32,
        1,
        32,
        16,
        1,
        256,
        6144,
    )
    return struct.pack(f"<IHHI{len(fields)}I", _GC_SIGNATURE, 1, 2, 12 + 4 * len(fields), *fields)


def _harvest_table(options: ChipOptions) -> bytes:
    entries = b"".join(struct.pack("<HBB", *pair, 0) for pair in options.harvested)
    return struct.pack("<II", _HARVEST_SIGNATURE, 0) + entries.ljust(32 * 4, b"\x00")


def build_discovery(facts: ChipFacts, options: ChipOptions) -> bytes:
    """Build the binary. `options` has no zeros left; `options.discovery_flaw` damages one part."""
    ips = _ip_table(_ips(facts), options.discovery_version, _BINARY_HEADER)
    gc_start = -(-(_BINARY_HEADER + len(ips)) // 8) * 8
    gc = _gc_table(facts, options)
    harvest_start = -(-(gc_start + len(gc)) // 8) * 8
    harvest = _harvest_table(options)
    size = harvest_start + len(harvest)
    image = bytearray(size)
    tables = ((_BINARY_HEADER, ips), (gc_start, gc), (harvest_start, harvest))
    for slot, (start, table) in enumerate(tables):
        image[start : start + len(table)] = table
        struct.pack_into("<HHHH", image, 0x0C + 8 * slot, start, byte_sum(table), len(table), 0)
    struct.pack_into("<IHHHH", image, 0, _BINARY_SIGNATURE, 1, 3, 0, size)
    _damage(image, options, gc_start, harvest_start)
    struct.pack_into("<H", image, 8, byte_sum(bytes(image[0x0A:])))
    if options.discovery_flaw == "checksum":
        image[8] ^= 0x01
    if options.discovery_flaw == "signature":
        image[0] ^= 0x01
    return bytes(image)


def _damage(image: bytearray, options: ChipOptions, gc_start: int, harvest_start: int) -> None:
    """Damage a table; the checksum over the whole binary stays correct."""
    match options.discovery_flaw:
        case "table signature":
            image[_BINARY_HEADER] ^= 0x01
            struct.pack_into("<H", image, 0x0E, _sum_of(image, 0))
        case "table checksum":
            image[_BINARY_HEADER + 0x60] ^= 0x10
        case "gc checksum":
            image[gc_start + 12] ^= 0x01
        case "harvest":
            image[harvest_start + 9] ^= 0x01
        case "size":
            struct.pack_into("<H", image, 0x0A, 0xFFF0)
        case _:
            pass


def _sum_of(image: bytearray, slot: int) -> int:
    start, _, size = struct.unpack_from("<HHH", image, 0x0C + 8 * slot)
    return byte_sum(bytes(image[start : start + size]))
