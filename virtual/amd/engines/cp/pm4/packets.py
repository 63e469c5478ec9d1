"""Decode PM4 type-3 packets and reject those that the command processor cannot execute.

The MEC's firmware reads the fields that it uses and ignores all other bits: tinygrad's driver sets
reserved bits of ACQUIRE_MEM before each kernel, and boards run it. So ones in reserved bits are a
violation and are treated as zeros. Unknown opcodes, wrong counts and misaligned addresses remain
faults, because no source shows that boards tolerate them.

The formats here are those that a compute queue accepts; other queues accept more (kernel.py,
graphics.py).

Sources: Linux 6.12 drivers/gpu/drm/amd/amdgpu/nvd.h (opcodes, bit positions), gfx_v11_0.c (packets
that the kernel emits on GFX11), Mesa src/amd/common/sid.h (GLK bits of RELEASE_MEM). Payload
layouts are given as the number of dwords after the header and, per dword, the bits that must be
zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

ALL = 0xFFFF_FFFF
TYPE3 = 3
MAXIMUM_COUNT = 0x3FFF
SHADER_TYPE = 1 << 1  # header bit 1: compute; both values are accepted on a compute queue
KIND = 0xC000_FF00  # type and opcode in a header
RESERVED_HEADER = 0xFF & ~SHADER_TYPE  # predicate bit, and bits that no header file names

SH_REGISTERS = range(0x2C00, 0x3000)
UCONFIG_REGISTERS = range(0xC000, 0x10000)

NOP = 0x10
DISPATCH_DIRECT = 0x15
DISPATCH_INDIRECT = 0x16
ATOMIC_MEM = 0x1E
COND_EXEC = 0x22
PRED_EXEC = 0x23
WRITE_DATA = 0x37
WAIT_REG_MEM = 0x3C
INDIRECT_BUFFER = 0x3F
COPY_DATA = 0x40
EVENT_WRITE = 0x46
RELEASE_MEM = 0x49
DMA_DATA = 0x50
ACQUIRE_MEM = 0x58
SET_SH_REG = 0x76
SET_UCONFIG_REG = 0x79
WAIT_REG_MEM64 = 0x93

# Opcodes that a real MEC executes but this model does not. They are reported as a gap of the model,
# not as the driver's error.
NOT_MODELLED = {
    0x5D: "PRIME_UTCL2",
    0x5F: "LOAD_SH_REG",
    0x95: "HDP_FLUSH",
    0x98: "INVALIDATE_TLBS",
    0xA0: "SET_RESOURCES",
    0xA1: "MAP_PROCESS",
    0xA2: "MAP_QUEUES",
    0xA3: "UNMAP_QUEUES",
    0xA4: "QUERY_STATUS",
    0xA5: "RUN_LIST",
}


class BadPacket(Exception):
    """A packet that the MEC cannot execute: wrong opcode, count, reserved bits or operands."""

    def __init__(self, reason: str, header: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.header = header


class PrivilegedRegister(BadPacket):
    """A register that an unprivileged queue must not access (interrupt source 184)."""


@dataclass(frozen=True, slots=True)
class PacketFormat:
    """Format of one packet type.

    minimum, maximum: payload dwords. reserved: bits that must be zero, per payload dword; ones are
    tolerated except in `ALIGNMENT` masks. accepted: reserved bits set by proven drivers, by dword.
    """

    name: str
    opcode: int
    minimum: int
    maximum: int
    reserved: tuple[int, ...]
    repeats: bool = False  # `reserved` covers only the leading dwords; the rest is arbitrary data
    accepted: Mapping[int, int] = field(default_factory=dict)


def free(*allowed: tuple[int, int]) -> int:
    """Return the mask of the bits outside the fields [(lsb, width), ...]."""
    mask = 0
    for lsb, width in allowed:
        mask |= ((1 << width) - 1) << lsb
    return ALL & ~mask


ADDRESS_HI = free((0, 16))  # 48-bit addresses
LOW_4 = 0x3  # must be 4-byte aligned
ALIGNMENT = (LOW_4, 0x7)  # masks that express an alignment, not reserved bits

_FORMATS = (
    PacketFormat("NOP", NOP, 1, MAXIMUM_COUNT, (), repeats=True),
    PacketFormat("DISPATCH_DIRECT", DISPATCH_DIRECT, 4, 4, (0, 0, 0, 0)),
    PacketFormat("DISPATCH_INDIRECT", DISPATCH_INDIRECT, 3, 3, (LOW_4, ADDRESS_HI, 0)),
    PacketFormat(
        "ATOMIC_MEM",
        ATOMIC_MEM,
        8,
        8,
        (
            free((0, 7), (8, 4), (25, 2), (30, 2)),
            LOW_4,
            ADDRESS_HI,
            0,
            0,
            0,
            0,
            free((0, 13)),
        ),
    ),
    PacketFormat("COND_EXEC", COND_EXEC, 4, 4, (LOW_4, ADDRESS_HI, free((28, 4)), free((0, 14)))),
    PacketFormat("PRED_EXEC", PRED_EXEC, 1, 1, (free((0, 14), (24, 8)),)),
    PacketFormat(
        "WRITE_DATA",
        WRITE_DATA,
        4,
        MAXIMUM_COUNT,
        (free((8, 4), (16, 1), (20, 1), (25, 2), (30, 2)), 0, ADDRESS_HI),
        repeats=True,
    ),
    PacketFormat(
        "WAIT_REG_MEM",
        WAIT_REG_MEM,
        6,
        6,
        (free((0, 3), (4, 4), (8, 2), (25, 2)), 0, 0, 0, 0, free((0, 16), (31, 1))),
    ),
    PacketFormat(
        "INDIRECT_BUFFER",
        INDIRECT_BUFFER,
        3,
        3,
        (LOW_4, ADDRESS_HI, free((0, 21), (21, 1), (23, 1), (24, 4), (28, 2), (30, 2))),
    ),
    PacketFormat(
        "COPY_DATA",
        COPY_DATA,
        5,
        5,
        (
            free((0, 4), (8, 4), (13, 2), (16, 1), (20, 1), (25, 2), (29, 3)),
            0,
            0,
            0,
            ADDRESS_HI,
        ),
    ),
    PacketFormat("EVENT_WRITE", EVENT_WRITE, 1, 1, (free((0, 6), (8, 4), (31, 1)),)),
    PacketFormat(
        "RELEASE_MEM",
        RELEASE_MEM,
        7,
        7,
        (
            free((0, 6), (8, 4), (12, 12), (24, 1), (25, 2), (28, 1), (30, 1)),
            free((16, 2), (24, 3), (29, 3)),
            LOW_4,
            ADDRESS_HI,
            0,
            0,
            0,
        ),
    ),
    PacketFormat(
        "ACQUIRE_MEM",
        ACQUIRE_MEM,
        7,
        7,
        (
            ALL,  # COHER_CNTL has no defined action since GFX10: GCR_CNTL replaces it
            0,
            free((0, 24)),
            0,
            free((0, 24)),
            free((0, 16)),
            free((0, 19)),
        ),
        # nvd.h defines 8 bits; Linux writes 24, tinygrad all 32.
        accepted={2: free((0, 24))},
    ),
    PacketFormat(
        "DMA_DATA",
        DMA_DATA,
        6,
        6,
        (free((0, 1), (13, 2), (20, 2), (25, 2), (29, 3)), 0, 0, 0, 0, 1 << 31),
    ),
    PacketFormat("SET_SH_REG", SET_SH_REG, 2, MAXIMUM_COUNT, (free((0, 16)),), repeats=True),
    PacketFormat(
        "SET_UCONFIG_REG", SET_UCONFIG_REG, 2, MAXIMUM_COUNT, (free((0, 16)),), repeats=True
    ),
    PacketFormat(
        "WAIT_REG_MEM64",
        WAIT_REG_MEM64,
        8,
        8,
        (
            free((0, 3), (4, 4), (8, 2), (25, 2)),
            0x7,
            ADDRESS_HI,
            0,
            0,
            0,
            0,
            free((0, 16), (31, 1)),
        ),
    ),
)
FORMATS = {entry.opcode: entry for entry in _FORMATS}

# A one-dword filler: a NOP whose count is all ones has no payload (Linux 6.12 gfx_v11_0.c, ring
# nop).
ONE_DWORD_NOP = (TYPE3 << 30) | (MAXIMUM_COUNT << 16) | (NOP << 8)


def payload_length(header: int) -> int:
    """Return how many dwords follow `header`. Raises BadPacket unless the type is 3."""
    if header >> 30 != TYPE3:
        raise BadPacket(f"packet type must be 3, got {header >> 30}", header)
    if header & ~SHADER_TYPE == ONE_DWORD_NOP:
        return 0
    return ((header >> 16) & MAXIMUM_COUNT) + 1


def check(
    header: int, words: Sequence[int], start: int, formats: Mapping[int, PacketFormat] = FORMATS
) -> PacketFormat:
    """Check the packet whose payload begins at words[start]; return its format."""
    opcode = (header >> 8) & 0xFF
    entry = formats.get(opcode)
    if entry is None:
        if opcode in NOT_MODELLED:
            raise BadPacket(f"{NOT_MODELLED[opcode]} is not modelled", header)
        raise BadPacket(f"unknown opcode {opcode:#04x}", header)
    count = payload_length(header)
    if count == 0:
        return entry
    if not entry.minimum <= count <= entry.maximum:
        raise BadPacket(
            f"{entry.name} has {count} payload dwords, expected {entry.minimum}"
            + (f" to {entry.maximum}" if entry.maximum != entry.minimum else ""),
            header,
        )
    for position, mask in enumerate(entry.reserved):
        if mask in ALIGNMENT and words[start + position] & mask:
            raise BadPacket(
                f"{entry.name} payload dword {position} = {words[start + position]:#010x}: "
                f"not aligned to {mask + 1} bytes",
                header,
            )
    return entry


def forgive(
    formats: Mapping[int, PacketFormat],
    words: Sequence[int],
    at: int,
    record: Callable[[str, bool], None],
) -> list[int]:
    """Return `words` with the reserved bits of the packet at words[at] cleared, as the MEC reads
    it.

    `record` is called for each dword with reserved bits set: it gets a text, and whether proven
    drivers set all of these bits. Raises BadPacket for a misaligned address. A text contains a
    dword's position but not its value, so that repeated occurrences have the same text.
    """
    header, cleaned = words[at], list(words)
    entry = check(header, words, at + 1, formats)
    if bits := header & RESERVED_HEADER:
        record(f"{entry.name}: reserved header bits {bits:#x} are set", False)
    for position, mask in enumerate(entry.reserved):
        place = at + 1 + position
        bits = words[place] & mask
        if bits and mask not in ALIGNMENT:
            accepted = not bits & ~entry.accepted.get(position, 0)
            text = f"{entry.name} payload dword {position}: reserved bits {bits:#x} are set"
            record(text, accepted)
            cleaned[place] &= ~bits
    return cleaned
