"""Results in the memory of what they replace: an optimiser's step needs no memory for new states.

before   p' = instead(f(p, m, g), p) and m' = instead(h(m, g), m), together one kernel
after    the same kernel, which reads p and m from its outputs' memory

A kernel may do so if it is element-wise and reads the old values only at the element's own place,
and no later kernel of the run reads them. Old values that only this graph refers to are known from
compiler.schedule.hazards. An output is stored before those whose old values it is computed from.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.functions import RARE
from ugpu.compiler.expression.value import Value, interning, walk
from ugpu.compiler.graph.node import Node
from ugpu.compiler.schedule.calls import CallGroup
from ugpu.compiler.schedule.express import in_pieces, trace
from ugpu.compiler.schedule.group import Group, make_group


def renew(groups: Sequence[Group], free: Set[int], stored: Set[int]) -> list[Group]:
    """Let kernels overwrite what their results replace, where possible. free: ids of the values
    that may be overwritten."""
    last: dict[int, int] = {}
    for number, group in enumerate(groups):
        last |= {id(node): number for node in group.sources}
    return [
        _renewed(group, {key for key in free if last.get(key) == number}, stored)
        for number, group in enumerate(groups)
    ]


def _renewed(group: Group, free: Set[int], stored: Set[int]) -> Group:
    plain = not (group.in_place or group.stage or isinstance(group, CallGroup))
    old = {id(root): root.sources[1] for root in group.roots
           if root.op == "instead" and id(root.sources[1]) in free}  # fmt: skip
    distinct = len({id(node) for node in old.values()}) == len(old)
    if not old or not distinct or not plain or in_pieces(group):
        return group
    with interning:
        computation = trace(group)
        order = _order(group, computation, old)
    if order is None:
        return group
    first, *others = order
    made = make_group(first, stored, False, tuple(others))
    over = tuple([old.get(id(root)) for root in order])
    places = {id(node): place for place, node in enumerate(made.sources)}
    names = tuple([-1 if each is None else places[id(each)] for each in over])
    return replace(made, key=(*made.key, ("over", *names)), over=over)


def _order(group: Group, computation: Computation, old: dict[int, Node]) -> list[Node] | None:
    """Return the roots in an order in which they can be stored; None if they cannot."""
    nodes = list(walk(computation.value))
    if computation.reductions or any(node.op == "along" or node.arg == RARE for node in nodes):
        return None
    memories = {
        id(node): memory for node, memory in zip(group.sources, computation.inputs, strict=True)
    }
    replaced = {memories[id(node)] for node in old.values()}
    reads = [node.arg for node in nodes if node.op == "load" and node.arg.memory in replaced]
    if any(each.index != computation.position or each.conditions for each in reads):
        return None
    values = [part for _, part in computation.results(computation.value)]
    left = dict(zip(group.roots, values, strict=True))
    order: list[Node] = []
    while left:
        for root in left:
            mine = memories.get(id(old.get(id(root))))
            if not any(_reads(left[each], mine) for each in left if each is not root):
                break
        else:
            return None
        order.append(root)
        del left[root]
    return order


def _reads(root: Value, memory: object) -> bool:
    return memory is not None and any(
        node.op == "load" and node.arg.memory == memory for node in walk(root)
    )
