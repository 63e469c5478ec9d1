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


@pytest.mark.parametrize(
    ("offsets", "masks", "both"),
    [
        ("#define regZULU 0x99\n", "", "regZULU is both '0x0010' and '0x99'"),
        ("#define regZULU_BASE_IDX 2\n", "", "regZULU_BASE_IDX is both '1' and '2'"),
        ("", "#define ALPHA_STATUS__COUNT__SHIFT 0x5\n", "SHIFT is both '0x4' and '0x5'"),
        ("", "#define ALPHA_STATUS__COUNT_MASK 0x30L\n", "MASK is both '0x000003F0L' and '0x30L'"),
    ],
    ids=["offset", "segment", "shift", "mask"],
)
def test_a_name_with_two_meanings_stops_and_both_are_named(
    offsets: str, masks: str, both: str
) -> None:
    with pytest.raises(VendorError, match=both):
        read_registers(OFFSETS + offsets, MASKS + masks)
    with pytest.raises(VendorError, match="is both"):
        read_registers(offsets + OFFSETS, masks + MASKS)


def test_a_definition_repeated_or_made_anew_is_no_contradiction() -> None:
    assert defines("#define A 0x10L\n#define A 16\n") == {"A": 16}
    assert defines("#define A 1\n#undef A\n#define A 2\n") == {"A": 2}


def test_a_field_belongs_to_the_longest_register() -> None:
    offsets = OFFSETS + "#define regALPHA 0x2\n#define regALPHA_BASE_IDX 0\n"
    alpha, _status, two, _zulu = read_registers(offsets, MASKS)
    assert (repr(alpha), repr(two)) == ("ALPHA 0x2 0", "ALPHA__TWO 0x3 0 a__b:0:32")


def test_a_shift_without_a_mask_stops_unless_it_is_known() -> None:
    text = MASKS + "#define ZULU__NARROW__SHIFT 0x3\n"
    with pytest.raises(VendorError, match="ZULU__NARROW__SHIFT has no ZULU__NARROW_MASK"):
        read_registers(OFFSETS, text)
    source = RegisterSource(missing_masks=("ZULU__NARROW",))
    assert repr(read_registers(OFFSETS, text, source=source)[-1]) == "ZULU 0x10 1"


@pytest.mark.parametrize(
    "text",
    [
        "/*\n#define B 2\n*/",
        "// #define B 2",
        "// /* \\\n#define B 2",
        "#if 0\n#define B 2\n#endif",
        "#if 1\n#else\n#define B 2\n#endif",
        "#if 0\n#if 1\n#define B 2\n#endif\n#else\n#endif",
        "#ifdef NEVER\n#define B 2\n#endif",
        "#if !defined(A)\n#define B 2\n#endif",
        "#ifndef A\n#elif 0\n#define B 2\n#endif",
        "#define B 2\n#undef B",
    ],
)
def test_what_a_compiler_would_not_read_defines_nothing(text: str) -> None:
    assert defines(f"#define A 1\n{text}\n#define C 3 /* #define B 4 */\n") == {"A": 1, "C": 3}


def test_what_a_compiler_would_read_counts() -> None:
    text = "#if 0\n#else\n#define A 1\n#endif\n/* one\n two */ # define B \\\n 2\n"
    assert defines(text + "#ifdef A\n#define C 010\n#endif\n") == {"A": 1, "B": 2, "C": 8}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#if FAMILY > 3\n#endif\n", "expected a number or defined"),
        ("#if 1\n#define A 1\n", "expected an #endif"),
        ("#endif\n", "#endif without #if"),
        ("/* no end\n#define A 1\n", "has no end"),
        ("#define A 09\n", "not literal numbers"),
    ],
)
def test_a_header_that_is_not_understood_stops(text: str, problem: str) -> None:
    with pytest.raises(VendorError, match=problem):
        defines(text)
