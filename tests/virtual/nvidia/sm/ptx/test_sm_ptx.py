"""The PTX parser: what it makes of good text, and that bad text is an error with its line."""

from __future__ import annotations

import string
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.nvidia.sm.sm_run import HEAD
from ugpu.hcq.errors import BadCodeObject, NotSupported
from ugpu.virtual.nvidia.sm.ptx.module import (
    Address,
    Integer,
    Name,
    Pair,
    Real,
    Register,
    Sink,
    Special,
    Vector,
)
from ugpu.virtual.nvidia.sm.ptx.parser import parse

TEXT = (
    HEAD.format(target="sm_90a, debug")
    + """
// a comment with { } ;
/* and
   another */
.file 1 "a.cu"
.extern .shared .align 16 .b8 dynamic[];
.global .align 4 .b8 table[6] = {1, 2, 0xFF};
.visible .entry k(.param .u64 .ptr .global .align 16 p, .param .align 8 .b8 s[24])
.maxntid 128, 1, 1
.minnctapersm 2
{
  .reg .pred %p<3>;
  .reg .b32 %r<4>, other;
  .loc 1 10 2
  { .reg .b32 other; mov.u32 other, 1; }
  mov.u32 other, %tid.x;
$L1: @!%p1 ld.global.nc.L1::no_allocate.v2.f32 {%r1, _}, [%r2+-8];
  setp.lt.and.f32 %p1|%p2, 0f3F800000, -0d4000000000000000, %p2;
  mad.lo.s32 %r1, -5, 0x10, 0b11;
  bra $L1;
}
"""
)


def test_a_module_is_read() -> None:
    module = parse(TEXT)
    assert module.target == "sm_90a" and module.version == (8, 7)
    assert module.variables["dynamic"].size is None
    assert module.variables["table"].initial == bytes([1, 2, 255, 0, 0, 0])
    function = module.functions["k"]
    assert [(p.name, p.size, p.align) for p in function.parameters] == [("p", 8, 8), ("s", 24, 8)]
    assert function.limits["maxntid"] == (128, 1, 1)
    inner, outer, load, compare, multiply, branch = function.body
    assert isinstance(inner.operands[0], Register) and isinstance(outer.operands[0], Register)
    assert inner.operands[0].name != outer.operands[0].name
    assert outer.operands[1] == Special("tid.x")
    assert load.negated and load.guard == Register("%p1", "pred") and load.line == 20
    assert load.opcode == "ld.global.nc.L1::no_allocate.v2.f32"
    assert load.operands == (
        Vector((Register("%r1", "b32"), Sink())), Address(Register("%r2", "b32"), -8),
    )  # fmt: skip
    assert isinstance(compare.operands[0], Pair)
    assert compare.operands[1:3] == (Real(1.0, 0x3F800000), Real(-2.0))
    assert multiply.operands[1:] == (Integer(-5), Integer(16), Integer(3))
    assert branch.operands == (Name("$L1"),) and function.labels == {"$L1": 2}


# Instructions as their tokens, which may have white space and comments between them.
SPELLED = (
    "@ %p1 add.s32 %r1 , %r2 , -5 ;",
    "@ ! %lead mbarrier.init.shared::cta.b64 [ %gate ] , 1 ;",
    "@ bare st.global.v2.b32 [ %gate + 8 ] , { %r1 , %r2 } ;",
    "setp.lt.and.s32 %p1 | %lead , %r1 , 0x10 , ! bare ;",
    "L1 : mov.b64 { %r1 , _ } , %gate ;",
    "{ mov.u32 %r1 , %tid.x ; }",
    "@ %lead bra L1 ;",
)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_white_space_makes_no_difference(data: st.DataObject) -> None:
    gap = st.sampled_from(["", " ", "\t", "\n", " /* } */ ", " // ;\n"])

    def spelled(text: str) -> str:
        words = text.split()
        parts = [words[0]]
        for before, word in pairwise(words):
            names = all(
                each.strip("%_").replace("_", "")[:1].isalnum() for each in (before[-1:], word)
            )
            between = data.draw(gap) or (" " if names or word[0] == "%" else "")
            parts.append(between + word)
        return "".join(parts)

    def body(lines: list[str]) -> list[str]:
        declared = ".reg .pred %p<3>, %lead, bare;\n.reg .b32 %r<4>;\n.reg .b64 %gate;\n"
        function = parse(
            HEAD.format(target="sm_90") + f".entry k()\n{{ {declared}" + "\n".join(lines) + "\n}\n"
        ).functions["k"]
        return [repr(replace(each, line=0)) for each in function.body]

    assert body([spelled(text) for text in SPELLED]) == body([*SPELLED])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("mov.u32 %r1, %r9;", 6), ("mov.u32 %r1 %r2;", 6), ("mov.u32 %r1, ", 7), ("\n\n^", 8),
        ("@%r1 mov.u32 %r1, 1;", 6), ("L: L:", 6), (".reg .q32 %a;", 6), ("ld.u32 %r1, [;", 6),
        ("mov.u32 %r1, 99999999999999999999999;", 6), (".reg .b32 %x<99999999>;", 6),
        ("mov.u32 %r1, 09;", 6), (".shared .align 3 .b8 a[4];", 6), ("5;", 6),
        (".shared .b8 a[-1];", 6), ("mov.u32 %r1, %nothing;", 6), ("{ mov.u32 %r1, 1;", 8),
    ],
)  # fmt: skip
def test_errors_name_the_line(text: str, line: int) -> None:
    whole = HEAD.format(target="sm_90") + f".entry k()\n{{ .reg .b32 %r<4>;\n{text}\n}}\n"
    with pytest.raises(BadCodeObject, match=f"PTX line {line}:"):
        parse(whole)


def test_text_without_a_target_is_refused() -> None:
    with pytest.raises(BadCodeObject, match="target"):
        parse(".version 8.0\n")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(TEXT)), st.integers(0, 40), st.text(string.printable, max_size=8))
def test_damaged_text_is_read_or_refused(at: int, cut: int, put: str) -> None:
    try:
        parse(TEXT[:at] + put + TEXT[at + cut :])
    except (BadCodeObject, NotSupported) as error:
        assert "PTX" in str(error)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except (BadCodeObject, NotSupported) as error:
        assert "PTX" in str(error)
