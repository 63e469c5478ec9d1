"""A cubin with the note: what it gains, read by pyelftools; what it was, unchanged."""

from __future__ import annotations

import io
import struct

import pytest
from elftools.elf.elffile import ELFFile

from tests.foreign.compilers.noted_cubin import noted
from tests.support.nvidia.nv_ptx import cubin
from ugpu.nv.abi.note import NOTE_FORMAT, NOTE_MAGIC, NOTE_SIZE, NOTE_VERSION
from ugpu.nv.code.assemble import assemble, find_library
from ugpu.nv.code.cubin import parse_cubin

PTX = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry alone(.param .u64 out, .param .u32 n)
{ .reg .b64 %rd; ld.param.u64 %rd, [out]; st.global.u32 [%rd], 1; ret; }
"""
pytestmark = pytest.mark.skipif(find_library() is None, reason="nvidia-nvjitlink is missing")


def test_the_note_lies_before_the_code_and_its_addresses_are_relocated() -> None:
    plain = assemble(PTX, "sm_86")
    made = noted(plain, PTX)
    file = ELFFile(io.BytesIO(made))
    text, note = file.get_section_by_name(".text.alone"), file.get_section_by_name(".ugpu.note")
    ptx = file.get_section_by_name(".ugpu.ptx")
    assert note["sh_addr"] + NOTE_SIZE == text["sh_addr"]
    assert text["sh_addr"] + text["sh_size"] <= ptx["sh_addr"]
    assert ptx.data() == PTX + b"alone"
    fields = struct.unpack_from(NOTE_FORMAT, note.data())
    assert fields == (NOTE_MAGIC, NOTE_VERSION, 0x160, 12, len(b"alone"), 0, len(PTX), 0, 0, 0)

    symbols = file.get_section_by_name(".symtab")
    targets = {}
    for relocation in file.get_section_by_name(".rela.ugpu.note").iter_relocations():
        symbol = symbols.get_symbol(relocation["r_info_sym"])
        assert relocation["r_info_type"] == 2
        assert file.get_section(symbol["st_shndx"]).name == ".ugpu.ptx"
        targets[relocation["r_offset"]] = symbol["st_value"]
    assert targets == {24: 0, 56: len(PTX)}


def test_the_rest_of_the_cubin_is_as_it_was() -> None:
    plain = assemble(PTX, "sm_86")
    before, after = parse_cubin(plain), parse_cubin(noted(plain, PTX))
    assert after.kernels == before.kernels
    count = len(before.sections)
    assert after.symbols[: len(before.symbols)] == before.symbols
    for old, new in zip(before.sections, after.sections[:count], strict=True):
        assert new.name == old.name
        assert new.data[: len(old.data)] == old.data  # tables of names and symbols have grown


def test_a_cubin_of_two_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a cubin of one kernel, got 2"):
        noted(cubin("sm_86"), PTX)
