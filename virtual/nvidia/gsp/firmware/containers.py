"""Containers of NVIDIA's firmware files, as Debian's firmware-nvidia-graphics has them.

Source: Linux 7.3.4 drivers/gpu/drm/nouveau/include/nvfw/{fw,hs}.h, nvkm/subdev/gsp/{rm/r535/gsp.c,
fwsec.c}; open-gpu-kernel-modules 570.144 rmRiscvUcode.h; sizes and offsets measured on the files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from ugpu.virtual.nvidia.gsp.firmware.sign import Terms

_BIN_MAGIC, _BIN_VERSION, _BIN_HEADER = 0x10DE, 1, 0x18


def padded(content: bytes, size: int) -> bytes:
    """Return `content` with zeros up to a multiple of `size`."""
    return content + bytes(-len(content) % size)


def bin_file(header: bytes, data: bytes) -> bytes:
    """Return a file with nvfw_bin_hdr: magic, version, size, header offset, data, its size."""
    at = _BIN_HEADER + len(header)
    sizes = (at + len(data), _BIN_HEADER, at, len(data))
    return struct.pack("<6I", _BIN_MAGIC, _BIN_VERSION, *sizes) + header + data


class Signed(NamedTuple):
    """A program for a secure falcon. name: of its file. data_at: offset of its data in `image`;
    signature_at: where its signature goes in `image`; signatures: one for each fuse version, the
    newest first; terms: fuse version, engine mask and program number, as the file says."""

    name: str
    image: bytes
    app_at: int
    app_size: int
    data_at: int
    signature_at: int
    signatures: Sequence[bytes]
    terms: Terms


def hs_file(program: Signed) -> bytes:
    """Return a file with nvfw_hs_header_v2 (booter, scrubber)."""
    each = len(program.signatures[0])
    signatures_at = _BIN_HEADER + 0x24
    words_at = signatures_at + each * len(program.signatures)
    load_at = words_at + 4 * 3 + 12
    header = struct.pack(
        "<9I", signatures_at, each * len(program.signatures), words_at, words_at + 4,
        words_at + 12, 12, words_at + 8, load_at, 0x24,
    )  # fmt: skip
    words = struct.pack("<3I", program.signature_at, 0, len(program.signatures))
    words += struct.pack("<3I", *program.terms)
    data_size = len(program.image) - program.data_at
    load = struct.pack("<5I", 0, program.app_at, program.data_at, data_size, 1)
    load += struct.pack("<4I", program.app_at, program.app_size, program.app_at, 0)
    return bin_file(header + b"".join(program.signatures) + words + load, program.image)


def bootloader_file(version: int, image: bytes, parts: Sequence[tuple[int, int]]) -> bytes:
    """Return a file with RM_RISCV_UCODE_DESC (the GSP's boot loader).

    version: 5, or 4 of Turing and GA100, which has 76 bytes and no parts. parts: offset and size of
    manifest, monitor data and monitor code.
    """
    if version == 4:
        return bin_file(
            struct.pack("<10I", 4, 0, 0x488, 16, 0, 0, 0, 0, 0, 0).ljust(76, b"\0"), image
        )
    (manifest, manifest_size), data, code = parts
    words = struct.pack("<10I", version, 0, 0, 0, 0, 0, 0, 0, manifest, manifest_size)
    words += struct.pack("<4I", *data, *code) + struct.pack("<7I", 1, 0, 0, 0, 0, 0, 0)
    return bin_file(words, image)


def gsp_file(sections: Sequence[tuple[str, bytes]]) -> bytes:
    """Return an ELF64 file, relocatable, of RISC-V, with these sections."""
    names, body, heads = b"\0", b"", bytes(64)

    def head_of(kind: int, flags: int, content: bytes) -> bytes:
        return struct.pack(
            "<IIQQQQIIQQ", len(names), kind, flags, 0, 64 + len(body), len(content), 0, 0, 1, 0
        )

    for name, content in sections:
        heads += head_of(1, 3, content)
        names += name.encode() + b"\0"
        body += content
    heads += head_of(3, 0, names + b".shstrtab\0")
    names += b".shstrtab\0"
    body = padded(body + names, 8)
    count = len(sections) + 2
    head = struct.pack(
        "<HHIQQQI6H", 1, 0xF3, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1
    )
    return b"\x7fELF\x02\x01\x01" + bytes(9) + head + body + heads


def fmc_file(sections: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the ELF32 of an FMC: names first, section headers right after the header, CRC-32 of
    each section in sh_info. nouveau 7.3.4 compares its header byte by byte."""
    names = b"\0.shstrtab\0" + b"".join(name.encode() + b"\0" for name, _ in sections)
    at = 52 + 40 * (len(sections) + 2)
    heads = bytes(40) + struct.pack("<10I", 1, 3, 0x20, 0, at, len(names), 0, 0, 1, 1)
    body = padded(names, 4)
    for name, content in sections:
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        where = (at + len(body), len(content), 0, zlib.crc32(content), 4, 0)
        heads += struct.pack("<10I", place, 1, 0xFFF00102, 0, *where)
        body += padded(content, 4)
    head = struct.pack("<HHIIIII6H", 0, 0, 1, 0, 0, 52, 0, 52, 0, 0, 40, len(sections) + 2, 1)
    return b"\x7fELF\x01\x01\x01" + bytes(9) + head + heads + body
