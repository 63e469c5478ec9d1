"""IP discovery: the table in which a chip lists its blocks, their versions and register bases.

`parse` trusts nothing: signatures, sizes and checksums are verified before use, and every fault is
a DiscoveryError that names the place. Layout: Linux 6.12 include/discovery.h, and of later kernels
(binary_header_v2); checks and tolerances: amdgpu_discovery.c. Offsets and sizes are bytes, register
bases dwords.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from ugpu.hcq.errors import DiscoveryError

BINARY_SIGNATURE = 0x28211407
MOST = 0x10000  # bytes of a binary: its size has 16 bits
IP_SIGNATURE = 0x53445049  # "IPDS"
GC_SIGNATURE = 0x4347
HARVEST_SIGNATURE = 0x56524148  # "HARV"

# binary_header: signature, version major and minor, checksum, size; then six table entries. From
# version 2 on the number of entries and 16 bits of padding come first.
_BINARY = struct.Struct("<IHHHH")
HEADER_SIZE = 64  # bytes of the header and the table entries
_TABLE = struct.Struct("<HHHH")  # table_info: offset, checksum, size, padding
_CHECKED_FROM = 10  # the binary checksum covers the bytes after itself, from binary_size on
IP_TABLE, GC_TABLE, HARVEST_TABLE = 0, 1, 2
_TABLE_COUNT = 6
_COUNT = struct.Struct("<HH")
_COUNTED = 2  # version
# ip_discovery_header: signature, version, size, id, number of dies; then (id, offset) per die.
_IP_HEADER = struct.Struct("<IHHIH")
_MOST_DIES = 16
_DIE = struct.Struct("<HH")
_DIE_HEADER = struct.Struct("<HH")  # die id, number of blocks
_IP = struct.Struct("<HBBBBBB")  # hw_id, instance, bases, major, minor, revision, harvest/variant
_FLAGS = struct.Struct("<H")  # version 4, after the dies
_FLAG_64_BIT = 1  # base_addr_64_bit
_WIDE_BASE = 0x3FFF_FFFF  # what the kernel takes of such a base
_GC_HEADER = struct.Struct("<IHHI")  # id, version major, minor, size
_GC_FIELDS = (
    "num_se", "num_wgp0_per_sa", "num_wgp1_per_sa", "num_rb_per_se", "num_gl2c", "num_gprs",
    "num_max_gs_thds", "gs_table_depth", "gsprim_buff_depth", "parameter_cache_depth",
    "double_offchip_lds_buffer", "wave_size", "max_waves_per_simd", "max_scratch_slots_per_cu",
    "lds_size", "num_sc_per_se", "num_sa_per_se", "num_packer_per_sc", "num_gl2a",
)  # fmt: skip
_HARVEST_HEADER = struct.Struct("<II")
_HARVEST = struct.Struct("<HBB")
_MOST_HARVESTED = 32
_HARVEST_SIZE = _HARVEST_HEADER.size + _MOST_HARVESTED * _HARVEST.size


@dataclass(frozen=True)
class IpInstance:
    """One block of the chip; bases has one dword index per register segment."""

    hardware_id: int
    instance: int
    version: tuple[int, int, int]
    bases: tuple[int, ...]


@dataclass(frozen=True)
class GcInfo:
    """Geometry of the graphics core before harvesting of work-group processors."""

    shader_engines: int
    arrays_per_engine: int
    wgps_per_array: int
    lds_kib: int
    scratch_slots_per_cu: int

    @property
    def compute_units(self) -> int:
        return self.shader_engines * self.arrays_per_engine * self.wgps_per_array * 2


@dataclass(frozen=True)
class Discovery:
    """A parsed table. Harvested instances are not in `blocks`."""

    blocks: tuple[IpInstance, ...]
    gc: GcInfo | None
    harvested: tuple[tuple[int, int], ...] = ()  # (hardware_id, instance)

    def instances(self, hardware_id: int) -> tuple[IpInstance, ...]:
        """All instances of a block in the order of their numbers, which continue across dies."""
        found = (block for block in self.blocks if block.hardware_id == hardware_id)
        return tuple(sorted(found, key=lambda block: block.instance))

    def find(self, hardware_id: int, instance: int = 0) -> IpInstance | None:
        for block in self.blocks:
            if block.hardware_id == hardware_id and block.instance == instance:
                return block
        return None


def checksum(data: bytes) -> int:
    """The table's checksum: the sum of all bytes, modulo 2^16."""
    return int(np.frombuffer(data, np.uint8).sum(dtype=np.uint64)) & 0xFFFF


