"""Finds the line of PTX that an instruction of machine code comes from.

The assembler's option -lineinfo adds a section .nv_debug_line_sass: a line table as in DWARF 2
whose file is the PTX. It has a sequence for each function; its relocations name the functions. The
machine code stays the same (observed: nvJitLink 13.5.37, sm_75 to sm_120). The table is read only
after a kernel has failed, with pyelftools, as in hcq.objects.source_lines.
"""

from __future__ import annotations

import importlib
import io
import logging
import struct
from typing import Any

log = logging.getLogger(__name__)

OPTIONS = ("-lineinfo",)  # of both assemblers
_TABLE = ".nv_debug_line_sass"
_ELSEWHERE = 1 << 62  # address assumed for the code of other functions


def line_of(cubin: bytes, function: str, offset: int) -> int:
    """Return the line of PTX, from 1, of the instruction `offset` bytes into a function of a cubin
    that was assembled with OPTIONS; 0 where it is unknown."""
    try:
        elffile = importlib.import_module("elftools.elf.elffile")
    except ImportError:
        log.warning("lines of PTX need pyelftools: pip install 'ugpu[lines]'")
        return 0
    try:
        return _found(elffile.ELFFile(io.BytesIO(cubin)), function, offset)
    except Exception as error:  # the parsers raise many kinds of errors on damaged tables
        log.warning("the line table of a cubin is invalid: %r", error)
        return 0


def _found(elf: Any, function: str, offset: int) -> int:  # pyelftools has no types
    structs = importlib.import_module("elftools.dwarf.structs")
    programs = importlib.import_module("elftools.dwarf.lineprogram")
    parse = importlib.import_module("elftools.common.utils").struct_parse
    data = bytearray(elf.get_section_by_name(_TABLE).data())
    relocations = next(
        found
        for kind in (".rel", ".rela")  # the latter from sm_90 on
        if (found := elf.get_section_by_name(f"{kind}{_TABLE}")) is not None
    )
    symbols = elf.get_section(relocations["sh_link"])
    for relocation in relocations.iter_relocations():
        own = symbols.get_symbol(relocation["r_info_sym"]).name == function
        struct.pack_into("<Q", data, relocation["r_offset"], 0 if own else _ELSEWHERE)
    stream = io.BytesIO(data)
    layout = structs.DWARFStructs(
        little_endian=True, dwarf_format=32, address_size=8, dwarf_version=2
    )
    header = parse(layout.Dwarf_lineprog_header, stream, 0)
    end = header["unit_length"] + layout.initial_length_field_size()
    row = None
    for entry in programs.LineProgram(header, stream, layout, stream.tell(), end).get_entries():
        state = entry.state
        if state is None:
            continue
        if row is not None and row.address <= offset < state.address:
            return int(row.line)
        row = None if state.end_sequence else state
    return 0
