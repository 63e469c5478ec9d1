"""The backward pass: visit the tracked nodes below a result, last to first, and sum gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ugpu.compiler.gradients.rules import RULES
from ugpu.compiler.gradients.values import Values
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.origin import text
from ugpu.compiler.graph.tracking import FREED, History, mode
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, NotSupported

LEAF = "leaf"  # a node whose gradient is requested; arg: a weak reference to its tensor
TARGET = "target"  # likewise, of an argument of a function; the gradient flows on to its source


@contextmanager
def tracking(on: bool) -> Iterator[None]:
    """Track the operations of this thread, or not, for a while."""
    before = mode.on
    mode.on = on
    try:
        yield
    finally:
        mode.on = before


def history_of(node: Node) -> History:
    """Return the operation behind a tracked node, as gradients see it."""
    return node.history or History(node.op, node.sources, node.arg)


def gradients(
    roots: Sequence[Values],
    cotangents: Sequence[Values],
    *,
    keep: bool,
    higher: bool,
    targets: Sequence[Node] = (),
) -> list[tuple[Node, Values]]:
    """Return the leaves below the roots, each with the sum of its gradients.

    targets: other nodes to return; gradients do not flow on from them. keep: whether the graph can
    be used again; otherwise tracked nodes forget their sources. higher: whether the gradients are
    tracked themselves.
    """
    order = below([root.node for root in roots])
    sums: dict[int, Values] = {}
    ends = {id(node) for node in targets}
    with tracking(higher):
        for root, cotangent in zip(roots, cotangents, strict=True):
            _add(sums, root.node, cotangent)
        found = []
        for node in reversed(order):
            g = sums.pop(id(node), None)
            history = history_of(node)
            if g is None:
                continue
            if history.op == LEAF or id(node) in ends:
                found.append((node, g))
                continue
            _step(node, history, g, sums)
    if not keep:
        for node in order:
            if history_of(node).op != LEAF:
                node.history = FREED
    return found


def _step(node: Node, history: History, g: Values, sums: dict[int, Values]) -> None:
    """Pass the gradient of a node on to its sources."""
    rule = RULES.get(history.op)
    if rule is None:
        raise NotSupported(
            f"backward: the operation {history.op!r}, which built {_shown(node)}, has no gradient"
        )
    xs = [_wrapped(g, source, g.device) for source in history.sources]
    if history.op == "to":  # the only operation between two devices
        xs = [_wrapped(g, source, history.arg[0]) for source in history.sources]
    results = rule(g, _wrapped(g, node, g.device), xs, history.arg)
    for source, result in zip(history.sources, results, strict=True):
        if result is not None and source.tracked:
            assert result.shape == source.shape, (history.op, result.shape, source.shape)
            _add(sums, source, result)


def _add(sums: dict[int, Values], node: Node, more: Values) -> None:
    more = more.cast(node.dtype)
    known = sums.get(id(node))
    sums[id(node)] = more if known is None else known + more


def _wrapped(like: Values, node: Node, device: Device) -> Values:
    """Return a tensor of this very node, tracked or not."""
    made: Values = object.__new__(like._kind)
    made.node, made.device = node, device
    return made


def _shown(node: Node) -> str:
    place = text(node.origin)
    return f"{list(node.shape)} (built at {place})" if place else str(list(node.shape))


def below(roots: Sequence[Node]) -> list[Node]:
    """Return the tracked nodes that the roots depend on, sources first. Does not recurse."""
    order: list[Node] = []
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen and node.tracked:
            seen.add(id(node))
            history = history_of(node)
            if history is FREED:
                raise BadArgument(
                    f"backward: the graph of {_shown(node)} was freed by an earlier backward "
                    "pass; pass retain_graph=True to that one"
                )
            stack.append((node, True))
            if history.op != LEAF:
                stack.extend((source, False) for source in reversed(history.sources))
    return order
