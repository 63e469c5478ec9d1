"""Plan of a run, cached by content: kernels, their inputs, and when memory becomes free.

before: nodes of the tensor graph. after: a Plan whose places name the nodes of one walk over the
graph, so that it is valid for every graph of the same structure, independent of the data.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ugpu.compiler.graph.node import Node, form_of, stored_as
from ugpu.compiler.graph.operations import KINDS, in_host_memory
from ugpu.compiler.plan.arrange import arrange
from ugpu.compiler.plan.attention import PartGroup
from ugpu.compiler.plan.packing import Derived
from ugpu.compiler.plan.sizes import round_up
from ugpu.compiler.schedule.calls import CallGroup, body_of, live_results
from ugpu.compiler.schedule.group import Group
from ugpu.compiler.schedule.hazards import in_place, inside
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.state.text import table

Structure = tuple[Any, ...]  # nested tuples: ops, types, shapes, arguments, places of sources


@dataclass(frozen=True)
class Step:
    """A kernel to run. root, inputs: places of nodes. size: bytes of the result. hosted: results
    that are in host memory. starts: for each input, the byte at which the kernel reads it from;
    empty if that is 0 for all."""

    key: tuple[Any, ...]  # Group.key
    root: int
    inputs: tuple[int, ...]
    size: int
    target: int | None = None  # place of the value whose memory it writes into; possibly its own
    others: tuple[tuple[int, int], ...] = ()  # further results: place, and bytes
    over: tuple[tuple[int, int], ...] = ()  # results, and the inputs whose memory they are in
    hosted: frozenset[int] = frozenset()
    starts: tuple[int, ...] = ()

    @property
    def results(self) -> tuple[int, ...]:
        return (self.root, *(place for place, _ in self.others))


@dataclass(frozen=True)
class Plan:
    """Steps in an order in which they can run. empty: places of results without elements."""

    steps: tuple[Step, ...]
    empty: tuple[int, ...]
    last_use: dict[int, int]  # place of a result to the last step that reads it


def structure(
    roots: Sequence[Node], leaves: Set[int] = frozenset()
) -> tuple[Structure, list[Node]]:
    """Return the structure of the roots' computation, and the nodes by place, sources first. Equal
    structures have equal plans. leaves: ids of nodes treated as stored. A call includes all of its
    referenced results."""
    places: dict[int, int] = {}
    nodes: list[Node] = []
    key: list[Any] = []
    stack = list(roots[::-1])
    while stack:
        node = stack.pop()
        if id(node) in places:
            continue
        while node.storage is None and id(node) not in leaves:
            sources = node.sources
            if len(sources) == 1:  # most nodes: follow the chain down
                (source,) = sources
                place = places.get(id(source))
                if place is None:
                    stack.append(node)
                    node = source
                    continue
                found: tuple[int, ...] = (place,)
            else:
                missing = [source for source in sources if id(source) not in places]
                if missing:
                    stack.append(node)
                    stack += missing[:0:-1]
                    node = missing[0]
                    continue
                found = tuple([places[id(source)] for source in sources])
            op, arg = node.op, node.arg
            if op == "call":
                live = live_results(node)
                key.append((op, body_of(node), tuple([each[0] for each in live]), found))
            else:
                if KINDS[op].numbers:
                    arg = repr(arg)
                key.append((op, node.dtype.name, node.shape, arg, found))
            break
        else:
            key.append((node.dtype.name, form_of(node)))
        places[id(node)] = len(nodes)
        nodes.append(node)
        if node.op == "call":
            for _, result in live:
                places[id(result)] = len(nodes)
                nodes.append(result)
                key.append(None)
    key.append(tuple([places[id(root)] for root in roots]))
    return tuple(key), nodes


def make_plan(
    groups: Sequence[Group], nodes: Sequence[Node], target: TargetSpec | None = None
) -> Plan:
    """Return the plan of a schedule; `nodes` as from `structure`. It refers to no node. Values
    between the kernels of a call or of an attention in parts, and packed arrays, have places above
    those of the nodes. target: that the schedule was arranged for (compiler.plan.arrange), if
    any."""
    places = {id(node): place for place, node in enumerate(nodes)}
    steps: list[Step] = []
    empty: list[int] = []
    count = len(nodes)
    for group in groups:
        if isinstance(group, PartGroup) and not group.joins:
            for node in group.roots:
                places[id(node)] = count
                count += 1
        if isinstance(group, Derived) and group.own:
            places[id(group.root)] = count
            count += 1
        place = places[id(group.root)]
        if isinstance(group, CallGroup):
            inner, there = _called(group, places, count, target)
            count += len(there)
            steps += (_moved(step, there) for step in inner.plan.steps)
            empty += (there[each] for each in inner.plan.empty)
        elif not group.root.size:
            empty.append(place)
        else:
            steps.append(_step(group, place, places))
    return Plan(tuple(steps), tuple(empty), last_uses(steps))


def last_uses(steps: Sequence[Step]) -> dict[int, int]:
    """Return by place of a value made or read the last step that makes or reads it."""
    last_use: dict[int, int] = {}
    for number, step in enumerate(steps):
        last_use[step.root] = number
        for place, _ in step.others:
            last_use[place] = number
        for place in step.inputs:
            last_use[place] = number
        if step.target is not None:
            last_use[step.target] = number
    return last_use


def _step(group: Group, place: int, places: Mapping[int, int]) -> Step:
    inputs = tuple(places[id(node)] for node in group.sources)
    others = tuple((places[id(node)], node.size * node.dtype.itemsize) for node in group.others)
    size = group.root.size * group.root.dtype.itemsize
    target = None
    if group.in_place:
        target = place if group.stage else places[id(group.root.sources[0])]
    roots = (group.root, *group.others)
    hosted = frozenset([places[id(node)] for node in roots if in_host_memory(node)])
    over = tuple([
        (places[id(node)], places[id(old)])
        for node, old in zip(roots, group.over, strict=False) if old is not None
    ])  # fmt: skip
    return Step(group.key, place, inputs, size, target, others, over, hosted, group.starts)


# ---- calls of nested functions -----------------------------------------------------------------


@dataclass(frozen=True)
class BodyPlan:
    """Plan of a nested function for some of its results. kernels: one group for each step. Its
    places are those of the body's nodes, and above those."""

    groups: tuple[Group, ...]  # inner calls are CallGroups
    kernels: tuple[Group, ...]
    plan: Plan


