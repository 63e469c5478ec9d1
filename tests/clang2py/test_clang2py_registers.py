"""The tokenizer of register headers, on small headers with every quirk the vendor's have."""

from __future__ import annotations

import pytest

from ugpu.tools.clang2py.registers import RegisterSource, VendorError, defines, read_registers

OFFSETS = """\
/* remarks */
#ifndef _sample_OFFSET_HEADER
#define _sample_OFFSET_HEADER

// addressBlock: sample
// base address: 0x4980
#define regZULU                          0x0010
#define regZULU_BASE_IDX                 1
#define regALPHA_STATUS                  0x1fba
#define regALPHA_STATUS_BASE_IDX         0
#define regALPHA__TWO                    0x0003
#define regALPHA__TWO_BASE_IDX           0
#define ixWAVE                           0x0141
#define cfgVENDOR_ID                     0x0000
#endif
"""
MASKS = """\
//ALPHA_STATUS
#define ALPHA_STATUS__BUSY__SHIFT        0x1f
#define ALPHA_STATUS__COUNT__SHIFT       0x4
#define ALPHA_STATUS__BUSY_MASK          0x80000000L
#define ALPHA_STATUS__COUNT_MASK         0x000003F0L
#define ALPHA_STATUS__IRQ_MASK__SHIFT    0x0
#define ALPHA_STATUS__IRQ_MASK_MASK      0x00000001L
#define ALPHA__TWO__a__b__SHIFT          0x0
#define ALPHA__TWO__a__b_MASK            0xFFFFFFFFL
#define ORPHAN__FIELD__SHIFT             0x0
#define ORPHAN__FIELD_MASK               0x00000001L
#define WAVE__EXEC__SHIFT                0x2
#define WAVE__EXEC_MASK                  0x0000000CL
"""


def test_registers_with_fields_sorted_by_name() -> None:
    registers = read_registers(OFFSETS, MASKS)
    assert [repr(register) for register in registers] == [
        "ALPHA_STATUS 0x1fba 0 IRQ_MASK:0:1 COUNT:4:6 BUSY:31:1",
        "ALPHA__TWO 0x3 0 a__b:0:32",
        "ZULU 0x10 1",
    ]


def test_indirect_registers_are_a_table_of_their_own() -> None:
    (wave,) = read_registers(OFFSETS, MASKS, prefix="ix")
    assert repr(wave) == "WAVE 0x141 0 EXEC:2:2"


def test_a_missing_segment_stops_unless_it_is_known() -> None:
    text = OFFSETS.replace("#define regZULU_BASE_IDX                 1\n", "")
    with pytest.raises(VendorError, match="regZULU has no _BASE_IDX"):
        read_registers(text, MASKS)
    source = RegisterSource(missing_segments={"ZULU": 5})
    assert read_registers(text, MASKS, source=source)[-1].segment == 5


def test_a_shift_that_contradicts_its_mask_stops_unless_it_is_known() -> None:
    text = MASKS.replace("COUNT__SHIFT       0x4", "COUNT__SHIFT       0x6")
    with pytest.raises(VendorError, match="ALPHA_STATUS__COUNT: mask 0x3f0 starts at bit 4"):
        read_registers(OFFSETS, text)
    source = RegisterSource(wrong_shifts=("ALPHA_STATUS__COUNT",))
    count = read_registers(OFFSETS, text, source=source)[0].fields["COUNT"]
    assert (count.lsb, count.width) == (4, 6)


@pytest.mark.parametrize("mask", ["0x00000000L", "0x00000170L", "0x1000003F0L"])
def test_a_mask_that_is_no_field_stops(mask: str) -> None:
    text = MASKS.replace("0x000003F0L", mask)
    with pytest.raises(VendorError, match="is not a field"):
        read_registers(OFFSETS, text)


@pytest.mark.parametrize("body", ["(1 << 3)", "regZULU", "0x10 + 1"])
def test_a_define_that_is_no_literal_stops(body: str) -> None:
    with pytest.raises(VendorError, match="regODD"):
        read_registers(OFFSETS + f"#define regODD {body}\n", MASKS)


def test_literals() -> None:
    text = "#define A 0x10L\n#define B 12u // twelve\n#define C 0XFFULL\r\n#define GUARD\n"
    assert defines(text) == {"A": 16, "B": 12, "C": 255}
