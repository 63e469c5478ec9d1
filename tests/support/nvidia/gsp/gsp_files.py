"""Synthetic ROMs and firmware files of NVIDIA's formats, for tests: every byte of contents is ours.

Layouts: headers of open-gpu-kernel-modules and of linux-firmware's files, as nv.gsp.images states
them. The models have builders of their own; these here can also build files that are wrong.
"""

from __future__ import annotations

import struct
import zlib

IMEM, DMEM = 0x400, 0x4F0  # of FWSEC; DMEM is not a multiple of 256, as on boards
INTERFACE, MAPPER, BUFFER, SIGNATURE = 0x100, 0x140, 0x200, 0x300  # in DMEM
BIT_AT = 0x1D8


def pad(data: bytes, granule: int) -> bytes:
    """Fill up to a multiple of `granule`."""
    return data + bytes(-len(data) % granule)


# ---- ROM -------------------------------------------------------------------------------------


def rom_image(kind: int, body: bytes, *, last: bool, sub_blocks: int | None = None) -> bytes:
    """One image of a ROM: header, PCIR at 0x40, NPDE at 0x60 if `sub_blocks`, then `body` at 0x80.

    sub_blocks: NPDE's size in blocks of 512 bytes; PCIR then states a wrong one, and no end.
    """
    whole = bytearray(pad(bytes(0x80) + body, 512))
    struct.pack_into("<H", whole, 0, 0xAA55)
    struct.pack_into("<H", whole, 0x18, 0x40)
    blocks = len(whole) // 512 if sub_blocks is None else 1
    end = 0x80 if last and sub_blocks is None else 0
    struct.pack_into(
        "<4s4HB3B2H2B2H", whole, 0x40, b"PCIR", 0x10DE, 0x2684, 0, 0x18, 3, 0, 0, 3, blocks, 0,
        kind, end, 0, 0,
    )  # fmt: skip
    if sub_blocks is not None:
        struct.pack_into("<4s3HB", whole, 0x60, b"NPDE", 1, 11, sub_blocks, 0x80 if last else 0)
    return bytes(whole)


