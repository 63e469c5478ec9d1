"""Object files that are wrong, or odd and right, by a little."""

from __future__ import annotations

import struct

import pytest

from tests.support.kernels import amd_table_object
from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.elf import SHT_NOTE, SHT_SYMTAB, ElfObject, Section, read_object

SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr: name, kind, flags, address, offset, size, ...
OFFSET, SIZE = 4, 5


def changed(number: int, **fields: int) -> bytes:
    """An object whose section `number` has other values in its header."""
    image = bytearray(amd_table_object())
    (table,) = struct.unpack_from("<Q", image, 0x28)  # e_shoff
    at = table + number * SECTION.size
    values = list(SECTION.unpack_from(image, at))
    for name, value in fields.items():
        values[{"kind": 1, "offset": OFFSET, "size": SIZE}[name]] = value
    SECTION.pack_into(image, at, *values)
    return bytes(image)


def test_a_section_ends_with_its_file() -> None:
    image = amd_table_object()
    text = next(s for s in read_object(image).sections if s.name == ".text")
    whole = changed(text.index, offset=len(image) - text.size)
    assert read_object(whole).sections[text.index].data == whole[-text.size :]
    for fields in ({"offset": len(image) - text.size + 1}, {"offset": len(image), "size": 1}):
        with pytest.raises(BadCodeObject):
            read_object(changed(text.index, **fields))


def test_two_tables_of_symbols_are_refused() -> None:
    other = next(s for s in read_object(amd_table_object()).sections if s.name == ".rodata.cst16")
    with pytest.raises(BadCodeObject) as caught:
        read_object(changed(other.index, kind=SHT_SYMTAB))
    assert caught.value.facts["found"] == 2


def noted(data: bytes) -> list[tuple[str, int, bytes]]:
    section = Section(0, ".note", SHT_NOTE, 0, len(data), 4, data, 0, 0)
    return ElfObject(224, 64, 3, 0, (section,), (), ()).notes()


def note(owner: bytes, kind: int, data: bytes) -> bytes:
    """As the ELF specification lays it out: name and description end at multiples of four."""
    head = struct.pack("<III", len(owner), len(data), kind)
    return head + owner + bytes(-len(owner) % 4) + data + bytes(-len(data) % 4)


def test_notes_follow_each_other_at_multiples_of_four() -> None:
    first, second = note(b"AMDGPU\0", 32, b"12345"), note(b"GNU\0", 3, b"six")
    assert noted(first + second) == [("AMDGPU", 32, b"12345"), ("GNU", 3, b"six")]


def test_a_note_ends_with_its_section() -> None:
    data = note(b"GNU\0", 3, b"1234")
    assert noted(data) == [("GNU", 3, b"1234")]
    with pytest.raises(BadCodeObject):
        noted(data[:-1])
