"""Backward analyses over a program's blocks: the registers read from a point of the program on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ugpu.virtual.amd.isa.decoder.formats import Instruction
from ugpu.virtual.amd.isa.translator.program import Block, Program, Stop, exec_registers, ones_after

# (instruction, whether EXEC is all ones) -> sets of what it overwrites, and of what it reads.
Effect = Callable[[Instruction, bool], tuple[int, int]]


class Backward:
    """Sets of registers, as bit masks, that are read from points of a program on.

    effect: of one instruction. stopped: set read after a block where execution cannot go on.
    """

    def __init__(self, program: Program, effect: Effect, stopped: int) -> None:
        self._stopped = stopped
        whole = exec_registers(program)
        self._effects = {
            start: list(map(effect, block.instructions, _fulls(block, whole)))
            for start, block in program.blocks.items()
        }
        self._entering = dict.fromkeys(program.blocks, 0)
        self._settle(program)

    def _settle(self, program: Program) -> None:
        sources: dict[int, list[int]] = {}
        for start, block in program.blocks.items():
            for target in block.successors:
                sources.setdefault(target, []).append(start)
        whole = {start: _joined(effects) for start, effects in self._effects.items()}
        waiting = sorted(program.blocks)
        while waiting:
            start = waiting.pop()
            written, read = whole[start]
            live = self.leaving(program.blocks[start]) & ~written | read
            if live != self._entering[start]:
                self._entering[start] = live
                waiting += sources.get(start, [])

    def leaving(self, block: Block) -> int:
        """Return the registers read after a block."""
        live = 0 if block.stop is Stop.NONE else self._stopped
        for target in block.successors:
            live |= self._entering[target]
        return live

    def backward(self, block: Block) -> Iterator[tuple[Instruction, int]]:
        """Yield a block's instructions, last first, each with the registers read after it."""
        live = self.leaving(block)
        effects = self._effects[block.start]
        for instruction, (written, read) in zip(
            reversed(block.instructions), reversed(effects), strict=True
        ):
            yield instruction, live
            live = live & ~written | read


def _joined(effects: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the effect of instructions one after the other."""
    all_written, all_read = 0, 0
    for written, read in reversed(effects):
        all_written |= written
        all_read = all_read & ~written | read
    return all_written, all_read


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
