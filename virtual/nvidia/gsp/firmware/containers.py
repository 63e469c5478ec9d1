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


def elf_file(sections: Sequence[tuple[str, bytes]], *, wide: bool) -> bytes:
    """Return an ELF file with these sections behind their names.

    wide: ELF64, relocatable, of RISC-V, with section headers at the end, as the GSP's image; else
    ELF32 with section headers right after the header and the CRC-32 of each section in sh_info, as
    an FMC. nouveau 7.3.4 compares the FMC's header byte by byte.
    """
    row, number, size, unit = ("<IIQQQQIIQQ", "Q", 64, 8) if wide else ("<10I", "I", 52, 4)
    names = b"\0.shstrtab\0" + b"".join(name.encode() + b"\0" for name, _ in sections)
    entry, count = struct.calcsize(row), len(sections) + 2
    at, body = size if wide else size + entry * count, padded(names, unit)
    heads = bytes(entry) + struct.pack(row, 1, 3, 0x20, 0, at, len(names), 0, 0, 1, 1)
    for name, content in sections:
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        flags, info = (3, 0) if wide else (0xFFF00102, zlib.crc32(content))
        where = (at + len(body), len(content), 0, info, 4, 0)
        heads += struct.pack(row, place, 1, flags, 0, *where)
        body += padded(content, unit)
    kind = (1, 0xF3, 1, 0, 0, at + len(body)) if wide else (0, 0, 1, 0, 0, size)
    head = struct.pack(f"<HHI3{number}I6H", *kind, 0, size, 0, 0, entry, count, 1)
    head = b"\x7fELF" + bytes((1 + wide, 1, 1)) + bytes(9) + head
    return head + (body + heads if wide else heads + body)