def stated_size(header: bytes) -> int:
    """Return the size of a binary in bytes, as stated in its first `HEADER_SIZE` bytes, in whole
    dwords; HEADER_SIZE if they are not the start of a binary."""
    signature, _major, _minor, _expected, size = _BINARY.unpack_from(header)
    return max(HEADER_SIZE, -(-size // 4) * 4) if signature == BINARY_SIGNATURE else HEADER_SIZE


def parse(data: bytes) -> Discovery:
    """Parse a discovery binary; DiscoveryError names the fault and its place."""
    signature, major, _minor, expected, size = _unpack(_BINARY, data, 0, "binary header")
    if signature != BINARY_SIGNATURE:
        raise DiscoveryError(
            "the discovery binary has an unexpected signature or version",
            expected=BINARY_SIGNATURE,
            found=signature,
            version=major,
        )
    if major > _COUNTED:
        raise DiscoveryError(
            "the version of the discovery binary is not supported",
            expected=f"0 to {_COUNTED}",
            found=major,
        )
    if size > len(data) or size < _BINARY.size + _TABLE_COUNT * _TABLE.size:
        raise DiscoveryError(
            "the discovery binary states a size outside the data", size=size, available=len(data)
        )
    data = data[:size]
    _check_sum("binary", data[_CHECKED_FROM:], expected)
    tables = _parse_list(data, major)
    if not tables[IP_TABLE][0]:
        raise DiscoveryError("the discovery binary has no IP discovery table")
    harvested = _parse_harvest(data, tables[HARVEST_TABLE])
    blocks = _parse_ips(data, tables[IP_TABLE])
    return Discovery(
        tuple(b for b in blocks if (b.hardware_id, b.instance) not in harvested),
        _parse_gc(data, tables[GC_TABLE]),
        harvested,
    )


def _parse_list(data: bytes, major: int) -> list[tuple[int, ...]]:
    """Return the first entries of the table list; those that a counted list lacks are empty."""
    start, count = _BINARY.size, _TABLE_COUNT
    if major == _COUNTED:
        count, _ = _unpack(_COUNT, data, start, "table list")
        start += _COUNT.size
    listed = [
        _unpack(_TABLE, data, start + position * _TABLE.size, "table list")
        for position in range(min(count, _TABLE_COUNT))
    ]
    return listed + [(0, 0, 0, 0)] * (_TABLE_COUNT - len(listed))


def _unpack(form: struct.Struct, data: bytes, offset: int, what: str) -> tuple[int, ...]:
    if offset < 0 or offset + form.size > len(data):
        raise DiscoveryError(
            f"the {what} lies outside the discovery binary", offset=offset, size=len(data)
        )
    return form.unpack_from(data, offset)


def _check_sum(what: str, data: bytes, expected: int) -> None:
    found = checksum(data)
    if found != expected:
        raise DiscoveryError(
            f"the checksum of the {what} does not match", expected=expected, found=found
        )


def _table(data: bytes, what: str, offset: int, size: int, expected: int) -> bytes:
    if offset + size > len(data):
        raise DiscoveryError(
            f"the {what} table ends outside the discovery binary", offset=offset, size=size
        )
    _check_sum(f"{what} table", data[offset : offset + size], expected)
    return data[offset : offset + size]


def _parse_ips(data: bytes, table: tuple[int, ...]) -> list[IpInstance]:
    offset, expected = table[0], table[1]
    signature, version, size, _id, dies = _unpack(_IP_HEADER, data, offset, "IP table")
    if signature != IP_SIGNATURE:
        raise DiscoveryError(
            "the IP table has an unexpected signature", expected=IP_SIGNATURE, found=signature
        )
    if not 1 <= version <= 4:
        raise DiscoveryError("the version of the IP table is not supported", version=version)
    if dies > _MOST_DIES or size < _IP_HEADER.size:
        raise DiscoveryError(
            "the IP table's header states an invalid size or number of dies", dies=dies, size=size
        )
    _table(data, "IP", offset, size, expected)
    after_dies = offset + _IP_HEADER.size + _MOST_DIES * _DIE.size
    wide = version == 4 and bool(_unpack(_FLAGS, data, after_dies, "flags")[0] & _FLAG_64_BIT)
    blocks: list[IpInstance] = []
    for die in range(dies):
        where = offset + _IP_HEADER.size + die * _DIE.size
        _die_id, die_offset = _unpack(_DIE, data, where, "die list")
        blocks += _parse_die(data, die_offset, wide)
    return blocks


def _parse_die(data: bytes, offset: int, wide: bool) -> list[IpInstance]:
    _die_id, count = _unpack(_DIE_HEADER, data, offset, "die header")
    offset += _DIE_HEADER.size
    blocks = []
    for position in range(count):
        what = f"block {position}"
        hw, instance, bases, major, minor, revision, _ = _unpack(_IP, data, offset, what)
        form = struct.Struct(f"<{bases}{'Q' if wide else 'I'}")
        addresses = _unpack(form, data, offset + _IP.size, f"bases of {what}")
        if wide:
            addresses = tuple(address & _WIDE_BASE for address in addresses)
        blocks.append(IpInstance(hw, instance, (major, minor, revision), addresses))
        offset += _IP.size + form.size
    return blocks


def _parse_gc(data: bytes, table: tuple[int, ...]) -> GcInfo | None:
    """Geometry of gfx10 and later (GC table 1.x); None where there is no such table."""
    offset, expected = table[0], table[1]
    if not offset:
        return None
    signature, major, minor, size = _unpack(_GC_HEADER, data, offset, "GC table")
    if signature != GC_SIGNATURE:
        raise DiscoveryError(
            "the GC table has an unexpected signature", expected=GC_SIGNATURE, found=signature
        )
    body = _table(data, "GC", offset, size, expected)
    if major != 1:
        return None  # gfx9's layout; its driver would read it
    form = struct.Struct(f"<{len(_GC_FIELDS)}I")
    found = _unpack(form, body, _GC_HEADER.size, f"GC 1.{minor}")
    values = dict(zip(_GC_FIELDS, found, strict=True))
    info = GcInfo(
        shader_engines=values["num_se"],
        arrays_per_engine=values["num_sa_per_se"],
        wgps_per_array=values["num_wgp0_per_sa"] + values["num_wgp1_per_sa"],
        lds_kib=values["lds_size"],
        scratch_slots_per_cu=values["max_scratch_slots_per_cu"],
    )
    if not 1 <= info.compute_units <= 4096:
        raise DiscoveryError(
            "the GC table states an invalid number of compute units",
            compute_units=info.compute_units,
        )
    return info


def _parse_harvest(data: bytes, table: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    offset, expected = table[0], table[1]
    if not offset:
        return ()
    signature, _version = _unpack(_HARVEST_HEADER, data, offset, "harvest table")
    if signature != HARVEST_SIGNATURE:
        raise DiscoveryError(
            "the harvest table has an unexpected signature",
            expected=HARVEST_SIGNATURE,
            found=signature,
        )
    body = _table(data, "harvest", offset, _HARVEST_SIZE, expected)
    gone: list[tuple[int, int]] = []
    for position in range(_MOST_HARVESTED):
        where = _HARVEST_HEADER.size + position * _HARVEST.size
        hardware_id, instance, _ = _HARVEST.unpack_from(body, where)
        if not hardware_id:
            break
        gone.append((hardware_id, instance))
    return tuple(gone)
