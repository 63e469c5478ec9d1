"""What a run will do, found again by content: kernels, what each reads, when memory is free again.

before: nodes of the tensor graph. after: a Plan whose places name the nodes of one walk over the
graph, so that it serves every graph of the same structure, whatever its data.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compiler.graph.node import Node
from compiler.memory_pool import round_up
from compiler.schedule.group import Group
from compiler.schedule.grouping import schedule
from compiler.schedule.hazards import in_place

Structure = tuple[Any, ...]  # nested tuples: ops, types, shapes, arguments, places of sources


@dataclass(frozen=True)
class Step:
    """A kernel to run. root, inputs: places of nodes. size: bytes of the result."""

    key: tuple[Any, ...]  # Group.key
    root: int
    inputs: tuple[int, ...]
    size: int
    target: int | None = None  # place of the value whose memory it writes into
    others: tuple[tuple[int, int], ...] = ()  # further results: place, and bytes

    @property
    def results(self) -> tuple[int, ...]:
        return (self.root, *(place for place, _ in self.others))


@dataclass(frozen=True)
class Plan:
    """Steps in an order they can run in. empty: places of results without elements."""

    steps: tuple[Step, ...]
    empty: tuple[int, ...]
    last_use: dict[int, int]  # place of a result to the last step that reads it


def structure(roots: Sequence[Node]) -> tuple[Structure, list[Node]]:
    """What the roots compute, and the nodes by place, sources first. Equal structures have equal
    plans."""
    places: dict[int, int] = {}
    nodes: list[Node] = []
    key: list[Any] = []
    stack = list(roots[::-1])
    while stack:
        node = stack[-1]
        if id(node) in places:
            stack.pop()
            continue
        if node.storage is not None:
            key.append((node.dtype.name, node.shape))
        else:
            sources = node.sources
            missing = [source for source in sources if id(source) not in places]
            if missing:
                stack += missing[::-1]
                continue
            arg = repr(node.arg) if node.op in ("const", "pad") else node.arg
            found = tuple([places[id(source)] for source in sources])
            key.append((node.op, node.dtype.name, node.shape, arg, found))
        stack.pop()
        places[id(node)] = len(nodes)
        nodes.append(node)
    key.append(tuple([places[id(root)] for root in roots]))
    return tuple(key), nodes


def make_plan(groups: Sequence[Group], nodes: Sequence[Node]) -> Plan:
    """The plan of a schedule; `nodes` as from `structure`. Refers to no node."""
    places = {id(node): place for place, node in enumerate(nodes)}
    steps: list[Step] = []
    empty: list[int] = []
    last_use: dict[int, int] = {}
    for group in groups:
        place = places[id(group.root)]
        if not group.root.size:
            empty.append(place)
            continue
        inputs = tuple(places[id(node)] for node in group.inputs)
        others = tuple((places[id(node)], node.size * node.dtype.itemsize) for node in group.others)
        for each in (place, *inputs, *(other for other, _ in others)):
            last_use[each] = len(steps)
        size = group.root.size * group.root.dtype.itemsize
        target = None
        if group.in_place:
            target = places[id(group.root.sources[0])]
            last_use[target] = len(steps)
        steps.append(Step(group.key, place, inputs, size, target, others))
    return Plan(tuple(steps), tuple(empty), last_use)


def wanted_later(plan: Plan, roots: Sequence[Node], nodes: list[Node]) -> set[int]:
    """Places of results that somebody can still ask for after the run: the roots, and nodes that
    more refers to than this graph (counted by the interpreter, so that nothing is missed)."""
    kept = {id(root) for root in roots}
    inside: dict[int, int] = {}
    for node in nodes:
        if node.storage is None:
            for source in node.sources:
                inside[id(source)] = inside.get(id(source), 0) + 1
    wanted: set[int] = set()
    for place in [place for step in plan.steps for place in step.results]:
        key = id(nodes[place])
        # besides the sources inside: `nodes`, and the argument of getrefcount
        outside = sys.getrefcount(nodes[place]) - inside.get(key, 0) - 2
        if key in kept or outside > 0:
            wanted.add(place)
    return wanted


@dataclass(frozen=True)
class MemoryPlan:
    """What a run takes. Bytes, as the pool rounds them: `results` stay, `peak` is the most at any
    time besides what is stored already. kernels: how many run."""

    peak: int
    results: int
    kernels: int


def memory_plan(roots: Sequence[Node]) -> MemoryPlan:
    """Plan the roots without allocating or compiling anything."""
    roots = [root for root in roots if root.storage is None]
    _, nodes = structure(roots)
    plan = make_plan(schedule(roots, in_place(nodes, roots)), nodes)
    wanted = wanted_later(plan, roots, nodes)
    sizes = {step.root: round_up(step.size) for step in plan.steps if step.target is None}
    sizes |= {place: round_up(size) for step in plan.steps for place, size in step.others}
    kept = sum(round_up(0) for _ in plan.empty)
    peak = kept
    spare: Counter[int] = Counter()  # by size class, as in compiler.runtime
    for number, step in enumerate(plan.steps):
        if step.target is not None:
            continue
        for result in step.results:
            size = sizes[result]
            if spare[size]:
                spare[size] -= 1
            else:
                peak += size
            kept += size if result in wanted else 0
        for place in step.inputs:
            own = sizes.get(place)
            if own is not None and plan.last_use[place] == number and place not in wanted:
                spare[own] += 1
    return MemoryPlan(peak, kept, len(plan.steps))
