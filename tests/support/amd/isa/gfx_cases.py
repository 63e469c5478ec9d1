"""Run single instructions with given registers on the translating core and on the oracle.

A `Case` is one instruction. A program runs many cases one after the other: each loads its registers
from its own block of memory, executes the instruction, and stores all the registers it might have
changed. Workgroups run the same cases on different data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.oracles.gfx11.execute import Mode, WaveState, execute
from tests.support.amd.isa import gfx_encode as asm
from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.isa.decoder.decode import decode_all
from ugpu.virtual.amd.shader import Dispatch, Ending
from ugpu.virtual.shader.memory import Abort

LANES = 32
FIRST_VECTOR, VECTORS = 8, 12  # v8..v19 belong to the case
FIRST_SCALAR, SCALARS = 40, 8  # s40..s47, then VCC, EXEC, SCC, M0
_VCC, _EXEC, _SCC, _M0 = range(SCALARS, SCALARS + 4)
BLOCK = 128 * VECTORS + 64  # bytes of a case's registers: vectors, then 16 scalar words
_OUT_SCALARS = SCALARS + 3
_OUT_QUADS = 3
OUT_BLOCK = 128 * VECTORS + 512 * _OUT_QUADS

CODE, INPUT, OUTPUT = 0x7E00_0000_0000, 0x7E20_0000_0000, 0x7E40_0000_0000
# 32 vector registers, denormals, DX10 clamp. Not IEEE, in which minima quiet signalling NaNs.
_RSRC1 = 3 | 0xF0 << 12 | 1 << 21
_RSRC2 = 4 << 1 | 1 << 7 | 1 << 15  # four user registers, the workgroup's x, 512 bytes of LDS


@dataclass(frozen=True)
class Case:
    """One instruction (or a few that belong together) and what to call it.

    v1 is 16 times the lane and s[2:3] points at 512 zeroed bytes of memory, for addresses.
    """

    label: str
    words: asm.Encoded


Words = NDArray[np.uint32]


class NotTranslated(Exception):
    """The core stopped at a case's instruction."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.label)
        self.case = case


@dataclass(frozen=True)
class Registers:
    """A case's registers in every group: vectors [group, register, lane], scalars [group, 16]."""

    vectors: Words
    scalars: Words


def _program(cases: Sequence[Case]) -> bytes:
    words: list[int] = []

    def add(encoded: asm.Encoded) -> None:
        words.extend(encoded)

    count = len(cases)
    add(asm.sop2("s_mul_i32", 5, 4, asm.LITERAL, count * BLOCK))
    add(asm.sop2("s_mul_i32", 6, 4, asm.LITERAL, count * OUT_BLOCK))
    for base, offset in ((0, 5), (2, 6)):
        add(asm.sop2("s_add_u32", base, base, offset))
        add(asm.sop2("s_addc_u32", base + 1, base + 1, asm.integer(0)))
    add(asm.vop2("v_lshlrev_b32", 1, asm.integer(4), 0))
    for case in cases:
        _add_case(add, case)
        for base, step in ((0, BLOCK), (2, OUT_BLOCK)):
            add(asm.sop2("s_add_u32", base, base, asm.LITERAL, step))
            add(asm.sop2("s_addc_u32", base + 1, base + 1, asm.integer(0)))
    add(asm.sopp("s_endpgm"))
    return np.array(words, np.uint32).tobytes()


