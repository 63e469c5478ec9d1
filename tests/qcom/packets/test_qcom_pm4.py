"""Packets: headers written by hand from Mesa's freedreno_pm4.h, streams, places of data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.work.command_buffer import Relocation, Symbol
from ugpu.qcom.packets.pm4 import Stream, Tables, halves, type4, type7


def test_headers_as_mesa_writes_them() -> None:
    # pm4_pkt4_hdr(0xb990, 7) and pm4_pkt7_hdr(CP_EXEC_CS, 4), CP_WAIT_FOR_IDLE, CP_EVENT_WRITE.
    assert type4(0xB990, 7) == 0x40B99007
    assert type7(0x33, 4) == 0x70B30004
    assert type7(0x26, 0) == 0x70268000
    assert type7(0x46, 1) == 0x70460001


@given(st.integers(0, 0x3FFFF), st.integers(1, 0x7F))
def test_parity_of_type_4(register: int, count: int) -> None:
    header = type4(register, count)
    assert header >> 28 == 4 and header >> 8 & 0x3FFFF == register and header & 0x7F == count
    assert ((header & 0xFF).bit_count()) & 1
    assert ((header >> 8 & 0xFFFFF).bit_count()) & 1


@given(st.integers(0, 0x7F), st.integers(0, 0x3FFF))
def test_parity_of_type_7(opcode: int, count: int) -> None:
    header = type7(opcode, count)
    assert header >> 28 == 7 and header >> 16 & 0x7F == opcode and header & 0x3FFF == count
    assert ((header & 0xFFFF).bit_count()) & 1
    assert ((header >> 16 & 0xFF).bit_count()) & 1


def test_data_lies_behind_the_commands_and_is_aligned() -> None:
    stream = Stream(Tables.of(6))
    first = stream.data([1, 2], [(0, Symbol.constant(5))])
    second = stream.data([3])
    stream.packet("CP_MEM_WRITE", *halves(stream.place(second, 8)), 9)
    stream.write_address("SP_CS_OBJ_START", stream.place(first))
    words, relocations, starts = stream.finish()
    assert starts == [16, 32] and len(words) == 33
    assert list(words[32:]) == [3]
    assert relocations[0] == Relocation(16, Symbol.constant(5))
    assert relocations[1] == Relocation(17, Symbol.constant(5), shift=32)
    assert Relocation(1, Symbol.image(4 * 32 + 8)) in relocations
    assert Relocation(6, Symbol.image(4 * 16), shift=32) in relocations
