"""Which vector registers stay in the wave state, where native functions take them in place.

The others are values that LLVM keeps in registers of the host or on the stack as it likes. That
does little for the operands of matrix instructions and of the widest accesses: they pass to and
from functions by memory anyway, and there are more of them than a host has registers.
"""

from __future__ import annotations

from am.virtual.isa.decoder.formats import Instruction
from am.virtual.isa.translator.program import Program

_WIDE = ("load_b96", "load_b128", "store_b96", "store_b128")


def pinned_registers(program: Program) -> frozenset[int]:
    """Return the numbers of a program's pinned registers."""
    found: set[int] = set()
    for block in program.blocks.values():
        for instruction in block.instructions:
            if instruction.name.startswith("v_wmma_") or instruction.name.endswith(_WIDE):
                found.update(_data_registers(instruction))
    return frozenset(found)


def _data_registers(instruction: Instruction) -> set[int]:
    return {
        operand.index + k
        for operand in (instruction.dst, instruction.data, *instruction.srcs)
        if operand is not None and operand.is_vector
        for k in range(operand.width)
    }
