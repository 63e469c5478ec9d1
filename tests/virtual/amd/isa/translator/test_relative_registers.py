"""Registers that a program chooses by number at run time, in programs that have many of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.amd.isa import gfx_encode as asm
from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.translator.program import load
from ugpu.virtual.amd.isa.translator.translate import translate
from ugpu.virtual.amd.shader import Dispatch, Ending
from ugpu.virtual.shader.memory import Abort

CODE, OUT = 0x7E00_0000_0000, 0x7E20_0000_0000
REGISTERS = 200
FIRST = 8  # of the registers that are chosen from


def _mapped(encoded: list[asm.Encoded]) -> ArrayMemory:
    words = [word for part in encoded for word in part]
    memory = ArrayMemory()
    memory.map(CODE, np.array(words, np.uint32).view(np.uint8), False, executable=True)
    return memory


def _program(chosen: list[int]) -> list[asm.Encoded]:
    """Register FIRST + k holds k; those chosen are added up in v2, which is stored."""
    found = [asm.vop2("v_lshlrev_b32", 1, asm.integer(2), 0), asm.vop1("v_mov_b32", 2, 128)]
    for k in range(REGISTERS - FIRST):
        found.append(asm.vop1("v_mov_b32", FIRST + k, asm.LITERAL, k))
    for number in chosen:
        found.append(asm.sop1("s_mov_b32", asm.M0, asm.LITERAL, number))
        found.append(asm.vop1("v_movrels_b32", 3, asm.v(FIRST)))
        found.append(asm.vop2("v_add_nc_u32", 2, asm.v(3), 2))
    found.append(asm.global_access("store_b32", addr=1, saddr=2, data=2))
    found.append(asm.sopp("s_endpgm"))
    return found


@pytest.mark.parametrize("lanes", [32, 64])
def test_they_are_found_among_two_hundred(lanes: int) -> None:
    chosen = [0, 1, 77, 150, REGISTERS - FIRST - 1]
    memory = _mapped(_program(chosen))
    out = memory.map(OUT, np.zeros(lanes, np.uint32))
    dispatch = Dispatch(
        code_address=CODE, groups=(1, 1, 1), threads=(lanes, 1, 1),
        rsrc1=REGISTERS // (8 if lanes == 32 else 4) - 1 | 0xF0 << 12, rsrc2=4 << 1, rsrc3=0,
        user_data=[0, 0, OUT & 0xFFFFFFFF, OUT >> 32] + [0] * 12, wave32=lanes == 32,
    )  # fmt: skip
    core = GfxCore(1)
    assert core.run(dispatch, memory, Abort()).ending is Ending.DONE
    core.close()
    assert (out == sum(chosen)).all()


def test_a_choice_costs_the_same_however_many_there_are() -> None:
    """Written for each choice, all registers made the code so long that LLVM took a minute."""
    lengths = []
    for count in (100, 300):
        program = load(_mapped(_program([5] * count)), CODE)
        lengths.append(translate(program, REGISTERS, "kernel").count("\n"))
    assert (lengths[1] - lengths[0]) / 200 < 40
