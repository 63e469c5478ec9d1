"""NVIDIA's assertions about the firmware's interface, compared with our tables."""

from __future__ import annotations

from ugpu.hcq.registers.constants import Constants
from ugpu.hcq.registers.layout import Layouts
from ugpu.tools.clang2py.nvidia.abi_check import compared, contradictions

STRUCTS = Layouts("INNER 8 low:u32:0 high:u32:4\nOUTER 24 first:u64:0 inner:@INNER[2]:8\n", "toy")
CONSTANTS = Constants("TOY_NUMBER 7\n", "toy")
TEXT = """\
ABI_CHECK_SIZE_EQ(OUTER, 24);
ABI_CHECK_SIZE_GE(INNER, 4);
ABI_CHECK_FIELD(OUTER, inner, 8, 16);
ABI_CHECK_FIELD_FLEXIBLE(INNER, high, 4);
ABI_CHECK_ENUM_VAL_EQ(toy, TOY_NUMBER, 7);
ABI_CHECK_SIZE_EQ(LEFT_OUT, 1);
"""


def test_agreement_and_how_much_was_compared() -> None:
    assert list(contradictions(TEXT, STRUCTS, CONSTANTS)) == []
    assert compared(TEXT, STRUCTS) == (2, 2)


def test_each_kind_of_contradiction_is_named() -> None:
    wrong = TEXT.replace("24)", "32)").replace("4)", "12)", 1)
    wrong = wrong.replace("inner, 8", "inner, 4").replace("NUMBER, 7", "NUMBER, 8")
    wrong += "ABI_CHECK_FIELD(INNER, missing, 0, 4);\n"
    assert list(contradictions(wrong, STRUCTS, CONSTANTS)) == [
        "OUTER has 24 bytes, expected 32",
        "INNER has 8 bytes, expected 12",
        "OUTER.inner is at 8, expected 4",
        "INNER has no member missing",
        "TOY_NUMBER is 0x7, expected 8",
    ]
