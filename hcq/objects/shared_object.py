"""Shared ELF objects (ET_DYN), as linkers make them: read with every bound checked.

A shared object is converted to the form of a relocatable one for `hcq.objects.elf`: each loaded
segment becomes a section at its address, with symbols and relocations relative to it, so that
linking is the same. Facts: the System V ABI (gABI), chapter 5 "Program Loading and Dynamic
Linking"; LLVM AMDGPUUsage, "Code Object"; ROCm's loader also finds symbols and relocations by their
sections.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.elf import (
    MAX_ALIGN,
    MAX_SIZE,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHF_WRITE,
    SHT_NOTE,
    SHT_PROGBITS,
    SHT_STRTAB,
    STB_WEAK,
    ElfObject,
    ElfRelocation,
    ElfSymbol,
    Header,
    Section,
    Strings,
    check_disjoint,
    read_header,
    read_sections,
)
from ugpu.hcq.objects.linking import Layout, Rule

ET_DYN = 3
PT_LOAD, PT_NOTE, PT_TLS = 1, 4, 7
PF_EXECUTE, PF_WRITE = 1, 2
SHT_RELA, SHT_REL, SHT_DYNSYM, SHT_RELR = 4, 9, 11, 19
SHN_UNDEF, SHN_ABS = 0, 0xFFF1

_SEGMENT = struct.Struct("<IIQQQQQQ")
_MOST_SEGMENTS = 256  # linkers make about ten
_SYMBOL = struct.Struct("<IBBHQQ")
_RELA = struct.Struct("<QQq")


def read_shared(image: bytes, rules: Mapping[int, Rule]) -> Layout:
    """Read and check a shared object; Raises BadCodeObject with the defect.

    The layout's offsets are the addresses that the linker chose, for a base of 0.
    """
    header = read_header(image)
    if header.kind != ET_DYN:
        raise BadCodeObject("not a shared object (ET_DYN)", type=header.kind)
    segments, starts = _read_segments(image, header)
    loaded = {segment.index: starts[segment.index] for segment in segments if segment.is_loaded}
    sections = read_sections(image, header)
    symbols = _read_symbols(sections, segments, loaded)
    relocations = _read_relocations(sections, segments, loaded, len(symbols), rules)
    elf = ElfObject(
        header.machine, header.os_abi, header.abi_version, header.flags,
        tuple(segments), symbols, relocations,
    )  # fmt: skip
    layout = Layout(elf, rules)
    layout.offsets = loaded
    layout.size = max(loaded[index] + segments[index].size for index in loaded)
    layout.align = max(segments[index].align for index in loaded)
    for relocation in relocations:
        symbol = symbols[relocation.symbol]
        if relocation.symbol and not symbol.is_defined:
            raise BadCodeObject(f"the symbol {symbol.name!r} is not defined", symbol=symbol.name)
    return layout


def _read_segments(image: bytes, header: Header) -> tuple[list[Section], list[int]]:
    """Return loaded segments and notes as sections, and where each begins."""
    table, count = header.segments, header.segment_count
    if not count or header.segment_size != _SEGMENT.size:
        raise BadCodeObject("the shared object has no program headers", count=count)
    if count > _MOST_SEGMENTS:
        raise BadCodeObject("too many program headers", count=count, limit=_MOST_SEGMENTS)
    if table % 8 or table + count * _SEGMENT.size > len(image):
        raise BadCodeObject(
            "the program headers extend past the end of the file", offset=table, count=count
        )
    segments: list[Section] = []
    starts: list[int] = []
    end = 0
    rows = [_SEGMENT.unpack_from(image, table + number * _SEGMENT.size) for number in range(count)]
    kept = [(row[2], row[5]) for row in rows if row[0] in (PT_LOAD, PT_NOTE)]
    check_disjoint(kept, len(image))
    for number in range(count):
        kind, flags, offset, address, _, file_size, size, align = _SEGMENT.unpack_from(
            image, table + number * _SEGMENT.size
        )
        if kind == PT_TLS:
            raise BadCodeObject("thread-local segments are not supported", segment=number)
        if kind not in (PT_LOAD, PT_NOTE):
            continue
        if offset + file_size > len(image) or file_size > size or address + size > MAX_SIZE:
            raise BadCodeObject(
                "the segment extends past the end of the file", segment=number, size=size
            )
        if align > MAX_ALIGN or align & (align - 1):
            raise BadCodeObject("unexpected segment alignment", segment=number, align=align)
        marks = 0
        if kind == PT_LOAD:
            if address < end:
                raise BadCodeObject("segments overlap, or are out of order", segment=number)
            end = address + size
            marks = SHF_ALLOC | SHF_EXECINSTR * bool(flags & PF_EXECUTE)
            marks |= SHF_WRITE * bool(flags & PF_WRITE)
        data = image[offset : offset + file_size]
        section = SHT_PROGBITS if kind == PT_LOAD else SHT_NOTE
        segments.append(
            Section(
                len(segments), f"segment {number}", section, marks, size, max(1, align), data, 0, 0
            )
        )
        starts.append(address)
    if not any(segment.is_loaded and segment.size for segment in segments):
        raise BadCodeObject("the shared object has no loadable segment")
    return segments, starts


def _within(
    segments: list[Section], loaded: Mapping[int, int], address: int, size: int
) -> int | None:
    """Return the loaded segment that holds [address, address + size)."""
    for index, start in loaded.items():
        if start <= address and address + size <= start + segments[index].size:
            return index
    return None


def _read_symbols(
    sections: tuple[Section, ...], segments: list[Section], loaded: Mapping[int, int]
) -> tuple[ElfSymbol, ...]:
    tables = [section for section in sections if section.kind == SHT_DYNSYM]
    if len(tables) != 1:
        raise BadCodeObject("expected one table of dynamic symbols", found=len(tables))
    (table,) = tables
    if table.size % _SYMBOL.size:
        raise BadCodeObject("the symbol table is truncated", size=table.size)
    if table.link >= len(sections) or sections[table.link].kind != SHT_STRTAB:
        raise BadCodeObject("the table of symbol names is missing", link=table.link)
    symbols = []
    strings = Strings(sections[table.link].data, "symbol name")
    for name, info, _, index, value, size in _SYMBOL.iter_unpack(table.data):
        text = strings.at(name)
        where = None
        if index not in (SHN_UNDEF, SHN_ABS):
            where = _within(segments, loaded, value, max(1, size))
            if where is None:
                where = _within(segments, loaded, value, size)  # a label at a segment's end
            if where is None:
                raise BadCodeObject(
                    "the symbol lies outside all segments", symbol=text, value=value
                )
            value -= loaded[where]
        symbols.append(
            ElfSymbol(text, value, size, where, index != SHN_UNDEF, info >> 4 == STB_WEAK)
        )
    return tuple(symbols)


def _read_relocations(
    sections: tuple[Section, ...],
    segments: list[Section],
    loaded: Mapping[int, int],
    symbols: int,
    rules: Mapping[int, Rule],
) -> tuple[ElfRelocation, ...]:
    relocations = []
    for section in sections:
        if not section.flags & SHF_ALLOC:
            continue  # kept by the linker from its input; applied already
        if section.kind in (SHT_REL, SHT_RELR):
            raise BadCodeObject(
                "relocations without addends (SHT_REL) are not supported", section=section.name
            )
        if section.kind != SHT_RELA:
            continue
        if section.size % _RELA.size:
            raise BadCodeObject("malformed relocation section", section=section.name)
        for address, info, addend in _RELA.iter_unpack(section.data):
            kind, symbol = info & 0xFFFF_FFFF, info >> 32
            rule = rules.get(kind)
            if rule is None:
                raise BadCodeObject("unknown relocation type", type=kind)
            where = _within(segments, loaded, address, rule.width)
            if symbol >= symbols or where is None:
                raise BadCodeObject(
                    "the relocation's symbol or section does not exist", offset=address
                )
            relocations.append(ElfRelocation(where, address - loaded[where], kind, symbol, addend))
    return tuple(relocations)
