"""Scheduling: choose the nodes that are stored, each by a kernel; others are computed in place.

The rules, in order:

1. Requested results and nodes marked `contiguous()` are stored.
2. A reduction includes everything element-wise below it. Above it, it includes the operations that
   follow as long as each result is used once, element for element (its epilogue); the last one is
   stored.
3. A value used more than once is stored if computing it again costs more, and so is a value whose
   elements an expand repeats, and one that joins many pieces (compiler.pattern.cost decides).
4. A reduction that only one kernel uses, row by row, becomes part of it (compiler.schedule.fusion).
5. Kernels over the same ranges that read the same arrays become one with several outputs
   (compiler.schedule.siblings).
6. A kernel has at most cost.LONGEST operations: the heaviest source is stored until it fits.
7. Arguments and results of a nested function are stored; its inside is another graph.

A value that is a cast to a wider type is stored in the narrow type; its readers widen it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from ugpu.compiler.dtype import bool_
from ugpu.compiler.graph.node import Node, stored_as, topological
from ugpu.compiler.graph.operations import KINDS, MOVEMENT, ONE_TO_ONE, WRITES
from ugpu.compiler.pattern import cost as costs
from ugpu.compiler.schedule.calls import make_call_group
from ugpu.compiler.schedule.fusion import fuse
from ugpu.compiler.schedule.group import Group, make_group
from ugpu.compiler.schedule.hazards import NONE, InPlace
from ugpu.compiler.schedule.renewal import renew
from ugpu.compiler.schedule.siblings import join


def schedule(roots: Sequence[Node], in_place: InPlace = NONE) -> list[Group]:
    """Return the kernels that compute the roots, and calls of nested functions, in runnable order.
    in_place: what to write into the old value's memory (compiler.schedule.hazards)."""
    wanted = [root for root in roots if root.storage is None]
    order = topological(wanted, in_place.earlier)
    stored, fixed = _choose(wanted, order, in_place)
    fuse(order, stored, fixed)
    groups: list[Group] = []
    for node in order:
        if node.op == "call":
            groups.append(make_call_group(node, in_place.granted.get(id(node), frozenset())))
        elif id(node) in stored and node.op != "result":
            if node.op == "scatter" and id(node) not in in_place.earlier:
                groups.append(make_group(node, stored, stage="begin"))
                groups.append(make_group(node, stored, True, stage="end"))
                continue
            groups.append(make_group(node, stored, id(node) in in_place.earlier))
    # assignments order reads and writes of memory in ways that groups do not express
    if not in_place.earlier:
        groups = join(groups, stored)
    return renew(groups, in_place.free, stored) if in_place.free else groups


def _choose(
    roots: Sequence[Node], order: Sequence[Node], in_place: InPlace
) -> tuple[set[int], set[int]]:
    """Return the ids of the nodes to store, and of those among them that are always stored."""
    assigned = in_place.earlier
    users: dict[int, list[Node]] = {}
    for node in order:
        for source in {id(source): source for source in node.sources}.values():
            users.setdefault(id(source), []).append(node)
    stored = {id(node) for node in roots}
    stored |= {id(node) for node in order if KINDS[node.op].stored}
    stored |= in_place.stored
    for node in order:
        if node.op == "call":
            stored |= {id(source) for source in node.sources if source.storage is None}
        if node.op == "result":
            stored |= {id(node), id(node.sources[0])}
        if id(node) in assigned:
            # earlier kernels read the data that the write destroys, and compute what it writes
            stored.add(id(node))
            stored |= {id(reader) for reader in assigned[id(node)] if _ends(reader, users, node)}
            for given in node.sources[1:] if node.op in WRITES else ():
                if any(given is reader for reader in assigned[id(node)]) and _may_store(given):
                    stored.add(id(given))
    fixed = set(stored)
    claimed: set[int] = set()
    for node in order:
        if node.op == "reduce":
            end = _end_of_epilogue(node, users, stored, claimed)
            stored.add(id(end if id(end) in stored else _narrow(end, stored)))
    weight: dict[int, int] = {}
    cost: dict[int, int] = {}
    folded: set[int] = set()
    for node in order:
        if _folds(node, folded):
            folded.add(id(node))
        while True:
            inlined = _inlined(node, stored)
            weight[id(node)] = 1 + sum(weight[id(source)] for source in inlined)
            own = 0 if id(node) in folded else KINDS[node.op].cost(node.dtype)
            cost[id(node)] = own + sum(cost[id(source)] for source in inlined)
            for source in inlined:
                price, uses = cost[id(source)], len(users[id(source)])
                kept = _narrow(source, stored)
                wanted = costs.share(price, uses, kept.dtype) or (
                    KINDS[node.op].repeats and costs.repeat(price, kept.dtype)
                )
                joined = stored_as(source)
                if joined.op == "cat" and node.op not in ("reshape", "shrink", "cat", "contiguous"):
                    pieces = {id(each): cost[id(each)] for each in _inlined(joined, stored)}
                    prices = [pieces.get(id(each), 0) for each in joined.sources]
                    if id(joined) not in stored and costs.apart(prices, joined.dtype):
                        kept, wanted = joined, True
                if wanted and _may_store(source):
                    stored.add(id(kept))
                    while source is not kept:
                        weight[id(source)] = cost[id(source)] = 1
                        source = source.sources[0]
                    break
            else:
                heaviest = max(inlined, key=lambda s: weight[id(s)], default=None)
                fits = weight[id(node)] <= costs.LONGEST
                if fits or heaviest is None or weight[id(heaviest)] < 2:
                    break
                stored.add(id(heaviest))
    return stored, fixed


