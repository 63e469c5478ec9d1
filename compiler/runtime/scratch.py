"""Memory for what the kernels of a run compute.

Values between kernels use each other's memory: in a recording, which keeps its memory, as
compiler.plan.layout places them; otherwise where sizes are of one class.
"""

from __future__ import annotations

from collections.abc import Set

from ugpu.compiler.plan.layout import Layout, layout
from ugpu.compiler.plan.plan import Plan, Step
from ugpu.compiler.plan.sizes import round_up
from ugpu.compiler.runtime.memory_pool import MemoryPool, Part, Storage
from ugpu.hcq.state.memory import Placement


class Scratch:
    """The memory of one run. wanted: places of the values that are read after the run; None if all
    are. recorded: whether the run is replayed."""

    def __init__(
        self, pool: MemoryPool, plan: Plan, wanted: Set[int] | None, recorded: bool
    ) -> None:
        self.pool = pool
        self.layout = layout(plan, wanted) if recorded and wanted is not None else Layout()
        self.whole = pool.take(self.layout.size) if self.layout.size else None
        self.spare: dict[int, list[Storage]] = {}  # by size class: free for later results

    def take(self, step: Step, place: int, size: int) -> Storage:
        """Return memory for a result of a step."""
        if place in step.hosted:
            return self.pool.placed(Placement.HOST).take(size)
        start = self.layout.offsets.get(place)
        if start is not None and self.whole is not None:
            return Part(self.whole, start, size)
        free = self.spare.get(round_up(size))
        storage = free.pop() if free else self.pool.take(size)
        storage.size = size
        return storage

    def end(self, storage: Storage) -> None:
        """Use the memory of a value that nothing reads any more for later results."""
        if storage.pool.placement is Placement.DEVICE and not isinstance(storage, Part):
            self.spare.setdefault(round_up(storage.size), []).append(storage)
