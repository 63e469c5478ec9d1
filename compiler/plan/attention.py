"""Split attention of few rows and many keys into two kernels, so that all of a GPU has work: see
compiler.plan.online_parts. The decision depends on the target, so it is applied to a finished
schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ugpu.compiler.dtype import float32
from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.expression.once import once
from ugpu.compiler.expression.value import interning
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.attention.gpu import pieces_of
from ugpu.compiler.pattern.online import find_online
from ugpu.compiler.plan.online_parts import InParts, in_parts
from ugpu.compiler.schedule.calls import CallGroup
from ugpu.compiler.schedule.express import express
from ugpu.compiler.schedule.group import Group
from ugpu.hcq.state.target import TargetSpec

KNOWN = 4096  # cached answers; beyond this all are discarded
_known: dict[tuple[Any, ...], tuple[int, int, int, tuple[int, ...]]] = {}


@dataclass(frozen=True)
class PartGroup(Group):
    """One of the kernels of an attention: that of its parts, or of their join. The parts' results
    are nodes that are in no graph."""

    whole: Group = field(kw_only=True)
    pieces: int = field(kw_only=True)
    joins: bool = field(kw_only=True)


def computed(group: Group) -> Computation:
    """Return the computation of a group of a schedule."""
    if not isinstance(group, PartGroup):
        return express(group)
    found = _in_parts(express(group.whole), group.pieces)
    return found.join if group.joins else found.parts


def share_out(groups: Sequence[Group], target: TargetSpec | None) -> list[Group]:
    """Return the schedule with attentions shared among a target's groups where that pays."""
    if target is None or target.abi == "host":
        return list(groups)
    found: list[Group] = []
    for group in groups:
        found += _shared(group, target)
    return found


def _shared(group: Group, target: TargetSpec) -> list[Group]:
    if isinstance(group, CallGroup) or group.in_place or group.others or not _may_be(group):
        return [group]
    key = (group.key, target)
    found = _known.get(key)
    if found is None:
        if len(_known) >= KNOWN:
            _known.clear()
        with interning:
            found = _known[key] = _decide(group, target)
    pieces, outputs, count, read = found
    if pieces < 2:
        return [group]
    made = [Node("contiguous", float32, (count,)) for _ in range(outputs)]
    inputs = (*made, *(group.inputs[place] for place in read))
    sources = (*made, *(group.sources[place] for place in read))
    return [
        PartGroup(
            made[0], group.inputs, (("parts", pieces), *group.key), False, tuple(made[1:]),
            bases=group.bases, whole=group, pieces=pieces, joins=False,
        ),
        PartGroup(
            group.root, inputs, (("join", pieces), *group.key),
            bases=sources, whole=group, pieces=pieces, joins=True,
        ),
    ]  # fmt: skip


def _may_be(group: Group) -> bool:
    """Return whether a group has as many reductions as an attention."""
    return sum(1 for entry in group.key if entry[0] == "reduce") >= 4


def _decide(group: Group, target: TargetSpec) -> tuple[int, int, int, tuple[int, ...]]:
    """Return the number of parts; the number of their results, and elements of each; the inputs
    that the join reads."""
    computation = express(group)
    online = find_online(computation)
    pieces = 1 if online is None else pieces_of(online, target)
    if pieces < 2:
        return 1, 0, 0, ()
    found = _in_parts(computation, pieces)
    outputs = len(found.parts.outputs)
    read = [computation.inputs.index(memory) for memory in found.join.inputs[outputs:]]
    return pieces, outputs, found.count, tuple(read)


@once
def _in_parts(computation: Computation, pieces: int) -> InParts:
    online = find_online(computation)
    assert online is not None
    return in_parts(computation, online, pieces)
