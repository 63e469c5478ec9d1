"""Scheduling: which nodes of the graph are stored, each by a kernel; others are computed in place.

The rules, in order:

1. What is asked for is stored, and what `contiguous()` marks.
2. A reduction takes in everything element-wise below it. Above it, it takes in what follows as long
   as each result is used once, element for element (its epilogue); the end of that is stored.
3. A value that costs more than SHARE and is used more than once is stored; cheaper ones are
   recomputed.
4. A value that costs more than REPEAT is stored before an expand repeats its elements.
5. No kernel grows beyond LIMIT operations: the heaviest source is stored until it fits.

Costs are in additions (ops.COSTS); constants, loads and movement cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.graph.node import MOVEMENT, ONE_TO_ONE, Node, topological
from compiler.graph.ops import BUILDERS, COSTS

SHARE = 32
REPEAT = 8
LIMIT = 160


@dataclass(frozen=True)
class Group:
    """One kernel to run: computes `root` from `inputs`. key: equal for groups that do the same.
    in_place: the root is an assignment into the memory of its first source."""

    root: Node
    inputs: tuple[Node, ...]
    key: tuple[Any, ...]  # nested tuples of ops, shapes, types and arguments
    in_place: bool = False


def schedule(
    roots: Sequence[Node], in_place: Mapping[int, Sequence[Node]] | None = None
) -> list[Group]:
    """The kernels that compute the roots, in an order they can run in. in_place: assignments into
    the old value's memory, with the reads to finish before (compiler.schedule.hazards)."""
    assigned = in_place or {}
    wanted = [root for root in roots if root.storage is None]
    order = topological(wanted, assigned)
    stored = _choose(wanted, order, assigned)
    return [_group(node, stored, id(node) in assigned) for node in order if id(node) in stored]


def _choose(
    roots: Sequence[Node], order: Sequence[Node], assigned: Mapping[int, Sequence[Node]]
) -> set[int]:
    users: dict[int, list[Node]] = {}
    for node in order:
        for source in {id(source): source for source in node.sources}.values():
            users.setdefault(id(source), []).append(node)
    stored = {id(node) for node in roots}
    stored |= {id(node) for node in order if node.op == "contiguous"}
    for node in order:
        if id(node) in assigned:
            # what the write destroys is read, and what is written computed, by kernels before it
            stored.add(id(node))
            given = node.sources[1]
            stored |= {id(reader) for reader in assigned[id(node)] if _ends(reader, users, node)}
            if any(given is reader for reader in assigned[id(node)]) and _may_store(given):
                stored.add(id(given))
    claimed: set[int] = set()
    for node in order:
        if node.op == "reduce":
            stored.add(_end_of_epilogue(node, users, stored, claimed))
    weight: dict[int, int] = {}
    cost: dict[int, int] = {}
    for node in order:
        while True:
            inlined = _inlined(node, stored)
            weight[id(node)] = 1 + sum(weight[id(source)] for source in inlined)
            cost[id(node)] = _own_cost(node) + sum(cost[id(source)] for source in inlined)
            for source in inlined:
                shared = len(users[id(source)]) > 1 and cost[id(source)] > SHARE
                repeated = node.op in ("expand", "gather") and cost[id(source)] > REPEAT
                if (shared or repeated) and _may_store(source):
                    stored.add(id(source))
                    break
            else:
                heaviest = max(inlined, key=lambda s: weight[id(s)], default=None)
                if weight[id(node)] <= LIMIT or heaviest is None or weight[id(heaviest)] < 2:
                    break
                stored.add(id(heaviest))
    return stored


def _ends(reader: Node, users: Mapping[int, list[Node]], node: Node) -> bool:
    """Whether nothing but the assignment uses a read of the old value."""
    return all(user is node for user in users.get(id(reader), ()))


def _may_store(node: Node) -> bool:
    return node.op not in ("const", "iota", "buffer")


def _inlined(node: Node, stored: set[int]) -> list[Node]:
    distinct = {id(source): source for source in node.sources}
    return [
        source for key, source in distinct.items() if key not in stored and source.storage is None
    ]


def _own_cost(node: Node) -> int:
    if node.op in BUILDERS:
        return COSTS.get(node.op, 1)
    if node.op == "reduce":
        return SHARE + 1
    return 1 if node.op == "cast" else 0


def _end_of_epilogue(
    node: Node, users: dict[int, list[Node]], stored: set[int], claimed: set[int]
) -> int:
    """Follow a reduction's only user while it is element-wise; returns the id of the last."""
    claimed.add(id(node))
    while id(node) not in stored:
        following = users.get(id(node), [])
        if len(following) != 1:
            break
        user = following[0]
        fits = user.op in BUILDERS or user.op in ONE_TO_ONE or user.op in ("cast", "bitcast")
        if not fits or id(user) in claimed:
            break
        node = user
        claimed.add(id(node))
    return id(node)


def _group(root: Node, stored: set[int], in_place: bool) -> Group:
    """Collect a stored node's kernel: its inputs and its structure."""
    old = root.sources[0] if in_place else None
    places: dict[int, int] = {}
    inputs: list[Node] = []
    key: list[tuple[Any, ...]] = []
    stack = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in places:
            continue
        if node.storage is not None or (id(node) in stored and node is not root):
            places[id(node)] = len(key)
            inputs.append(node)
            key.append(("input", node.shape, node.dtype))
        elif ready:
            places[id(node)] = len(key)
            arg = (repr(node.arg),) if node.op in ("const", "pad") else node.arg
            needed = node.sources if node is not root or not in_place else node.sources[1:]
            sources = tuple(places[id(source)] for source in needed)
            key.append((node.op, node.shape, node.dtype, arg, sources))
        else:
            stack.append((node, True))
            needed = node.sources if node is not root or not in_place else node.sources[1:]
            stack.extend((source, False) for source in reversed(needed))
    assert old is None or not any(node is old for node in inputs), "a write beside a read"
    return Group(root, tuple(inputs), tuple(key), in_place)


def describe(group: Group) -> str:
    """The tensor operations of a group in words, for people and kernel names."""
    names = []
    for entry in group.key:
        op = entry[0]
        if op == "reduce":
            names.append(str(entry[3][0]))
        elif op not in MOVEMENT and op not in ("input", "const", "contiguous"):
            names.append(str(op))
    if not names:
        moved = [str(e[0]) for e in group.key if e[0] in MOVEMENT and e[0] != "reshape"]
        names = moved[:4] or ["copy"]
    return " ".join(names)
