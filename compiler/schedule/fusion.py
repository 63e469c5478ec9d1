"""Fuse chains into one kernel: a reduction that only one kernel uses, row by row, moves into it.

before: every reduction, with the element-wise operations after it, is a kernel.
after: softmax, layer norm, argmax and the like are one kernel each (compiler.pattern.chain), and so
is attention from scores to output (compiler.pattern.online), whose scores are never stored.

Whether a kernel can take in a reduction depends only on its ranges, not on the operations that it
was written with: the two are traced together, and must be a chain. Results are cached by content,
so that repeated structure is analysed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.value import interning, walk
from ugpu.compiler.graph.node import Node
from ugpu.compiler.graph.operations import KINDS
from ugpu.compiler.pattern import cost
from ugpu.compiler.pattern.chain import Stage, find_chain, in_step
from ugpu.compiler.pattern.online import find_online
from ugpu.compiler.schedule import split
from ugpu.compiler.schedule.express import in_pieces, trace
from ugpu.compiler.schedule.group import make_group, members

KNOWN = 4096  # cached answers; beyond this all are discarded
_known: dict[tuple[Any, ...], bool] = {}


def fuse(order: Sequence[Node], stored: set[int], fixed: set[int]) -> None:
    """Take nodes out of `stored` (ids) that their only reader is to compute. fixed: nodes that must
    stay. order: all nodes, sources first."""
    readers = _readers(order, stored)
    for node in _candidates(order, stored, fixed, readers):
        _take_in([node], readers, stored)
    # the user of a whole chain may be an attention, with the scores that the chain is made of
    for node in _candidates(order, stored, fixed, readers):
        scores = [
            source
            for source in _stored_below(node, stored)
            if source.size == node.size and id(source) not in fixed
            if len(readers[id(source)]) == 1
        ]
        if scores:
            _take_in([node, *scores], readers, stored)


def _candidates(
    order: Sequence[Node], stored: set[int], fixed: set[int], readers: Mapping[int, list[Node]]
) -> Iterator[Node]:
    """Yield stored reductions that only one kernel reads, and that it repeats, the last first."""
    for node in reversed(order):
        key = id(node)
        if key in stored and key not in fixed and len(readers.get(key, ())) == 1:
            (reader,) = readers[key]
            reduces = any(each.op == "reduce" for each in members(node, stored))
            kind = KINDS[reader.op]
            if reduces and not (kind.writes or kind.lowerings) and _repeated(node, reader, stored):
                yield node


def _take_in(nodes: list[Node], readers: dict[int, list[Node]], stored: set[int]) -> None:
    """Let the reader of the first node compute all the nodes, if that pays."""
    keys = {id(node) for node in nodes}
    (reader,) = readers[id(nodes[0])]
    stored -= keys
    if not _pays(reader, stored):
        stored |= keys
        return
    for key in keys:
        del readers[key]
    for listed in readers.values():
        if any(id(each) in keys for each in listed):
            listed[:] = [each for each in listed if id(each) not in keys and each is not reader]
            listed.append(reader)


def _stored_below(root: Node, stored: set[int]) -> list[Node]:
    """Return the stored nodes that a kernel for `root` would read."""
    sources = {id(s): s for node in members(root, stored) for s in node.sources}
    return [source for key, source in sources.items() if key in stored]


def _readers(order: Sequence[Node], stored: set[int]) -> dict[int, list[Node]]:
    """Return by id of a stored node the stored nodes whose kernels read it."""
    readers: dict[int, list[Node]] = {}
    for root in order:
        if id(root) in stored:
            for source in _stored_below(root, stored):
                readers.setdefault(id(source), []).append(root)
    return readers


def _repeated(node: Node, root: Node, stored: set[int]) -> bool:
    """Return whether a kernel uses elements of a node that it reads many times: it expands or
    gathers them. Padding and joining make arrays longer too, but read each element once."""
    found = list(members(root, stored))
    users: dict[int, list[Node]] = {}
    for user in found:
        for source in user.sources:
            users.setdefault(id(source), []).append(user)
    largest, stack, seen = max(each.size for each in found), [node], {id(node)}
    while stack:
        for user in users.get(id(stack.pop()), ()):
            if KINDS[user.op].repeats and node.size < largest:
                return True
            if id(user) not in seen:
                seen.add(id(user))
                stack.append(user)
    return False


def _pays(root: Node, stored: set[int]) -> bool:
    """Return whether a kernel is an attention, or a chain that cost.keep_inside accepts."""
    group = make_group(root, stored)
    if in_pieces(group):
        return False
    found = _known.get(group.key)
    if found is None:
        if len(_known) >= KNOWN:
            _known.clear()
        with interning:
            computation = trace(group)
            found = find_online(computation) is not None or _is_good_chain(computation)
            _known[group.key] = found
    return found


def _is_good_chain(computation: Computation) -> bool:
    chain = find_chain(computation)
    if (
        chain is None
        or not in_step(chain)
        or sum(1 for _ in walk(computation.value)) > cost.LONGEST
    ):
        return False
    if split.is_long(chain.rows, chain.length) and all(map(_stayed_whole, chain.stages)):
        return True  # other rows were split: these keep all threads busy
    price = sum(ops.cost(node) for node in walk(chain.result))
    dtype = computation.output.dtype
    return cost.keep_inside(chain.rows, elements(chain.inner), price, dtype)


def _stayed_whole(stage: Stage) -> bool:
    """Return whether `split` keeps the rows of such a reduction whole."""
    return stage.operation in ("max", "min") or stage.body.arg == "exp"
