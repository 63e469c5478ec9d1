"""Analysis of values that are uniform in a warp, and of the live ranges of registers.

A register is uniform if every instruction that writes it computes the same value in all lanes: from
uniform operands, in blocks that all lanes of the warp run together. A block is divergent if a
branch on a varying predicate decides whether it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Register
from ugpu.virtual.nvidia.sm.translator.control.graph import Graph, at_barrier, gathers
from ugpu.virtual.nvidia.sm.translator.control.waiting import waits
from ugpu.virtual.nvidia.sm.translator.operands import read, specials, written

# Instructions whose result differs by lane whatever their operands are.
_VARYING = frozenset(("atom", "shfl", "match", "activemask", "mma", "ldmatrix", "movmatrix",
                      "elect", "mbarrier", "vote", "redux", "wgmma", "wmma"))  # fmt: skip
_WAITS = frozenset(("test_wait", "try_wait"))  # lanes that test together get the same result
_LANE_REGISTERS = frozenset(("tid", "laneid", "lanemask_eq", "lanemask_le", "lanemask_lt",
                             "lanemask_ge", "lanemask_gt"))  # fmt: skip


@dataclass
class Facts:
    """Facts that the translator needs before it emits code.

    live: registers that lanes entering a block may read. kept: registers that a waiting lane may
    still read while the block runs, so that others must not overwrite its value. stored: registers
    whose value is not only read by the instructions of the block that writes it. fixed: those that
    one move writes, before everything that reads them.
    """

    varying: set[str] = field(default_factory=set)
    divergent: list[bool] = field(default_factory=list)
    live: list[frozenset[str]] = field(default_factory=list)
    kept: list[frozenset[str]] = field(default_factory=list)
    stored: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    branches: set[int] = field(default_factory=set)


def varies_by_lane(special: str, rows: bool) -> bool:
    """Return whether a predefined register differs by lane. rows: a warp is in one row of tid."""
    stem, _, axis = special.partition(".")
    if stem == "tid" and rows and axis in ("y", "z"):
        return False
    return stem in _LANE_REGISTERS


def analyse(graph: Graph, rows: bool, held: Iterable[str] = ()) -> Facts:
    """Analyse a kernel. held: registers that are stored as one value a lane."""
    facts = Facts(varying=set(held))
    facts.divergent = [False] * len(graph.blocks)
    if not graph.reducible:
        facts.divergent = [True] * len(graph.blocks)
    once = _written_once(graph)
    spinning = bool(waits(graph))
    changed = True
    while changed:
        changed = _spread(graph, facts, rows, once)
        changed |= _let_go(graph, facts, spinning)
    _liveness(graph, facts, spinning)
    facts.stored = _stored(graph, facts.live)
    if graph.reducible:
        facts.fixed = _fixed(graph, facts.live[0], once) - facts.varying
    return facts


def _fixed(graph: Graph, at_first: frozenset[str], once: set[str]) -> frozenset[str]:
    """See Facts. at_first: registers that may be read before they are written."""
    found = set()
    for block in graph.blocks:
        for i in block.code:
            target = i.operands[0] if i.name == "mov" and i.operands and i.guard is None else None
            if isinstance(target, Register) and target.type != "pred" and not read(i):
                found.add(target.name)
    return frozenset(found & once - at_first)


def _stored(graph: Graph, live: Sequence[frozenset[str]]) -> frozenset[str]:
    """See Facts. The ends of blocks, and products of warp groups, are several blocks of code."""
    found = set().union(*live)
    for block in graph.blocks:
        if block.end is not None:
            found.update(register.name for register in read(block.end))
        if any(i.name == "wgmma" for i in _all(block.code, block.end)):
            found.update(r.name for i in block.code for r in (*read(i), *written(i)))
    return frozenset(found)


def _written_once(graph: Graph) -> set[str]:
    counts: dict[str, int] = {}
    for block in graph.blocks:
        for i in _all(block.code, block.end):
            for register in written(i):
                counts[register.name] = counts.get(register.name, 0) + 1
    return {name for name, count in counts.items() if count == 1}


def _all(code: list[Instruction], end: Instruction | None) -> list[Instruction]:
    return code if end is None else [*code, end]


def _spread(graph: Graph, facts: Facts, rows: bool, once: set[str]) -> bool:
    """Mark registers and blocks that vary or diverge because of earlier marks; return whether any
    were added."""
    changed = False
    for number, block in enumerate(graph.blocks):
        if not facts.divergent[number] and graph.depends[number] & facts.branches:
            facts.divergent[number] = changed = True
        for i in _all(block.code, block.end):
            if _varies(i, facts, rows, facts.divergent[number], once):
                for register in written(i):
                    if register.name not in facts.varying:
                        facts.varying.add(register.name)
                        changed = True
        end = block.end
        if end is None or number in facts.branches or len(set(block.successors)) < 2:
            continue
        if any(register.name in facts.varying for register in read(end)):
            facts.branches.add(number)
            changed = True
    return changed


def _let_go(graph: Graph, facts: Facts, spinning: bool) -> bool:
    """Mark blocks that some lanes may reach while others wait before them; return whether any were
    added.

    Lanes that left a loop may be those that the lanes still in it wait for. Blocks after the loop
    must therefore run with the lanes that have arrived. The same applies after a barrier between
    blocks that not all lanes pass: the other lanes end behind it, or reach the barrier later.
    """
    changed = False
    for number, block in enumerate(graph.blocks):
        loops = spinning and number in facts.branches
        waits = facts.divergent[number] and block.end is not None and at_barrier(block.end)
        if not loops and not waits:
            continue
        after = _reached(graph, number)
        if waits or number in after:
            for later in after:
                if not facts.divergent[later]:
                    facts.divergent[later] = changed = True
    return changed


def _reached(graph: Graph, start: int) -> set[int]:
    """Return the blocks that can be reached from the end of a block."""
    found: set[int] = set()
    todo = [start]
    while todo:
        for successor in graph.blocks[todo.pop()].successors:
            if successor >= 0 and successor not in found:
                found.add(successor)
                todo.append(successor)
    return found


def _varies(i: Instruction, facts: Facts, rows: bool, divergent: bool, once: set[str]) -> bool:
    if i.name in _VARYING and not (i.name == "mbarrier" and _WAITS & set(i.modifiers)):
        return True
    if any(register.name in facts.varying for register in read(i)):
        return True
    if any(varies_by_lane(special, rows) for special in specials(i)):
        return True
    if _private(i):
        return True
    if not divergent:
        return False
    # A constant value is the same no matter when each lane computes it.
    fixed = i.guard is None and i.name not in ("ld", "parameter.move") and all(
        register.name in once for register in (*written(i), *read(i))
    )  # fmt: skip
    return not (fixed and _launch_constant(i))


def _launch_constant(i: Instruction) -> bool:
    """Return whether an instruction computes the same value every time it runs."""
    return i.name in ("mov", "cvta") and not any(
        special.startswith(("clock", "globaltimer")) for special in specials(i)
    ) and not read(i)  # fmt: skip


def _private(i: Instruction) -> bool:
    """Return whether an instruction reads memory that is private to each lane."""
    return i.name == "ld" and not (
        {"global", "const", "param", "shared", "shared::cta"} & set(i.modifiers)
    )


def _liveness(graph: Graph, facts: Facts, spinning: bool) -> None:
    count = len(graph.blocks)
    uses: list[set[str]] = []
    kills: list[set[str]] = []
    for block in graph.blocks:
        used: set[str] = set()
        killed: set[str] = set()
        for i in _all(block.code, block.end):
            used |= {r.name for r in read(i)} - killed
            if i.guard is None:
                killed |= {r.name for r in written(i)}
            else:  # where the guard is false, the register keeps its value
                used |= {r.name for r in written(i)} - killed
        uses.append(used)
        kills.append(killed)
    live: list[set[str]] = [set(used) for used in uses]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(count)):
            out: set[str] = set()
            for s in graph.blocks[number].successors:
                if s >= 0:
                    out |= live[s]
            new = uses[number] | (out - kills[number])
            if new != live[number]:
                live[number] = new
                changed = True
    facts.live = [frozenset(names) for names in live]
    entries: set[int] = set()  # blocks that lanes may wait before
    parked: set[str] = set()  # registers of lanes that wait for others, wherever these are
    for number, block in enumerate(graph.blocks):
        if facts.divergent[number] or number in facts.branches:
            entries.update(block.successors)
        if facts.divergent[number]:
            if block.code and gathers(block.code[0]):
                parked |= live[number]
            if block.end is not None and at_barrier(block.end):
                parked.update(*(live[s] for s in block.successors))
    if spinning:
        parked.update(*(live[number] for number in entries if number >= 0))
    later: set[str] = set()
    kept: list[frozenset[str]] = [frozenset()] * count
    for number in reversed(range(count)):
        kept[number] = frozenset(later | parked)
        if number in entries:
            later |= live[number]
    facts.kept = kept
