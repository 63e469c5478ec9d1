"""The memory in which one cluster runs: contexts, shared and local memory, states of warps."""

from __future__ import annotations

import struct

from ugpu.virtual.nvidia.sm.runtime import layout
from ugpu.virtual.nvidia.sm.runtime.flights import async_layout
from ugpu.virtual.nvidia.sm.runtime.launch.grid import Grid
from ugpu.virtual.shader.threads.worker import aligned

_GUARD = 64  # bytes after shared and local memory that vector accesses may touch
_FLIGHT = -(-async_layout.SIZE // 64) * 64  # bytes a group


class _Room:
    """A growing buffer at a multiple of 64, and its address. It is zero at first. It keeps its
    content from one launch to the next, like shared memory on boards."""

    def __init__(self) -> None:
        self.content = aligned(0, 64)
        self.address = 0

    def need(self, size: int) -> bool:
        """Grow to at least `size` bytes; return whether the buffer was reallocated."""
        if len(self.content) >= size:
            return False
        content = aligned(size, 64)
        content[: len(self.content)] = self.content
        self.content = content
        self.address = int(self.content.ctypes.data)
        return True


class Slot:
    """Memory for one cluster at a time."""

    def __init__(self) -> None:
        self._contexts = _Room()
        self._shared = _Room()
        self._locals = _Room()
        self._states = _Room()
        self._flight = _Room()
        self.content = memoryview(b"").toreadonly()

    @property
    def context(self) -> int:
        """Address of the context of rank 0."""
        return self._contexts.address

    @property
    def size(self) -> int:
        """Bytes used by the slot."""
        rooms = self._contexts, self._shared, self._locals, self._states, self._flight
        return sum(len(room.content) for room in rooms)

    def put(self, form: str, offset: int, *values: int) -> None:
        """Write fields of the contexts; `form` is in struct's notation."""
        struct.pack_into(f"<{len(values)}{form}", self.content, offset, *values)

    def grow(self, groups: int, grid: Grid | None = None, state_size: int = 0,
             flies: bool = False) -> bool:  # fmt: skip
        """Allocate memory for clusters of `groups` groups; return whether the contexts are new."""
        new = self._contexts.need(groups * layout.CONTEXT_SIZE)
        if new:
            self.content = self._contexts.content.data
        if grid is not None:
            self._shared.need(groups * _stride(grid.shared_size))
            self._locals.need(groups * grid.local_size * layout.LANES * grid.warps + _GUARD)
            self._states.need(groups * state_size * grid.warps)
        if flies:
            self._flight.need(groups * _FLIGHT)
        return new

    def place(
        self, grid: Grid, template: memoryview, sm: int, state_size: int, flies: bool
    ) -> None:  # fmt: skip
        """Set up the contexts of a launch. template: the worker's first context. sm: number of the
        first group's multiprocessor; the next groups are on the next ones."""
        x, y, z = grid.cluster
        local = grid.local_size * layout.LANES * grid.warps
        shared = _stride(grid.shared_size)
        put, most = self.put, max(grid.launch.sm_count, 1)
        for rank in range(x * y * z):
            at = rank * layout.CONTEXT_SIZE
            if at or self.content is not template:
                self.content[at : at + layout.SPARE] = template[: layout.SPARE]
                steps = slice(layout.STEPS, layout.STEP + 8)
                self.content[at + steps.start : at + steps.stop] = template[steps]
                put("I", at + layout.RANK, rank)
            put("I", at + layout.BUDGET, layout.BUDGET_WHOLE)
            put("Q", at + layout.FIRST, self.context, self._shared.address, shared)
            put("Q", at + layout.BUSY, 0, 0)  # not busy, not moved, no next slot
            put("Q", at + layout.SHARED, self._shared.address + rank * shared)
            put("Q", at + layout.LOCALS, self._locals.address + rank * local)
            put("Q", at + layout.STATES, self._states.address + rank * state_size * grid.warps)
            put("Q", at + layout.FLIGHT, self._flight.address + rank * _FLIGHT if flies else 0)
            put("I", at + layout.SM, (sm + rank) % most)


def _stride(shared_size: int) -> int:
    """Return the bytes from one group's shared memory to the next."""
    return -(-(shared_size + _GUARD) // _GUARD) * _GUARD
