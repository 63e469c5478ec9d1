"""The oracle: execute gfx1100 code slowly, one instruction at a time, for tests to compare with.

`execute` runs one decoded instruction on a wave's state, `run` a wave to its end, `run_group` the
waves of a workgroup with their barriers. Wave32. What it cannot execute raises NotSupported.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.oracles.gfx11.memory import execute_memory
from lab.oracles.gfx11.scalar import execute_scalar
from lab.oracles.gfx11.state import Memory, Mode, WaveState
from lab.oracles.gfx11.vector import execute_vector
from ugpu.hcq.errors import NotSupported
from ugpu.virtual.amd.isa.decoder.decode import decode
from ugpu.virtual.amd.isa.decoder.formats import Format, Instruction

_SCALAR = (Format.SOP1, Format.SOP2, Format.SOPK, Format.SOPC, Format.SOPP)
_VECTOR = (
    Format.VOP1, Format.VOP2, Format.VOPC, Format.VOP3, Format.VOP3SD, Format.VOP3P, Format.VOPD,
)  # fmt: skip
_MEMORY = (
    Format.SMEM, Format.DS, Format.FLAT, Format.GLOBAL, Format.SCRATCH, Format.MUBUF, Format.MTBUF,
)  # fmt: skip


def execute(instruction: Instruction, state: WaveState) -> None:
    """Execute one instruction. On return state.pc is where the wave goes on."""
    state.pc = instruction.next_pc
    if instruction.format in _SCALAR:
        execute_scalar(instruction, state)
    elif instruction.format in _VECTOR:
        execute_vector(instruction, state)
    elif instruction.format in _MEMORY:
        execute_memory(instruction, state)
    else:
        raise NotSupported("the oracle does not execute", instruction=instruction.name)


def run(code: bytes, state: WaveState, limit: int = 1_000_000) -> int:
    """Run a wave until it ends or meets a barrier; return the number of instructions.

    Raises UnknownInstruction for what is no instruction, NotSupported after `limit` instructions.
    """
    count = 0
    while not state.done and not state.at_barrier:
        execute(decode(code, state.pc), state)
        count += 1
        if count > limit:
            raise NotSupported("more instructions than the oracle was allowed", limit=limit)
    return count


def run_group(code: bytes, waves: Sequence[WaveState], limit: int = 1_000_000) -> int:
    """Run the waves of a workgroup, which share their LDS; barriers wait for all not ended."""
    count = 0
    while not all(wave.done for wave in waves):
        for wave in waves:
            count += run(code, wave, limit)
        for wave in waves:
            wave.at_barrier = False
    return count


__all__ = ["Memory", "Mode", "WaveState", "execute", "run", "run_group"]
