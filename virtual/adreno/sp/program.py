"""Fetch and decode a kernel: its reachable instructions, in basic blocks."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from ugpu.virtual.adreno.isa.decoder.decode import decode
from ugpu.virtual.adreno.isa.decoder.table import Table
from ugpu.virtual.adreno.shader import ShaderMemory
from ugpu.virtual.adreno.sp.operands import Op

INSTRUCTION = 8  # bytes
_PAGE = 4096
# Instructions that end a block; all but `end` and `jump` may fall through.
BRANCHES = frozenset({
    "br", "brao", "braa", "bany", "ball", "jump", "getone", "getlast", "shps",
})  # fmt: skip
_ENDS = BRANCHES | {"end", "bar", "shpe"}


class Stop(enum.Enum):
    """Why a block ends without a control-flow instruction."""

    NONE = "none"
    ILLEGAL = "illegal"  # the word there is not an instruction
    CODE_END = "code end"  # the end of the code
    NO_CODE = "no code"  # not mapped


@dataclass
class Block:
    """Instructions that run one after another, from `start` to before `end`."""

    start: int
    ops: list[Op] = field(default_factory=list)
    end: int = 0
    stop: Stop = Stop.NONE

    @property
    def last(self) -> Op | None:
        """Return the last instruction."""
        return self.ops[-1] if self.ops else None

    @property
    def target(self) -> int | None:
        """Return the target of the branch at the block's end."""
        last = self.last
        if last is None or last.name not in BRANCHES:
            return None
        return last.index + last.scope.signed("IMMED")

    @property
    def falls(self) -> bool:
        """Return whether control may continue after the block."""
        last = self.last
        return self.stop is Stop.NONE and (last is None or last.name not in ("end", "jump"))

    @property
    def successors(self) -> tuple[int, ...]:
        """Return the blocks that may run next."""
        found = [self.end] if self.falls else []
        target = self.target
        return tuple(found if target is None else [*found, target])


@dataclass(frozen=True)
class Program:
    """Blocks by their first instruction, in address order. words: the code."""

    blocks: dict[int, Block]
    words: tuple[int, ...]

    def ops(self) -> Iterator[Op]:
        """Yield all instructions."""
        for block in self.blocks.values():
            yield from block.ops

    @cached_property
    def by_index(self) -> dict[int, Op]:
        """Return the instructions by index."""
        return {op.index: op for op in self.ops()}


def fetched(memory: ShaderMemory, address: int, size: int) -> tuple[bytes, bool]:
    """Read a kernel as far as it is mapped; return also whether all of it is."""
    code = memory.fetch(address, size)
    if code is not None:
        return code, True
    found = b""
    while len(found) < size:
        count = min(size - len(found), _PAGE - (address + len(found)) % _PAGE)
        piece = memory.fetch(address + len(found), count)
        if piece is None:
            break
        found += piece
    return found, False


def load(code: bytes, whole: bool, table: Table, merged: bool = True) -> Program:
    """Decode the code that is reachable from the first instruction. merged: see Op."""
    words = struct.unpack(f"<{len(code) // INSTRUCTION}Q", code[: len(code) & -INSTRUCTION])
    missing = Stop.CODE_END if whole else Stop.NO_CODE
    ops: dict[int, Op | Stop] = {}
    leaders = {0}
    waiting = [0]
    while waiting:
        index = waiting.pop()
        while index not in ops:
            op = _at(index, words, table, missing, merged)
            ops[index] = op
            if isinstance(op, Stop):
                break
            if op.name in _ENDS:
                targets = _targets(op)
                leaders.update(targets)
                waiting.extend(targets)
                break
            index += 1
    return Program(_blocks(ops, leaders), words)


def _at(index: int, words: tuple[int, ...], table: Table, missing: Stop, merged: bool) -> Op | Stop:
    if not 0 <= index < len(words):
        return missing
    found = decode(words[index], table)
    if found is None:
        return Stop.ILLEGAL
    found.text()  # decodes all fields
    return Stop.ILLEGAL if found.faults else Op(index, found, merged)


def _targets(op: Op) -> list[int]:
    found = [] if op.name in ("end", "jump") else [op.index + 1]
    if op.name in BRANCHES:
        found.append(op.index + op.scope.signed("IMMED"))
    return found


def _blocks(ops: dict[int, Op | Stop], leaders: set[int]) -> dict[int, Block]:
    blocks: dict[int, Block] = {}
    for start in sorted(leaders):
        block = Block(start)
        index = start
        while True:
            op = ops[index]
            if isinstance(op, Stop):
                block.stop = op
                break
            block.ops.append(op)
            index += 1
            if op.name in _ENDS or index in leaders:
                break
        block.end = index
        blocks[start] = block
    return blocks
