"""Decide which assignments may overwrite the memory of the old value, and what must run first.

An assignment is a separate value: the old array with a region replaced. It is done in place if the
old array cannot be observed afterwards:

- the old value is in memory, or is itself being assigned in place, or is made by a scatter of this
  run, and only this graph refers to it or to that memory;
- all other reads of the old value in this run can finish before the write (they become sources in
  the order of the run), and none of them is referenced from elsewhere and would have to be computed
  again. If results depend on both the old and the new value, their inputs from the old one are
  stored before the write, if that takes no more memory than a copy.

A call of a nested function may write into an argument's memory under the same conditions, if the
function assigns that parameter and nothing inside prevents it; the call is then *granted* the
argument.

References are counted by the interpreter, so none is missed; in case of doubt, the assignment is
computed into separate memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from ugpu.compiler.graph.call import Body
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.operations import WRITES
from ugpu.compiler.schedule.calls import body_of
from ugpu.compiler.schedule.precedence import Order

Earlier = dict[int, list[Node]]


@dataclass(frozen=True)
class InPlace:
    """Writes into existing memory. earlier: by id of an assignment, or of a call, the reads that go
    before it. granted: by id of a call, the arguments that it may overwrite. moved: by id of a
    value that is in another's memory, the id of that other. stored: ids of nodes to store, since
    values that depend on them after a write must not read the old value again. free: ids of values
    in memory that only this graph refers to, and that others may replace there
    (compiler.graph.elements.instead)."""

    earlier: Earlier = field(default_factory=dict)
    granted: dict[int, frozenset[int]] = field(default_factory=dict)
    moved: dict[int, int] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    free: frozenset[int] = frozenset()

    def places(self, nodes: Sequence[Node]) -> tuple[object, ...]:
        """Return the same by places, comparable."""
        earlier, granted, stored = self.earlier, self.granted, self.stored
        found = [(place, id(node)) for place, node in enumerate(nodes) if id(node) in earlier]
        kept = [place for place, node in enumerate(nodes) if id(node) in stored] if stored else ()
        free = [place for place, node in enumerate(nodes) if id(node) in self.free]
        return (
            tuple([(place, granted.get(key)) for place, key in found]),
            tuple(kept),
            tuple(free),
        )


NONE = InPlace()


def in_place(nodes: list[Node], roots: Sequence[Node]) -> InPlace:
    """Return the assignments among `nodes` (sources first) to be done in place. The caller holds no
    references to nodes besides `nodes` and, once each, `roots`."""
    renewed = [place for place, node in enumerate(nodes) if node.op == "instead"]
    at_a_glance = _alone(nodes)
    if at_a_glance is not None and not renewed:
        return at_a_glance
    users = _users(nodes)
    outside = _outside(nodes, users)
    shared = {id(node) for node in nodes if node.storage is not None and _shared(node)}
    free = {
        id(old) for place in renewed
        if (old := nodes[place].sources[1]).storage is not None
        and outside[id(old)] <= 0 and id(old) not in shared
    }  # fmt: skip
    found = at_a_glance or _found(nodes, roots, users, outside, shared)
    return replace(found, free=frozenset(free))


def inside(body: Body, roots: Sequence[Node], granted: Set[int]) -> InPlace:
    """Return the same for a nested function, which may overwrite its `granted` parameters."""
    if not _may_write(body.nodes):
        return NONE
    kept = {id(node) for place, node in enumerate(body.parameters) if place not in granted}
    return _found(body.nodes, roots, _users(body.nodes), {}, kept)


def overwritten(body: Body) -> dict[int, int]:
    """Return the parameters that a nested function would write into if granted, each with the
    number of the result that is then in its memory; -1 if none is."""
    found = body.overwritten
    if found is None:
        ways = inside(body, body.roots, frozenset(range(len(body.parameters))))
        results = {id(root): number for number, root in enumerate(body.roots)}
        parameters = {id(node): place for place, node in enumerate(body.parameters)}
        found = {}
        for made, old in ways.moved.items():
            while old in ways.moved:
                old = ways.moved[old]
            place = parameters.get(old)
            if place is None:  # the result of a scatter
                continue
            found[place] = max(found.get(place, -1), results.get(made, -1))
        body.overwritten = found
    return found


def _may_write(nodes: Sequence[Node]) -> bool:
    return any(each.op in WRITES or (each.op == "call" and _assigns(each)) for each in nodes)


def _assigns(call: Node) -> bool:
    return bool(overwritten(body_of(call)))


def _shared(node: Node) -> bool:
    """Return whether others refer to a node's memory, or the program owns it."""
    # the slot of the node, and the argument of getrefcount
    return sys.getrefcount(node.storage) > 2 or not getattr(node.storage, "writable", True)


