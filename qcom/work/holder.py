"""What proofs, cleaners and reports of failures use of their driver."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from ugpu.qcom.work.queue import QueueHolder

if TYPE_CHECKING:
    from ugpu.hcq.work.timeline import Timeline
    from ugpu.qcom.work.programs import Programs


class WorkHolder(QueueHolder):
    """A holder that has programs."""

    programs: Programs
    probe: Timeline  # of proofs

    @abstractmethod
    def find(self, address: int) -> str:
        """Describe where an address is relative to the memory in use."""

    @abstractmethod
    def rebuild(self) -> None:
        """Create a new context; the work of the old one is lost, and the queues are empty."""
