"""Code that means harm, or nothing at all, ends as a wave's fault and never as an exception."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.amd.isa import gfx_encode as asm
from tests.support.amd.isa.gfx_run import CODE, KERNARGS, Machine
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.decoder.decode import decode
from ugpu.virtual.amd.isa.decoder.formats import UnknownInstruction
from ugpu.virtual.amd.isa.translator.program import load
from ugpu.virtual.amd.isa.translator.translate import translate
from ugpu.virtual.amd.shader import Dispatch, Ending

S_CALL, SOP1 = 0b1011_10100, 0b1011_11101  # bits 31:23; SOP1 0x48 to 0x4B take a program counter
END = asm.sopp("s_endpgm")
# First bytes of all encodings, so that most garbage decodes.
TOPS = (
    0x00, 0x32, 0x58, 0x60, 0x7C, 0x7E, 0x80, 0x88, 0x90, 0xB0, 0xB7, 0xBA, 0xBE, 0xBF, 0xC8, 0xCB,
    0xCC, 0xCD, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8, 0xDA, 0xDC, 0xDD, 0xDE, 0xE0, 0xE8, 0xF4, 0xFF,
)  # fmt: skip
WORD = st.builds(
    lambda top, rest: top << 24 | rest, st.sampled_from(TOPS), st.integers(0, (1 << 24) - 1)
)


@pytest.fixture(scope="module")
def core() -> Iterator[GfxCore]:
    made = GfxCore(1)
    yield made
    made.close()


def wave(machine: Machine, words: list[int]) -> Dispatch:
    """Describe a dispatch of one wave of these words, which run into s_endpgm."""
    code = np.array([*words, *END, *END], np.uint32)
    machine.memory.map(CODE, code, writable=False, executable=True)
    machine.memory.map(KERNARGS, np.zeros(1024, np.uint32))
    return Dispatch(
        code_address=CODE, groups=(1, 1, 1), threads=(32, 1, 1), rsrc1=3, rsrc2=2 << 1 | 1 << 7,
        rsrc3=0, wave32=True, user_data=[KERNARGS & 0xFFFFFFFF, KERNARGS >> 32, *[0] * 14],
    )  # fmt: skip


@given(st.lists(WORD, min_size=1, max_size=24), st.sampled_from([0, 1, 2, 3]))
@settings(max_examples=400)
def test_garbage_is_translated_or_refused(core: GfxCore, words: list[int], omod: int) -> None:
    """Decoding and translation raise nothing, whatever the code."""
    machine = Machine(core)
    wave(machine, words)
    program = load(machine.memory, CODE)
    assert translate(program, 32, "kernel", omod).startswith("define")


@given(st.lists(WORD, min_size=1, max_size=8))
@settings(max_examples=25)
def test_garbage_that_runs_ends_the_dispatch(core: GfxCore, words: list[int]) -> None:
    """The native code is sound: LLVM takes it, and it ends one way or another."""
    machine = Machine(core)
    for at, word in enumerate(words):  # no endless loops: branches go forward, nothing else jumps
        if word >> 16 in range(0xBFA0, 0xBFB0):
            words[at] = word & ~0x8000
        elif word >> 23 == S_CALL or (word >> 23 == SOP1 and word >> 8 & 0xFC == 0x48):
            words[at] = asm.sopp("s_nop")[0]
    outcome = core.run(wave(machine, words), machine.memory, machine.abort)
    assert outcome.ending in Ending


@pytest.mark.parametrize(
    ("name", "value", "halts"),
    [
        ("s_sethalt", 1, True), ("s_sethalt", 5, True), ("s_sethalt", 0, False),
        ("s_sethalt", 4, False), ("s_sendmsghalt", 0, True),
    ],
)  # fmt: skip
def test_a_wave_that_halts_itself(core: GfxCore, name: str, value: int, halts: bool) -> None:
    machine = Machine(core)
    words = [*asm.sopp("s_nop"), *asm.sopp(name, value)]
    outcome = core.run(wave(machine, words), machine.memory, machine.abort)
    assert outcome.ending is (Ending.HALTED if halts else Ending.DONE)
    if halts:
        assert outcome.pc == CODE + 4 and outcome.detail == "by s_sethalt"


@pytest.mark.parametrize(
    ("opcode", "name"),
    [
        (0, "v_interp_p10_f32"),
        (1, "v_interp_p2_f32"),
        (2, "v_interp_p10_f16_f32"),
        (3, "v_interp_p2_f16_f32"),
        (4, "v_interp_p10_rtz_f16_f32"),
        (5, "v_interp_p2_rtz_f16_f32"),
    ],
)
def test_interpolation_is_decoded_and_refused_by_name(
    core: GfxCore, opcode: int, name: str
) -> None:
    words = [0xCD << 24 | opcode << 16 | 5, (256 + 1) | (256 + 2) << 9 | (256 + 3) << 18]
    found = decode(np.array(words, np.uint32).tobytes())
    assert (found.name, found.size) == (name, 8)
    assert found.dst is not None and found.dst.index == 5
    assert [source.index for source in found.srcs] == [1, 2, 3]
    machine = Machine(core)
    outcome = core.run(wave(machine, words), machine.memory, machine.abort)
    assert outcome.ending is Ending.ILLEGAL_INSTRUCTION and name in outcome.detail
    with pytest.raises(UnknownInstruction):
        decode(np.array([words[0], 1], np.uint32).tobytes())  # a scalar source
