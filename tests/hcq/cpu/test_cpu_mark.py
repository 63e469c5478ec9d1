"""The marks of host kernels: what they declare, and what is refused of damaged ones."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.hcq.cpu.mark import declared, marked
from ugpu.hcq.errors import BadCodeObject
from ugpu.hcq.objects.argument import Argument

SIZES = {"ptr": 8, "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8,
         "half": 2, "bfloat": 2, "float": 4, "double": 8}  # fmt: skip


def test_a_mark_declares_its_arguments() -> None:
    data = struct.pack("<II", 2, 36) + b"ptr out, i8 small, i64 wide, double x, float\0more"
    assert declared("k", data) == (
        36,
        (
            Argument(0, 8, "out", True, ""),
            Argument(8, 1, "small", False, "integer"),
            Argument(16, 8, "wide", False, "integer"),
            Argument(24, 8, "x", False, "float"),
            Argument(32, 4, "", False, "float"),
        ),
    )
    assert declared("k", struct.pack("<II", 2, 0) + b"\0") == (0, ())
    assert declared("k", struct.pack("<II", 1, 12)) == (12, None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\2\0\0\0\4\0\0", "truncated"),
        (struct.pack("<II", 2, 4) + b"i32 count", "truncated"),
        (struct.pack("<II", 0, 4), "unknown version"),
        (struct.pack("<II", 1, (64 << 10) + 1), "unknown version or size"),
        (struct.pack("<II", 2, 8) + b"i32 count\0", "size of the declared arguments differs"),
        (struct.pack("<II", 2, 8) + b"\0", "size of the declared arguments differs"),
        (struct.pack("<II", 2, 4) + b"u32 count\0", "argument 0 of k must have one of the types"),
        (struct.pack("<II", 2, 4) + b"i32 a,\0", "argument 1 of k must have .* got ''"),
        (struct.pack("<II", 2, 4) + b"\xff\xfe\0", "must have one of the types"),
    ],
)
def test_damaged_marks_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadCodeObject, match=words):
        declared("k", data)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(sorted(SIZES)), max_size=12))
def test_what_is_marked_is_read_as_declared(kinds: list[str]) -> None:
    text = marked("k", [f"{kind} x{number}" for number, kind in enumerate(kinds)])
    found = re.fullmatch(
        r'@"k\.ugpu" = .* \{ i32 2, i32 (\d+), \[(\d+) x i8\] c"(.*)\\00" \}', text
    )
    assert found is not None
    content = found[3].encode() + b"\0"
    assert len(content) == int(found[2])
    size, arguments = declared("k", struct.pack("<II", 2, int(found[1])) + content)
    assert arguments is not None and [each.size for each in arguments] == [SIZES[k] for k in kinds]
    end = 0
    for each in arguments:  # next to each other, but for the padding of their alignment
        assert each.offset % each.size == 0 and 0 <= each.offset - end < each.size
        end = each.offset + each.size
    assert end == size
