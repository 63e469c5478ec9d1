"""Choose the vector registers that stay in the wave state, for native functions to use in place.

LLVM keeps the other registers as values, in host registers or on the stack. That does not help the
operands of matrix instructions: they are passed to and from functions through memory anyway, and
there are more of them than host registers. The same holds for the registers of the widest memory
accesses in programs with many registers; in programs with few registers, values are faster.
Registers that a program selects by number at run time cannot be values.
"""

from __future__ import annotations

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.program import Program

MANY = 64  # vector registers; 16 of them fill the registers of a host with AVX-512
_WIDE = ("load_b96", "load_b128", "store_b96", "store_b128")


def pinned_registers(program: Program, vector_limit: int) -> frozenset[int]:
    """Return the numbers of a program's pinned registers, out of its `vector_limit` registers."""
    found: set[int] = set()
    wide = _WIDE if vector_limit > MANY else ()
    for block in program.blocks.values():
        for instruction in block.instructions:
            if instruction.name.startswith(("v_movrel", "v_swaprel")):
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
