"""Find the vector registers that are read again after the end of each block.

A snapshot of a running wave (`flow.poll_abort`) stores only these: LLVM keeps them in any case,
while keeping others alive would make all kernels slower. An instruction that is not known to write
a register completely counts as reading it, so that the result may be too large but never too small.
"""

from __future__ import annotations

from functools import cache

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.translator.backward import Backward
from ugpu.virtual.amd.isa.translator.program import NOWHERE, Program

EVERY = (1 << 256) - 1
# Parts of names of instructions that keep some of their destination's bits, or accumulate in it.
_PARTLY = ("16", "fmac", "_mac_", "dot2c", "dot2acc", "writelane", "swap", "_d16", "movrel", "_u8",
           "_i8", "_b8", "_block", "permlane", "p8_f32", "f8_f32")  # fmt: skip
_WHOLE = ("v_", "ds_load_b", "global_load_b", "flat_load_b", "scratch_load_b", "buffer_load_b")


def _registers(operand: Operand | None) -> int:
    if operand is None or not operand.is_vector:
        return 0
    return ((1 << operand.width) - 1) << operand.index


@cache
def _writes_whole(name: str) -> bool:
    return name.startswith(_WHOLE) and not any(part in name for part in _PARTLY)


def _effect(i: Instruction, full: bool) -> tuple[int, int]:
    """Return the registers that an instruction overwrites, and those that it reads."""
    written, read = 0, 0
    for half in (i.x, i.y) if i.x is not None and i.y is not None else (i,):
        for operand in (half.addr, half.data, half.data1, half.saddr, *half.srcs):
            read |= _registers(operand)
        if full and half.dpp is None and _writes_whole(half.name):
            written |= _registers(half.dst)
        else:
            read |= _registers(half.dst)
    return written, read


def needed(program: Program) -> dict[int, int]:
    """Return the set of vector registers read after each backward branch, by the branch's offset.

    Bit n of a set stands for register n. EVERY if control may pass to unknown code.
    """
    blocks = program.blocks.values()
    lasts = [(block, block.instructions[-1]) for block in blocks if block.instructions]
    ends = {i.pc: b for b, i in lasts if i.branch_target is not None and i.branch_target <= i.pc}
    if not ends:
        return {}
    if program.roots or any(i.name in NOWHERE for _, i in lasts):
        return dict.fromkeys(ends, EVERY)
    analysis = Backward(program, _effect, stopped=0)
    return {pc: analysis.leaving(block) for pc, block in ends.items()}


def numbers(registers: int) -> list[int]:
    """Return the numbers of the registers in a set."""
    return [n for n in range(registers.bit_length()) if registers >> n & 1]
