"""Relocatable ELF objects, as compilers emit them: read with every bound checked, laid out, linked.

Only 64-bit little-endian files: ET_REL here, ET_DYN in hcq.objects.shared_object. Any fault in a
file raises BadCodeObject. Facts: the System V ABI (gABI), chapter 4 "Object Files"; processor
specifics are given by the caller.

Why our own reader: objects come from outside, and any fault in them must raise one class of error.
General readers raise many classes, or trust a size that a flipped bit made; LLVM's loader ends the
process. The tests compare this reader with pyelftools.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
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
PAGE = 4096  # bytes of a page where relocations count in pages


@dataclass(frozen=True)
class Section:
    """One section. data is empty for SHT_NOBITS, whose bytes are zeros."""

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
    """A symbol; section is None if undefined or absolute (then value is the address)."""

    name: str
    value: int
    size: int
    section: int | None
    is_defined: bool
    is_weak: bool


@dataclass(frozen=True)
class ElfRelocation:
    """Patch section `section` at `offset` according to `kind` with symbol number `symbol`."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class ElfObject:
    """A checked object: every section, symbol and relocation lies within its bounds."""

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
    """The file's header. kind: ET_REL etc. Tables are file offsets."""

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


@dataclass(frozen=True)
class Rule:
    """Rule by which one relocation type computes its bytes. Facts come from the processor's ABI
    supplement.

    width: number of patched bytes. minus: "place" if the patched location's address is subtracted,
    "origin" if the image's is, "page" if both addresses are rounded down to pages of 4 KiB.
    through: "symbol" takes the symbol's address, "slot" the address of an 8-byte slot that holds
    it, "call" may go through a jump. shift: bits dropped from the low end. signed: None if the
    value is truncated on purpose. fields: of an instruction, (lowest bit, bits) each, filled from
    the value's low end. low: number of low bits of the value that count, 0 for all. exact: the
    dropped bits must be zeros.
    """

    width: int
    minus: str = ""
    through: str = "symbol"
    shift: int = 0
    signed: bool | None = None
    fields: tuple[tuple[int, int], ...] = ()
    low: int = 0
    exact: bool = False


@dataclass
class Layout:
    """Offsets of the loaded sections, slots and jumps of an object, relative to its base.

    offsets: by section number. slots: by symbol number, 8 bytes each. jumps: by symbol number.
    """

    elf: ElfObject
    rules: Mapping[int, Rule]
    size: int = 0
    align: int = 1
    offsets: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    jumps: dict[int, int] = field(default_factory=dict)


