"""Basic blocks, ordered for running diverged lanes, and which branches each block depends on.

Blocks are numbered so that all edges lead upwards except the back edges of loops. The blocks of a
loop are consecutive, and a loop has one edge back to its header. Of lanes at different blocks,
those at the lowest number run first. All lanes therefore meet again at the latest where their paths
must join (the immediate post-dominator), and lanes that left a loop wait until the others have left
it too.
Source: Diamos et al., "SIMD re-convergence at thread frontiers", MICRO 2011; Cooper, Harvey and
Kennedy, "A simple, fast dominance algorithm"; Ferrante et al. on control dependence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ugpu.virtual.nvidia.sm.ptx.lexer import bad
from ugpu.virtual.nvidia.sm.ptx.module import Instruction, Name, Operand
from ugpu.virtual.nvidia.sm.translator.control.flatten import Flat

EXIT = -1  # the successor of a block that ends lanes


@dataclass
class Block:
    """Instructions executed in sequence. end: the control instruction; None: fall through.

    successors: where lanes may continue. Of a guarded branch: (taken, not taken).
    """

    code: list[Instruction]
    end: Instruction | None = None
    successors: list[int] = field(default_factory=list)


@dataclass
class Graph:
    """Blocks by number; block 0 is the entry. reducible: every loop has one header.

    depends: for each block, the blocks whose branch decides whether it runs.
    """

    blocks: list[Block]
    reducible: bool
    depends: list[set[int]]


STEERING = frozenset(("bra", "brx", "ret", "exit", "trap", "bar", "barrier", "brkpt"))
_WARP = frozenset(
    (
        "shfl",
        "vote",
        "match",
        "redux",
        "mma",
        "ldmatrix",
        "stmatrix",
        "movmatrix",
        "elect",
        "wgmma",
        "wmma",
    )
)
_GOES_ON = frozenset(("bar", "barrier"))


def at_barrier(i: Instruction) -> bool:
    """Return whether an instruction makes lanes wait for other warps or other lanes."""
    return i.name in ("bar", "barrier") or waits_for_products(i)


def waits_for_products(i: Instruction) -> bool:
    """Return whether an instruction is wgmma.wait_group, where the warps of a group meet."""
    return i.name == "wgmma" and "wait_group" in i.modifiers


def _steers(i: Instruction) -> bool:
    return (i.name in STEERING and "warp" not in i.modifiers) or waits_for_products(i)


def gathers(i: Instruction) -> bool:
    """Return whether the lanes named by a mask must execute an instruction together."""
    return i.name in _WARP or (i.name in ("bar", "barrier") and "warp" in i.modifiers)


def build(flat: Flat) -> Graph:
    """Split a kernel into blocks and order them."""
    blocks = _split(flat)
    blocks = _reachable(blocks)
    order, reducible = _order(blocks)
    blocks = _renumber(blocks, order)
    return Graph(blocks, reducible, _dependences(blocks))


def loops(graph: Graph) -> set[int]:
    """Return the blocks that are in loops."""
    found: set[int] = set()
    for number, block in enumerate(graph.blocks):
        for successor in block.successors:
            if EXIT < successor <= number:
                found.update(range(successor, number + 1))
    return found


def target_of(flat: Flat, instruction: Instruction, operand: Operand) -> int:
    """Return the index of the instruction that a label refers to."""
    if not isinstance(operand, Name) or operand.name not in flat.labels:
        raise bad(instruction.line, f"{instruction.opcode}: no such label")
    return flat.labels[operand.name]


def _targets(flat: Flat, i: Instruction) -> list[int]:
    if i.name == "brx":
        table = i.operands[1] if len(i.operands) == 2 else None
        if not isinstance(table, Name) or table.name not in flat.tables:
            raise bad(i.line, "brx.idx without its list of targets")
        return [target_of(flat, i, Name(label)) for label in flat.tables[table.name]]
    if not i.operands:
        raise bad(i.line, "bra without a target")
    return [target_of(flat, i, i.operands[0])]


def _split(flat: Flat) -> list[Block]:
    code = flat.code
    starts = {0, *flat.labels.values()}
    for k, i in enumerate(code):
        if gathers(i):
            starts.add(k)
        if _steers(i):
            starts.add(k + 1)
    cuts = sorted(start for start in starts if start < len(code))
    number = {start: k for k, start in enumerate(cuts)}
    blocks = []
    for start, stop in zip(cuts, [*cuts[1:], len(code)], strict=True):
        part = code[start:stop]
        last = part[-1]
        following = number.get(stop, EXIT)
        if not _steers(last):
            blocks.append(Block(part, None, [following]))
            continue
        if last.name in ("bra", "brx"):
            places = [number.get(t, EXIT) for t in _targets(flat, last)]
            go_on = [following] if last.guard is not None else []
            blocks.append(Block(part[:-1], last, places + go_on))
        elif last.name in _GOES_ON or waits_for_products(last):
            blocks.append(Block(part[:-1], last, [following]))
        else:
            go_on = [following] if last.guard is not None else []
            blocks.append(Block(part[:-1], last, [EXIT, *go_on]))
    return blocks


def _reachable(blocks: list[Block]) -> list[Block]:
    seen, todo = {0}, [0]
    while todo:
        for successor in blocks[todo.pop()].successors:
            if successor != EXIT and successor not in seen:
                seen.add(successor)
                todo.append(successor)
    kept = sorted(seen)
    return _renumber(blocks, kept)


def _renumber(blocks: list[Block], order: list[int]) -> list[Block]:
    place = {old: new for new, old in enumerate(order)}
    place[EXIT] = EXIT
    return [
        Block(blocks[old].code, blocks[old].end, [place[s] for s in blocks[old].successors])
        for old in order
    ]


def _components(nodes: set[int], edges: dict[int, list[int]], root: int) -> list[list[int]]:
    """Return strongly connected components in topological order (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for start in (root, *sorted(nodes)):
        if start in index or start not in nodes:
            continue
        work = [(start, iter(edges[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            for successor in rest:
                if successor not in nodes:
                    continue
                if successor not in index:
                    index[successor] = low[successor] = len(index)
                    stack.append(successor)
                    on_stack.add(successor)
                    work.append((successor, iter(edges[successor])))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    found.append(component)
    found.reverse()
    return found


def _order(blocks: list[Block]) -> tuple[list[int], bool]:
    """Return the new order of blocks, and whether the graph is reducible. Adds a block to a loop
    with several edges back."""
    reducible = True
    order: list[int] = []
    # Work items: sets of nodes with their entry, and single nodes in their final order.
    todo: list[tuple[set[int], int] | int] = [(set(range(len(blocks))), 0)]
    edges: dict[int, list[int]] = {
        k: [s for s in block.successors if s != EXIT] for k, block in enumerate(blocks)
    }
    while todo:
        item = todo.pop()
        if isinstance(item, int):
            order.append(item)
            continue
        nodes, root = item
        later: list[tuple[set[int], int] | int] = []
        for component in _components(nodes, edges, root):
            members = set(component)
            if len(component) == 1 and component[0] not in edges[component[0]]:
                later.append(component[0])
                continue
            entries = (
                {s for n in nodes - members for s in edges[n] if s in members}
                or ({root} & members)
                or {component[-1]}
            )
            if root in members:
                entries.add(root)
            reducible = reducible and len(entries) == 1
            header = min(entries)
            sources = [n for n in component if header in edges[n]]
            if len(sources) > 1:
                latch = len(blocks)
                blocks.append(Block([], None, [header]))
                for source in sources:
                    block = blocks[source]
                    block.successors = [latch if s == header else s for s in block.successors]
                    edges[source] = [latch if s == header else s for s in edges[source]]
                edges[latch] = []
                members.add(latch)
            else:
                edges[sources[0]] = [s for s in edges[sources[0]] if s != header]
            later.append((members, header))
        todo.extend(reversed(later))
    return order, reducible


def _dependences(blocks: list[Block]) -> list[set[int]]:
    """Return for each block the branches that decide whether it runs."""
    parent = _post_dominators(blocks)
    depends: list[set[int]] = [set() for _ in blocks]
    for k, block in enumerate(blocks):
        if len(set(block.successors)) < 2:
            continue
        for successor in block.successors:
            at = successor
            while at not in (EXIT, parent[k]):
                depends[at].add(k)
                at = parent[at]
    return depends


def _post_dominators(blocks: list[Block]) -> list[int]:
    """Return each block's immediate post-dominator; EXIT is the common end."""
    count = len(blocks)
    successors = [list(block.successors) for block in blocks]
    # Endless loops: treat their last block as if it led to the end as well.
    while True:
        reaches = {k for k in range(count) if EXIT in successors[k]}
        todo = list(reaches)
        before: list[list[int]] = [[] for _ in blocks]
        for k in range(count):
            for s in successors[k]:
                if s != EXIT:
                    before[s].append(k)
        while todo:
            for p in before[todo.pop()]:
                if p not in reaches:
                    reaches.add(p)
                    todo.append(p)
        lost = [k for k in range(count) if k not in reaches]
        if not lost:
            break
        successors[lost[-1]].append(EXIT)
    # Reverse post-order of the reversed graph from EXIT.
    order: list[int] = []
    seen = {EXIT}
    ends = [k for k in range(count) if EXIT in successors[k]]
    work: list[tuple[int, list[int]]] = [(EXIT, ends)]
    while work:
        node, rest = work[-1]
        if rest:
            following = rest.pop()
            if following not in seen:
                seen.add(following)
                work.append((following, list(before[following])))
        else:
            work.pop()
            order.append(node)
    rank = {node: k for k, node in enumerate(order)}
    parent: dict[int, int] = {EXIT: EXIT}
    changed = True
    while changed:
        changed = False
        for node in reversed(order[:-1]):
            best: int | None = None
            for s in successors[node]:
                if s in parent:
                    best = s if best is None else _meet(parent, rank, s, best)
            assert best is not None
            if parent.get(node) != best:
                parent[node] = best
                changed = True
    return [parent[k] for k in range(count)]


def _meet(parent: dict[int, int], rank: dict[int, int], a: int, b: int) -> int:
    while a != b:
        while rank[a] < rank[b]:
            a = parent[a]
        while rank[b] < rank[a]:
            b = parent[b]
    return a
