"""What queues, programs, proofs and reports of failures use of their driver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.qcom.kernel_driver.holder import Holder

if TYPE_CHECKING:
    from ugpu.hcq.work.timeline import Timeline
    from ugpu.qcom.chips.facts import ChipFacts
    from ugpu.qcom.packets.encode import Encoder
    from ugpu.qcom.work.programs import Programs
    from ugpu.qcom.work.queue import AdrenoQueue, Dispatcher


class WorkHolder(Holder):
    """A holder that has queues and programs."""

    facts: ChipFacts
    encoder: Encoder
    dispatcher: Dispatcher  # submits the segments of both queues
    programs: Programs
    probe: Timeline  # of proofs
    looks: int  # polls of timelines by waiters since the last submission

    @abstractmethod
    def all_queues(self) -> Sequence[AdrenoQueue]: ...

    @abstractmethod
    def find(self, address: int) -> str:
        """Describe where an address is relative to the memory in use."""

    @abstractmethod
    def rebuild(self) -> None:
        """Create a new context; the work of the old one is lost, and the queues are empty."""
