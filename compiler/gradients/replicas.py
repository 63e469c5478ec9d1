"""Leaves that are one value on several devices: their gradients are summed before they are kept.

`reduce` is an all-reduce of compiler.sharding, which is above this floor and sets it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ugpu.compiler.gradients.reverse import tracking
from ugpu.compiler.gradients.values import Values
from ugpu.compiler.graph.node import Node

Reduce = Callable[[Sequence["Replicas"], dict[int, Values]], dict[int, Values]]
reduce: list[Reduce] = []


class Replicas:
    """Leaves with the same elements, one on each device. Its owner keeps it alive."""

    def __init__(self, leaves: Sequence[Any]) -> None:  # of Tensor, which is above this floor
        self.leaves = tuple(leaves)
        for each in leaves:
            _of_leaf[id(each)] = self


_of_leaf: weakref.WeakValueDictionary[int, Replicas] = weakref.WeakValueDictionary()


def accumulate(found: Sequence[tuple[Node, Values]], higher: bool) -> None:
    """Add the results of a backward pass to `grad` of the leaves. higher: whether gradients are
    tracked themselves."""
    owners: dict[int, Any] = {}
    values: dict[int, Values] = {}
    groups: dict[int, Replicas] = {}
    for leaf, g in found:
        assert leaf.history is not None
        owner = leaf.history.arg()
        if owner is None:
            continue
        owners[id(owner)], values[id(owner)] = owner, g
        group = _of_leaf.get(id(owner))
        if group is not None:
            groups[id(group)] = group
            owners.update({id(each): each for each in group.leaves})
    if groups:
        with tracking(higher):
            values.update(reduce[0](list(groups.values()), values))
    for key, g in values.items():
        owners[key]._accumulate(g, higher)
