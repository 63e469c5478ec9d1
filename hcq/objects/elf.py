"""Relocatable ELF objects, as compilers emit them, read with every bound checked.

Only 64-bit little-endian files: ET_REL here, ET_DYN in hcq.objects.shared_object. Any fault in a
file raises BadCodeObject. Facts: the System V ABI (gABI), chapter 4 "Object Files"; processor
specifics are given by the caller. hcq.objects.linking lays objects out and links them.

Why our own reader: objects come from outside, and any fault in them must raise one class of error.
General readers raise many classes, or trust a size that a flipped bit made; LLVM's loader ends the
process. The tests compare this reader with pyelftools.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from ugpu.hcq.errors import BadCodeObject

ET_REL = 1
SHT_PROGBITS, SHT_SYMTAB, SHT_STRTAB, SHT_RELA, SHT_NOTE, SHT_NOBITS, SHT_REL = 1, 2, 3, 4, 7, 8, 9
SHF_WRITE, SHF_ALLOC, SHF_EXECINSTR, SHF_TLS, SHF_COMPRESSED = 1, 2, 4, 0x400, 0x800
SHN_UNDEF, SHN_LORESERVE, SHN_ABS = 0, 0xFF00, 0xFFF1
STB_WEAK = 2

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")
_NOTE = struct.Struct("<III")

_SHARING, _LEAST_NAMES = 8, 4096  # most bytes of names: times the table's, and in any case
_OVERLAP = 4  # most bytes of all parts of a file, in sizes of the file
MAX_SIZE = 1 << 30  # of an object, and of its image in memory
MAX_ALIGN = 1 << 16


@dataclass(frozen=True)
class Section:
    """One section.

    Attributes:
        index: in the section table.
        name: of the section.
        kind: sh_type.
        flags: sh_flags.
        size: in bytes.
        align: in bytes.
        data: empty for SHT_NOBITS, whose bytes are zeros.
        link: sh_link.
        info: sh_info.
    """

    index: int
    name: str
    kind: int
    flags: int
    size: int
    align: int
    data: bytes = field(repr=False)
    link: int
    info: int

    @property
    def is_loaded(self) -> bool:
        return bool(self.flags & SHF_ALLOC) and self.kind != SHT_NOTE


@dataclass(frozen=True)
class ElfSymbol:
    """A symbol.

    Attributes:
        name: of the symbol.
        value: offset in its section; the address without one.
        size: in bytes.
        section: index; None if undefined or absolute.
        is_defined: whether the object defines it.
        is_weak: whether it may stay undefined.
    """

    name: str
    value: int
    size: int
    section: int | None
    is_defined: bool
    is_weak: bool


@dataclass(frozen=True)
class ElfRelocation:
    """A patch of a section.

    Attributes:
        section: index of the patched section.
        offset: in it.
        kind: r_type of the processor.
        symbol: number of the symbol.
        addend: added to its value.
    """

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class ElfObject:
    """A checked object: every section, symbol and relocation lies within its bounds.

    Attributes:
        machine: e_machine.
        os_abi: EI_OSABI.
        abi_version: EI_ABIVERSION.
        flags: e_flags.
        sections: by index.
        symbols: by number.
        relocations: of all sections.
    """

    machine: int
    os_abi: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]
    symbols: tuple[ElfSymbol, ...]
    relocations: tuple[ElfRelocation, ...]

    @functools.cached_property
    def _defined(self) -> dict[str, ElfSymbol]:
        """Defined symbols by name, the first of each."""
        return {symbol.name: symbol for symbol in reversed(self.symbols) if symbol.is_defined}

    def find(self, name: str) -> ElfSymbol | None:
        """Return the defined symbol of that name."""
        return self._defined.get(name)

    def notes(self) -> list[tuple[str, int, bytes]]:
        """Return (owner, type, description) of all notes; BadCodeObject for a malformed one."""
        notes = []
        for section in self.sections:
            if section.kind != SHT_NOTE:
                continue
            at = 0
            while at + _NOTE.size <= len(section.data):
                name_size, size, kind = _NOTE.unpack_from(section.data, at)
                name_at = at + _NOTE.size
                data_at = name_at + (name_size + 3 & ~3)
                at = data_at + (size + 3 & ~3)
                if data_at + size > len(section.data):
                    raise BadCodeObject(
                        "the note extends past the end of its section", section=section.name
                    )
                owner = section.data[name_at : name_at + name_size].rstrip(b"\0")
                notes.append(
                    (owner.decode("ascii", "replace"), kind, section.data[data_at : data_at + size])
                )
        return notes


@dataclass(frozen=True)
class Header:
    """The file's header. Tables are file offsets.

    Attributes:
        kind: ET_REL etc.
        machine: e_machine.
        os_abi: EI_OSABI.
        abi_version: EI_ABIVERSION.
        flags: e_flags.
        segments: place of the program headers.
        segment_size: bytes of one.
        segment_count: their number.
        sections: place of the section headers.
        section_count: their number.
        names: index of the section with the sections' names.
    """

    kind: int
    machine: int
    os_abi: int
    abi_version: int
    flags: int
    segments: int
    segment_size: int
    segment_count: int
    sections: int
    section_count: int
    names: int


def read_header(image: bytes) -> Header:
    """Read the header of an ELF file of any kind; Raises BadCodeObject with the defect."""
    if len(image) < _HEADER.size or len(image) > MAX_SIZE:
        raise BadCodeObject("not an ELF object", size=len(image))
    (
        ident,
        kind,
        machine,
        version,
        _,
        segments,
        table,
        flags,
        header_size,
        segment_size,
        segment_count,
        entry_size,
        count,
        names,
    ) = _HEADER.unpack_from(image)
    if ident[:4] != b"\x7fELF":
        raise BadCodeObject("not an ELF object: wrong magic", magic=ident[:4].hex())
    if ident[4:7] != b"\x02\x01\x01" or version != 1:
        raise BadCodeObject("not a 64-bit little-endian ELF of version 1", ident=ident[:8].hex())
    if header_size != _HEADER.size or entry_size != _SECTION.size or not count:
        raise BadCodeObject(
            "unexpected header sizes", header=header_size, section=entry_size, count=count
        )
    if table % 8 or table + count * _SECTION.size > len(image):
        raise BadCodeObject(
            "the section table extends past the end of the file", offset=table, count=count
        )
    return Header(
        kind, machine, ident[7], ident[8], flags, segments, segment_size, segment_count,
        table, count, names,
    )  # fmt: skip


def read_object(image: bytes) -> ElfObject:
    """Read and check a relocatable object; Raises BadCodeObject with the defect."""
    header = read_header(image)
    if header.kind != ET_REL:
        raise BadCodeObject("not a relocatable object (ET_REL)", type=header.kind)
    sections = read_sections(image, header)
    symbols = _read_symbols(sections)
    relocations = _read_relocations(sections, len(symbols))
    return ElfObject(
        header.machine, header.os_abi, header.abi_version, header.flags,
        sections, symbols, relocations,
    )  # fmt: skip


def undefined_names(image: bytes) -> list[str]:
    """Return the names that a relocatable object uses and does not define; Raises BadCodeObject
    with the defect."""
    symbols = _read_symbols(read_sections(image, read_header(image)))
    return [symbol.name for symbol in symbols if not symbol.is_defined and symbol.name]


def read_sections(image: bytes, header: Header) -> tuple[Section, ...]:
    """Read the sections of a file; Raises BadCodeObject with the defect."""
    table, count, names = header.sections, header.section_count, header.names
    raw = [_SECTION.unpack_from(image, table + number * _SECTION.size) for number in range(count)]
    check_disjoint([(row[4], row[5]) for row in raw if row[1] not in (0, SHT_NOBITS)], len(image))
    contents = []
    for number, (_, kind, flags, _, offset, size, _, _, align, _) in enumerate(raw):
        if kind in (0, SHT_NOBITS):
            contents.append(b"")
        elif offset + size > len(image):
            raise BadCodeObject(
                "the section extends past the end of the file", section=number, size=size
            )
        else:
            contents.append(image[offset : offset + size])
        if size > MAX_SIZE or align > MAX_ALIGN or align & (align - 1):
            raise BadCodeObject("unexpected section size or alignment", section=number, align=align)
        if flags & (SHF_TLS | SHF_COMPRESSED):
            raise BadCodeObject(
                "thread-local and compressed sections are not supported", section=number
            )
    if names >= count or raw[names][1] != SHT_STRTAB:
        raise BadCodeObject("the table of section names is missing", index=names)
    strings = Strings(contents[names], "section name")
    return tuple(
        Section(
            number,
            strings.at(row[0]),
            row[1],
            row[2],
            row[5],
            max(1, row[8]),
            contents[number],
            row[6],
            row[7],
        )
        for number, row in enumerate(raw)
    )


def _read_symbols(sections: tuple[Section, ...]) -> tuple[ElfSymbol, ...]:
    tables = [section for section in sections if section.kind == SHT_SYMTAB]
    if len(tables) != 1:
        raise BadCodeObject("expected one symbol table", found=len(tables))
    table = tables[0]
    if table.size % _SYMBOL.size:
        raise BadCodeObject("the symbol table is truncated", size=table.size)
    if table.link >= len(sections) or sections[table.link].kind != SHT_STRTAB:
        raise BadCodeObject("the table of symbol names is missing", link=table.link)
    strings = Strings(sections[table.link].data, "symbol name")
    symbols = []
    for name, info, _, index, value, size in _SYMBOL.iter_unpack(table.data):
        text = strings.at(name)
        section = None
        if SHN_UNDEF < index < SHN_LORESERVE:
            if index >= len(sections):
                raise BadCodeObject("the symbol's section does not exist", symbol=text)
            section = index
            if value + size > sections[index].size:
                raise BadCodeObject(
                    "the symbol extends past the end of its section", symbol=text, value=value
                )
        elif index not in (SHN_UNDEF, SHN_ABS) and info & 15 != 4:  # STT_FILE
            raise BadCodeObject("the symbol has an unknown section index", symbol=text, index=index)
        symbols.append(
            ElfSymbol(text, value, size, section, index != SHN_UNDEF, info >> 4 == STB_WEAK)
        )
    return tuple(symbols)


def _read_relocations(sections: tuple[Section, ...], symbols: int) -> tuple[ElfRelocation, ...]:
    relocations = []
    for section in sections:
        if section.kind == SHT_REL:
            raise BadCodeObject(
                "relocations without addends (SHT_REL) are not supported", section=section.name
            )
        if section.kind != SHT_RELA:
            continue
        if section.size % _RELA.size or not 0 < section.info < len(sections):
            raise BadCodeObject("malformed relocation section", section=section.name)
        target = sections[section.info]
        for offset, info, addend in _RELA.iter_unpack(section.data):
            if info >> 32 >= symbols or offset >= len(target.data):
                raise BadCodeObject(
                    "the relocation's symbol or section does not exist",
                    section=target.name,
                    offset=offset,
                )
            relocations.append(
                ElfRelocation(target.index, offset, info & 0xFFFF_FFFF, info >> 32, addend)
            )
    return tuple(relocations)


class Strings:
    """A table of names. what: what they name, for errors.

    Linkers let names share their ends. A file in which thousands of names are the ends of one long
    one would take quadratic time and memory: all names together may have a few times the table's
    bytes.
    """

    def __init__(self, table: bytes, what: str) -> None:
        self._table = table
        self._what = what
        self._known: dict[int, str] = {}
        self._left = _SHARING * len(table) + _LEAST_NAMES

    def at(self, offset: int) -> str:
        """Return the name that begins at an offset; BadCodeObject."""
        text = self._known.get(offset)
        if text is None:
            text = self._known[offset] = self._read(offset)
        return text

    def _read(self, offset: int) -> str:
        table = self._table
        end = table.find(b"\0", offset)
        if offset >= len(table) or end < 0:
            raise BadCodeObject(f"a {self._what} lies outside its table", offset=offset)
        self._left -= end - offset
        if self._left < 0:
            raise BadCodeObject(f"the {self._what}s of the table overlap too often", offset=offset)
        try:
            return table[offset:end].decode("utf-8")
        except UnicodeDecodeError:
            raise BadCodeObject(f"a {self._what} is not text", offset=offset) from None


def check_disjoint(ranges: Sequence[tuple[int, int]], size: int) -> None:
    """Raise BadCodeObject if parts of a file, (offset, bytes), overlap so much that reading each
    would take far more than the file's bytes."""
    if sum(length for offset, length in ranges if offset + length <= size) > _OVERLAP * size:
        raise BadCodeObject("the parts of the file overlap", parts=len(ranges), size=size)


# ---- layout and linking --------------------------------------------------------------------------
