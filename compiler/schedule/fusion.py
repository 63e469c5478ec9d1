"""Chains become one kernel: a reduction that one kernel alone uses, row by row, is made part of it.

before: every reduction, with what follows it element for element, is a kernel.
after: softmax, layer norm, argmax and the like are one kernel each (compiler.kernel.chain).

Whether a kernel can take a reduction in is seen from its ranges, so it does not matter by which
operations it was written: the two are traced together, and must be a chain. What was found is kept
by content, so that repeated structure is looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.graph import ops
from compiler.graph.node import Node
from compiler.index.ranges import Computation, elements, trace
from compiler.kernel.chain import find_chain
from compiler.kernel.ir import interning, walk
from compiler.schedule import cost
from compiler.schedule.group import make_group, members

KNOWN = 4096  # answers kept; beyond it all are found again
_known: dict[tuple[Any, ...], bool] = {}


def fuse(order: Sequence[Node], stored: set[int], fixed: set[int]) -> None:
    """Take nodes out of `stored` (ids) that their only reader shall compute. fixed: those to stay.
    order: all nodes, sources first."""
    readers = _readers(order, stored)
    for node in reversed(order):
        key = id(node)
        if key not in stored or key in fixed or len(readers.get(key, ())) != 1:
            continue
        (reader,) = readers[key]
        if not any(each.op == "reduce" for each in members(node, stored)):
            continue
        if reader.op == "assign" or node.size >= _widest(reader, stored):
            continue
        stored.remove(key)
        if _pays(reader, stored):
            for listed in readers.values():
                if node in listed:
                    listed.remove(node)
                    if reader not in listed:
                        listed.append(reader)
        else:
            stored.add(key)


def _readers(order: Sequence[Node], stored: set[int]) -> dict[int, list[Node]]:
    """By id of a stored node, the stored nodes whose kernels read it."""
    readers: dict[int, list[Node]] = {}
    for root in order:
        if id(root) in stored:
            reads = {id(s): s for node in members(root, stored) for s in node.sources}
            for key in reads:
                if key in stored:
                    readers.setdefault(key, []).append(root)
    return readers


def _widest(root: Node, stored: set[int]) -> int:
    """The most elements that any node of a kernel has."""
    return max(node.size for node in members(root, stored))


def _pays(root: Node, stored: set[int]) -> bool:
    """Whether a kernel is a chain, and one that cost.keep_inside likes."""
    group = make_group(root, stored)
    found = _known.get(group.key)
    if found is None:
        if len(_known) >= KNOWN:
            _known.clear()
        with interning:
            found = _known[group.key] = _is_good_chain(trace(group))
    return found


def _is_good_chain(computation: Computation) -> bool:
    chain = find_chain(computation)
    if chain is None or sum(1 for _ in walk(computation.value)) > cost.LONGEST:
        return False
    price = sum(ops.cost(node) for node in walk(chain.result))
    dtype = computation.output.dtype
    return cost.keep_inside(chain.rows, elements(chain.inner), price, dtype)
