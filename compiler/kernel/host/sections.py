"""Ranges of an element-wise kernel on the host, divided where conditions of loads change.

    before   for j in 1024: out[j] = in[j - 1] if j >= 1 else in[1023]      (a roll, a pad, a cat)
    after    out[0] = in[1023];  for j in 1023: out[j + 1] = in[j]

LLVM vectorises a loop whose loads have no conditions; it does not divide one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from math import prod

from ugpu.compiler.expression.algebra import (
    NEVER,
    Index,
    Range,
    Validity,
    both,
    substitute_all,
    within,
)
from ugpu.compiler.expression.value import Value, broadcast, const, gate, load, rebuild, walk

MOST = 1000  # operations of all sections together, each with its own code
LONG = 64  # elements of a line's longest part from which on vectors pay for separate loops
Sections = dict[Range, tuple[int, int]]  # of each range the first place, and the one after the last


def sections(root: Value, ranges: Sequence[Range]) -> list[tuple[Sections, Value]]:
    """Return the parts of the ranges' space in which each condition on a single range either holds
    or does not, in order, with the value there; one part if there would be too many, or short
    ones."""
    cuts: dict[Range, set[int]] = {each: {0, each.size} for each in ranges}
    count = 0
    for node in walk(root):
        count += 1
        for condition in conditions_of(node):
            (each, *others) = condition.ranges() or (None,)
            if not others and each in cuts and condition.linear(each) is not None:
                cuts[each] |= set(holding(condition, each))
    parts = [list(pairwise(sorted(edges))) for edges in cuts.values()]
    longest = max(stop - start for start, stop in parts[-1])
    if longest < LONG or count * prod(map(len, parts)) > MOST:
        return [({each: (0, each.size) for each in ranges}, root)]
    found: list[tuple[Sections, Value]] = []
    *outer, last = cuts
    for places in product(*parts):
        section = dict(zip(cuts, places, strict=True))
        value = _decided(root, section)
        before = found[-1] if found else None
        if before and before[1] is value and all(before[0][r] == section[r] for r in outer):
            section[last] = found.pop()[0][last][0], section[last][1]
        found.append((section, value))
    return found


def holding(condition: Index, along: Range) -> tuple[int, int]:
    """Return the first place along a range where a condition holds that depends on it alone, and
    the one after the last."""
    step, first = condition.coefficient(along), condition.constant
    if not step:
        return 0, along.size
    edge = -(first // step) if step > 0 else first // -step + 1
    edge = min(max(edge, 0), along.size)
    return (edge, along.size) if step > 0 else (0, edge)


def _decided(root: Value, section: Mapping[Range, tuple[int, int]]) -> Value:
    """Return a value's form in a section."""
    places = {
        each: Range(f"{each.name}_in", stop - start).index() + start
        for each, (start, stop) in section.items()
    }

    def left(conditions: Validity) -> Validity:
        kept: Validity = ()
        for condition in conditions:
            now = substitute_all((condition,), places)
            kept = both(kept, now if now in ((), NEVER) else (condition,))
        return kept

    return decided(root, left)


def decided(root: Value, left: Callable[[Validity], Validity]) -> Value:
    """Return a value with what is `left` of each set of conditions: without those that hold, and
    without what others choose."""

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op == "gate":
            return gate(left(node.arg), *sources)
        if node.op == "load" and node.arg.conditions:
            access, conditions = node.arg, left(node.arg.conditions)
            if conditions == NEVER:
                return broadcast(const(0, node.dtype), node.lanes)
            return load(access.memory, access.index, conditions, node.lanes)
        return None

    return rebuild(root, change)


def inside(section: Mapping[Range, tuple[int, int]]) -> Validity:
    """Return whether a place is in a section."""
    conditions: Validity = ()
    for each, (start, stop) in section.items():
        conditions = both(conditions, within(each.index(), start, stop))
    return conditions


def conditions_of(node: Value) -> Validity:
    """Return the conditions of a value alone."""
    conditions: Validity = ()
    if node.op == "gate":
        conditions = node.arg
    elif node.op == "load":
        conditions = node.arg.conditions
    return conditions
