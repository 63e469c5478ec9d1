"""Which registers of a matrix operand are read in lanes 16..31 after it was loaded."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.amd.isa import gfx_encode as asm
from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.amd.isa.translator.liveness import ALL, read_after
from ugpu.virtual.amd.isa.translator.program import load, mark_full_blocks

CODE = 0x7E00_0000_0000
FRAGMENT, OTHER, TOTALS = 8, 16, 24  # vector registers
WHOLE = 0xFFFF << 2 * FRAGMENT  # the halves of eight registers
LOW, HIGH = 1 << 2 * FRAGMENT, 2 << 2 * FRAGMENT  # the halves of the first

Body = list[asm.Encoded]

LOADS = [asm.ds("ds_load_b128", addr=0, dst=FRAGMENT + 4 * k, offset=16 * k) for k in range(2)]
PRODUCT = asm.vop3p(
    "v_wmma_f32_16x16x16_f16", TOTALS, [asm.v(FRAGMENT), asm.v(OTHER), asm.v(TOTALS)]
)
STORE = asm.global_access("store_b32", addr=0, saddr=2, data=FRAGMENT)
CLEAR = asm.vop1("v_mov_b32", FRAGMENT, asm.integer(0))
CLEAR_LOW = asm.vop1("v_mov_b16", FRAGMENT, asm.v(40))
CLEAR_HIGH = asm.vop1("v_mov_b16", FRAGMENT | 0x80, asm.v(40))
SOME_LANES = asm.sop1("s_mov_b32", asm.EXEC, 6)
END = asm.sopp("s_endpgm")


def _after(body: Body, full: bool = True) -> int:
    """What of the fragment is read after its second load."""
    words = np.array([word for encoded in [*LOADS, *body, END] for word in encoded], np.uint32)
    memory = ArrayMemory()
    memory.map(CODE, words.view(np.uint8), False, executable=True)
    program = load(memory, CODE)
    mark_full_blocks(program, full)
    second = 4 * len(LOADS[0])
    return read_after(program).get(second, ALL) & WHOLE


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ([], 0),
        ([PRODUCT], 0),
        ([PRODUCT, STORE], LOW | HIGH),
        ([PRODUCT, CLEAR, STORE], 0),
        ([PRODUCT, CLEAR_LOW, STORE], HIGH),
        ([PRODUCT, CLEAR_HIGH, STORE], LOW),
        ([PRODUCT, CLEAR_HIGH, CLEAR_LOW, STORE], 0),
        ([*LOADS, STORE], 0),
        ([SOME_LANES, CLEAR, STORE], LOW | HIGH),
        ([SOME_LANES, *LOADS, STORE], WHOLE),
        ([asm.vop2("v_add_f32", 40, asm.v(FRAGMENT + 1), 41)], 3 << 2 * FRAGMENT + 2),
        ([asm.vop2("v_fmac_f32", FRAGMENT, asm.v(40), 41)], LOW | HIGH),
        ([asm.ds("ds_store_b128", addr=0, data=FRAGMENT + 4)], 0xFF << 2 * FRAGMENT + 8),
        ([asm.vopd(("v_dual_mov_b32", 40, asm.v(FRAGMENT), 0),
                   ("v_dual_mov_b32", 41, asm.v(OTHER), 0))], LOW | HIGH),
        ([asm.sopp("s_barrier"), STORE], LOW | HIGH),
        ([asm.sopp("s_cbranch_scc0", 1), CLEAR, STORE], LOW | HIGH),
        ([CLEAR, asm.sopp("s_cbranch_scc0", 1), CLEAR, STORE], 0),
        ([asm.sop1("s_setpc_b64", 0, 30)], WHOLE),
        ([asm.vop1("v_movrels_b32", 40, asm.v(0))], WHOLE),
        ([(0xFFFFFFFF,)], WHOLE),  # no instruction
    ],
)  # fmt: skip
def test_what_is_read_after_a_fragment_was_loaded(body: Body, read: int) -> None:
    assert _after(body) == read


def test_what_the_next_turn_of_a_loop_reads() -> None:
    """The jump leads behind the loads, and the first turn reads before it writes."""
    turn = [STORE, CLEAR]
    back = -(sum(len(encoded) for encoded in turn) + 1)
    assert _after([*turn, asm.sopp("s_cbranch_scc0", back & 0xFFFF)]) == LOW | HIGH
    turn = [CLEAR, STORE]
    assert _after([*turn, asm.sopp("s_cbranch_scc0", back & 0xFFFF)]) == 0


def test_a_wave_of_few_threads_writes_few_lanes() -> None:
    assert _after([CLEAR, STORE], full=False) == LOW | HIGH
