"""Kernels with several outputs: groups that run over the same ranges and read the same memory.

before: y = x * 2 and z = y.exp() + x, both requested, are two kernels that each read all of x.
after: one kernel reads x once and writes both.

Two groups are joined if both are element-wise or chains of the same rows, neither waits for the
other except element for element, and their common input is at least as large as their output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.value import interning, walk
from ugpu.compiler.graph.operations import KINDS
from ugpu.compiler.pattern import cost
from ugpu.compiler.pattern.chain import find_chain, in_step
from ugpu.compiler.schedule.calls import CallGroup
from ugpu.compiler.schedule.express import in_pieces, trace_aligned
from ugpu.compiler.schedule.group import Group, make_group, members

MOST = 4  # outputs of a kernel
KNOWN = 4096  # cached answers; beyond this all are discarded
_known: dict[tuple[Any, ...], bool] = {}


def join(groups: Sequence[Group], stored: set[int]) -> list[Group]:
    """Join groups where possible; `groups` and the result are in an order in which they can run."""
    shapes = Counter(group.root.shape for group in groups)
    slots: list[Group | None] = list(groups)
    joins = _Joins(groups)
    for slot, group in enumerate(groups):
        if shapes[group.root.shape] < 2 or group.in_place or group.root.size < 2:
            continue
        if (
            group.stage
            or KINDS[group.root.op].lowerings
            or in_pieces(group)
            or isinstance(group, CallGroup)
            or _is_large(group, stored)
        ):
            continue
        for earlier in joins.near(group):
            other = slots[earlier]
            if other is None or other.root.shape != group.root.shape:
                continue
            target = joins.place(earlier, slot, other, group)
            joined = None if target is None else _joined(other, group, stored)
            if target is not None and joined is not None:
                slots[earlier] = slots[slot] = None
                slots[target] = joined
                joins.move(joined, target)
                break
        else:
            joins.add(group, slot)
    return [group for group in slots if group is not None]


class _Joins:
    """Producers and readers of values, by slot in the order of the groups."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.maker: dict[int, int] = {}
        self.readers: dict[int, set[int]] = {}
        self.kept: dict[int, list[int]] = {}  # by input: slots of groups that may take others in
        self.open: set[int] = set()
        for slot, group in enumerate(groups):
            self._enter(group, slot)

    def _enter(self, group: Group, slot: int) -> None:
        for node in group.roots:
            self.maker[id(node)] = slot
        for node in group.sources:
            self.readers.setdefault(id(node), set()).add(slot)

    def add(self, group: Group, slot: int) -> None:
        """Add a group that later ones may join."""
        self.open.add(slot)
        for node in group.sources:
            self.kept.setdefault(id(node), []).append(slot)

    def near(self, group: Group) -> list[int]:
        """Return slots of open groups that make or read a large part of a group's input."""
        found: dict[int, None] = {}
        for node in group.sources:
            if node.size >= group.root.size:
                made = self.maker.get(id(node))
                if made is not None and made in self.open:
                    found[made] = None
                found |= dict.fromkeys(self.kept.get(id(node), ()))
        return list(found)

    def place(self, early: int, late: int, first: Group, second: Group) -> int | None:
        """Return the slot where both can run: that of the first, if everything that the second
        reads is made by then; that of the second, if nothing reads the first's results in between;
        otherwise None."""
        made = [self.maker.get(id(node), -1) for node in second.sources]
        if all(slot <= early for slot in made):
            return early
        between = (slot for node in first.roots for slot in self.readers.get(id(node), ()))
        return None if any(early < slot < late for slot in between) else late

    def move(self, joined: Group, target: int) -> None:
        """Merge the groups of `joined` into one, in slot `target`."""
        for node in joined.sources:
            self.kept.setdefault(id(node), []).append(target)
        self.open.add(target)
        self._enter(joined, target)


def _is_large(group: Group, stored: set[int]) -> bool:
    """Return whether a kernel is surely a product: it works on more elements than it reads or
    writes."""
    most = max(group.root.size, *(node.size for node in group.sources), 1)
    return any(
        node.op == "reduce" and node.sources[0].size > most for node in members(group.root, stored)
    )


def _joined(one: Group, two: Group, stored: set[int]) -> Group | None:
    """Return the group of both, or None. `two` comes later than `one`."""
    roots = (*one.roots, *two.roots)
    if len(roots) > MOST or any(r.op == "contiguous" and r in two.sources for r in one.roots):
        return None  # (contiguous requests two kernels)
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
