"""Graphs that differ only in their Python numbers share kernels, and recipes share plans.

A number is part of the code of the kernels that use it, which makes them as fast as possible. When
a second graph of the same structure arrives with other numbers, those that differ are parameters
of the kernels from then on, by value: each launch carries them beside the addresses. Further graphs
of this structure compile nothing (`x * rate` with a new rate each time).

Numbers stay in the kernels where the compiler's decisions depend on them: in graphs that count
positions or index (masks and slices by position), in calls of nested functions, and as padding.

An operation with a number that is new each time is planned once if its recipe takes the number by
value (`by_value`, compiler.methods.core). Results do not depend on where a number comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import bool_
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.series import by_value
from ugpu.compiler.plan.plan import Structure

KINDS = 4096  # structures remembered; beyond this all are discarded


class Opened:
    """The structures that one device has planned, without their numbers. Not thread-safe.

    _kinds: structure without numbers -> the numbers it came with first, and the places of those
    that have differed since.
    """

    def __init__(self) -> None:
        self._kinds: dict[Structure, tuple[tuple[str, ...], set[int]]] = {}

    def open(self, key: Structure, nodes: Sequence[Node]) -> list[Node]:
        """Give the numbers in which a new graph differs from others of its structure by value.
        Return the nodes that the graph has more by this, if any. key, nodes: of
        schedule.plan.structure."""
        places = _places(key, nodes)
        if not places:
            return []
        numbers = tuple([key[place][3] for place in places])
        kind = list(key)
        for place in places:
            kind[place] = ("number", *key[place][1:3])
        if len(self._kinds) >= KINDS:
            self._kinds.clear()
        first, differing = self._kinds.setdefault(tuple(kind), (numbers, set()))
        differing.update(
            place
            for place, number, before in zip(places, numbers, first, strict=True)
            if number != before
        )
        return [node for place in differing for node in _turned(nodes[place])]


def _places(key: Structure, nodes: Sequence[Node]) -> list[int]:
    """Return the places of numbers that may be given by value."""
    roots = key[-1]
    found = []
    for place, node in enumerate(nodes):
        if node.storage is not None:
            continue
        if graph.KINDS[node.op].positional:
            return []
        if node.op == "const" and node.dtype is not bool_ and node.size and place not in roots:
            found.append(place)
    return found


def _turned(node: Node) -> list[Node]:
    """Turn a number's node into one that repeats a number given by value; return the nodes
    below."""
    kind = dtypes.wide(node.dtype) if node.dtype.is_float else node.dtype
    held = by_value(kind, node.arg)
    if held is None:
        return []
    below = [held]
    if kind is not node.dtype:
        below.append(graph.number(held, node.dtype))
    if node.size != 1 and node.shape:
        below.append(graph.reshape(below[-1], (1,) * len(node.shape)))
    node.sources, node.arg = (below[-1],), None
    node.op = "reshape" if node.size == 1 else "expand"
    return below
