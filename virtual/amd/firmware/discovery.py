"""The IP discovery binary that the board's firmware leaves near the end of VRAM.

Facts: Linux 6.12 include/discovery.h (layout, signatures), amdgpu_discovery.c (checksums),
soc15_hw_ip.h (hardware ids). The layout is written by hand, to detect a wrong generated layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ugpu.am.chips.facts import ChipFacts
from ugpu.virtual.amd.options import ChipOptions

_BINARY_SIGNATURE = 0x28211407
_IPS_SIGNATURE = 0x53445049
_GC_SIGNATURE = 0x4347
_HARVEST_SIGNATURE = 0x56524148
# First table description by major version: a fixed list of six, or a counted list.
_LISTS = {1: 0x0C, 2: 0x10}
_TABLES = 6
Ip = tuple[int, int, tuple[int, int, int], tuple[int, ...]]  # id, instance, version, bases
# Hardware ids of the blocks that the driver has to find (soc15_hw_ip.h).
_BLOCKS = {
    "MP1": 1, "THM": 3, "SMUIO": 4, "GC": 11, "MMHUB": 34, "ATHUB": 35, "OSSSYS": 40, "HDP": 41,
    "NBIF": 108, "MP0": 255,
}  # fmt: skip
_SDMA = (42, 43)


def _ips(facts: ChipFacts, others: Sequence[Ip]) -> list[Ip]:
    """Return all blocks of a chip ordered by id; the unassigned id is last."""
    bases, versions = facts.generation.typical_bases, facts.versions
    found = [(number, 0, versions[name], bases[name]) for name, number in _BLOCKS.items()
             if name in versions]  # fmt: skip
    for engine, number in enumerate(_SDMA[: facts.copy_engines]):
        found.append((number, 0, versions["SDMA0"], bases[f"SDMA{engine}"]))
    return sorted([*found, *others], key=lambda ip: (ip[0] == others[-1][0], ip[0]))


def byte_sum(data: bytes) -> int:
    """Return the format's checksum: the 16-bit sum of all bytes."""
    return sum(data) & 0xFFFF


def _ip_table(ips: list[Ip], version: int, start: int) -> bytes:
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


def build_discovery(facts: ChipFacts, options: ChipOptions, others: Sequence[Ip]) -> bytes:
    """Build the binary. `options` has no zeros left; `options.discovery_flaw` damages one part.

    others: blocks that a driver for compute skips; the last one has an unassigned id.
    """
    first = _LISTS[options.discovery_header]
    begin = first + 8 * _TABLES
    ips = _ip_table(_ips(facts, others), options.discovery_version, begin)
    gc_start = -(-(begin + len(ips)) // 8) * 8
    gc = _gc_table(facts, options)
    harvest_start = -(-(gc_start + len(gc)) // 8) * 8
    harvest = _harvest_table(options)
    size = harvest_start + len(harvest)
    image = bytearray(size)
    tables = ((begin, ips), (gc_start, gc), (harvest_start, harvest))
    for slot, (start, table) in enumerate(tables):
        image[start : start + len(table)] = table
        struct.pack_into("<HHHH", image, first + 8 * slot, start, byte_sum(table), len(table), 0)
    minor = 3 if options.discovery_header == 1 else 0
    head = (_BINARY_SIGNATURE, options.discovery_header, minor, 0, size)
    struct.pack_into("<IHHHH", image, 0, *head)
    if options.discovery_header > 1:
        struct.pack_into("<H", image, 0x0C, _TABLES)
    _damage(image, options, gc_start, harvest_start)
    struct.pack_into("<H", image, 8, byte_sum(bytes(image[0x0A:])))
    if options.discovery_flaw == "checksum":
        image[8] ^= 0x01
    if options.discovery_flaw == "signature":
        image[0] ^= 0x01
    return bytes(image)


def _damage(image: bytearray, options: ChipOptions, gc_start: int, harvest_start: int) -> None:
    """Damage a table; the checksum over the whole binary stays correct."""
    first = _LISTS[options.discovery_header]
    begin = first + 8 * _TABLES
    match options.discovery_flaw:
        case "table signature":
            image[begin] ^= 0x01
            struct.pack_into("<H", image, first + 2, _sum_of(image, first))
        case "table checksum":
            image[begin + 0x60] ^= 0x10
        case "gc checksum":
            image[gc_start + 12] ^= 0x01
        case "harvest":
            image[harvest_start + 9] ^= 0x01
        case "size":
            struct.pack_into("<H", image, 0x0A, 0xFFF0)
        case _:
            pass


def _sum_of(image: bytearray, place: int) -> int:
    start, _, size = struct.unpack_from("<HHH", image, place)
    return byte_sum(bytes(image[start : start + size]))
