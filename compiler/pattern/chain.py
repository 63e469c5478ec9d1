"""Chains: several reductions over rows, and a result computed from them for each element.

    before   out[r, i] = exp(x[r, i] - M) / S      M = max over k of x[r, k]
                                                   S = sum over k of exp(x[r, k] - M)
    after    a row at a time:  stage M over i, stage S over i, then the result over i

Every reduction must belong to the same rows (the outer ranges), so that nothing is computed twice.
Ranges of equal sizes become one: a common part of two stages is then one value, and can be held
from one stage to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from ugpu.compiler.expression import elementary as ops
from ugpu.compiler.expression.accumulate import replace
from ugpu.compiler.expression.algebra import Range, constant
from ugpu.compiler.expression.computation import Computation, elements
from ugpu.compiler.expression.lookup import looked_up_in, reduces
from ugpu.compiler.expression.once import once
from ugpu.compiler.expression.value import (
    Memory,
    Value,
    load,
    own_indices,
    rebuild,
    substitute,
    walk,
)
from ugpu.compiler.pattern import cost
from ugpu.compiler.pattern.contraction import is_product


@dataclass(frozen=True)
class Stage:
    """A reduction over a row. body: over `ranges`; earlier results are loads of their totals."""

    operation: str
    ranges: tuple[Range, ...]
    body: Value
    total: Memory


@dataclass(frozen=True)
class Chain:
    """Stages in order, then `result` for every element of the inner ranges.

    outer: the ranges that count rows; inner: the other ranges of the output, () if a row has one
    result. similar: stages and result over the same ranges have the same ranges.
    """

    outer: tuple[Range, ...]
    inner: tuple[Range, ...]
    stages: tuple[Stage, ...]
    result: Value

    @property
    def rows(self) -> int:
        return elements(self.outer)

    @property
    def length(self) -> int:
        """Return the number of elements of the longest pass over a row."""
        return max(elements(self.inner), *(elements(stage.ranges) for stage in self.stages))

    def passes(self) -> list[tuple[tuple[Range, ...], Value]]:
        """Return the ranges and the value of each pass over a row, the result's last."""
        return [*((s.ranges, s.body) for s in self.stages), (self.inner, self.result)]


@once
def find_chain(computation: Computation) -> Chain | None:
    """Return the chain in a computation; None if its reductions do not belong to the same rows, or
    if there is only one and each row has one result."""
    rows = _rows(computation)
    if rows is None:
        return None
    inner = tuple(r for r in computation.ranges if r not in rows)
    reductions = computation.reductions
    if len(reductions) < 2 and not inner:
        return None
    if any(is_product(reduce, computation.ranges) for reduce in reductions):
        return None  # not one result after the other
    outer = tuple(r for r in computation.ranges if r in rows)
    known: list[tuple[Range, ...]] = [inner]
    stages: dict[Value, Stage] = {}

    def change(node: Value, sources: tuple[Value, ...]) -> Value | None:
        if node.op != "reduce":
            return None
        operation, over = node.arg
        ranges = alike(over, known)
        places = {old: new.index() for old, new in zip(over, ranges, strict=True) if old != new}
        body = substitute(sources[0], places)
        found = next(
            (s for s in stages.values() if s.body is body and s.operation == operation), None
        )
        if found is None:
            total = Memory(f"total{len(stages)}", node.dtype, 1, "register")
            found = stages[node] = Stage(operation, ranges, body, total)
        return load(found.total, constant(0))

    result = rebuild(computation.value, change)
    return Chain(outer, inner, tuple(stages.values()), result)


def single(computation: Computation) -> Chain:
    """Return the only reduction as a chain of one stage, whose rows have one result each."""
    reduce = computation.reduction
    assert reduce is not None
    (operation, over), (body,) = reduce.arg, reduce.sources
    total = Memory("total", reduce.dtype, 1, "register")
    result = replace(computation.value, reduce, load(total, constant(0)))
    return Chain(computation.ranges, (), (Stage(operation, over, body, total),), result)


