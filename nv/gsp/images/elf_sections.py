"""Sections of the ELF files of GSP and FMC, of 32 or 64 bits, without copies.

The files are containers: nothing is relocated. hcq.objects.elf reads objects that compilers emit,
and requires more of them. Facts: the System V ABI (gABI), chapter 4 "Object Files".
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from ugpu.hcq.bare.firmware import Image

_MOST_SECTIONS, _MOST_NAME = 64, 64
_PROGBITS = 1


@dataclass(frozen=True)
class ElfSection:
    """One section. info: a CRC-32 of the bytes in an FMC file."""

    name: str
    info: int
    data: memoryview


def read_sections(name: str, data: bytes) -> dict[str, ElfSection]:
    """Return the sections with contents by name; FirmwareInvalid for a malformed file."""
    image = Image(name, data)
    magic = bytes(image.cut(0, 4, "ELF header"))
    image.check(magic == b"\x7fELF", "not an ELF file", found=magic)
    kind, order = image.unpack("BB", 4, "ELF header")
    known = kind in (1, 2) and order == 1
    image.check(known, "must be a little-endian ELF file", found=f"{kind} {order}")
    wide = kind == 2
    table = image.unpack("Q" if wide else "I", 40 if wide else 32, "ELF header")[0]
    entry, count, names = image.unpack("3H", 58 if wide else 46, "ELF header")
    least = 64 if wide else 40
    valid = names < count <= _MOST_SECTIONS and entry >= least
    image.check(valid, "the table of sections is invalid", count=count, entry=entry)
    rows = [_row(image, table + number * entry, wide=wide) for number in range(count)]
    text = Image(name, image.cut(*rows[names][2:4], "names of sections"))
    found: dict[str, ElfSection] = {}
    for title, row_kind, at, size, info in rows:
        if row_kind != _PROGBITS:
            continue
        part = bytes(text.data[title : title + _MOST_NAME])
        image.check(b"\0" in part, "a section's name has no end", offset=title)
        label = part.partition(b"\0")[0].decode("ascii", "replace")
        image.check(label not in found, f"two sections are named {label}")
        found[label] = ElfSection(label, info, image.cut(at, size, f"section {label}"))
    return found


def _row(image: Image, at: int, *, wide: bool) -> tuple[int, int, int, int, int]:
    """Return name, kind, offset, size and info of a section."""
    fields = image.unpack("IIQQQQII" if wide else "8I", at, "table of sections")
    name, kind, _, _, offset, size, _, info = fields
    return name, kind, offset, size, info


def check_sums(name: str, sections: dict[str, ElfSection]) -> None:
    """Compare the CRC-32 of sections that state one."""
    for section in sections.values():
        expected, found = section.info, zlib.crc32(section.data)
        Image(name, section.data).check(
            expected in (0, found), f"section {section.name} is damaged",
            expected=expected, found=found,
        )  # fmt: skip