def _add_case(add: Callable[[asm.Encoded], None], case: Case) -> None:
    add(asm.smem_load(FIRST_SCALAR, 0, 128 * VECTORS, 16))
    for quad in range(VECTORS // 4):
        register = FIRST_VECTOR + 4 * quad
        add(asm.global_access("load_b128", addr=1, saddr=0, dst=register, offset=512 * quad))
    add(asm.sopp("s_waitcnt"))
    add(asm.sop1("s_mov_b32", asm.VCC, FIRST_SCALAR + _VCC))
    add(asm.sop1("s_mov_b32", asm.M0, FIRST_SCALAR + _M0))
    add(asm.sopc("s_cmp_lg_u32", FIRST_SCALAR + _SCC, asm.integer(0)))
    add(asm.sop1("s_mov_b32", asm.EXEC, FIRST_SCALAR + _EXEC))
    add(case.words)
    add(asm.sop1("s_mov_b32", FIRST_SCALAR + _VCC, asm.VCC))
    add(asm.sop1("s_mov_b32", FIRST_SCALAR + _EXEC, asm.EXEC))
    add(asm.sop2("s_cselect_b32", FIRST_SCALAR + _SCC, asm.integer(1), asm.integer(0)))
    add(asm.sop1("s_mov_b32", asm.EXEC, asm.integer(-1)))
    for quad in range(VECTORS // 4):
        data = FIRST_VECTOR + 4 * quad
        add(asm.global_access("store_b128", addr=1, saddr=2, data=data, offset=512 * quad))
    for quad in range(_OUT_QUADS):
        for number in range(4):
            add(asm.vop1("v_mov_b32", 20 + number, FIRST_SCALAR + 4 * quad + number))
        place = 512 * (VECTORS // 4 + quad)
        add(asm.global_access("store_b128", addr=1, saddr=2, data=20, offset=place))


def run_core(
    core: GfxCore,
    cases: Sequence[Case],
    inputs: Sequence[Registers],
    rsrc1: int = _RSRC1,
    program: Callable[[Sequence[Case]], bytes] = _program,
) -> list[Registers]:
    """Run the cases on the translating core; raises NotTranslated for one it does not execute.

    program: makes the code, for a core whose target is not gfx11.
    """
    groups = len(inputs[0].vectors)
    block = np.zeros((groups, len(cases), BLOCK // 4), np.uint32)
    for number, registers in enumerate(inputs):
        quads = registers.vectors.reshape(groups, VECTORS // 4, 4, LANES)
        block[:, number, : 32 * VECTORS] = quads.transpose(0, 1, 3, 2).reshape(groups, -1)
        block[:, number, 32 * VECTORS :] = registers.scalars
    memory = ArrayMemory()
    code = np.frombuffer(program(cases).ljust(1 << 16, b"\0"), np.uint8)
    memory.map(CODE, code, False, executable=True)
    memory.map(INPUT, block, False)
    out = memory.map(OUTPUT, np.zeros((groups, len(cases), OUT_BLOCK // 4), np.uint32))
    pointers = [INPUT & 0xFFFFFFFF, INPUT >> 32, OUTPUT & 0xFFFFFFFF, OUTPUT >> 32]
    dispatch = Dispatch(
        code_address=CODE, groups=(groups, 1, 1), threads=(LANES, 1, 1), rsrc1=rsrc1,
        rsrc2=_RSRC2, rsrc3=0, user_data=pointers + [0] * 12, wave32=True,
    )  # fmt: skip
    outcome = core.run(dispatch, memory, Abort())
    if outcome.ending is Ending.ILLEGAL_INSTRUCTION:
        for case in cases:
            places = range(len(case.words) - len(outcome.words) + 1)
            if any(case.words[at : at + len(outcome.words)] == outcome.words for at in places):
                raise NotTranslated(case)
    assert outcome.ending is Ending.DONE, outcome
    assert not memory.faults, memory.faults[0]
    found = []
    for number in range(len(cases)):
        quads = out[:, number].reshape(groups, -1, LANES, 4).transpose(0, 1, 3, 2)
        words = quads.reshape(groups, -1, LANES)
        scalars = np.zeros((groups, 16), np.uint32)
        scalars[:, :_OUT_SCALARS] = words[:, VECTORS : VECTORS + _OUT_SCALARS, 0]
        found.append(Registers(words[:, :VECTORS].copy(), scalars))
    return found


class _Window:
    """The oracle's memory: the bytes at OUTPUT that a case may use."""

    def __init__(self) -> None:
        self.data = bytearray(512)

    def load(self, address: int, size: int) -> bytes:
        assert 0 <= address - OUTPUT <= len(self.data) - size
        return bytes(self.data[address - OUTPUT : address - OUTPUT + size])

    def store(self, address: int, data: bytes) -> None:
        assert 0 <= address - OUTPUT <= len(self.data) - len(data)
        self.data[address - OUTPUT : address - OUTPUT + len(data)] = data


def run_oracle(case: Case, registers: Registers, mode: Mode | None = None) -> Registers:
    """Execute the case once for each group on the oracle; by default as `run_core` does."""
    instructions = decode_all(np.array(case.words, np.uint32).tobytes())
    vectors, scalars = registers.vectors.copy(), registers.scalars.copy()
    for group in range(len(vectors)):
        state = WaveState(
            exec=int(scalars[group, _EXEC]),
            vcc=int(scalars[group, _VCC]),
            scc=bool(scalars[group, _SCC]),
            m0=int(scalars[group, _M0]),
            mode=mode or Mode(ieee=False),
            lds=np.zeros(512, np.uint8),
            memory=_Window(),
        )
        state.vgprs[1] = np.arange(LANES) * 16
        state.sgprs[2:4] = (OUTPUT & 0xFFFFFFFF, OUTPUT >> 32)
        state.sgprs[FIRST_SCALAR : FIRST_SCALAR + SCALARS] = scalars[group, :SCALARS]
        state.vgprs[FIRST_VECTOR : FIRST_VECTOR + VECTORS] = vectors[group]
        for instruction in instructions:
            execute(instruction, state)
        vectors[group] = state.vgprs[FIRST_VECTOR : FIRST_VECTOR + VECTORS]
        scalars[group, :SCALARS] = state.sgprs[FIRST_SCALAR : FIRST_SCALAR + SCALARS]
        scalars[group, SCALARS:_OUT_SCALARS] = (state.vcc, state.exec, int(state.scc))
        scalars[group, _OUT_SCALARS:] = 0
    return Registers(vectors, scalars)