def lay_out(elf: ElfObject, rules: Mapping[int, Rule], jump_size: int = 0) -> Layout:
    """Place code first, then data, then slots for addresses and jumps to symbols defined elsewhere.

    BadCodeObject for relocation types that are not in `rules`, and for undefined symbols if there
    are no jumps (jump_size 0).
    """
    layout = Layout(elf, rules)
    loaded = [section for section in elf.sections if section.is_loaded]
    for section in sorted(loaded, key=lambda section: not section.flags & SHF_EXECINSTR):
        start = -(-layout.size // section.align) * section.align
        layout.offsets[section.index] = start
        layout.size = start + section.size
        layout.align = max(layout.align, section.align)
        if layout.size > MAX_SIZE:
            raise BadCodeObject("the loaded object would be too large", size=layout.size)
    for relocation in elf.relocations:
        if relocation.section not in layout.offsets:
            continue  # debugging information: not loaded, so not linked
        rule = rules.get(relocation.kind)
        symbol = elf.symbols[relocation.symbol]
        if rule is None:
            raise BadCodeObject("unknown relocation type", type=relocation.kind, symbol=symbol.name)
        if relocation.offset + rule.width > len(elf.sections[relocation.section].data):
            raise BadCodeObject(
                "the relocation extends past the end of its section", type=relocation.kind
            )
        if symbol.section is not None and symbol.section not in layout.offsets:
            raise BadCodeObject(
                "the relocation refers to a section that is not loaded", symbol=symbol.name
            )
        outside = not symbol.is_defined and relocation.symbol != 0 and rule.through != "origin"
        if outside and not jump_size:
            raise BadCodeObject(f"the symbol {symbol.name!r} is not defined", symbol=symbol.name)
        if rule.through == "slot":
            layout.slots.setdefault(relocation.symbol, 0)
        elif rule.through == "call" and outside:
            layout.jumps.setdefault(relocation.symbol, 0)
    for places, size in ((layout.slots, 8), (layout.jumps, jump_size)):
        for number in places:
            places[number] = -(-layout.size // 16) * 16
            layout.size = places[number] + size
    return layout


def link(
    layout: Layout,
    base: int,
    outside: Mapping[str, int] | None = None,
    jump: Callable[[int], bytes] | None = None,
) -> bytes:
    """Return the image for address `base`. outside: addresses of symbols defined elsewhere.

    jump(address) returns code that jumps to any address. BadCodeObject for values out of range.
    """
    if base % layout.align:
        raise BadCodeObject("the base is not aligned", base=base, align=layout.align)
    image = bytearray(layout.size)
    elf = layout.elf
    for index, offset in layout.offsets.items():
        data = elf.sections[index].data
        image[offset : offset + len(data)] = data

    def address(number: int) -> int:
        symbol = elf.symbols[number]
        if symbol.section is not None:
            return base + layout.offsets[symbol.section] + symbol.value
        if symbol.is_defined or number == 0:
            return symbol.value
        return (outside or {})[symbol.name]

    for number, offset in layout.slots.items():
        image[offset : offset + 8] = (address(number) & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little")
    for number, offset in layout.jumps.items():
        assert jump is not None
        code = jump(address(number))
        image[offset : offset + len(code)] = code
    for relocation in elf.relocations:
        if relocation.section not in layout.offsets:
            continue
        rule = layout.rules[relocation.kind]
        if rule.through == "origin":
            target = base
        elif rule.through == "slot":
            target = base + layout.slots[relocation.symbol]
        elif rule.through == "call" and relocation.symbol in layout.jumps:
            target = base + layout.jumps[relocation.symbol]
        else:
            target = address(relocation.symbol)
        place = layout.offsets[relocation.section] + relocation.offset
        target += relocation.addend
        minus = {"": 0, "place": base + place, "origin": base, "page": base + place & -PAGE}
        value = (target & -PAGE if rule.minus == "page" else target) - minus[rule.minus]
        here = slice(place, place + rule.width)
        insert = _encode if not rule.fields else _instruction
        image[here] = insert(value, rule, relocation, bytes(image[here]))
    return bytes(image)


def _instruction(value: int, rule: Rule, relocation: ElfRelocation, old: bytes) -> bytes:
    """Return the instruction with its fields filled in."""
    if rule.low:
        value &= (1 << rule.low) - 1
    bits = rule.shift + sum(count for _, count in rule.fields)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if rule.signed else (0, 1 << bits)
    fits = rule.signed is None or low <= value < high
    if not fits or (rule.exact and value & (1 << rule.shift) - 1) or relocation.offset % 4:
        raise BadCodeObject(
            "a relocated value does not fit", type=relocation.kind, offset=relocation.offset
        )
    word, left = int.from_bytes(old, "little"), value >> rule.shift
    for place, count in rule.fields:
        mask = (1 << count) - 1
        word = word & ~(mask << place) | (left & mask) << place
        left >>= count
    return word.to_bytes(rule.width, "little")


def _encode(value: int, rule: Rule, relocation: ElfRelocation, old: bytes) -> bytes:
    bits = 8 * rule.width
    if rule.signed is not None:
        low, high = (-(1 << bits - 1), 1 << bits - 1) if rule.signed else (0, 1 << bits)
        if not low <= value < high:
            raise BadCodeObject(
                "a relocated value does not fit", type=relocation.kind, offset=relocation.offset
            )
    return (value >> rule.shift & (1 << bits) - 1).to_bytes(rule.width, "little")
