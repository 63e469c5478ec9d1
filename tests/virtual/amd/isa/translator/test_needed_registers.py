"""Which vector registers are read behind a backward branch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.amd.isa import gfx_encode as asm
from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.amd.isa.translator.needed import EVERY, needed, numbers
from ugpu.virtual.amd.isa.translator.program import load, mark_full_blocks

CODE = 0x7E00_0000_0000
R = 8
Body = list[asm.Encoded]
NOP = asm.sopp("s_nop", 0)
END = asm.sopp("s_endpgm")
STORE = asm.global_access("store_b32", addr=0, saddr=2, data=R)
CLEAR = asm.vop1("v_mov_b32", R, asm.integer(0))
CLEAR_LOW = asm.vop1("v_mov_b16", R, asm.v(40))
SOME_LANES = asm.sop1("s_mov_b32", asm.EXEC, 6)
PRODUCT = asm.vop3p("v_wmma_f32_16x16x16_f16", 24, [asm.v(R), asm.v(16), asm.v(24)])


def found(body: Body, loop: asm.Encoded = NOP, full: bool = True) -> dict[int, int]:
    back = asm.sopp("s_cbranch_scc0", 0xFFFF - len(loop))  # to the instruction before it
    words = np.array([word for each in [loop, back, *body, END] for word in each], np.uint32)
    memory = ArrayMemory()
    memory.map(CODE, words.view(np.uint8), False, executable=True)
    program = load(memory, CODE)
    mark_full_blocks(program, full)
    return needed(program)


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ([], []),
        ([STORE], [0, R]),
        ([CLEAR, STORE], [0]),
        ([CLEAR_LOW, STORE], [0, R, 40]),
        ([SOME_LANES, CLEAR, STORE], [0, R]),
        ([asm.vop2("v_fmac_f32", R, asm.v(40), 41), STORE], [0, R, 40, 41]),
        ([asm.vop2("v_add_f32", R, asm.v(40), 41), STORE], [0, 40, 41]),
        ([asm.sopp("s_cbranch_scc1", 1), CLEAR, STORE], [0, R]),
        ([PRODUCT], [*range(R, R + 8), *range(16, 32)]),
        ([asm.vopd(("v_dual_mov_b32", 40, asm.v(R), 0),
                   ("v_dual_mov_b32", 41, asm.v(16), 0))], [R, 16]),
    ],
)  # fmt: skip
def test_registers_that_are_read_behind_a_loop(body: Body, read: list[int]) -> None:
    (mask,) = found(body).values()
    assert numbers(mask) == read


def test_what_the_loop_itself_reads_counts() -> None:
    (mask,) = found([], loop=STORE).values()
    assert numbers(mask) == [0, R]


def test_lanes_that_are_off_keep_a_register() -> None:
    (mask,) = found([CLEAR, STORE], full=False).values()
    assert numbers(mask) == [0, R]


def test_unknown_places_may_read_every_register() -> None:
    assert set(found([asm.sop1("s_setpc_b64", 0, 30)]).values()) == {EVERY}


def test_a_program_without_loops_is_not_looked_at() -> None:
    words = np.array([word for each in [STORE, END] for word in each], np.uint32)
    memory = ArrayMemory()
    memory.map(CODE, words.view(np.uint8), False, executable=True)
    assert needed(load(memory, CODE)) == {}
