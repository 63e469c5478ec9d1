"""What queues, programs, proofs and reports of failures use of their driver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ugpu.nv.packets.holder import LaunchHolder

if TYPE_CHECKING:
    from ugpu.hcq.errors import UgpuError
    from ugpu.hcq.state.memory import Placement
    from ugpu.nv.packets.families import Family
    from ugpu.nv.rm.channel import ChannelError
    from ugpu.nv.rm.shared_data import SharedData
    from ugpu.nv.work.programs import Programs
    from ugpu.nv.work.queue import ChannelQueue


class FaultReports(Protocol):
    """What the parts use of nv.failure.faults.Faults."""

    def explain(self, queue: ChannelQueue, error: ChannelError) -> UgpuError: ...


class WorkHolder(LaunchHolder):
    """A holder that has queues and programs."""

    family: Family
    compute_class: int  # its number
    carveouts: tuple[int, ...]  # bytes of shared memory that a multiprocessor can set aside
    dynamic_stack: int  # bytes per thread for recursion and alloca, in programs loaded from now on
    command_placement: Placement  # of rings and images
    looks: int  # polls of timelines by waiters since the last submission
    unboosted: bool  # at rest
    debugger: int  # the object that reports faults of our channels; 0 without one
    shared_data: SharedData | None  # samples of clocks and power, once sensors were requested
    programs: Programs
    faults: FaultReports

    @property
    @abstractmethod
    def compute_queue(self) -> ChannelQueue: ...

    @property
    @abstractmethod
    def copy_queue(self) -> ChannelQueue: ...

    @abstractmethod
    def all_queues(self) -> Sequence[ChannelQueue]: ...

    @abstractmethod
    def setup_words(self, queue: ChannelQueue) -> list[int]:
        """Methods that a new channel starts with."""

    @abstractmethod
    def rebuild(self, queue: ChannelQueue) -> None:
        """Free a queue's channel and create a new one."""
