"""A program with msm's render node open, as seen by its calls; `msm.node.MsmNode` is its file."""

from __future__ import annotations

from typing import Protocol

from ugpu.virtual.adreno.msm.queue import MsmQueue
from ugpu.virtual.adreno.program import Program


class MsmProgram(Program, Protocol):
    """See Program. named: handles that the running submission lists. faults: of the address space.
    queues: by number."""

    named: frozenset[int]
    faults: int
    queues: dict[int, MsmQueue]

    @property
    def va_size(self) -> int:
        """The bytes of the address space."""
        ...
