"""Kernels with several outputs: groups that run over the same ranges and read the same memory.

before: y = x * 2 and z = y.exp() + x, both asked for, are two kernels that each read all of x.
after: one kernel reads x once and writes both.

Two groups are joined where both are element-wise or chains of the same rows, neither waits for the
other but element for element, and what they read in common is at least as large as what they write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.graph.node import Node
from compiler.index.ranges import Computation, trace_aligned
from compiler.kernel.chain import find_chain, in_step
from compiler.kernel.ir import interning, walk
from compiler.schedule import cost
from compiler.schedule.group import Group, make_group, members

MOST = 4  # outputs of a kernel
KNOWN = 4096  # answers kept; beyond it all are found again
_known: dict[tuple[Any, ...], bool] = {}


def join(groups: Sequence[Group], stored: set[int]) -> list[Group]:
    """Join what can be joined; in an order that the result can run in."""
    by_shape: dict[tuple[int, ...], list[Group]] = {}
    for group in groups:
        if not group.in_place and group.root.size > 1 and not _is_large(group, stored):
            by_shape.setdefault(group.root.shape, []).append(group)
    candidates = [listed for listed in by_shape.values() if len(listed) > 1]
    if not candidates:
        return list(groups)
    current = list(groups)
    for listed in candidates:
        kept: list[Group] = []
        for group in listed:
            for place, other in enumerate(kept):
                joined = _joined(other, group, current, stored)
                if joined is not None:
                    current = _replaced(current, other, group, joined)
                    kept[place] = joined
                    break
            else:
                kept.append(group)
    return current


def _is_large(group: Group, stored: set[int]) -> bool:
    """Whether a kernel surely is a product: it works on more elements than it reads or writes."""
    most = max(group.root.size, *(node.size for node in group.inputs), 1)
    return any(
        node.op == "reduce" and node.sources[0].size > most for node in members(group.root, stored)
    )


def _joined(one: Group, two: Group, groups: Sequence[Group], stored: set[int]) -> Group | None:
    """The group of both, or None. `two` comes later than `one`."""
    roots = (*one.roots, *two.roots)
    if len(roots) > MOST or not _shares(one, two) or _waits(two, one, groups):
        return None
    joined = make_group(roots[0], stored, False, roots[1:])
    found = _known.get(joined.key)
    if found is None:
        if len(_known) >= KNOWN:
            _known.clear()
        with interning:
            found = _known[joined.key] = _fits(trace_aligned(joined))
    return joined if found else None


def _fits(computation: Computation | None) -> bool:
    if computation is None or sum(1 for _ in walk(computation.value)) > cost.LONGEST:
        return False
    if not computation.reductions:
        return True
    chain = find_chain(computation)
    return chain is not None and in_step(chain)


def _shares(one: Group, two: Group) -> bool:
    """Whether enough is read in common: by both, or written by the first and read by the second."""
    if any(node.op == "contiguous" and node in two.inputs for node in one.roots):
        return False  # stored by order of the user, who wants two kernels
    reads = {id(node) for node in (*one.inputs, *one.roots)}
    return any(id(node) in reads and node.size >= one.root.size for node in two.inputs)


def _waits(late: Group, early: Group, groups: Sequence[Group]) -> bool:
    """Whether `late` reads what another group makes of the results of `early`."""
    tainted: set[int] = {id(node) for node in early.roots}
    direct = set(tainted)
    for group in groups:
        if group is early:
            continue
        if group is late:
            return any(id(node) in tainted - direct for node in group.inputs)
        if any(id(node) in tainted for node in group.inputs):
            tainted |= {id(node) for node in group.roots}
    return True  # `late` comes before `early`


def _replaced(groups: Sequence[Group], one: Group, two: Group, joined: Group) -> list[Group]:
    """The groups with two of them joined, each after those whose results it reads."""
    rest = [joined if group is one else group for group in groups if group is not two]
    makers: dict[int, Group] = {id(node): group for group in rest for node in group.roots}
    order: list[Group] = []
    done: set[int] = set()
    stack: list[tuple[Group, bool]] = [(group, False) for group in reversed(rest)]
    while stack:
        group, ready = stack.pop()
        if ready:
            order.append(group)
        elif id(group) not in done:
            done.add(id(group))
            stack.append((group, True))
            sources: list[Node] = list(group.inputs)
            stack += [(makers[id(n)], False) for n in reversed(sources) if id(n) in makers]
    return order
