"""Find the vector registers whose lanes 16..31 are read after a load of a matrix operand.

Matrix instructions read only lanes 0..15 of A and B (see `runtime.matrix`). So a load of a fragment
does not have to repeat it in lanes 16..31 if nothing else reads these registers before they are
written again. The program cannot observe the difference, but a snapshot of a running wave shows the
old content of these lanes.

This is a backward analysis over the program's blocks, by halves of registers (bits 2n and 2n + 1 of
a set stand for the low and high 16 bits of register n), because v_mov_b16 writes halves. An
instruction that is not known to write a register completely, in all lanes, counts as reading it.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.decoder.operands import Operand
from ugpu.virtual.amd.isa.translator.backward import Backward
from ugpu.virtual.amd.isa.translator.program import NOWHERE, Program
from ugpu.virtual.shader.text import PASS

ALL = (1 << 512) - 1
_LOADS = ("ds_load_b", "global_load_b")  # loads of 32 bits or more write only whole registers
_NARROW = ("_b8", "_b16", "_block")


def registers(operand: Operand | None) -> int:
    """Return the set of an operand's vector registers."""
    if operand is None or not operand.is_vector:
        return 0
    return ((1 << 2 * operand.width) - 1) << 2 * operand.index


def _written(i: Instruction) -> int:
    """Return the halves that an instruction overwrites completely, if EXEC is all ones."""
    dst = i.dst
    if dst is None or not dst.is_vector or i.dpp is not None or i.x is not None:
        return 0
    if i.name == "v_mov_b16":
        return 1 << 2 * dst.index + int(dst.high)
    whole = i.name == "v_mov_b32" or i.name.startswith("v_wmma_f32_")
    if whole or (i.name.startswith(_LOADS) and not i.name.endswith(_NARROW)):
        return registers(dst)
    return 0


def _read(i: Instruction, written: int) -> int:
    """Return the halves that an instruction reads, or may read, in lanes 16..31."""
    if i.x is not None and i.y is not None:
        return _read(i.x, 0) | _read(i.y, 0)
    operands = [i.addr, i.data, i.data1, i.saddr, *i.srcs]
    if i.name.startswith("v_wmma_"):
        operands = [*i.srcs[2:]]
    found = 0 if written else registers(i.dst)
    for operand in operands:
        found |= registers(operand)
    return found


def _effect(i: Instruction, full: bool) -> tuple[int, int]:
    written = _written(i) if full else 0
    return written, _read(i, written)


def read_after(program: Program) -> dict[int, int]:
    """Return the halves read in lanes 16..31 after each ds_load_b128, by its offset.

    Empty if control may pass to unknown code, if registers are selected by number at run time, or
    for programs of 64 lanes.
    """
    if program.lanes > PASS or any(
        name in NOWHERE or "movrel" in name or name.startswith("v_swaprel")
        for name in program.names()
    ):
        return {}
    analysis = Backward(program, _effect, ALL)
    return {
        instruction.pc: live
        for block in program.blocks.values()
        for instruction, live in analysis.backward(block)
        if instruction.name == "ds_load_b128"
    }
