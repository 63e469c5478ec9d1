"""C headers through libclang: small ones that hold every trap; gcc must agree on each number."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.layout import Layouts

pytest.importorskip("clang.cindex", reason="libclang is not installed (pip install libclang)")

from ugpu.tools.clang2py.cheaders import Header, HeaderError, Reader
from ugpu.tools.clang2py.crosscheck import crosscheck, gcc
from ugpu.tools.clang2py.emit import constant_text, structure_text
from ugpu.tools.clang2py.packets import read_packets

TYPES = "#include <linux/types.h>\n"

STRUCTURES = """\
#pragma pack(push, 1)
struct packed_one { uint8_t a; uint32_t b; uint16_t c; };
#pragma pack(pop)
#pragma pack(push, 4)
struct packed_four { uint8_t a; uint64_t b; uint8_t c; };
#pragma pack(pop)
struct natural { uint8_t a; uint64_t b; uint8_t c; };
struct attribute_packed { uint8_t a; uint64_t b; } __attribute__((packed, aligned(4)));
struct two_unnamed_unions {
    uint32_t head;
    union { uint64_t wide; struct { uint32_t low; uint32_t high; }; };
    union { uint8_t byte; uint16_t half; };
    uint32_t tail;
};
struct mixed_bits { uint32_t a : 5; uint8_t b; };
struct mixed_bits_packed { uint32_t a : 20; uint32_t b : 20; } __attribute__((packed));
struct wide_bits_packed { uint64_t a : 40; uint32_t b : 8; } __attribute__((packed));
struct small_bits { uint8_t a : 3; uint32_t b : 5; uint32_t : 3; int32_t c : 7; uint32_t : 0; };
struct truth { _Bool a : 1; _Bool b : 1; _Bool c : 1; _Bool whole; };
struct flexible { uint16_t count; uint32_t items[]; };
struct flexible_union { uint32_t n; union { DECLARE_FLEX_ARRAY(uint32_t, a);
                                             DECLARE_FLEX_ARRAY(uint64_t, b); }; };
