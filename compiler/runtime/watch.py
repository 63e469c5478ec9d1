"""Registry of watchers of runs, and the timing of kernels: compiler.front.explain registers itself.

While a watcher is registered, the runtime submits every kernel alone, waits for it, and repeats it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ugpu.compiler.expression.computation import Computation
from ugpu.compiler.graph.node import Node
from ugpu.compiler.kernel.ir import Kernel
from ugpu.compiler.schedule.group import Group
from ugpu.hcq.state.target import TargetSpec

RUNS = 10  # timed runs of a kernel, after its first
SHARE_S = 0.05  # approximate seconds of all of them


@dataclass(frozen=True)
class Times:
    """Seconds. first: includes everything else that a first launch needs (translation, cold
    caches); best: of the others; runs: all of them."""

    first: float
    best: float
    runs: int


def measure(
    run: Callable[[Callable[[], float]], float], clock: Callable[[], float] = time.perf_counter
) -> Times:
    """Time `run` until the time limit, at least twice. run: takes the clock, and returns the
    seconds to count."""
    first = run(clock)
    begun = clock()
    best = run(clock)
    runs = 2
    while runs <= RUNS and clock() - begun < SHARE_S:
        best = min(best, run(clock))
        runs += 1
    return Times(first, best, runs)


@dataclass(frozen=True)
class Run:
    """A run before its submission. device: the device's name. groups: the schedule. nodes: the
    graph, sources first. lower: returns the kernel of a computation, with tuned choices."""

    device: str
    target: TargetSpec
    groups: Sequence[Group]
    nodes: Sequence[Node]
    lower: Callable[[Computation], Kernel]


Timed = Callable[[int, Times], None]  # receives the number of a kernel of the run, and its times


class Watcher(Protocol):
    """Receives every run, of all devices and threads."""

    def begins(self, run: Run) -> Timed:
        """Inspect a run before it is submitted; return a callback for the times of its kernels.
        The caller holds compiler.expression.value.interning."""


watchers: list[Watcher] = []
