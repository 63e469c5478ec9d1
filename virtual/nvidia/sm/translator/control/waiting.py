"""Loops that may wait for memory that other lanes, warps or groups write.

The exit of such a loop depends on what it reads from memory or the clock: the backward slice of its
exits contains a load that others' stores must reach, an atomic operation, a test of an mbarrier
object or a clock. Loops without an exit also count, and loops that sleep or have a volatile load:
other threads must be able to run beside them.
Source: PTX ISA 8.x, "Memory Consistency Model": a weak load need not observe concurrent stores of
others, unless it follows a fence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ugpu.virtual.nvidia.sm.ptx.module import Instruction
from ugpu.virtual.nvidia.sm.translator.control.graph import EXIT, Graph
from ugpu.virtual.nvidia.sm.translator.operands import read, specials, written

_STRONG = frozenset(("volatile", "relaxed", "acquire", "mmio", "cv", "cg"))
_PRIVATE = frozenset(("const", "param", "local", "nc"))
_FENCES = frozenset(("membar", "fence", "nanosleep", "bar", "barrier"))
_CLOCKS = ("clock", "globaltimer")


def _idles(i: Instruction) -> bool:
    """Return whether threads use an instruction to let time pass."""
    return i.name == "nanosleep" or (i.name == "ld" and "volatile" in i.modifiers)


@dataclass(frozen=True)
class Waits:
    """edges: (from, to) of the edges back to the start of loops that may wait."""

    edges: frozenset[tuple[int, int]]

    def __bool__(self) -> bool:
        return bool(self.edges)


def waits(graph: Graph) -> Waits:
    """Find the loops that may wait."""
    found = set()
    for number, block in enumerate(graph.blocks):
        for successor in block.successors:
            if EXIT < successor <= number:
                every = 0, len(graph.blocks) - 1
                loop = _Loop(graph, *((successor, number) if graph.reducible else every))
                if loop.may_wait():
                    found.add((number, successor))
    return Waits(frozenset(found))


class _Loop:
    """The blocks from a loop's header to the one that leads back to it."""

    def __init__(self, graph: Graph, first: int, last: int) -> None:
        self._graph = graph
        self._numbers = range(first, last + 1)
        self._fenced = any(i.name in _FENCES for i in self._instructions())

    def _instructions(self) -> Iterator[Instruction]:
        for number in self._numbers:
            block = self._graph.blocks[number]
            yield from block.code
            if block.end is not None:
                yield block.end

    def may_wait(self) -> bool:
        """Return whether actions of other threads may decide when the loop ends."""
        reads = any(self._observes(i) or _idles(i) for i in self._instructions())
        exits = [number for number in self._numbers if self._leaves(number)]
        if not exits:
            return True
        if not reads:
            return False
        if any(_idles(i) for i in self._instructions()):
            return True
        return not self._graph.reducible or self._slice_observes(exits)

    def _leaves(self, number: int) -> bool:
        return any(s not in self._numbers for s in self._graph.blocks[number].successors)

    def _observes(self, i: Instruction) -> bool:
        """Return whether the result of an instruction depends on concurrent actions of others."""
        if i.name in ("atom", "mbarrier"):
            return True
        if any(special.startswith(_CLOCKS) for special in specials(i)):
            return True
        modifiers = set(i.modifiers)
        if i.name != "ld" or _PRIVATE & modifiers:
            return False
        return self._fenced or bool(_STRONG & modifiers)

    def _slice_observes(self, exits: list[int]) -> bool:
        """Walk back from the exits over the registers and branches that decide them."""
        definitions: dict[str, list[tuple[int, Instruction]]] = {}
        for number in self._numbers:
            for i in self._graph.blocks[number].code:
                for register in written(i):
                    definitions.setdefault(register.name, []).append((number, i))
        blocks: set[int] = set()
        names: set[str] = set()
        todo: list[int | str] = [*exits]
        while todo:
            item = todo.pop()
            if isinstance(item, str):
                if item in names:
                    continue
                names.add(item)
                for number, i in definitions.get(item, ()):
                    if self._observes(i):
                        return True
                    todo += (register.name for register in read(i))
                    todo += (d for d in self._graph.depends[number] if d in self._numbers)
            elif item not in blocks:
                blocks.add(item)
                end = self._graph.blocks[item].end
                if end is not None:
                    todo += (register.name for register in read(end))
                todo += (d for d in self._graph.depends[item] if d in self._numbers)
        return False
