"""Nested functions: a part of a graph that is planned once and called with different arguments.

A Body is a graph of its own, whose leaves are parameters. Bodies of equal structure are one object,
so the schedule and the plans found for one call serve all calls. A "call" node has the arguments as
sources; each of its results is a separate "result" node. A call runs once and computes all of its
results that are still referenced.

compiler.front.outline makes calls from functions; compiler.schedule.calls plans them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from ugpu.compiler.graph.node import ByValue, Kind, Node

Kind("call", positional=True)
Kind("result", positional=True)
PARAMETER = object()  # the storage of a parameter: the scheduler sees a stored node
_numbers = itertools.count(1)


def parameter_like(leaf: Node) -> object:
    """Return the storage of a parameter that stands for a node with storage or another leaf."""
    return ByValue(0) if isinstance(leaf.storage, ByValue) else PARAMETER


@dataclass(eq=False)
class Body:
    """The computation shared by the calls of a function.

    name: the function first seen to compute it. parameters: leaves in the order of a call's
    sources. nodes: the whole graph, sources first; it has shapes, types and operations but no data.
    roots: the results. overwritten, plans: cached results of compiler.schedule.
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
    """Call of a function. results: the call's result nodes; only weak references are kept."""

    __slots__ = ("_results", "body")

    def __init__(self, body: Body, results: Sequence[Node | None]) -> None:
        self.body = body
        self._results = [None if node is None else weakref.ref(node) for node in results]

    def live(self) -> list[tuple[int, Node]]:
        """Return the number and node of each result that is referenced and not yet computed."""
        found = []
        for number, ref in enumerate(self._results):
            node = None if ref is None else ref()
            if node is not None and node.op == "result":
                found.append((number, node))
        return found

    def moved(self, made: Mapping[int, Node]) -> Call:
        """Return the call with result nodes made[id(old)]; a result without one is dropped."""
        olds = [None if ref is None else ref() for ref in self._results]
        return Call(self.body, [None if old is None else made.get(id(old)) for old in olds])

    def __repr__(self) -> str:
        return repr(self.body)


def connect(body: Body, arguments: tuple[Node, ...], results: Sequence[Node]) -> Node:
    """Make the nodes `results` the results of a call of `body` with these arguments."""
    first = results[0]
    node = Node("call", first.dtype, first.shape, arguments)
    node.arg = Call(body, results)
    for number, result in enumerate(results):
        result.become_result(node, number)
    return node
