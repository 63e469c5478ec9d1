"""Which assignments may write into the memory of the value they replace, and what must run first.

An assignment is a value of its own: the old array with a region replaced. It is done in place where
nobody can see the old array afterwards:

- the old value is in memory, or is itself being assigned in place, and nothing but this graph
  refers to it or to that memory;
- what else reads the old value in this run can be finished before the write (those reads become
  sources in the order of the run), and none of it is held by others, who would compute it again.

References are counted by the interpreter, so none is missed; where there is doubt, the assignment
is computed into memory of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from compiler.graph.node import Node

Earlier = dict[int, list[Node]]  # id of an assignment in place to the reads that go before it


def in_place(nodes: list[Node], roots: Sequence[Node]) -> Earlier:
    """The assignments among `nodes` (sources first) to be done in place. The caller holds no
    references to nodes besides `nodes` and, once each, `roots`."""
    found: Earlier = {}
    if not any(each.op == "assign" for each in nodes):
        return found
    users = _users(nodes)
    asked = {id(root) for root in roots}
    outside = _outside(nodes, users)

    def held(node: Node) -> bool:
        return outside[id(node)] > 0

    for place in range(len(nodes)):
        if nodes[place].op != "assign":
            continue
        node = nodes[place]
        old = node.sources[0]
        if id(old) not in found and (old.storage is None or sys.getrefcount(old.storage) > 2):
            continue
        if held(old) or id(old) in asked:
            continue
        readers = _closure(old, users, without=node)
        later = _closure(node, _with_earlier(users, found), without=None)
        if readers.keys() & later.keys():
            continue
        if any(held(reader) and key not in asked for key, reader in readers.items()):
            continue
        found[id(node)] = list(readers.values())
    return found


def _users(nodes: Sequence[Node]) -> dict[int, list[Node]]:
    """By id, who of the nodes to compute has it as a source; twice where it is two sources."""
    users: dict[int, list[Node]] = {}
    for node in nodes:
        if node.storage is None:
            for source in node.sources:
                users.setdefault(id(source), []).append(node)
    return users


def _outside(nodes: list[Node], users: Mapping[int, list[Node]]) -> dict[int, int]:
    """By id, how many references there are besides this graph's."""
    listed: dict[int, int] = {}
    for entries in users.values():
        for key in map(id, entries):
            listed[key] = listed.get(key, 0) + 1
    outside = {}
    for place in range(len(nodes)):
        key = id(nodes[place])
        # the argument of getrefcount, `nodes`, the source slots, and the entries of `users`
        known = 2 + len(users.get(key, ())) + listed.get(key, 0)
        outside[key] = sys.getrefcount(nodes[place]) - known
    return outside


def _with_earlier(users: Mapping[int, list[Node]], found: Earlier) -> dict[int, list[Node]]:
    """Users, and the assignments that wait for a node's reads."""
    joined = {key: list(listed) for key, listed in users.items()}
    by_id = {id(user): user for listed in users.values() for user in listed}
    for key, earlier in found.items():
        for reader in earlier:
            if key in by_id:
                joined.setdefault(id(reader), []).append(by_id[key])
    return joined


def _closure(start: Node, users: Mapping[int, list[Node]], without: Node | None) -> dict[int, Node]:
    """All that depends on `start`, but not by way of `without`."""
    found: dict[int, Node] = {}
    stack = list(users.get(id(start), ()))
    while stack:
        node = stack.pop()
        if node is without or id(node) in found:
            continue
        found[id(node)] = node
        stack += users.get(id(node), ())
    return found
