"""Plans that have run for a recipe's result, prepared to run again in few steps.

After a program has read much memory, nothing of the interpreter is in its caches: each object and
each function on the way to the device then costs microseconds, so there are few of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from operator import attrgetter

from ugpu.compiler.graph.node import ByValue, Node, Recipe, Repeated
from ugpu.compiler.graph.recipe import references
from ugpu.compiler.plan.plan import Plan
from ugpu.compiler.runtime.kernels.tuners import tuners
from ugpu.compiler.runtime.memory_pool import MemoryPool, Storage
from ugpu.compiler.runtime.recording import under_way
from ugpu.compiler.runtime.watch import watchers
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.queue import QueueKind

_storage = attrgetter("storage")
SCRATCH = 64 << 10  # maximum bytes that a plan may keep for its intermediate results


class Script:
    """Data needed to submit a plan again. sources: places of the recipe's sources in the plan.
    own: the references that a chain's inner nodes have if nothing else reads them. lock: of the
    runtime that owns the plan. numbers: words of the recipe's numbers, by place.

    Its intermediate results keep their memory permanently: runs on one queue follow each other.
    """

    def __init__(
        self,
        plan: Plan,
        prepared: CommandBuffer,
        sources: Sequence[int],
        own: Sequence[int],
        pool: MemoryPool,
        lock: threading.RLock,
        numbers: Mapping[int, int],
    ) -> None:
        steps = plan.steps
        self.device = pool.device
        self.pool = pool
        self.lock = lock
        self.size = steps[-1].size
        self.scratch = {step.root: pool.take(step.size) for step in steps[:-1]}
        # a plan of one kernel stores its result alone, whatever else reads an intermediate value
        self.own = own if len(steps) > 1 else None
        self.next: Storage | None = None  # memory for the next result
        addresses: list[int] = []
        slots: list[list[int]] = [[] for _ in sources]  # where each source's address is
        moved: dict[tuple[int, int], list[int]] = {}  # the same of a source's byte
        for step in steps:
            starts = step.starts or (0,) * len(step.inputs)
            for place, start in zip((step.root, *step.inputs), (0, *starts), strict=True):
                if place in sources:
                    number = sources.index(place)
                    of = moved.setdefault((number, start), []) if start else slots[number]
                    of.append(len(addresses))
                held = self.scratch.get(place)
                addresses.append(numbers.get(place, 0) if held is None else held.address + start)
        result = len(addresses) - 1 - len(steps[-1].inputs)
        self.moved = tuple(moved)
        queue = pool.core.driver.hardware_queues(QueueKind.COMPUTE)[0]
        self.repetition = queue.repetition(prepared, addresses, [[result], *slots, *moved.values()])

    @staticmethod
    def fits(plan: Plan, nodes: int, recipe: Recipe) -> bool:
        """Return whether a plan has no other parts: it is one for the sources and the recipe's
        nodes. nodes: their number in the plan."""
        plain = all(step.target is None and not (step.others or step.hosted) for step in plan.steps)
        small = sum(step.size for step in plan.steps[:-1]) <= SCRATCH
        alone = nodes == recipe.sources + recipe.length
        return plain and small and alone and bool(plan.steps) and not plan.empty

    def run(self, root: Node, device: Device) -> bool:
        """Compute a root that its recipe made; return False if a full analysis is needed."""
        if device is not self.device or not isinstance(root, Repeated):
            return False
        if watchers or tuners or under_way:
            return False
        with self.lock:
            given = root.given
            if not given or self.pool.core.capturing is not None:
                return False  # it is computed, or its graph has been built
            if root.inner and not self._applies(root.inner):
                return False
            numbers = []
            for source in given:
                stored = source.storage
                if isinstance(stored, Storage):
                    numbers.append(stored.address)
                elif isinstance(stored, ByValue):
                    numbers.append(stored.word)
                else:
                    return False
            numbers += [numbers[number] + start for number, start in self.moved]
            result, self.next = self.next or self.pool.take(self.size), None
            self.repetition.submit(result.address, *numbers)
            if self.repetition.at_once and root.recipe is not None:
                root.recipe.long = False  # no thread needs to be woken for it
            root.settle(result)
            if self.size <= SCRATCH:  # memory for the next result, while the device is working
                self.next = self.pool.take(self.size)
        return True

    def _applies(self, inner: Sequence[Node]) -> bool:
        """Return whether the inner nodes of a chain are not stored, and need not be."""
        if self.own is not None and references(inner) != self.own:
            return False
        return not any(map(_storage, inner))