def fwsec(version: int = 3, *, versions: int = 0b11, dmem: int = DMEM) -> bytes:
    """FWSEC's descriptor, signatures, IMEM and DMEM."""
    data = bytearray(-(-dmem // 256) * 256)
    struct.pack_into("<4B", data, INTERFACE, 1, 4, 8, 2)
    struct.pack_into("<4I", data, INTERFACE + 4, 1, 0, 4, MAPPER)
    struct.pack_into("<I2HII", data, MAPPER, 0x50414D44, 4, 0x40, BUFFER, 0x60)
    code = bytes(range(256)) * (IMEM // 256)
    if version == 2:
        head = 60 << 16 | 2 << 8 | 1
        fields = (head, 0, 0, 0, INTERFACE, 0, IMEM, 0, 0x100, IMEM - 0x100, IMEM, 0, len(data))
        return struct.pack("<15I", *fields, 0, 0) + code + bytes(data)
    count = versions.bit_count()
    head = (44 + 384 * count) << 16 | 3 << 8 | 1
    fields = (head, 0, SIGNATURE, INTERFACE, 0, IMEM, 0, 0, dmem)
    descriptor = struct.pack("<9I", *fields) + struct.pack("<HBBHH", 1 << 10, 9, count, versions, 0)
    signatures = b"".join(bytes((0xA0 + n,)) * 384 for n in range(count))
    return descriptor + signatures + code + bytes(data)


def vbios(
    program: bytes | None = None, *, efi: bool = True, application: int = 0x85, token: int = 0x70
) -> bytes:
    """A ROM of three images: the BIOS with BIT, one for EFI, and one with FWSEC."""
    program = fwsec() if program is None else program
    base_size, table, place = 0x800, 0x40, 0x100
    bit = struct.pack("<HIHBBBB", 0xB8FF, 0x00544942, 0x100, 12, 6, 2, 0)
    bit += struct.pack("<BBHH", 0x32, 1, 4, 0) + struct.pack("<BBHH", token, 2, 4, BIT_AT + 0x40)
    body = bytes(BIT_AT - 0x80) + bit.ljust(0x40, b"\0")
    body += struct.pack("<I", base_size + 0x80 + table)
    base = rom_image(0x00, body.ljust(base_size - 0x80, b"\0"), last=False)
    entry = struct.pack("<BBI", application, 0, base_size + 0x80 + place)
    entries = struct.pack("<6B", 1, 6, 6, 2, 3, 44) + struct.pack("<BBI", 0x05, 0, 0) + entry
    secure = bytes(table) + entries.ljust(place - table, b"\0") + program
    blocks = (len(secure) + 0x80 + 511) // 512
    images = [base, rom_image(0xE0, secure, last=True, sub_blocks=blocks)]
    if efi:
        images.insert(1, rom_image(0x03, b"EFI", last=False))
    return b"".join(images)


def with_ifr(rom: bytes, version: int) -> bytes:
    """Put NVIDIA's IFR header in front of a ROM."""
    start = 0x2000
    head = bytearray(start)
    struct.pack_into("<II", head, 0, 0x4947564E, 0x20 << 16 | version << 8)
    if version == 3:
        struct.pack_into("<I", head, 8, 0x100)  # total size
        struct.pack_into("<I", head, 0x100, 0x200)  # flash status
        struct.pack_into("<III", head, 0x1200, 0x44524652, 0, start)
    else:
        struct.pack_into("<I", head, 0x24, start)
    return bytes(head) + rom


# ---- files -----------------------------------------------------------------------------------


def container(header: bytes, data: bytes) -> bytes:
    """A file with NVIDIA's header."""
    at = 0x18 + len(header)
    return struct.pack("<6I", 0x10DE, 1, at + len(data), 0x18, at, len(data)) + header + data


def booter(*, signatures: int = 2, fuse: int = 1, size: int = 0x180) -> bytes:
    """booter_load or booter_unload: 0x100 bytes of code, 0x200 of secure code, 0x400 of data."""
    blob = b"c" * 0x100 + b"a" * 0x200 + bytes(0x400)
    sig_at = 0x18 + 0x24
    words = sig_at + signatures * size
    load = words + 12 + 12
    head = struct.pack(
        "<9I", sig_at, signatures * size, words, words + 4, words + 12, 12, words + 8, load, 0x24
    )
    head += b"".join(bytes((0xB0 + n,)) * size for n in range(signatures))
    head += struct.pack("<3I", 0x310, 0, signatures) + struct.pack("<3I", fuse, 1, 3)
    head += struct.pack("<5I", 0, 0x100, 0x300, 0x400, 1) + struct.pack("<4I", 0x100, 0x200, 0, 0)
    return container(head, blob)


def boot_loader(version: int = 5) -> bytes:
    """The GSP's boot loader."""
    if version == 4:
        return container(struct.pack("<19I", 4, *([0] * 6), 7, *([0xFFFF] * 11)), b"l" * 0x1000)
    places = (0, 0x800, 0x800, 0x1000, 0x1800, 0x800)
    words = (5, 0, 0, 0, 0, 0, 0, 7, *places, 1, 0, 0, 0, 0, 0, 0)
    return container(struct.pack("<21I", *words), b"l" * 0x2000)


def elf(parts: dict[str, bytes], *, wide: bool = True, sums: bool = False) -> bytes:
    """An ELF file of sections."""
    head, entry = (64, 64) if wide else (52, 40)
    names, body, rows = b"\0", b"", [(0,) * 6]
    for name, content in parts.items():
        info = zlib.crc32(content) if sums else 0
        rows.append((len(names), 1, 0, head + len(body), len(content), info))
        names += name.encode() + b"\0"
        body += content
    rows.append((len(names), 3, 0, head + len(body), len(names) + 10, 0))
    body = pad(body + names + b".shstrtab\0", 8)
    table = head + len(body)
    out = b"\x7fELF" + bytes((2 if wide else 1, 1, 1)) + bytes(9)
    out += struct.pack(
        "<HHIQQQI6H" if wide else "<HHIIIII6H", 1, 0xF3, 1, 0, 0, table, 0, head, 0, 0, entry,
        len(rows), len(rows) - 1,
    )  # fmt: skip
    out += body
    for name_at, kind, flags, at, size, info in rows:
        row = (name_at, kind, flags, 0, at, size, 0, info, 1, 0)
        out += struct.pack("<IIQQQQIIQQ" if wide else "<10I", *row)
    return out


def gsp(version: str = "570.144", *families: str, size: int = 0x3456) -> bytes:
    """The GSP's image file."""
    parts = {".fwimage": bytes(size), ".fwversion": version.encode() + b"\0"}
    for family in families or ("ad10x", "ga10x"):
        parts[f".fwsignature_{family}"] = family.encode().ljust(0x1000, b"\0")
    return elf(parts)


def fmc() -> bytes:
    """The file of a chip with FSP."""
    parts = {"hash": b"h" * 48, "publickey": b"k" * 97, "signature": b"s" * 96, "image": b"i" * 64}
    return elf(parts, wide=False, sums=True)
