"""What proofs, cleaners and reports of failures use of their driver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.nv.work.programs import ProgramsHolder

if TYPE_CHECKING:
    from ugpu.nv.rm.shared_data import SharedData
    from ugpu.nv.work.programs import Programs
    from ugpu.nv.work.queue import ChannelQueue


class WorkHolder(ProgramsHolder):
    """A holder that has queues and programs."""

    programs: Programs
    debugger: int  # the object that reports faults of our channels; 0 without one
    shared_data: SharedData | None  # samples of clocks and power, once sensors were requested

    @abstractmethod
    def all_queues(self) -> Sequence[ChannelQueue]: ...

    @abstractmethod
    def rebuild(self, queue: ChannelQueue) -> None:
        """Free a queue's channel and create a new one."""
