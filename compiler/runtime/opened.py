"""Graphs that differ only in their Python numbers share kernels, and recipes share plans.

A number is part of the code of the kernels that use it, which makes them as fast as possible. When
a second graph of the same structure arrives with other numbers, those that differ are parameters
of the kernels from then on, by value: each launch carries them beside the addresses. Further graphs
of this structure compile nothing (`x * rate` with a new rate each time).

Numbers stay in the kernels where the compiler's decisions depend on them: in graphs that count
positions or index (masks and slices by position), in calls of nested functions, as exponents of
integers, and as padding.

An operation with a number that is new each time is planned once if its recipe takes the number by
value (`by_value`, compiler.methods.core). Results do not depend on where a number comes from.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ugpu.compiler import dtype as dtypes
from ugpu.compiler.dtype import DType, bool_
from ugpu.compiler.graph import operations as graph
from ugpu.compiler.graph.node import ByValue, Node
from ugpu.compiler.plan.plan import Structure

# Of narrow floats, numbers are given as float32 (compiler.graph.elements.number).
FORMS = {
    name: struct.Struct(f"<{form}")
    for name, form in (
        ("float32", "f"), ("float64", "d"), ("int64", "q"), ("int32", "i"),
        ("int16", "h"), ("int8", "b"), ("uint64", "Q"), ("uint32", "I"), ("uint16", "H"),
        ("uint8", "B"),
    )
}  # fmt: skip
DECIDING = frozenset(("pow",))  # of integers: the expansion depends on an operand's value
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


def by_value(dtype: DType, number: int | float) -> Node | None:
    """Return a node whose element is the number, which each launch carries. None if the type cannot
    hold the number."""
    word = _word(dtype, number)
    if word is None:
        return None
    node = Node("buffer", dtype, ())
    node.storage = ByValue(word)
    return node


def _word(dtype: DType, number: int | float) -> int | None:
    form = FORMS.get(dtype.name)
    try:
        return None if form is None else int.from_bytes(form.pack(number), "little")
    except (OverflowError, struct.error):
        return None


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
    if found:
        deciding = {
            id(each)
            for node in nodes
            if node.op in DECIDING and not node.dtype.is_float
            for each in _behind(node)
        }
        found = [place for place in found if id(nodes[place]) not in deciding]
    return found


def _behind(node: Node) -> list[Node]:
    """Return the sources of a node, with casts and movement skipped."""
    behind = []
    for source in node.sources:
        while source.op in graph.MOVEMENT or source.op == "cast":
            source = source.sources[0]
        behind.append(source)
    return behind


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