def wanted_apart(root: Node, stored: set[int], uses: int) -> bool:
    """Return whether this number of uses would cause a value to be stored that is not stored yet.
    stored: ids of the stored nodes."""
    cost: dict[int, int] = {}
    folded: set[int] = set()
    for node in topological([root]):
        if _folds(node, folded):
            folded.add(id(node))
        own = 0 if id(node) in folded else KINDS[node.op].cost(node.dtype)
        cost[id(node)] = own + sum(cost[id(source)] for source in _inlined(node, stored))
    return _may_store(root) and costs.share(cost[id(root)], uses, _narrow(root, stored).dtype)


def _ends(reader: Node, users: Mapping[int, list[Node]], node: Node) -> bool:
    """Return whether only the assignment uses a read of the old value."""
    return all(user is node for user in users.get(id(reader), ()))


def _may_store(node: Node) -> bool:
    return KINDS[node.op].stored is not False


_FOLDING = ("add", "sub", "mul", "floordiv", "mod", "cast")
_COMPARING = ("lt", "le", "eq", "ne", "and", "or", "xor")


def _folds(node: Node, folded: Set[int]) -> bool:
    """Return whether a value is index arithmetic, which costs nothing: sums and multiples of
    positions, and comparisons of them, as in masks."""
    if node.op in ("const", "iota"):
        return not node.dtype.is_float
    fits = node.op in _FOLDING or node.op in MOVEMENT
    fits = fits or (node.op in _COMPARING and node.dtype is bool_)
    return fits and not node.dtype.is_float and all(id(s) in folded for s in node.sources)


def _narrow(node: Node, stored: set[int]) -> Node:
    """Return the node to store for a value: for a cast to a wider type, moved or not, the operand
    of that cast."""
    found = node
    while node.op == "cast" or node.op in ONE_TO_ONE:
        source = node.sources[0]
        if source.dtype.itemsize > node.dtype.itemsize or not _may_store(source):
            break
        if source.storage is not None or id(source) in stored:
            break
        if source.dtype.itemsize < node.dtype.itemsize:
            found = source
        node = source
    return found


def _inlined(node: Node, stored: set[int]) -> list[Node]:
    distinct = {id(source): source for source in node.sources}
    return [
        source for key, source in distinct.items() if key not in stored and source.storage is None
    ]


def _end_of_epilogue(
    node: Node, users: dict[int, list[Node]], stored: set[int], claimed: set[int]
) -> Node:
    """Follow a reduction's only user while it is element-wise; return the last."""
    claimed.add(id(node))
    while id(node) not in stored:
        following = users.get(id(node), [])
        if len(following) != 1:
            break
        user = following[0]
        kind = KINDS[user.op]
        if not (kind.aligned or kind.once) or id(user) in claimed:
            break
        node = user
        claimed.add(id(node))
    return node
