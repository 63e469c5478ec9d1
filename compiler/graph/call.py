"""Nested functions: a part of a graph that is planned once and called with different arguments.

A Body is a graph of its own, whose leaves are parameters. Bodies of equal structure are one object,
so what is found out about one (its schedule, its plans) is found for all of its calls. A "call"
node has the arguments as sources; each of its results is a node of its own ("result"). A call runs
once: it computes all of its results that are still referenced.

compiler.front.outline makes them from functions; compiler.schedule.calls plans them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.graph.node import Node

PARAMETER = object()  # the storage of a parameter: to schedule it is in memory
_numbers = itertools.count(1)


@dataclass(eq=False)
class Body:
    """The computation shared by the calls of a function.

    name: of the function that was first seen to compute it. parameters: leaves in the order of a
    call's sources. nodes: all of it, sources first; of shapes, types and operations only, no data.
    roots: the results. overwritten, plans: what compiler.schedule has found out.
    """

    name: str
    parameters: tuple[Node, ...]
    nodes: list[Node]
    roots: tuple[Node, ...]
    overwritten: dict[int, int] | None = None
    plans: dict[Hashable, object] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))

    def __repr__(self) -> str:
        return f"<function {self.name}: {len(self.parameters)} parameters>"


class Call:
    """Call of a function. results: of the call's result nodes, who is still there."""

    __slots__ = ("_results", "body")

    def __init__(self, body: Body, results: Sequence[Node | None]) -> None:
        self.body = body
        self._results = [None if node is None else weakref.ref(node) for node in results]

    def live(self) -> list[tuple[int, Node]]:
        """Number and node of every result that is referenced and not computed."""
        found = []
        for number, ref in enumerate(self._results):
            node = None if ref is None else ref()
            if node is not None and node.op == "result":
                found.append((number, node))
        return found

    def moved(self, made: Mapping[int, Node]) -> Call:
        """The same with other result nodes: made[id(old)]; what is not there is gone."""
        olds = [None if ref is None else ref() for ref in self._results]
        return Call(self.body, [None if old is None else made.get(id(old)) for old in olds])

    def __repr__(self) -> str:
        return repr(self.body)


def connect(body: Body, arguments: tuple[Node, ...], results: Sequence[Node]) -> Node:
    """Let a call of `body` with these arguments compute the nodes `results`, from now on."""
    first = results[0]
    node = Node("call", first.dtype, first.shape, arguments)
    node.arg = Call(body, results)
    for number, result in enumerate(results):
        result.become_result(node, number)
    return node
