"""Backward analyses over a program's blocks: the registers read from a point of the program on."""

from __future__ import annotations

from collections.abc import Callable

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.program import Block, Program, Stop, exec_registers, ones_after

# (instruction, set read after it, whether EXEC is all ones) -> set read from the instruction on.
Before = Callable[[Instruction, int, bool], int]


class Backward:
    """Sets of registers, as bit masks, that are read from points of a program on.

    before: effect of one instruction. stopped: set read after a block where execution cannot go on.
    """

    def __init__(self, program: Program, before: Before, stopped: int) -> None:
        self._before, self._stopped = before, stopped
        whole = exec_registers(program)
        self._fulls = {start: _fulls(block, whole) for start, block in program.blocks.items()}
        self._entering = dict.fromkeys(program.blocks, 0)
        self._settle(program)

    def _settle(self, program: Program) -> None:
        sources: dict[int, list[int]] = {}
        for start, block in program.blocks.items():
            for target in block.successors:
                sources.setdefault(target, []).append(start)
        waiting = sorted(program.blocks)
        while waiting:
            start = waiting.pop()
            block = program.blocks[start]
            live = self.leaving(block)
            for instruction, full in self.backward(block):
                live = self._before(instruction, live, full)
            if live != self._entering[start]:
                self._entering[start] = live
                waiting += sources.get(start, [])

    def leaving(self, block: Block) -> int:
        """Return the registers read after a block."""
        live = 0 if block.stop is Stop.NONE else self._stopped
        for target in block.successors:
            live |= self._entering[target]
        return live

    def backward(self, block: Block) -> list[tuple[Instruction, bool]]:
        """Return a block's instructions, last first, each with whether EXEC is all ones there."""
        fulls = self._fulls[block.start]
        return list(zip(reversed(block.instructions), reversed(fulls), strict=True))


def _fulls(block: Block, whole: frozenset[int]) -> list[bool]:
    """Return, for each instruction of a block, whether EXEC is known to be all ones there.

    whole: the scalar registers that form EXEC.
    """
    ones = set(whole) if block.full else set()
    found = []
    for instruction in block.instructions:
        found.append(whole <= ones)
        ones_after(instruction, ones)
    return found
