"""A synthetic VBIOS: two expansion ROM images, BIT, the falcon table, and FWSEC.

Source: PCI Firmware Specification 3.3 (PCIR); Linux 7.3.4 nouveau nvkm/subdev/bios and
nvkm/subdev/gsp/fwsec.c; open-gpu-kernel-modules 570.144 kernel_gsp_fwsec.c,
kernel_gsp_vbios_tu102.c. Offsets in the second image count from the end of the first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ugpu.virtual.nvidia.gsp.firmware.containers import padded
from ugpu.virtual.nvidia.gsp.firmware.programs import GSP, Program, head
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE, Terms, sign

FWSEC_PROGRAM = 9  # its number; fuses of the GSP's programs are at 0x8241c0
CODE, DATA = 0x400, 0x800  # bytes of FWSEC
INTERFACE, MAPPER, COMMAND, OUTPUT, SIGNATURE = 0x100, 0x140, 0x200, 0x300, 0x400  # in its data
SIGNATURE_VERSIONS = 0b11  # fuse versions 0 and 1
_BASE_SIZE, _BIT = 0x1000, 0x1B0
_TABLE = 0x100  # from the start of the second image
_DESCRIPTOR = _TABLE + 0x40
_SECOND_BODY = 0x80
MAPPER_ID, MAPPER_MAGIC = 4, 0x50414D44
_PRODUCTION = 0x85  # application id of FWSEC in the falcon table
# Places to damage: "PCIR", the first token's kind, the second image's code type, FWSEC's kind in
# the falcon table, the version of its descriptor.
PCIR_AT, TOKEN_AT, TYPE_AT = 0x40, _BIT + 12, _BASE_SIZE + 0x40 + 0x14
KIND_AT, VERSION_AT = _BASE_SIZE + _TABLE + 6, _BASE_SIZE + _DESCRIPTOR + 1


def vbios(device: int, version: int = 3) -> bytes:
    """Return a ROM for a PCI device id. version: of FWSEC's descriptor, 2 for Turing and GA100."""
    bit = struct.pack("<HIHBBB", 0xB8FF, 0x00544942, 0x0100, 12, 6, 1)
    bit += bytes([-sum(bit) & 0xFF])
    token = struct.pack("<BBHH", 0x70, 2, 4, _BIT + 0x40)
    body = bytes(_BIT - 0x80) + (bit + token).ljust(0x40, b"\0")
    body += struct.pack("<I", _BASE_SIZE + _TABLE)
    base = bytearray(_image(0x00, body.ljust(_BASE_SIZE - 0x80, b"\0"), device, last=False))
    assert len(base) == _BASE_SIZE
    base[-1] = -sum(base) & 0xFF  # the bytes of an image sum to 0
    return bytes(base) + _image(0xE0, _fwsec(version), device, last=True)


def filled(value: int) -> Callable[[bytes], bytes]:
    """Return what makes a ROM of one byte."""
    return lambda rom: bytes((value,)) * len(rom)


def changed(at: int, content: bytes) -> Callable[[bytes], bytes]:
    """Return what writes bytes into a ROM; see the places below."""
    return lambda rom: rom[:at] + content + rom[at + len(content) :]


def without_bit(rom: bytes) -> bytes:
    """Return a ROM without the BIT header."""
    return rom.replace(b"\xff\xb8BIT\0", bytes(6))


def without_mapper(rom: bytes) -> bytes:
    """Return a ROM whose FWSEC lists another interface in the place of the DMEM mapper."""
    entry = struct.pack("<2I", MAPPER_ID, MAPPER)
    return rom.replace(entry, struct.pack("<2I", 9, MAPPER))


def with_other_code(rom: bytes) -> bytes:
    """Return a ROM with one bit of FWSEC's code changed, which its signature then does not fit."""
    at = rom.index(head(Program.FWSEC, 0)) + CODE - 1
    return changed(at, bytes((rom[at] ^ 1,)))(rom)


def _image(kind: int, body: bytes, device: int, *, last: bool) -> bytes:
    """Return one image, padded to 512 bytes; `body` starts at 0x80 of it."""
    size = -(-(0x80 + len(body)) // 512)
    head_ = struct.pack("<H", 0xAA55) + bytes(0x16) + struct.pack("<H", 0x40) + bytes(0x26)
    pcir = b"PCIR" + struct.pack("<HHHHB3B", 0x10DE, device, 0, 24, 3, 0, 0, 3)
    pcir += struct.pack("<HHBBHH", size, 0, kind, 0x80 if last else 0, 0, 0)
    return padded((head_ + pcir).ljust(0x80, b"\0") + body, 512)


def _fwsec(version: int) -> bytes:
    """Return the second image's body: falcon table, descriptor, signatures, code and data."""
    size = 44 if version == 3 else 60
    table = struct.pack("<6B", 1, 6, 6, 1, version, size)
    table += struct.pack("<BBI", _PRODUCTION, 0, _BASE_SIZE + _DESCRIPTOR)
    code = padded(head(Program.FWSEC, 0) + b"FWSEC", CODE)
    if version == 3:
        versions = [v for v in range(16) if SIGNATURE_VERSIONS >> v & 1]
        signatures = [sign(Terms(v, GSP, FWSEC_PROGRAM), code) for v in versions]
        whole = size + SIZE * len(signatures)
        words = struct.pack(
            "<9I", whole << 16 | 3 << 8 | 1, CODE + DATA, SIGNATURE, INTERFACE, 0, CODE, 0, 0, DATA
        )
        words += struct.pack("<HBBHH", GSP, FWSEC_PROGRAM, len(signatures), SIGNATURE_VERSIONS, 0)
        words += b"".join(signatures)
    else:
        secure = CODE - 0x100
        words = struct.pack(
            "<15I", size << 16 | 2 << 8 | 1, CODE + DATA, CODE + DATA, 0, INTERFACE, 0, CODE, 0,
            0x100, secure, CODE, 0, DATA, 0, 0,
        )  # fmt: skip
    at = _DESCRIPTOR - _SECOND_BODY
    return (bytes(_TABLE - _SECOND_BODY) + table).ljust(at, b"\0") + words + code + _data()


def _data() -> bytes:
    data = bytearray(DATA)
    struct.pack_into("<4B", data, INTERFACE, 1, 4, 8, 2)
    struct.pack_into("<4I", data, INTERFACE + 4, 1, 0x180, MAPPER_ID, MAPPER)
    struct.pack_into("<IHH", data, MAPPER, MAPPER_MAGIC, 3, 64)
    struct.pack_into("<4I", data, MAPPER + 8, COMMAND, 0x100, OUTPUT, 0x100)
    return bytes(data)
