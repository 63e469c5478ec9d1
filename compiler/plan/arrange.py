"""The schedule of a run for a target: kernels by the general rules, then the target's changes:
attention in parts, products of packed factors."""

from __future__ import annotations

from collections.abc import Sequence

from ugpu.compiler.graph.node import Node
from ugpu.compiler.plan.attention import share_out
from ugpu.compiler.plan.packing import Judge, nobody, packed
from ugpu.compiler.schedule.group import Group
from ugpu.compiler.schedule.grouping import schedule
from ugpu.compiler.schedule.hazards import NONE, InPlace
from ugpu.hcq.state.target import TargetSpec


def arrange(
    roots: Sequence[Node],
    in_place: InPlace = NONE,
    target: TargetSpec | None = None,
    judge: Judge = nobody,
) -> list[Group]:
    """Return the kernels that compute the roots, and calls, in an order in which they can run.
    target: None for the general rules only. judge: decides which products are to be packed."""
    groups = share_out(schedule(roots, in_place), target)
    return groups if target is None else packed(groups, target, roots, judge)