enum sign { MINUS = -5, PLUS = 7 };
enum big { SMALL_NAME, LARGE_NAME = 0x80000000u, FOLLOWING };
typedef struct {
    char name[16];
    int8_t small;
    enum sign sign;
    enum big big;
    void *pointer;
    float ratio;
    double precise;
    uint16_t grid[2][3];
    long long signed_long;
} everything_t;
struct outer {
    struct { uint32_t x : 4; uint32_t y : 28; } inner[2];
    union _tagged { uint32_t all; struct { uint8_t r, g; } parts; } tagged;
    struct natural *next;
    struct packed_one nested;
    enum { STEP_ONE = 1, STEP_TWO } step;
};
typedef struct outer outer_t;
struct forward;
struct keeps_forward { struct forward *where; void (*call)(int); };
#ifdef VARIANT
struct conditional { uint32_t low : 8; uint32_t high : 24; };
#else
struct conditional { uint8_t nothing; };
#endif
"""

MACROS = """\
enum colour { RED, GREEN = 5, BLUE };
#define GUARD
#define PLAIN 0x10
#define SHIFTED (1ULL << 63)
#define BOTH (PLAIN | RED | BLUE)
#define NEGATIVE (-3)
#define ALL_ONES 0xFFFFFFFFFFFFFFFFULL
#define CHARACTER 'A'
#define SIZE sizeof(uint64_t)
#define RED RED
#define TEXT "text"
#define REAL 1.5
#define TYPE uint32_t
#define BROKEN (
#define UNKNOWN (NOT_DEFINED + 1)
#define PLACE(x) (((x) & 0x7) << 4)
#define OPEN(x) ((x) << 24)
#define TOP(x) (((uint32_t)(x) & 1) << 31)
#define SIGN(x) (((x) & 0x00000001) << 31)
#define SUM(x) ((x) + 1)
#define STRIDED(x) ((x) * 3)
#define TWO(x, y) ((x) << (y))
#define _MAGIC(a, b) (((a) << 8) | (b))
#define REQUEST _MAGIC(';', 100 + 7)
"""


def read(
    folder: Path, text: str, *, before: str = TYPES, names_only: bool = False, word_bits: int = 32
) -> Header:
    path = folder / "sample.h"
    path.write_text(text, encoding="ascii")
    return Reader(path, before=before, names_only=names_only, word_bits=word_bits).read()


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Header:
    folder = tmp_path_factory.mktemp("header")
    return read(folder, STRUCTURES, before=TYPES + "#define VARIANT\n")


@pytest.fixture(scope="module")
def layouts(header: Header) -> Layouts:
    return Layouts(structure_text(header.rows, header.aliases), "sample")


@pytest.fixture(scope="module")
def macros(tmp_path_factory: pytest.TempPathFactory) -> Header:
    return read(tmp_path_factory.mktemp("macros"), MACROS)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("packed_one", 7),
        ("packed_four", 16),
        ("natural", 24),
        ("attribute_packed", 12),
        ("two_unnamed_unions", 24),
        ("mixed_bits", 4),
        ("mixed_bits_packed", 5),
        ("wide_bits_packed", 6),
        ("small_bits", 4),
        ("truth", 2),
        ("flexible", 4),
        ("flexible_union", 8),
        ("everything_t", 80),
        ("outer", 40),
        ("conditional", 4),
    ],
)
def test_sizes_written_by_hand(layouts: Layouts, name: str, size: int) -> None:
    assert layouts[name].size == size


def test_offsets_written_by_hand(layouts: Layouts) -> None:
    assert layouts.packed_four.offset_of("c") == 12
    unions = layouts.two_unnamed_unions
    assert [unions.offset_of(name) for name in ("wide", "low", "high", "half", "tail")] == [
        8,
        8,
        12,
        16,
        20,
    ]
    assert layouts.everything_t.offset_of("grid[1][2]") == 56 + 10
    assert layouts.outer.offset_of("inner[1].y") == 4
    assert layouts.outer.offset_of("nested.c") == 24 + 5
    assert layouts.outer_t is layouts.outer


def test_gcc_agrees_on_every_row(header: Header, tmp_path: Path) -> None:
    compiler = gcc()
    if compiler is None:
        pytest.skip("gcc is not installed")
    path = tmp_path / "sample.h"
    path.write_text(STRUCTURES, encoding="ascii")
    before = TYPES + "#define VARIANT\n"
    crosscheck(compiler, path, header.rows, before=before)
    good = header.rows["packed_four"]
    member = good.members[1]
    moved = (*member[:2], member[2] + 4, *member[3:])
    for broken in (
        dataclasses.replace(good, size=good.size + 4),
        dataclasses.replace(good, members=(good.members[0], moved)),
    ):
        with pytest.raises(HeaderError, match="packed_four"):
            crosscheck(compiler, path, {"packed_four": broken}, before=before)
    bits = header.rows["mixed_bits"]
    name, kind, offset, bit, width = bits.members[0]
    broken = dataclasses.replace(bits, members=((name, kind, offset, bit + 1, width),))
    with pytest.raises(HeaderError, match=r"mixed_bits\.a: bit 0"):
        crosscheck(compiler, path, {"mixed_bits": broken}, before=before)


def test_types_of_members(layouts: Layouts) -> None:
    made = layouts.everything_t.new(small=-1, sign=-5, big=0x80000000, ratio=0.5, pointer=2**63)
    made.name[:4] = b"ugpu"
    assert bytes(made.name) == b"ugpu" + bytes(12)
    assert (made.small, made.sign, made.big, made.pointer) == (-1, -5, 0x80000000, 2**63)
    assert made.signed_long == 0
    small = layouts.small_bits.new(c=-64)
    assert small.c == -64
    truth = layouts.truth.new(a=1, c=1)
    assert bytes(truth) == b"\x05\0"
    assert list(layouts.keeps_forward.fields) == ["where", "call"]


def test_members_of_unnamed_types_are_called_after_their_place(layouts: Layouts) -> None:
    made = layouts.outer.new()
    made.inner[1].y = 3
    made.tagged.parts.g = 9
    assert made.tagged.all == 0x900
    assert set(layouts) >= {"outer.inner", "_tagged", "_tagged.parts"}


def test_a_variant_is_chosen_by_a_macro(tmp_path: Path) -> None:
    assert read(tmp_path, STRUCTURES).rows["conditional"].size == 1


def test_enumerations(header: Header) -> None:
    assert header.constants["MINUS"] == (-5, "sign")
    assert header.constants["FOLLOWING"] == (0x80000001, "big")
    assert header.constants["STEP_TWO"] == (2, "")


def test_macros_have_the_values_the_compiler_gives_them(macros: Header) -> None:
    values = {name: value for name, (value, _) in macros.constants.items()}
    assert values == {
        "RED": 0,
        "GREEN": 5,
        "BLUE": 6,
        "PLAIN": 16,
        "SHIFTED": 1 << 63,
        "BOTH": 22,
        "NEGATIVE": -3,
        "ALL_ONES": 2**64 - 1,
        "CHARACTER": 65,
        "SIZE": 8,
        "REQUEST": 0x3B6B,
    }
    assert macros.left_out == ["BROKEN", "REAL", "TEXT", "TYPE", "UNKNOWN"]


def test_macros_that_place_their_argument(macros: Header) -> None:
    assert macros.placements == {"PLACE": (4, 3), "OPEN": (24, 8), "TOP": (31, 1), "SIGN": (31, 1)}


def test_the_constants_survive_their_text(macros: Header) -> None:
    text = constant_text(macros.constants, macros.placements)
    names = Constants(text, "sample")
    assert {name: names[name] for name in names} == {
        name: value for name, (value, _) in macros.constants.items()
    }
    assert names.enumeration("colour") == {"RED": 0, "GREEN": 5, "BLUE": 6}
    assert names.field("PLACE").insert(0, 7) == 0x70
    assert text == "".join(sorted(text.splitlines(keepends=True)))


def test_reading_twice_gives_the_same_text(header: Header, tmp_path: Path) -> None:
    again = read(tmp_path, STRUCTURES, before=TYPES + "#define VARIANT\n")
    assert structure_text(again.rows, again.aliases) == structure_text(header.rows, header.aliases)


TWO_TYPES = {
    "struct": "struct foo { int a; };",
    "union": "union foo { char a; char b; };",
    "typedef": "typedef struct { long b; } foo;",
    "const typedef": "typedef const struct { long b; } foo;",
    "alias": "struct bar { long b; }; typedef struct bar foo;",
}


@pytest.mark.parametrize("tag", ["struct", "union"])
@pytest.mark.parametrize("typedef", ["typedef", "const typedef", "alias"])
@pytest.mark.parametrize("tag_first", [True, False])
def test_a_tag_and_a_typedef_of_one_name_are_two_rows(
    tmp_path: Path, tag: str, typedef: str, tag_first: bool
) -> None:
    both = [TWO_TYPES[tag], TWO_TYPES[typedef]]
    text = "\n".join(both if tag_first else reversed(both))
    text += f"\nstruct s {{ {tag} foo tagged; foo plain; }};\n"
    header = read(tmp_path, text)
    layouts = Layouts(structure_text(header.rows, header.aliases), "sample")
    assert layouts["foo"].size == 8
    assert layouts[f"{tag}.foo"].size == (4 if tag == "struct" else 1)
    assert layouts.s.offset_of("tagged.a") == 0
    assert layouts.s.offset_of("plain.b") == 8
    compiler = gcc()
    if compiler is not None:
        crosscheck(compiler, tmp_path / "sample.h", header.rows, before=TYPES)
        row = dataclasses.replace(header.rows[f"{tag}.foo"], size=16)
        with pytest.raises(HeaderError, match=rf"size of {tag}\.foo"):
            crosscheck(compiler, tmp_path / "sample.h", {row.name: row}, before=TYPES)


@pytest.mark.parametrize(
    "text",
    [
        "typedef struct foo { int a; } foo; struct s { foo one; struct foo two; };",
        "struct foo; typedef struct foo foo; struct foo { int a; }; struct s { foo one; };",
        "struct foo { int a; }; typedef struct foo *foo; struct s { struct foo one; };",
        "struct foo { int a; }; typedef int foo; struct s { struct foo one; };",
    ],
)
def test_a_tag_that_is_the_only_record_of_its_name_keeps_it(tmp_path: Path, text: str) -> None:
    rows = read(tmp_path, text).rows
    assert (set(rows), rows["foo"].size, rows["foo"].spelling) == ({"foo", "s"}, 4, "struct foo")


def test_enumerations_of_one_name_are_two(tmp_path: Path) -> None:
    header = read(tmp_path, "enum kind { A, B };\ntypedef enum { C = 5 } kind;\n")
    assert header.constants == {"A": (0, "enum.kind"), "B": (1, "enum.kind"), "C": (5, "kind")}


def test_macros_that_depend_on_their_place_are_no_constants(tmp_path: Path) -> None:
    text = (
        "#define HERE __LINE__\n#define NEXT (__COUNTER__ + 1)\n#define ODD (HERE % 2)\n"
        "#define AT(x) ((x) << HERE)\n#define FIXED 3\n#define KEPT(x) ((x) << FIXED)\n"
    )
    header = read(tmp_path, text)
    assert header.constants == {"FIXED": (3, "")}
    assert header.left_out == ["HERE", "NEXT", "ODD"]
    assert header.placements == {"KEPT": (3, 29)}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("struct s { _Float16 half; };", r"s\.half is a _Float16"),
        ("struct s { _Float16 half[2]; };", r"s\.half is a _Float16"),
        ("typedef _Float16 half_t; struct s { half_t half; };", r"s\.half is a _Float16"),
        ("struct s { __bf16 brain; };", r"s\.brain is a __bf16"),
        ("struct s { __int128 wide; };", r"s\.wide is a __int128"),
    ],
)
def test_a_member_that_tables_cannot_express_is_named(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(HeaderError, match=problem):
        read(tmp_path, text)


def test_a_typedef_of_such_a_type_alone_does_no_harm(tmp_path: Path) -> None:
    assert set(read(tmp_path, "typedef _Float16 half; struct s { int a; };").rows) == {"s"}


def test_a_macro_with_two_values_is_refused_and_both_are_named(tmp_path: Path) -> None:
    with pytest.raises(HeaderError, match="'A' macro redefined"):
        read(tmp_path, "#define A 1\n#define A 2\n")
    header = read(tmp_path, "#define A 1\n#define A 1\n#undef A\n#define A 2\n")
    assert header.constants == {"A": (2, "")}


@pytest.mark.parametrize(
    "text",
    [
        "#include <linux/no_such_header.h>\nstruct a { uint8_t b; };\n",
        "struct a { unknown_t b; };\n",
        "struct a { struct never_defined b; };\n",
        "enum a { NAME = 1 };\n#define NAME 2\n",
    ],
    ids=["missing include", "unknown type", "incomplete type", "two values of one name"],
)
def test_a_header_that_cannot_be_trusted_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(HeaderError):
        read(tmp_path, text)


def test_only_names_of_a_header_that_needs_the_kernel(tmp_path: Path) -> None:
    text = (
        '#include <linux/idr.h>\n#  include "amdgpu_sync.h"\n'
        "struct vm { struct idr idr; spinlock_t lock; };\n"
        "enum level { PDB2, PTB = 3 };\n"
        "#define VALID (1ULL << 0)\n#define PRT (1ULL << 51)\n"
        "#define FRAG(x) (((x) & 0x1fULL) << 7)\n#define MTYPE(x) ((uint64_t)(x) << 48)\n"
    )
    header = read(tmp_path, text, names_only=True, word_bits=64)
    assert header.rows == {}
    assert {name: value for name, (value, _) in header.constants.items()} == {
        "PDB2": 0,
        "PTB": 3,
        "VALID": 1,
        "PRT": 1 << 51,
    }
    assert header.placements == {"FRAG": (7, 5), "MTYPE": (48, 16)}


PACKETS = """\
/*
** Definitions for SDMA_PKT_SAMPLE packet
*/
/*define for HEADER word*/
/*define for op field*/
#define SDMA_PKT_SAMPLE_HEADER_op_offset 0
#define SDMA_PKT_SAMPLE_HEADER_op_mask   0x000000FF
#define SDMA_PKT_SAMPLE_HEADER_op_shift  0
/*define for sub_op field*/
#define SDMA_PKT_SAMPLE_HEADER_sub_op_offset 0
#define SDMA_PKT_SAMPLE_HEADER_sub_op_mask   0x000003FF
#define SDMA_PKT_SAMPLE_HEADER_sub_op_shift  9
/*define for ADDR_LO word*/
/*define for addr_31_0 field*/
#define SDMA_PKT_SAMPLE_ADDR_LO_addr_31_0_offset 2
#define SDMA_PKT_SAMPLE_ADDR_LO_addr_31_0_mask   0xFFFFFFFF
#define SDMA_PKT_SAMPLE_ADDR_LO_addr_31_0_shift  0
"""


def test_packets_become_structures(tmp_path: Path) -> None:
    header = read(tmp_path, PACKETS)
    rows = read_packets(PACKETS, header.constants)
    packet = Layouts(structure_text(rows, {}), "sample").SDMA_PKT_SAMPLE
    made = packet.new(HEADER_op=0x12, HEADER_sub_op=0x3FF, ADDR_LO_addr_31_0=0xCAFEF00D)
    assert bytes(made).hex() == "12fe0700" + "00000000" + "0df0feca"


def test_a_packet_with_a_missing_macro_is_refused(tmp_path: Path) -> None:
    text = PACKETS.replace("#define SDMA_PKT_SAMPLE_HEADER_sub_op_mask", "#define OTHER")
    header = read(tmp_path, text)
    with pytest.raises(HeaderError, match="sub_op_mask"):
        read_packets(text, header.constants)