def _rows(computation: Computation) -> frozenset[Range] | None:
    """Return the output ranges that every reduction depends on, if each depends on the same."""
    free = free_ranges(computation.value)
    if free is None:
        return None
    found = {free[id(node)] for node in walk(computation.value) if node.op == "reduce"}
    if len(found) != 1:
        return None
    rows = found.pop()
    return rows if rows <= frozenset(computation.ranges) else None


def free_ranges(root: Value) -> dict[int, frozenset[Range]] | None:
    """Return by id the ranges that each value depends on, without those it is reduced over. None if
    an index depends on a reduction: such a place in memory is known too late."""
    free: dict[int, frozenset[Range]] = {}
    for node in walk(root):
        used: frozenset[Range] = frozenset().union(*[free[id(source)] for source in node.sources])
        for index in own_indices(node):
            used |= index.ranges()
        if any(map(reduces, looked_up_in(node))):
            return None
        free[id(node)] = used - frozenset(node.arg[1]) if node.op == "reduce" else used
    return free


def alike(over: tuple[Range, ...], known: list[tuple[Range, ...]]) -> tuple[Range, ...]:
    """Return known ranges of these sizes; otherwise these, which are known from now on."""
    sizes = tuple(r.size for r in over)
    for ranges in known:
        if tuple(r.size for r in ranges) == sizes:
            return ranges
    known.append(over)
    return over


def in_step(chain: Chain) -> bool:
    """Return whether all passes read each large memory in the same direction: passes that read rows
    where another reads columns should be separate."""
    size = chain.rows * chain.length
    along: dict[Memory, set[bool]] = {}
    for ranges, root in chain.passes():
        for node in walk(root):
            if node.op == "load" and node.arg.memory.count >= size and ranges:
                unit = node.arg.index.coefficient(ranges[-1]) in (1, -1)
                along.setdefault(node.arg.memory, set()).add(unit)
    return all(len(directions) == 1 for directions in along.values())


@dataclass(frozen=True)
class Held:
    """A value of every element of a row that pass number `made` computes, and later ones use."""

    value: Value
    made: int
    cost: float  # of computing it again, in additions


def held_values(chain: Chain, loads: bool) -> list[Held]:
    """Return the values worth holding from one pass over a row to the next, the most expensive
    first, and so each before those it is made of. loads: include values read from memory."""
    passes = chain.passes()
    first: dict[tuple[tuple[Range, ...], int], int] = {}
    found: dict[int, Held] = {}
    for number, (ranges, root) in enumerate(passes):
        price = _prices(root, frozenset(ranges))
        stack = [root] if number else []
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            if id(node) in seen or id(node) not in price:
                continue
            seen.add(id(node))
            made = first.get((ranges, id(node)))
            if made is None:
                stack += node.sources
            elif cost.hold(price[id(node)]) or (loads and price[id(node)] >= 0):
                found.setdefault(id(node), Held(node, made, price[id(node)]))
        for key in price:
            first.setdefault((ranges, key), number)
    depths: dict[int, int] = {}
    for held in found.values():
        for node in walk(held.value):
            below = [depths[id(source)] for source in node.sources]
            depths[id(node)] = 1 + max(below, default=0)
    # of equal costs, a value comes before those that it is made of
    return sorted(found.values(), key=lambda held: (-held.cost, -depths[id(held.value)]))


def _prices(root: Value, ranges: frozenset[Range]) -> dict[int, float]:
    """Return by id the cost of computing each value that differs along the ranges, its operands
    included."""
    prices: dict[int, float] = {}
    for node in walk(root):
        own = any(not ranges.isdisjoint(index.ranges()) for index in own_indices(node))
        sources = [prices[id(s)] for s in node.sources if id(s) in prices]
        if own or sources:
            prices[id(node)] = ops.cost(node) + sum(sources)
    return prices
