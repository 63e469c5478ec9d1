"""Plans that have run for what a recipe made, to be run again in few steps.

A program that has read much memory finds none of the interpreter in its caches: each object and
each function on the way to the device then costs microseconds, so there are few.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from compiler.explain import watching
from compiler.graph.node import Node, Repeated
from compiler.graph.recipe import Recipe
from compiler.memory_pool import MemoryPool, Storage
from compiler.replay.recording import under_way
from compiler.schedule.plan import Plan
from compiler.search.tune import tuners
from hcq.command import CommandBuffer
from hcq.device import Device
from hcq.queue import QueueKind

SCRATCH = 64 << 10  # bytes at most that a plan may keep for its intermediate results


class Script:
    """What submitting a plan again takes. lock: of the runtime whose plan it is.

    Its intermediate results have memory of their own for good: runs on one queue follow each other.
    """

    def __init__(
        self, plan: Plan, prepared: CommandBuffer, pool: MemoryPool, lock: threading.RLock
    ) -> None:
        steps = plan.steps
        self.device = pool.device
        self.pool = pool
        self.lock = lock
        self.size = steps[-1].size
        self.scratch = {step.root: pool.take(step.size) for step in steps[:-1]}
        self.next: Storage | None = None  # memory for the next result
        addresses: list[int] = []
        sources: list[int] = []  # where among them the source's is
        for step in steps:
            for place in (step.root, *step.inputs):
                if place == 0:
                    sources.append(len(addresses))
                held = self.scratch.get(place)
                addresses.append(0 if held is None else held.address)
        results = [len(addresses) - 1 - len(steps[-1].inputs)]
        queue = pool.device.hardware_queues(QueueKind.COMPUTE)[0]
        self.repetition = queue.repetition(prepared, addresses, results, sources)

    @staticmethod
    def fits(plan: Plan, nodes: Sequence[Node], recipe: Recipe) -> bool:
        """Whether there is nothing else about a plan: `nodes` are the source and the chain's."""
        plain = all(step.target is None and not step.others for step in plan.steps)
        small = sum(step.size for step in plan.steps[:-1]) <= SCRATCH
        return plain and small and not plan.empty and len(nodes) == 1 + recipe.length

    def run(self, root: Node, device: Device) -> bool:
        """Compute a root that its recipe made; False where that takes a closer look."""
        if device is not self.device or not isinstance(root, Repeated):
            return False
        if watching or tuners or under_way:
            return False
        with self.lock:
            source = root.source
            stored = None if source is None else source.storage
            if not isinstance(stored, Storage) or device.capturing is not None:
                return False  # computed; or somebody asked how it is; or the source is lost
            result, self.next = self.next or self.pool.take(self.size), None
            self.repetition.submit(result.address, stored.address)
            root.settle(result)
            if self.size <= SCRATCH:  # the next one's, while the device is at work
                self.next = self.pool.take(self.size)
        return True
