"""Which vector registers stay in the wave state, where native functions take them in place.

The others are values that LLVM keeps in registers of the host or on the stack as it likes. For the
operands of matrix instructions that does little: they pass to and from functions by memory anyway,
and there are more of them than a host has registers. So it is with what the widest accesses move,
in programs of many registers; few are better off as values. Nor can registers be values that a
program chooses by number at run time.
"""

from __future__ import annotations

from am.virtual.isa.decoder.formats import Instruction
from am.virtual.isa.translator.program import Program

MANY = 64  # vector registers; 16 of them fill those of a host with AVX-512
_WIDE = ("load_b96", "load_b128", "store_b96", "store_b128")


def pinned_registers(program: Program, vector_limit: int) -> frozenset[int]:
    """Return the numbers of a program's pinned registers, of `vector_limit` that it has."""
    found: set[int] = set()
    wide = _WIDE if vector_limit > MANY else ()
    for block in program.blocks.values():
        for instruction in block.instructions:
            if instruction.name.startswith("v_movrel"):
                return frozenset(range(vector_limit))
            if instruction.name.startswith("v_wmma_") or instruction.name.endswith(wide):
                found.update(_data_registers(instruction))
    return frozenset(found)


def _data_registers(instruction: Instruction) -> set[int]:
    return {
        operand.index + k
        for operand in (instruction.dst, instruction.data, *instruction.srcs)
        if operand is not None and operand.is_vector
        for k in range(operand.width)
    }
