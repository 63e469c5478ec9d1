"""Ranges of an element-wise kernel on the host, divided where conditions of loads change.

    before   for j in 1024: out[j] = in[j - 1] if j >= 1 else in[1023]      (a roll, a pad, a cat)
    after    out[0] = in[1023];  for j in 1023: out[j + 1] = in[j]

LLVM vectorises a loop whose loads have no conditions; it does not divide one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
        for condition in _conditions(node):
            (each, *others) = condition.ranges() or (None,)
            if others or each not in cuts or condition.linear(each) is None:
                continue
            step, first = condition.coefficient(each), condition.constant
            if step:
                edge = -(first // step) if step > 0 else first // -step + 1
                cuts[each].add(min(max(edge, 0), each.size))
    parts = [list(pairwise(sorted(edges))) for edges in cuts.values()]
    longest = max(stop - start for start, stop in parts[-1])
    if longest < LONG or count * prod(map(len, parts)) > MOST:
        return [({each: (0, each.size) for each in ranges}, root)]
    found: list[tuple[Sections, Value]] = []
    *outer, last = cuts
    for each in product(*parts):
        section = dict(zip(cuts, each, strict=True))
        value = _decided(root, section)
        before = found[-1] if found else None
        if before and before[1] is value and all(before[0][r] == section[r] for r in outer):
            section[last] = found.pop()[0][last][0], section[last][1]
        found.append((section, value))
    return found


def _decided(root: Value, section: Mapping[Range, tuple[int, int]]) -> Value:
    """Return a value's form in a section: without the conditions that hold there, and without what
    others choose."""
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


def _conditions(node: Value) -> Iterator[Index]:
    """Yield the conditions of a value alone."""
    if node.op == "gate":
        yield from node.arg
    elif node.op == "load":
        yield from node.arg.conditions
