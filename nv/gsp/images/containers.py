"""Containers of firmware files: booter, GSP boot loader, generic falcon loader.

Layouts: Linux 7.3 nouveau include/nvfw/{fw,hs,fw}.h and nova-core firmware.rs; sizes checked
against the files of linux-firmware, see docs/nv-bringup.md. `patch_loc`, `patch_sig` and `num_sig`
of an HS header are places in the file of the numbers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.hcq.bare.firmware import Image

_MAGIC, _HEADER_SIZE = 0x10DE, 24
_MOST_APPS, _MOST_SIGNATURES = 16, 64
_META_SIZE = 12
_RISCV_V4, _RISCV_V5 = 76, 84


def read_container(name: str, data: bytes) -> tuple[Image, int, Image]:
    """Check a file's header; return the file, the place of the content's own header, and the
    content."""
    image = Image(name, data)
    magic, version, _, header, at, size = image.unpack("6I", 0, "header")
    image.check(
        (magic, version) == (_MAGIC, 1), "not a firmware container",
        expected="0x10de version 1", found=f"{magic:#x} {version}",
    )  # fmt: skip
    image.check(header >= _HEADER_SIZE, "the content's header overlaps the file's", offset=header)
    return image, header, Image(name, image.cut(at, size, "data"))


@dataclass(frozen=True)
class HeavySecure:
    """A program that a falcon checks before it runs (booter, scrubber).

    code: what is not secure. application: offset and size of the secure code in `data`. contents:
    offset and size of its data (DMEM). signature_at: where the signature goes in `data`.
    fuse_version, engines, ucode: what the boot ROM compares and the choice of the signature.
    """

    name: str
    data: bytes
    code: tuple[int, int]
    application: tuple[int, int]
    contents: tuple[int, int]
    signature_at: int
    signatures: tuple[bytes, ...]
    fuse_version: int
    engines: int
    ucode: int

    def signed(self, hardware: int) -> bytes:
        """Return the data with the signature for a chip of fuse version `hardware`.

        A version of 0 takes the last signature; otherwise they are ordered from the file's own
        version downwards. A file older than the fuses is refused: the chip would refuse it.
        """
        index = self.fuse_version - hardware if hardware else len(self.signatures) - 1
        image = Image(self.name, self.data)
        image.check(
            0 <= index < len(self.signatures),
            "not signed for this chip: its fuses require another version",
            fuse_version=hardware, file_version=self.fuse_version,
            signatures=len(self.signatures), remedy="install a newer firmware package",
        )  # fmt: skip
        signature = self.signatures[index]
        image.cut(self.signature_at, len(signature), "signature")
        out = bytearray(self.data)
        out[self.signature_at : self.signature_at + len(signature)] = signature
        return bytes(out)

    @property
    def parameters_at(self) -> int:
        """The signature's place in the falcon's data memory."""
        return self.signature_at - self.contents[0]


def read_heavy_secure(name: str, data: bytes) -> HeavySecure:
    """Read a file of a program with signatures (header HS version 2, load header version 2)."""
    image, header, blob = read_container(name, data)
    fields = image.unpack("9I", header, "HS header")
    at, total, patch_at, base_at, meta_at, meta_size, count_at, load_at, load_size = fields
    count = image.word(count_at, "number of signatures")
    valid = 0 < count <= _MOST_SIGNATURES and not total % count
    image.check(valid, "the number of signatures is invalid", count=count, size=total)
    size = total // count
    place = image.word(patch_at, "place of the signature")
    first = at + image.word(base_at, "first signature")
    signatures = tuple(
        bytes(image.cut(first + number * size, size, "signature")) for number in range(count)
    )
    enough = meta_size >= _META_SIZE
    image.check(enough, "the metadata are too short", size=meta_size, need=_META_SIZE)
    fuse, engines, ucode = image.unpack("3I", meta_at, "metadata")
    code, code_size, contents, contents_size, apps = image.unpack("5I", load_at, "load header")
    valid = 0 < apps <= _MOST_APPS and load_size >= 20 + 8 * apps
    image.check(valid, "the load header is invalid", applications=apps, size=load_size)
    secure, secure_size = image.unpack("2I", load_at + 20, "load header")
    blob.cut(code, code_size, "code")
    blob.cut(secure, secure_size, "secure code")
    blob.cut(contents, contents_size, "data")
    blob.cut(place, size, "signature")
    inside = contents <= place <= contents + contents_size - size
    image.check(inside, "the signature must lie in the program's data", offset=place)
    return HeavySecure(
        name, bytes(blob.data), (code, code_size), (secure, secure_size),
        (contents, contents_size), place, signatures, fuse, engines, ucode,
    )  # fmt: skip


@dataclass(frozen=True)
class BootLoader:
    """The GSP's boot loader, which booter places in front of the GSP's image.

    code, data_at, manifest: offsets in `data`; 0 where the descriptor, of version 4, has none.
    """

    data: bytes
    app_version: int
    code: int
    data_at: int
    manifest: int


def read_boot_loader(name: str, data: bytes) -> BootLoader:
    """Read a file `bootloader`: RM_RISCV_UCODE_DESC of version 4 or 5 and its data."""
    image, header, blob = read_container(name, data)
    version = image.word(header, "descriptor")
    image.check(version in (4, 5), "the descriptor must have version 4 or 5", found=version)
    size = _RISCV_V4 if version == 4 else _RISCV_V5
    fields = struct.unpack_from("<14I", image.cut(header, size, "descriptor"))
    app_version = fields[7]
    if version == 4:  # the rest is not there: its place belongs to the code
        return BootLoader(bytes(blob.data), app_version, 0, 0, 0)
    manifest, manifest_size, data_at, data_size, code, code_size = fields[8:14]
    blob.cut(manifest, manifest_size, "manifest")
    blob.cut(data_at, data_size, "monitor's data")
    blob.cut(code, code_size, "monitor's code")
    return BootLoader(bytes(blob.data), app_version, code, data_at, manifest)


@dataclass(frozen=True)
class GenericLoader:
    """The falcon program that loads FWSEC on Turing. start: the tag of its first block."""

    start: int
    code: bytes


def read_generic_loader(name: str, data: bytes) -> GenericLoader:
    """Read `gen_bootloader` or `acr/bl`."""
    image, header, blob = read_container(name, data)
    start, _, at, size = image.unpack("4I", header, "loader header")
    image.check(size and not size % 256, "the code must be blocks of 256 bytes", size=size)
    return GenericLoader(start, bytes(blob.cut(at, size, "code")))
