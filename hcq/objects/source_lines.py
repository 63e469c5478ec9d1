"""The source line of each instruction, for objects that have DWARF line tables.

Read only after a failure, by pyelftools, which is optional (the extra `lines`). Its parsers raise
many classes of errors on damaged tables, none of which may hide the failure being reported: damaged
tables give no lines. Facts: DWARF 5, section 6.2; LLVM AMDGPUUsage, "Relocation Records".
"""

from __future__ import annotations

import importlib
import io
import logging
import posixpath
import struct
from collections.abc import Iterator, Mapping
from typing import Any

log = logging.getLogger(__name__)
_TABLE = b".debug_line\0"
_RELOCATED = ".rela.debug_"
_WIDTHS = {3: "<Q", 6: "<I"}  # R_AMDGPU_ABS64, R_AMDGPU_ABS32


def has_lines(image: bytes) -> bool:
    """Return whether an object has line tables."""
    return _TABLE in image


def source_of(image: bytes, offsets: Mapping[int, int], address: int) -> str:
    """Return "file:line" of the code at `address` of a laid-out object, or "" if it is unknown.

    image: the object's file. offsets: of its sections, by number, for a relocatable object.
    """
    try:
        elffile = importlib.import_module("elftools.elf.elffile")
    except ImportError:
        log.warning("source lines need pyelftools: pip install 'ugpu[lines]'")
        return ""
    try:
        rows = _rows(_dwarf(elffile, image, offsets))
        return next((place for start, end, place in rows if start <= address < end), "")
    except Exception as error:  # see above
        log.warning("the line tables of a program are invalid: %r", error)
        return ""


def lines_of(image: bytes, offsets: Mapping[int, int]) -> list[tuple[int, int, str]]:
    """Return start, end and "file:line" of each run of instructions; arguments as in
    `source_of`."""
    try:
        elffile = importlib.import_module("elftools.elf.elffile")
    except ImportError:
        log.warning("source lines need pyelftools: pip install 'ugpu[lines]'")
        return []
    try:
        return list(_rows(_dwarf(elffile, image, offsets)))
    except Exception as error:  # see above
        log.warning("the line tables of a program are invalid: %r", error)
        return []


def _dwarf(elffile: Any, image: bytes, offsets: Mapping[int, int]) -> Any:
    elf = elffile.ELFFile(io.BytesIO(resolved(elffile.ELFFile(io.BytesIO(image)), offsets)))
    return elf.get_dwarf_info(relocate_dwarf_sections=False)


def resolved(elf: Any, offsets: Mapping[int, int]) -> bytes:  # pyelftools has no types
    """Return the file with the relocations of its debugging sections applied."""
    data = bytearray(elf.stream.getvalue())
    if elf["e_type"] != "ET_REL":
        return bytes(data)
    for section in elf.iter_sections():
        if not section.name.startswith(_RELOCATED):
            continue
        target = elf.get_section(section["sh_info"])
        symbols = elf.get_section(section["sh_link"])
        for relocation in section.iter_relocations():
            form = _WIDTHS[relocation["r_info_type"]]
            symbol = symbols.get_symbol(relocation["r_info_sym"])
            base = offsets.get(symbol["st_shndx"], 0)
            value = base + symbol["st_value"] + relocation["r_addend"]
            struct.pack_into(form, data, target["sh_offset"] + relocation["r_offset"], value)
    return bytes(data)


def _rows(dwarf: Any) -> Iterator[tuple[int, int, str]]:
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        row = None
        for entry in program.get_entries() if program is not None else ():
            state = entry.state
            if state is None:
                continue
            if row is not None and row.address < state.address:
                yield row.address, state.address, f"{_file(unit, program, row.file)}:{row.line}"
            row = None if state.end_sequence else state


def _file(unit: Any, program: Any, number: int) -> str:
    """Return the name of a file of a line table, with its folder."""
    first = 0 if program["version"] >= 5 else 1  # number of the first file, and of the first folder
    file = program["file_entry"][number - first]
    if file.dir_index >= first:
        folder = program["include_directory"][file.dir_index - first]
    else:
        folder = unit.get_top_DIE().attributes["DW_AT_comp_dir"].value
    return posixpath.join(_text(folder), _text(file.name))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
