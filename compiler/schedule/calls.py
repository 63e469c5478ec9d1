"""Calls of nested functions among the kernels of a schedule.

A call has a place in the order like a kernel: it reads its arguments, which are stored, and
computes its results. The inside is planned once for each body (compiler.plan.plan), by the
requested results and by the arguments that may be overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ugpu.compiler.graph.call import Body, Call
from ugpu.compiler.graph.node import Node
from ugpu.compiler.schedule.group import Group


@dataclass(frozen=True)
class CallGroup(Group):
    """A call: `root` and `others` are the referenced results, `inputs` the arguments.
    numbers: those of the results. granted: parameters whose memory it may write into."""

    call: Node = field(kw_only=True)
    numbers: tuple[int, ...] = field(kw_only=True)
    granted: frozenset[int] = field(kw_only=True)

    @property
    def body(self) -> Body:
        return body_of(self.call)


def body_of(call: Node) -> Body:
    """Return the function body that a call node calls."""
    called = call.arg
    assert isinstance(called, Call)
    return called.body


def live_results(call: Node) -> list[tuple[int, Node]]:
    """Return the results to be computed: number, and node."""
    called = call.arg
    assert isinstance(called, Call)
    return called.live()


def make_call_group(call: Node, granted: frozenset[int]) -> CallGroup:
    """Return the group that runs a call. granted: parameters whose memory it may write."""
    numbers, results = zip(*live_results(call), strict=True)
    key = ("call", body_of(call).number, numbers, granted)
    first, *others = results
    return CallGroup(
        first, call.sources, key, False, tuple(others), call=call, numbers=numbers, granted=granted
    )


def calls(groups: Sequence[Group]) -> Iterator[CallGroup]:
    """Yield the calls among groups."""
    return (group for group in groups if isinstance(group, CallGroup))
