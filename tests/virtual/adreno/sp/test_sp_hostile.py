"""Any instructions with any operands: the translator makes code that LLVM accepts, or refuses."""

from __future__ import annotations

import struct
from random import Random

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ugpu.virtual.adreno.isa.decoder.table import Table, table
from ugpu.virtual.adreno.sp.program import load
from ugpu.virtual.adreno.sp.translator.translate import Shape, translate

GPUS = (630, 660, 740, 750)
NONE = 0xFC
END = 0x0300000000000000


def translated(words: list[int], gpu: Table, lanes: int) -> dict[int, str]:
    """Translate a program; return the instructions that are refused, with reasons."""
    code = struct.pack(f"<{len(words) + 1}Q", *words, END)
    program = load(code, True, gpu)
    shape = Shape(lanes, 192, 96, gpu.gpu // 100, lanes == 64, NONE, 0, NONE)
    ir, missing = translate(program, shape, "kernel")
    llvm.parse_assembly(ir)
    return missing


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40))
def test_any_operands_are_translated_or_refused(seed: int) -> None:
    draw = Random(seed)
    gpu = table(draw.choice(GPUS))
    words = []
    for _ in range(draw.randrange(1, 6)):
        encoding = draw.choice(gpu.encodings["#instruction"])
        free = draw.getrandbits(64) & (draw.getrandbits(64) if draw.randrange(2) else -1)
        words.append((free & ~encoding.mask | encoding.match) & (1 << 64) - 1)
    translated(words, gpu, draw.choice((64, 128)))


def test_a_move_to_all_lanes_through_a0() -> None:
    """movs.u16f32 r<a0.x + 160>, hr13.x, a0.x"""
    assert not translated([0x390A62A0C0000434], table(740), 64)


@pytest.mark.parametrize("word", [0x2D08F231FBF423CC, 0x204CC0F400000001])
def test_an_address_register_takes_no_32_bits(word: int) -> None:
    """sct.u16u32 r12.y, r8.w, a0.x, p0.w, hr51.x and mov.u32u32 a0.x, 1"""
    assert translated([word], table(750), 64) == {0: "a result in register 61.x"}
