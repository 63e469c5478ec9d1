"""Structures as bytes with explicit offsets, on a small table written by hand."""

from __future__ import annotations

import struct

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.fields import Field
from ugpu.hcq.registers.layout import Array, Layouts

TABLE = """\
# a remark
Pair_t = pair
everything 64 a:u8:0 b:i16:1 c:u64:3 low:u32:11:0:5 high:u32:11:5:27 sign:i8:15:2:3 \
wide:u64:16:4:40 list:u16[3]:24 grid:u8[2][3]:30 one:@pair:36 many:@pair[2]:40 real:f32:48 \
tail:u32[0]:64 raw:u8:63
pair 4 x:u16:0 y:u16:2
"""


@pytest.fixture
def layouts() -> Layouts:
    return Layouts(TABLE, "sample")


def test_scalars_lie_where_the_table_says(layouts: Layouts) -> None:
    made = layouts.everything.new(a=0x11, b=-2, c=0x0102030405060708, real=1.5)
    assert bytes(made)[:11] == bytes.fromhex("11 feff 0807060504030201")
    assert bytes(made)[48:52] == struct.pack("<f", 1.5)
    assert (made.a, made.b, made.c, made.real) == (0x11, -2, 0x0102030405060708, 1.5)
    assert len(made) == len(bytes(made)) == 64


def test_bitfields_lie_at_absolute_bits(layouts: Layouts) -> None:
    made = layouts.everything.new(low=0x15, high=0x4000001, sign=-1, wide=0xA5_0000_0001)
    assert bytes(made)[11:15] == (0x15 | 0x4000001 << 5).to_bytes(4, "little")
    assert bytes(made)[15] == 0b0001_1100
    assert bytes(made)[16:22] == (0xA5_0000_0001 << 4).to_bytes(6, "little")
    assert (made.low, made.high, made.sign) == (0x15, 0x4000001, -1)
    assert made.wide == 0xA5_0000_0001


@given(st.integers(0, 31), st.integers(0, 2**27 - 1), st.integers(-4, 3), st.binary(min_size=64))
def test_setting_a_bitfield_leaves_its_neighbours(
    low: int, high: int, sign: int, noise: bytes
) -> None:
    buffer = bytearray(noise)
    view = Layouts(TABLE, "sample").everything.view(buffer)
    view.low, view.high, view.sign = low, high, sign
    assert (view.low, view.high, view.sign) == (low, high, sign)
    assert buffer[:11] == noise[:11]
    assert buffer[16:] == noise[16:]
    assert buffer[15] & 0b1110_0011 == noise[15] & 0b1110_0011


def test_numpy_integers_do_not_wrap_around(layouts: Layouts) -> None:
    made = layouts.everything.new(high=numpy.uint8(255), a=numpy.uint64(7), list=numpy.arange(3))
    assert (made.high, made.a, list(made.list)) == (255, 7, [0, 1, 2])


def test_arrays_and_nested_structures_are_windows(layouts: Layouts) -> None:
    made = layouts.everything.new()
    made.list = [1, 2, 3]
    made.list[-1] = 0x1234
    made.grid[1][2] = 9
    made.grid[0] = b"abc"
    made.one.y = 5
    made.many[1].x = 7
    made.many[0] = made.one
    assert made.list == [1, 2, 0x1234]
    assert made.grid == [[97, 98, 99], [0, 0, 9]]
    assert made.grid[0] == b"abc"
    assert bytes(made.grid) == b"abc\0\0\x09"
    assert bytes(made)[36:48] == bytes.fromhex("0000 0500 0000 0500 0700 0000")
    assert [pair.y for pair in made.many] == [5, 0]
    assert made.many[0] == made.one
    assert made.list[:2] == [1, 2]
    assert isinstance(made.list, Array)
    assert len(made.tail) == 0


def test_a_view_writes_the_buffer_it_was_given(layouts: Layouts) -> None:
    buffer = bytearray(12)
    view = layouts.pair.view(buffer, 6)
    view.y = 0xBEEF
    assert buffer == bytes(8) + b"\xef\xbe" + bytes(2)
    assert layouts.pair.view(memoryview(buffer), 6) == view
    with pytest.raises(BadArgument, match="read-only"):
        layouts.pair.view(bytes(4)).x = 1


