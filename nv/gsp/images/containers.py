"""Containers of firmware files: booter, GSP boot loader, generic falcon loader.

Layouts: Linux 7.3 nouveau include/nvfw/{fw,hs,fw}.h and nova-core firmware.rs; sizes checked
against the files of linux-firmware, see docs/nv-bringup.md. `patch_loc`, `patch_sig` and `num_sig`
of an HS header are places in the file of the numbers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ugpu.nv.gsp.images.bounds import Image

_MAGIC, _HEADER_SIZE = 0x10DE, 24
_MOST_APPS, _MOST_SIGNATURES = 16, 64
_META_SIZE = 12
_RISCV_V4, _RISCV_V5 = 76, 84


@dataclass(frozen=True)
class Container:
    """A file with NVIDIA's header. header: place of the content's own header. data: the content."""

    image: Image
    header: int
    data: memoryview


def read_container(name: str, data: bytes) -> Container:
    """Check a file's header."""
    image = Image(name, data)
    magic, version, _, header, at, size = image.unpack("6I", 0, "header")
    if magic != _MAGIC or version != 1:
        raise image.invalid(
            "not a firmware container", expected="0x10de version 1", found=f"{magic:#x} {version}"
        )
    if header < _HEADER_SIZE:
        raise image.invalid("the content's header overlaps the file's", offset=header)
    return Container(image, header, image.cut(at, size, "data"))


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
        if not 0 <= index < len(self.signatures):
            raise image.invalid(
                "not signed for this chip: its fuses require another version",
                fuse_version=hardware,
                file_version=self.fuse_version,
                signatures=len(self.signatures),
                remedy="install a newer firmware package",
            )
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
    container = read_container(name, data)
    image, blob = container.image, Image(name, container.data)
    fields = image.unpack("9I", container.header, "HS header")
    at, total, patch_at, base_at, meta_at, meta_size, count_at, load_at, load_size = fields
    count = image.word(count_at, "number of signatures")
    if not 0 < count <= _MOST_SIGNATURES or total % count:
        raise image.invalid("the number of signatures is invalid", count=count, size=total)
    size = total // count
    place = image.word(patch_at, "place of the signature")
    first = at + image.word(base_at, "first signature")
    signatures = tuple(
        bytes(image.cut(first + number * size, size, "signature")) for number in range(count)
    )
    if meta_size < _META_SIZE:
        raise image.invalid("the metadata are too short", size=meta_size, need=_META_SIZE)
    fuse, engines, ucode = image.unpack("3I", meta_at, "metadata")
    code, code_size, contents, contents_size, apps = image.unpack("5I", load_at, "load header")
    if not 0 < apps <= _MOST_APPS or load_size < 20 + 8 * apps:
        raise image.invalid("the load header is invalid", applications=apps, size=load_size)
    secure, secure_size = image.unpack("2I", load_at + 20, "load header")
    blob.cut(code, code_size, "code")
    blob.cut(secure, secure_size, "secure code")
    blob.cut(contents, contents_size, "data")
    blob.cut(place, size, "signature")
    if place < contents or place + size > contents + contents_size:
        raise image.invalid("the signature must lie in the program's data", offset=place)
    return HeavySecure(
        name, bytes(container.data), (code, code_size), (secure, secure_size),
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
    container = read_container(name, data)
    image, blob = container.image, Image(name, container.data)
    version = image.word(container.header, "descriptor")
    if version not in (4, 5):
        raise image.invalid("the descriptor must have version 4 or 5", found=version)
    size = _RISCV_V4 if version == 4 else _RISCV_V5
    fields = struct.unpack_from("<14I", image.cut(container.header, size, "descriptor"))
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
    container = read_container(name, data)
    start, _, at, size = container.image.unpack("4I", container.header, "loader header")
    blob = Image(name, container.data)
    if size % 256 or size == 0:
        raise container.image.invalid("the code must be blocks of 256 bytes", size=size)
    return GenericLoader(start, bytes(blob.cut(at, size, "code")))