def _alone(nodes: list[Node]) -> InPlace | None:
    """Return the writes in place if each replaces a value that nothing else refers to, as in a
    decoder; None if a full analysis is needed."""
    earlier: Earlier = {}
    moved: dict[int, int] = {}
    for node in nodes:
        if node.op in WRITES:
            old = node.sources[0]
            # known: `nodes`, `old`, the sources (of this node alone), the argument of getrefcount
            if sys.getrefcount(old) != 4 or sys.getrefcount(node.sources) != 2:
                return None
            if old.storage is None and old.op != "scatter" and id(old) not in moved:
                return None
            if old.storage is not None and _shared(old):
                return None
            earlier[id(node)] = []
            moved[id(node)] = id(old)
        elif node.op == "call" and _assigns(node):
            return None
    return InPlace(earlier, moved=moved) if earlier else NONE


def _found(
    nodes: list[Node],
    roots: Sequence[Node],
    users: Mapping[int, list[Node]],
    outside: Mapping[int, int],
    kept: Set[int],
) -> InPlace:
    """Find the writes in place. outside: by id, the number of references from outside the graph.
    kept: ids of stored values whose memory must not be changed."""
    found = InPlace()
    asked = {id(root) for root in roots}
    held = {key for key, count in outside.items() if count > 0 and key not in asked}
    order = Order(nodes, users, held)
    kept_by_others = [id(node) for node in nodes if node.op in WRITES and id(node) in held]

    def before(old: Node, node: Node) -> list[Node] | None:
        """Return the reads before `node` writes into the memory of `old`; None if it may not."""
        if old.storage is None and old.op != "scatter" and id(old) not in found.moved:
            return None
        if id(old) in kept or any(old is source for source in node.sources[1:]):
            return None
        if outside.get(id(old), 0) > 0 or id(old) in asked:
            return None
        reads = order.reads(old, node)
        if reads is not None:
            return reads
        cut = order.cut(old, node)
        if cut is None:
            return None
        # store the ends, and writes referenced elsewhere, which would be computed again
        found.stored.update(map(id, cut.ends))
        found.stored.update(kept_by_others)
        return cut.reads

    for node in nodes:
        if node.op in WRITES:
            readers = before(node.sources[0], node)
            if readers is not None:
                found.earlier[id(node)] = readers
                found.moved[id(node)] = id(node.sources[0])
                order.waits(node, readers)
        elif node.op == "call":
            for place, number in overwritten(body_of(node)).items():
                old = node.sources[place]
                readers = before(old, node)
                if readers is None:
                    continue
                found.earlier.setdefault(id(node), []).extend(readers)
                found.granted[id(node)] = found.granted.get(id(node), frozenset()) | {place}
                order.waits(node, readers)
                for result in users.get(id(node), ()):
                    if result.arg == number:
                        found.moved[id(result)] = id(old)
    return found


def _users(nodes: Sequence[Node]) -> dict[int, list[Node]]:
    """Return by id the nodes to compute that have it as a source; twice if as two sources."""
    users: dict[int, list[Node]] = {}
    for node in nodes:
        if node.storage is None:
            for source in node.sources:
                users.setdefault(id(source), []).append(node)
    return users


def _outside(nodes: list[Node], users: Mapping[int, list[Node]]) -> dict[int, int]:
    """Return by id the number of references besides this graph's."""
    count, none = sys.getrefcount, ()
    # known: `nodes`, `node`, the argument of getrefcount; the nodes that have it as a source;
    # and the entries of `users`, one for each of its own sources
    return {
        id(node): count(node)
        - (3 if node.storage is not None else 3 + len(node.sources))
        - len(users.get(id(node), none))
        for node in nodes
    }
