"""FWSEC, the VBIOS's program for a falcon: it makes the FRTS region and hands the GPU back.

It runs on the GSP's falcon before the GSP's own firmware is loaded. The driver passes a command in
the program's data (DMEM) and, from Ampere on, the signature that fits the chip's fuses. Sources:
open-gpu-kernel-modules 570.144 kernel_gsp_fwsec.c, kernel_gsp_vbios_tu102.c; Linux 7.3 nouveau
nvkm/subdev/gsp/fwsec.c, nova-core vbios.rs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.hcq.bare.firmware import Image
from ugpu.hcq.errors import FirmwareInvalid, NotSupported
from ugpu.nv.gsp.images.rom import Vbios

_FALCON_DATA, _FALCON_DATA_VERSION = 0x70, 2  # a token of BIT
_TABLE_HEADER, _MOST_ENTRIES = 6, 64
_PRODUCTION = 0x85  # application id; 0x45 is for chips in debug mode
_V2_SIZE, _V3_SIZE = 60, 44
SIGNATURE_SIZE = 384  # RSA-3072
_MOST_SIZE = 1 << 20
_BLOCK = 256
_INTERFACE_VERSION, _MAPPER_ID, _MOST_INTERFACES = 1, 4, 16
_MAPPER_SIZE = 0x40
_COMMAND_BUFFER, _COMMAND = 8, 0x2C  # offsets in the mapper
FRTS, RETURN = 0x15, 0x19  # commands: make the region; "SB", leave the chip as after power-on
READ_VBIOS = struct.pack("<IIQII", 1, 24, 0, 0, 2)
_FRAMEBUFFER = 2


@dataclass(frozen=True)
class Descriptor:
    """How the program is loaded. Sizes and offsets are bytes.

    version: 2 (Turing: part of IMEM is secure, no signature of the driver's) or 3 (a boot ROM
    checks one of `signatures`). imem, dmem: sizes in the image. virtual: where IMEM's tags begin.
    secure_base, secure_size: the secure part of IMEM, version 2. versions: fuse versions that
    the signatures are for, one bit each.
    """

    version: int
    imem: int
    virtual: int
    secure_base: int
    secure_size: int
    dmem: int
    interface: int
    signature_at: int = 0
    engines: int = 0
    ucode: int = 0
    versions: int = 0
    signatures: tuple[bytes, ...] = ()


def _table(vbios: Vbios) -> int:
    """Return the offset in the secure block of the table of falcon programs."""
    for kind, version, size, offset in vbios.tokens():
        if (kind, version) == (_FALCON_DATA, _FALCON_DATA_VERSION) and size >= 4:
            pointer = vbios.base.word(offset, "falcon data")
            return vbios.beyond(pointer, "the table of falcon programs")
    raise vbios.base.invalid("BIT has no falcon data (token 0x70, version 2)")


def _find(vbios: Vbios) -> int:
    """Return the offset in the secure block of the descriptor of FWSEC."""
    block, what = vbios.block, "the table of falcon programs"
    rows = block.table(_table(vbios), what, "BBI", first=1, head=_TABLE_HEADER, most=_MOST_ENTRIES)
    kinds = []
    for kind, _, pointer in rows:
        if kind == _PRODUCTION:
            return vbios.beyond(pointer, "FWSEC")
        kinds.append(f"{kind:#x}")
    raise block.invalid(
        "expected FWSEC (application 0x85) in the table of falcon programs", found=", ".join(kinds)
    )


class Fwsec:
    """The program: `descriptor`, and its image, IMEM and then DMEM."""

    def __init__(self, descriptor: Descriptor, image: bytes) -> None:
        self.descriptor = descriptor
        self.image = image

    @classmethod
    def find(cls, vbios: Vbios) -> Fwsec:
        """Find the program in a VBIOS; FirmwareInvalid if it is missing or malformed."""
        at, block = _find(vbios), vbios.block
        head = block.word(at, "descriptor of FWSEC")
        version, size = head >> 8 & 0xFF, head >> 16
        known = head & 1 and version in (2, 3)
        block.check(known, "FWSEC's descriptor must have version 2 or 3", found=version)
        least = _V2_SIZE if version == 2 else _V3_SIZE
        block.check(size >= least, "FWSEC's descriptor is too short", stated=size, need=least)
        descriptor = (_version2 if version == 2 else _version3)(vbios, at, size)
        total = descriptor.imem + descriptor.dmem
        block.check(total <= _MOST_SIZE, "FWSEC is larger than a falcon's memory", size=total)
        return cls(descriptor, bytes(block.cut(at + size, total, "FWSEC")))

    def with_command(self, command: int, arguments: bytes, signature: bytes = b"") -> bytes:
        """Return the image with a command, and a signature if the descriptor has any."""
        image = bytearray(self.image)
        data = Image("FWSEC's data", memoryview(image)[self.descriptor.imem :])
        mapper, place, need = self._mapper(data), self.descriptor.signature_at, len(arguments)
        struct.pack_into("<I", data.data, mapper + _COMMAND, command)
        (buffer, size) = data.unpack("II", mapper + _COMMAND_BUFFER, "DMEM mapper")
        data.check(size >= need, "FWSEC's command buffer is too small", size=size, need=need)
        data.cut(buffer, need, "command buffer")[:] = arguments
        data.cut(place, len(signature), "signature")[:] = signature
        return bytes(image)

    def _mapper(self, data: Image) -> int:
        """Return the offset in DMEM of the structure through which commands are passed."""
        at = self.descriptor.interface
        what, version = "the interface table", _INTERFACE_VERSION
        for kind, offset in data.table(at, what, "2I", first=version, most=_MOST_INTERFACES):
            if kind == _MAPPER_ID:
                data.cut(offset, _MAPPER_SIZE, "DMEM mapper")
                return offset
        raise data.invalid("there is no DMEM mapper (interface 4)")

    def signature(self, fuse: int) -> bytes:
        """Return the signature for a chip whose fuse register for this program reads `fuse`.

        The highest bit set in the fuse is the chip's version. Signatures exist for the versions in
        `versions`, in ascending order; none is needed for version 2 of the descriptor.
        """
        descriptor = self.descriptor
        if descriptor.version == 2:
            return b""
        version = fuse.bit_length()
        index = (descriptor.versions & (1 << version) - 1).bit_count()
        if not descriptor.versions >> version & 1 or index >= len(descriptor.signatures):
            raise FirmwareInvalid(
                "the VBIOS's FWSEC is not signed for this chip: its fuses require a version that "
                "the VBIOS does not have",
                fuse_version=version, versions=descriptor.versions,
                signatures=len(descriptor.signatures), remedy="update the board's VBIOS",
            )  # fmt: skip
        return descriptor.signatures[index]


def _version2(vbios: Vbios, at: int, size: int) -> Descriptor:
    fields = vbios.block.unpack("14I", at + 4, "FWSEC's descriptor")
    (_, _, _, interface, _, imem, virtual, base, secure, dmem_at, _, dmem, _, _) = fields
    fits, text = base + secure <= imem <= dmem_at, "FWSEC's descriptor contradicts itself"
    vbios.block.check(fits, text, imem=imem, secure=base + secure, dmem_at=dmem_at)
    if dmem_at != imem:
        raise NotSupported("FWSEC with a gap between code and data", imem=imem, dmem_at=dmem_at)
    return Descriptor(2, imem, virtual, base, secure, dmem, interface)


def _version3(vbios: Vbios, at: int, size: int) -> Descriptor:
    block = vbios.block
    fields = block.unpack("8I", at + 4, "FWSEC's descriptor")
    _, signature_at, interface, _, imem, virtual, _, dmem = fields
    engines, ucode, count, versions = block.unpack("HBBH", at + 36, "FWSEC's descriptor")
    fits = size >= _V3_SIZE + count * SIGNATURE_SIZE
    block.check(fits, "FWSEC's descriptor has no room for its signatures", count=count)
    signatures = tuple(
        bytes(block.cut(at + _V3_SIZE + n * SIGNATURE_SIZE, SIGNATURE_SIZE, "FWSEC's signature"))
        for n in range(count)
    )
    dmem = -(-dmem // _BLOCK) * _BLOCK
    return Descriptor(
        3, imem, virtual, 0, 0, dmem, interface, signature_at, engines, ucode, versions, signatures
    )


def frts_arguments(offset: int, size: int) -> bytes:
    """Return the argument of FRTS: the region of VRAM."""
    region = struct.pack("<5I", 1, 20, offset >> 12, size >> 12, _FRAMEBUFFER)
    return READ_VBIOS + region