def body_plan(group: CallGroup, target: TargetSpec | None = None) -> BodyPlan:
    """Return the plan, cached by the requested results, what may be overwritten, and the target."""
    body = group.body
    found = body.plans.get((group.numbers, group.granted, target))
    if found is None:
        roots = [body.roots[number] for number in group.numbers]
        groups = arrange(roots, inside(body, roots, group.granted), target)
        plan = make_plan(groups, body.nodes, target)
        found = BodyPlan(tuple(groups), kernels(groups, target), plan)
        body.plans[group.numbers, group.granted, target] = found
    assert isinstance(found, BodyPlan)
    return found


def kernels(groups: Sequence[Group], target: TargetSpec | None = None) -> tuple[Group, ...]:
    """Return the kernels of a schedule, calls included: one for each step of its plan."""
    found: list[Group] = []
    for group in groups:
        if isinstance(group, CallGroup):
            found += body_plan(group, target).kernels
        elif group.root.size:
            found.append(group)
    return tuple(found)


def _called(
    group: CallGroup, places: Mapping[int, int], count: int, target: TargetSpec | None
) -> tuple[BodyPlan, dict[int, int]]:
    """Return the plan of a call, and its places outside: new ones start at `count`."""
    inner, body = body_plan(group, target), group.body
    there: dict[int, int] = {}
    own = {id(node): place for place, node in enumerate(body.nodes)}
    for parameter, source in zip(body.parameters, group.inputs, strict=True):
        there[own[id(parameter)]] = places[id(source)]
    for number, result in zip(group.numbers, group.roots, strict=True):
        there[own[id(body.roots[number])]] = places[id(result)]
    for step in inner.plan.steps:
        for place in step.results:
            there.setdefault(place, count + len(there))
    for place in inner.plan.empty:
        there.setdefault(place, count + len(there))
    return inner, there


def _moved(step: Step, there: Mapping[int, int]) -> Step:
    return Step(
        step.key,
        there[step.root],
        tuple([there[place] for place in step.inputs]),
        step.size,
        None if step.target is None else there[step.target],
        tuple([(there[place], size) for place, size in step.others]),
        tuple([(there[result], there[old]) for result, old in step.over]),
        frozenset([there[place] for place in step.hosted]),
        step.starts,
    )


# ---- memory ------------------------------------------------------------------------------------


def wanted_later(plan: Plan, roots: Sequence[Node], nodes: list[Node]) -> set[int]:
    """Return the places of results that can still be requested after the run: the roots, and nodes
    with references besides this graph's (counted by the interpreter, so that none is missed)."""
    kept = {id(root) for root in roots}
    inside: dict[int, int] = {}
    for node in nodes:
        if node.storage is None:
            for source in node.sources:
                inside[id(source)] = inside.get(id(source), 0) + 1
    wanted: set[int] = set()
    for place in [place for step in plan.steps for place in step.results]:
        if place >= len(nodes):  # inside a call
            continue
        key = id(nodes[place])
        # references besides those of inner nodes: `nodes`, and the argument of getrefcount
        outside = sys.getrefcount(nodes[place]) - inside.get(key, 0) - 2
        if key in kept or outside > 0:
            wanted.add(place)
    return wanted


@dataclass(frozen=True)
class MemoryPlan:
    """Memory and kernels of a run. Bytes, as the pool rounds them.

    Attributes:
        peak: the maximum at any time, without memory stored already.
        results: bytes that stay.
        kernels: how many run.
    """

    peak: int
    results: int
    kernels: int

    def _repr_html_(self) -> str:
        return table("Memory of a run", {
            "peak": f"{self.peak} bytes", "results": f"{self.results} bytes",
            "kernels": self.kernels,
        })  # fmt: skip


def memory_plan(roots: Sequence[Node], target: TargetSpec | None = None) -> MemoryPlan:
    """Plan the roots without allocating or compiling anything."""
    roots = [base for root in roots if (base := stored_as(root)).storage is None]
    _, nodes = structure(roots)
    plan = make_plan(arrange(roots, in_place(nodes, roots), target), nodes, target)
    wanted = wanted_later(plan, roots, nodes)
    sizes = {step.root: round_up(step.size) for step in plan.steps if step.target is None}
    sizes |= {place: round_up(size) for step in plan.steps for place, size in step.others}
    sizes |= {place: 0 for step in plan.steps for place in step.hosted}
    sizes |= {place: 0 for step in plan.steps for place, _ in step.over}
    kept = sum(round_up(0) for _ in plan.empty)
    peak = kept
    spare: Counter[int] = Counter()  # by size class, as in compiler.runtime
    for number, step in enumerate(plan.steps):
        for result in step.results if step.target is None else ():
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