@pytest.mark.parametrize("offset", [-1, 1, 99])
def test_a_buffer_that_is_too_short_is_refused(layouts: Layouts, offset: int) -> None:
    with pytest.raises(BadArgument, match="needs 4 bytes"):
        layouts.pair.view(bytes(4), offset)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("a", 256),
        ("a", -1),
        ("b", 40000),
        ("low", 32),
        ("sign", 4),
        ("sign", -5),
        ("wide", 2**40),
        ("list", [1, 2]),
        ("list", [1, 2, 70000]),
        ("one", 5),
        ("a", "text"),
        ("low", "text"),
        ("low", 1.0),
    ],
)
def test_what_does_not_fit_is_refused(layouts: Layouts, member: str, value: object) -> None:
    made = layouts.everything.new()
    with pytest.raises(BadArgument):
        setattr(made, member, value)


def test_unknown_names_are_answered_with_near_ones(layouts: Layouts) -> None:
    made = layouts.everything.new()
    with pytest.raises(AttributeError, match="near: wide"):
        made.wyde = 1
    with pytest.raises(AttributeError, match="near: wide"):
        _ = made.wyde
    with pytest.raises(AttributeError, match="near: pair"):
        _ = layouts.pairs
    with pytest.raises(KeyError):
        _ = layouts["nothing"]
    with pytest.raises(IndexError, match="3 elements"):
        _ = made.list[3]
    with pytest.raises(AttributeError):
        layouts.pair.new(z=1)


def test_a_member_called_like_our_own_attribute_is_an_item(layouts: Layouts) -> None:
    made = layouts.everything.new()
    made["raw"] = 7
    assert made["raw"] == 7
    assert bytes(made.raw)[63] == 7
    with pytest.raises(AttributeError):
        made.raw = 8


@pytest.mark.parametrize(
    ("path", "offset"),
    [
        ("a", 0),
        ("high", 11),
        ("list[2]", 28),
        ("grid[1][2]", 35),
        ("grid[1]", 33),
        ("many[1].y", 46),
        ("tail[5]", 84),
    ],
)
def test_offset_of(layouts: Layouts, path: str, offset: int) -> None:
    assert layouts.everything.offset_of(path) == offset


@pytest.mark.parametrize(
    "path", ["", "z", "a[0]", "list[3]", "list.x", "many[1].z", "one.x.y", "a b"]
)
def test_offset_of_a_wrong_path(layouts: Layouts, path: str) -> None:
    with pytest.raises(BadArgument):
        layouts.everything.offset_of(path)


def test_aliases_and_listing(layouts: Layouts) -> None:
    assert layouts.Pair_t is layouts.pair
    assert list(layouts) == ["Pair_t", "everything", "pair"]
    assert len(layouts) == 3
    assert "pair" in layouts
    assert "pair" in dir(layouts)
    assert "x" in dir(layouts.pair.new())


def test_reprs_show_all_members(layouts: Layouts) -> None:
    assert repr(layouts.pair.new(x=3, y=0x100)) == "pair(x=3, y=0x100)"
    assert repr(layouts.pair) == "<Layout pair, 4 bytes, 2 members>"
    assert "many=[pair(x=0, y=0), pair(x=0, y=0)]" in repr(layouts.everything.new())


CONSTANTS = """\
# a remark
ALL_ONES 0xffffffffffffffff
FIRST 0 colour
MINUS -3
PLACE() 8 4
SECOND 0x10 colour
"""


def test_constants() -> None:
    names = Constants(CONSTANTS, "sample")
    assert (names.ALL_ONES, names.FIRST, names.MINUS, names["SECOND"]) == (2**64 - 1, 0, -3, 16)
    assert names.enumeration("colour") == {"FIRST": 0, "SECOND": 16}
    assert names.names(16) == ["SECOND"]
    assert names.names(0, prefix="F") == ["FIRST"]
    assert names.names(2**64 - 1, enumeration="colour") == []
    assert names.field("PLACE") == Field("PLACE", 8, 4)
    assert names.field("PLACE").insert(0xFFFF, 5) == 0xF5FF
    assert "PLACE" in names
    assert "SECOND" in names
    assert "THIRD" not in names
    assert list(names) == ["ALL_ONES", "FIRST", "MINUS", "SECOND"]
    with pytest.raises(AttributeError, match="near: SECOND"):
        _ = names.SECONDS
