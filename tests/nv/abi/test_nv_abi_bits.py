"""Methods, QMDs and page table entries: the codec, and facts read off the headers by hand.

Facts: open-gpu-doc classes/compute and classes/dma-copy; open-gpu-kernel-modules clc86f.h and
hwref/hopper/gh100/dev_mmu.h.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.errors import BadArgument, NotSupported
from ugpu.nv import abi
from ugpu.nv.abi.bits import BitField, BitTable, Descriptor

QMDS = ("2.2", "2.3", "2.4", "3.0", "4.0", "4.1", "5.0", "5.1")
CHANNELS = (0xC46F, 0xC56F, 0xC86F, 0xC96F, 0xCA6F)
COMPUTE = (0xC5C0, 0xC6C0, 0xC7C0, 0xC9C0, 0xCBC0, 0xCDC0, 0xCEC0)
COPY = (0xC5B5, 0xC6B5, 0xC7B5, 0xC8B5, 0xC9B5, 0xCAB5)


@pytest.mark.parametrize("version", QMDS)
def test_qmds_have_their_size_and_every_field_lies_inside(version: str) -> None:
    layout = abi.qmd(version)
    assert layout.size == (256 if version < "4" else 384)
    for field in layout.fields.values():
        assert field.bit(field.count - 1) + field.width <= layout.size * 8
    assert layout.field("QMD_MAJOR_VERSION").bit() == (468 if version > "5" else 580)


def test_fields_of_the_qmd_are_where_the_headers_put_them() -> None:
    three, four, five = abi.qmd("3.0"), abi.qmd("4.0"), abi.qmd("5.0")
    assert three.field("CTA_RASTER_WIDTH").bit() == 384
    assert three.field("PROGRAM_ADDRESS_LOWER").bit() == 1536
    assert three.field("CONSTANT_BUFFER_ADDR_LOWER").bit(2) == 1024 + 2 * 64
    assert four.field("GRID_WIDTH").bit() == 1024
    assert four.field("SHARED_MEMORY_SIZE").bit() == 584
    assert four.field("CONSTANT_BUFFER_SIZE_SHIFTED4").bit(7) == 1587 + 7 * 64
    assert four.field("RELEASE_ENABLE").count == 3
    assert five.field("PROGRAM_ADDRESS_LOWER_SHIFTED4").bit() == 1024
    assert five.field("CONSTANT_BUFFER_VALID").bit(1) == 1860
    assert five.field("DEPENDENT_QMD_ENABLE").count == 2


def test_a_qmd_is_written_and_read_back() -> None:
    layout = abi.qmd("4.0")
    raw = layout.new(QMD_MAJOR_VERSION=4, QMD_TYPE="GRID_CTA", GRID_WIDTH=0xFFFF_FFFF)
    layout.set(raw, "CONSTANT_BUFFER_VALID", "TRUE", 3)
    assert raw[128:132] == b"\xff\xff\xff\xff"
    assert raw[416 // 8 + 1] == 1 << (3 * 4 - 8)
    assert layout.get(raw, "QMD_TYPE") == 2
    decoded = layout.decode(raw)
    assert decoded["CONSTANT_BUFFER_VALID"] == [0, 0, 0, 1, 0, 0, 0, 0]
    assert layout.undefined(raw) == 0
    raw[-1] |= 0x80
    assert layout.field("OUTER_STICKY_OVERFLOW").bit() == 3071
    assert layout.get(raw, "OUTER_STICKY_OVERFLOW") == 1


@given(st.data())
def test_setting_one_field_changes_no_other_bit(data: st.DataObject) -> None:
    layout = abi.qmd(data.draw(st.sampled_from(QMDS)))
    name = data.draw(st.sampled_from(sorted(layout.fields)))
    field = layout.fields[name]
    index = data.draw(st.integers(0, field.count - 1))
    value = data.draw(st.integers(0, field.maximum))
    raw = bytearray(data.draw(st.binary(min_size=layout.size, max_size=layout.size)))
    before = int.from_bytes(raw, "little")
    layout.set(raw, name, value, index)
    after = int.from_bytes(raw, "little")
    mask = field.maximum << field.bit(index)
    assert layout.get(raw, name, index) == value
    assert before & ~mask == after & ~mask
    assert len(raw) == layout.size


def test_what_does_not_fit_is_refused() -> None:
    layout = abi.qmd("4.0")
    raw = layout.new()
    for name, value, index in (
        ("GRID_HEIGHT", 0x10000, 0),
        ("GRID_HEIGHT", -1, 0),
        ("GRID_HEIGHT", "MANY", 0),
        ("GRID_HIGHT", 1, 0),
        ("CONSTANT_BUFFER_VALID", 1, 8),
        ("CONSTANT_BUFFER_VALID", 1, -1),
    ):
        with pytest.raises(BadArgument):
            layout.set(raw, name, value, index)
    with pytest.raises(BadArgument):
        layout.get(raw[:-1], "GRID_WIDTH")
    with pytest.raises(BadArgument, match="GRID_HEIGHT"):
        layout.field("GRID_HIGHT")
    assert not any(raw)


@pytest.mark.parametrize("number", [*CHANNELS, *COMPUTE, *COPY])
def test_methods_of_every_class_can_be_read(number: int) -> None:
    table = abi.methods(number)
    assert ("SET_OBJECT" in table) == (number not in COPY)
    for name in table:
        entry = table._entry(name)
        limit = 32 if not isinstance(entry, Descriptor) else entry.size * 8
        for field in entry.fields.values():
            assert field.lsb + field.width <= limit, (name, field)


def test_methods_are_where_the_headers_put_them() -> None:
    compute, copy, host = abi.methods(0xCBC0), abi.methods(0xC8B5), abi.methods(0xC86F)
    assert compute.SEND_PCAS_A.offset == 0x2B4
    assert compute.SET_SHADER_SHARED_MEMORY_WINDOW_A.offset == 0x2A0
    assert compute.LOAD_INLINE_QMD_DATA.at(2) == 0x328
    assert (
        compute.INVALIDATE_SHADER_CACHES_NO_WFI.encode(
            INSTRUCTION="TRUE", GLOBAL_DATA=1, CONSTANT=1
        )
        == 0x1011
    )
    assert copy.LAUNCH_DMA.offset == 0x300
    assert copy.LINE_LENGTH_IN.offset == 0x418
    word = copy.LAUNCH_DMA.encode(
        DATA_TRANSFER_TYPE="NON_PIPELINED", SRC_MEMORY_LAYOUT="PITCH", DST_MEMORY_LAYOUT="PITCH"
    )
    assert word == 0x182
    assert copy.LAUNCH_DMA.decode(word)["DATA_TRANSFER_TYPE"] == 2
    assert copy.LAUNCH_DMA.field("DATA_TRANSFER_TYPE").name_of(2) == "NON_PIPELINED"
    assert host.SEM_EXECUTE.offset == 0x6C
    assert host.SEM_EXECUTE.encode(OPERATION="RELEASE", RELEASE_TIMESTAMP=1) == 0x2000001
    assert host.SEM_ADDR_HI.field("OFFSET").width == 25
    assert abi.methods(0xC56F).SEM_ADDR_HI.field("OFFSET").width == 8


def test_a_predecessor_fills_the_gaps_of_an_excerpt() -> None:
    newest = abi.methods(0xCA6F)
    assert newest.SEM_EXECUTE.field("OPERATION").values["ACQ_CIRC_GEQ"] == 3
    assert newest.NON_STALL_INTERRUPT.offset == 0x20
    assert (
        newest.descriptor("GP_ENTRY1").field("OPCODE").values["SET_PB_SEGMENT_EXTENDED_BASE"] == 4
    )


def test_methods_are_found_by_offset() -> None:
    table = abi.methods(0xCBC0)
    found = table.find(0x2B4)
    assert found is not None and (found[0].name, found[1]) == ("SEND_PCAS_A", 0)
    found = table.find(0x320 + 4 * 63)
    assert found is not None and (found[0].name, found[1]) == ("LOAD_INLINE_QMD_DATA", 63)
    assert table.find(0x104 + 1) is None
    assert table.find(0x1C) is None


def test_bits_that_no_field_covers_are_told() -> None:
    launch = abi.methods(0xC7B5).LAUNCH_DMA
    assert launch.undefined(launch.encode(FLUSH_ENABLE=1)) == 0
    assert abi.methods(0xC86F).WFI.undefined(0b11) == 0b10
    assert abi.methods(0xC86F).SEM_PAYLOAD_LO.undefined(0xFFFF_FFFF) == 0


def test_page_table_entries() -> None:
    old, new = abi.mmu().descriptor("VER2_PTE"), abi.mmu().descriptor("VER3_PTE")
    assert old.size == new.size == 8
    raw = new.new(VALID="TRUE", APERTURE="SYSTEM_COHERENT_MEMORY", KIND=6, ADDRESS=0x12345)
    assert int.from_bytes(raw, "little") == 0x12345 << 12 | 6 << 8 | 2 << 1 | 1
    assert old.field("KIND").bit() == 56
    dual = abi.mmu().descriptor("VER3_DUAL_PDE")
    assert dual.size == 16
    assert dual.field("ADDRESS_SMALL").bit() == 76
    assert abi.mmu().descriptor("PTE").field("KIND").values["GENERIC_MEMORY"] == 6


def test_fault_records_and_userd() -> None:
    entry = abi.fault_entry()
    assert entry.size == 32
    assert entry.field("ADDR").bit() == 76
    assert entry.field("VALID").bit() == 255
    codes = abi.fault_codes("gh100")
    assert codes.field("FAULT_TYPE").values["RO_VIOLATION"] == 6
    assert codes.field("ACCESS_TYPE").values["VIRT_WRITE"] == 1
    assert abi.userd().size == 512
    assert abi.userd().field("GP_PUT").bit() == 0x8C * 8


def test_tables_that_are_not_there_list_those_that_are() -> None:
    with pytest.raises(NotSupported, match="cbc0"):
        abi.methods(0x1234)
    with pytest.raises(NotSupported, match="4_0"):
        abi.qmd("9.9")
    with pytest.raises(AttributeError, match="SEND_PCAS_A"):
        _ = abi.methods(0xCBC0).SEND_PCAS_AA
    with pytest.raises(BadArgument):
        abi.methods(0xC86F).method("GP_ENTRY0")
    with pytest.raises(BadArgument):
        abi.methods(0xC86F).descriptor("SEM_EXECUTE")


def test_a_line_is_parsed() -> None:
    field = BitField.parse("WAIT:3:2+8*4=NO:0x0,A_B:0x3")
    assert (field.lsb, field.width, field.stride, field.count) == (3, 2, 8, 4)
    assert field.values == {"NO": 0, "A_B": 3}
    table = BitTable("# remark\nGO 0x10+4 V:0:32\nSTOP 0x40\nBOX :2 A:15:1\n", "toy")
    assert sorted(table) == ["BOX", "GO", "STOP"]
    assert table.GO.at(3) == 0x1C
    assert table.find(0x3C) == (table.GO, 11)
    assert table.find(0x44) is None
    with pytest.raises(BadArgument):
        table.STOP.at(1)
    assert table.descriptor("BOX").new(A=1) == b"\x00\x80"
