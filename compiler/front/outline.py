"""Turn nodes that a function made into a call of a Body: its inner nodes, inputs and results.

before: the graph of a call's results, as built without `function`.
after: the same nodes are results of a "call" node. Its sources are the nodes that the function used
and did not make: arguments and captured tensors.

Inner nodes are those made while the function ran, except the ones stored by now. A node referenced
from outside becomes a result, whether it was returned or kept elsewhere. Movement of earlier nodes,
and constants, are taken in: they cost nothing inside, and would need their own kernel outside.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Sequence

from ugpu.compiler.expression.elementary import BUILDERS, COSTS
from ugpu.compiler.graph.call import Body, Call, connect, parameter_like
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.operations import MOVEMENT
from ugpu.compiler.methods.core import TensorCore
from ugpu.compiler.plan.plan import Structure, structure
from ugpu.compiler.schedule.calls import live_results

KNOWN = 1024  # bodies kept; beyond this all are discarded
PLAIN = 16  # operations on constants alone that each call repeats rather than stores
_bodies: dict[Structure, Body] = {}
_SAME_ELEMENTS = ("reshape", "permute", "flip", "expand")


def outline(name: str, tensors: Sequence[TensorCore], since: int) -> None:
    """Make a call of the nodes that the tensors need and that were made in period `since` or later.
    Does nothing if no node is computed."""
    order = _inside([tensor.node for tensor in tensors], since)
    roots = _roots(order, since)
    if not roots:
        return
    leaves = {id(node): node for node in _leaves(roots, since)}
    key, nodes = structure(roots, leaves.keys())
    body = _bodies.get(key)
    if body is None:
        if len(_bodies) >= KNOWN:
            _bodies.clear()
        body = _bodies[key] = _copy(name, nodes, roots, leaves)
    arguments = tuple([node for node in nodes if id(node) in leaves])
    connect(body, arguments, roots)


def _is_inside(node: Node, since: int) -> bool:
    return node.made >= since and node.storage is None


def _is_plain(node: Node) -> bool:
    """Return whether a value is made of few operations on constants."""
    stack, count = [node], 0
    while stack:
        node = stack.pop()
        count += 1
        cheap = node.op in MOVEMENT or node.op in ("const", "iota", "cast")
        cheap = cheap or (node.op in BUILDERS and COSTS.get(node.op, 1) == 1)
        if node.storage is not None or not cheap or count > PLAIN:
            return False
        stack += node.sources
    return True


def _takes_in(node: Node, since: int) -> bool:
    """Return whether a node is computed by the call, not given to it."""
    if node.storage is not None:
        return False
    return node.made >= since or node.op in MOVEMENT or _is_plain(node)


def _inside(nodes: list[Node], since: int) -> list[Node]:
    """Return the inner nodes that `nodes` need; of an inner call, all results still referenced."""
    order: list[Node] = []
    seen: set[int] = set()
    stack = nodes
    while stack:
        node = stack.pop()
        if id(node) in seen or not _is_inside(node, since):
            continue
        seen.add(id(node))
        order.append(node)
        stack += node.sources
        if node.op == "call":
            stack += [result for _, result in live_results(node)]
    return order


def _roots(order: list[Node], since: int) -> list[Node]:
    """Return the nodes referenced from outside; for one that only moves elements, its source."""
    used = Counter(id(source) for node in order for source in node.sources)
    places = []
    for place in range(len(order)):
        # references besides those of inner nodes: `order`, and the argument of getrefcount
        if sys.getrefcount(order[place]) > 2 + used[id(order[place])]:
            places.append(place)
    roots: dict[int, Node] = {}
    for place in places:
        root = order[place]
        while root.op in _SAME_ELEMENTS and _is_inside(root.sources[0], since):
            root = root.sources[0]
        given = root.op in MOVEMENT and not _is_inside(root.sources[0], since)
        if root.op != "call" and not given and not _is_plain(root):
            roots[id(root)] = root
    return list(roots.values())


def _leaves(roots: Sequence[Node], since: int) -> list[Node]:
    """Return the inputs."""
    found: dict[int, Node] = {}
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if _takes_in(node, since):
            stack += node.sources
        else:
            found[id(node)] = node
    return list(found.values())


def _copy(name: str, nodes: Sequence[Node], roots: Sequence[Node], leaves: Container[int]) -> Body:
    """Return a body with copies of the nodes. leaves: ids of the nodes that become parameters."""
    made: dict[int, Node] = {}
    parameters = []
    for node in nodes:
        if id(node) in leaves:
            copy = Node("buffer", node.dtype, node.shape)
            copy.storage = parameter_like(node)
            parameters.append(copy)
        else:
            sources = tuple(made[id(source)] for source in node.sources)
            copy = Node(node.op, node.dtype, node.shape, sources, node.arg)
        copy.origin = node.origin
        made[id(node)] = copy
    for node in nodes:
        if node.op == "call" and id(node) not in leaves:
            called = node.arg
            assert isinstance(called, Call)
            made[id(node)].arg = called.moved(made)
    copies = [made[id(node)] for node in nodes]
    return Body(name, tuple(parameters), copies, tuple(made[id(root)] for root in roots))
