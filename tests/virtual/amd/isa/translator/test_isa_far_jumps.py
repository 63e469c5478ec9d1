"""Indirect jumps out of the kernel: to lower code, to pages that hold none, and very far away.

Hand-assembled from the RDNA3 ISA document: SOP1 s_setpc_b64 (op 72), SOPP s_endpgm (op 48), SOP1
s_mov_b32 (op 0); SMEM s_load and FLAT stores are avoided: user SGPRs hold all that is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.shader_memory import ArrayMemory
from ugpu.virtual.amd.isa.core import GfxCore
from ugpu.virtual.amd.shader import Dispatch, Ending, Outcome
from ugpu.virtual.shader.memory import Abort, Access

SETPC_S0 = 0xBE804800  # s_setpc_b64 s[0:1]
SETPC_S2 = 0xBE804802  # s_setpc_b64 s[2:3]
ENDPGM = 0xBFB00000
HIGH, LOW, DATA = 0x7E00_0020_0000, 0x7E00_0010_0000, 0x7E00_0018_0000


@pytest.fixture
def core() -> Iterator[GfxCore]:
    core = GfxCore(workers=2)
    yield core
    core.close()


def code(*words: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(struct.pack(f"<{len(words)}I", *words), np.uint8)


def run(core: GfxCore, first: int, second: int) -> tuple[Outcome, ArrayMemory]:
    """Run `s_setpc s[0:1]` at HIGH; at LOW lies `s_setpc s[2:3]`, and the end behind both."""
    memory = ArrayMemory()
    memory.map(HIGH, code(SETPC_S0, ENDPGM), writable=False, executable=True)
    memory.map(LOW, code(SETPC_S2, ENDPGM), writable=False, executable=True)
    memory.map(DATA, code(ENDPGM))
    user = [first & 0xFFFF_FFFF, first >> 32, second & 0xFFFF_FFFF, second >> 32, *[0] * 12]
    launch = Dispatch(HIGH, (3, 1, 1), (96, 1, 1), rsrc1=0, rsrc2=4 << 1, rsrc3=0,
                      user_data=user, wave32=True)  # fmt: skip
    return core.run(launch, memory, Abort()), memory


def test_a_jump_to_lower_code_and_back(core: GfxCore) -> None:
    outcome, memory = run(core, LOW, HIGH + 4)
    assert outcome.ending is Ending.DONE
    assert not memory.faults


@pytest.mark.parametrize("target", [DATA, LOW - 0x1000, HIGH + 0x1000])
def test_a_jump_to_where_no_code_is(core: GfxCore, target: int) -> None:
    outcome, memory = run(core, target, 0)
    assert outcome.ending is Ending.FETCH_FAULT
    assert outcome.pc == target
    assert {access for _, access in memory.faults} == {Access.EXECUTE}


@pytest.mark.parametrize("target", [0, 0x1234_5678_9000, 0x8000_0000_0000])
def test_a_jump_beyond_32_bits_of_offset(core: GfxCore, target: int) -> None:
    """The fetch is made there, so that the memory has a fault to report."""
    outcome, memory = run(core, target, 0)
    assert outcome.ending is Ending.FETCH_FAULT
    assert outcome.pc == target
    assert (target, Access.EXECUTE) in memory.faults


def test_code_far_from_its_kernel_is_refused_by_name(core: GfxCore) -> None:
    far = HIGH + (4 << 30)
    memory = ArrayMemory()
    memory.map(HIGH, code(SETPC_S0, ENDPGM), writable=False, executable=True)
    memory.map(far, code(ENDPGM), writable=False, executable=True)
    launch = Dispatch(HIGH, (1, 1, 1), (32, 1, 1), rsrc1=0, rsrc2=2 << 1, rsrc3=0,
                      user_data=[far & 0xFFFF_FFFF, far >> 32, *[0] * 14], wave32=True)  # fmt: skip
    outcome = core.run(launch, memory, Abort())
    assert outcome.ending is Ending.ILLEGAL_INSTRUCTION
    assert outcome.pc == far
    assert "2 GB" in outcome.detail
    assert not memory.faults
