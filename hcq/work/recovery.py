"""The report of a reset: what was tried, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.hcq.state.ladder import Attempt, Diagnosis, Level, outcome
from ugpu.hcq.state.memory import Placement

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.queue import HardwareQueue


@dataclass(frozen=True)
class Recovery:
    """The report of `Device.reset`.

    Attributes:
        diagnosis: of the failure.
        attempts: every rung, in order; the last one worked.
        restarted: queues that were set up again; work in flight on any other queue continued.
        failed: queues affected by the failure; empty if unknown.
        lost_placements: kinds of memory that lost their content.
        lost: the buffers that lost it; all others kept it.
    """

    diagnosis: Diagnosis
    attempts: tuple[Attempt, ...]
    restarted: tuple[HardwareQueue, ...]
    failed: tuple[HardwareQueue, ...] = ()
    lost_placements: frozenset[Placement] = frozenset()
    lost: tuple[Buffer, ...] = ()

    @property
    def memory_lost(self) -> bool:
        """Return whether memory lost its content."""
        return bool(self.lost_placements)

    @property
    def level(self) -> Level:
        """The level of the rung that worked."""
        return self.attempts[-1].level

    def __str__(self) -> str:
        queues = ", ".join(queue.name for queue in self.restarted)
        text = f"{outcome(self.attempts)}; set up again: {queues or 'no queue'}"
        if self.memory_lost:
            text += f"; {len(self.lost)} buffers lost their content"
        return text
