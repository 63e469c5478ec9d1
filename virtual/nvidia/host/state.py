"""What engines, host methods and time slices use of a channel; `host.channel` adds its ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ugpu.virtual.nvidia.engines.coherence import Scope
from ugpu.virtual.nvidia.memory.faults import Client, FaultAccess
from ugpu.virtual.nvidia.memory.physical import PAGE
from ugpu.virtual.nvidia.memory.space import AddressSpace
from ugpu.virtual.nvidia.sm_contract import Attention
from ugpu.virtual.nvidia.state import GpuState

# Bits of NV_CHRAM_CHANNEL (manuals/ampere/ga100/dev_runlist.ref.txt), as the model keeps them of
# Turing's channels too.
PBDMA_FAULTED, ENGINE_FAULTED = 1 << 4, 1 << 5


class Engine(Protocol):
    """An object of an engine's class on a channel; a subchannel selects it for methods."""

    class_id: int

    def method(self, address: int, value: int) -> None:
        """Execute one method, at a byte offset. Raises ChannelError, FaultError or Aborted."""
        ...

    def burst(self, address: int, words: tuple[int, ...]) -> None:
        """Execute consecutive methods, from `address` on."""
        ...

    def drain(self) -> None:
        """Finish all work that has been started."""
        ...

    def close(self) -> None:
        """Release the object; no work of the channel is running any more."""
        ...


class ChannelAttention(Attention):
    """Conditions that the running work of one channel checks.

    timed_out: its grid must end, because it has kept the engine for too long. preempted: its grid
    leaves the engine as well, not only its other work. stand_aside: gives the engine to the next
    group, and waits for the next slice or for the end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.timed_out = False
        self.preempted = False
        self.stand_aside: Callable[[], None] = lambda: None
        self._asked = False

    @property
    def aside(self) -> bool:
        return self._asked

    @aside.setter
    def aside(self, value: bool) -> None:
        self._asked = value
        self.in_grid_aside = value and self.preempted

    def clear(self) -> None:
        self.timed_out = False
        super().clear()

    def time_out(self) -> None:
        """End the running grid, as the kernel driver does after a context switch timeout."""
        self.timed_out = True
        self.set()

    def wait_aside(self) -> None:
        """Wait for the next slice."""
        self.stand_aside()


class ChannelState:
    """A channel's address space, its engine objects, and its barriers."""

    def __init__(self, gpu: GpuState, number: int, class_id: int, space: AddressSpace) -> None:
        self.gpu = gpu
        self.number = number
        self.class_id = class_id
        self.space = space
        self.engines: dict[int, Engine] = {}  # by class
        self.privileged = False  # may use physical addresses and invalidate translations
        self.runlist_engine = 0  # NV2080_ENGINE_TYPE, for its non-stall interrupt
        self.instance = self.subcontext = 0  # see memory.faults.Faulting
        self.stopped = False
        self.faulted = 0  # PBDMA_FAULTED or ENGINE_FAULTED while its fault may be served
        self.attention = ChannelAttention()
        self._last: Engine | None = None  # the engine of the last method

    @property
    def ending(self) -> bool:
        """Whether its grid must end."""
        return self.attention.ending or self.gpu.lost

    @property
    def may_replay(self) -> bool:
        """Whether its address space allows page faults."""
        return self.space.replayable

    def drain(self) -> None:
        """Finish all work that was submitted to the channel's engines."""
        for engine in list(self.engines.values()):  # RACE: the resource manager may bind another
            engine.drain()

    def wait_idle(self) -> None:
        """Wait for idle (WFI): for the engine to which the channel last sent methods. Others keep
        running, as dev_pbdma.ref.txt says of the graphics engine and the copy engine beside it."""
        if self._last is not None:
            self._last.drain()

    def system_barrier(self) -> None:
        """Record the barrier of a release with wait-for-idle, for the engine it waited for."""
        self.barrier(self._last, Scope.SYSTEM)

    # Visibility of writes, if it is checked (virtual.nvidia.engines.coherence)

    def barrier(self, engine: Engine | None, scope: Scope) -> None:
        """Record a barrier: an engine's earlier writes are visible in `scope` from now on."""
        coherence = self.gpu.machine.coherence
        if coherence is not None and engine is not None:
            coherence.barrier(engine, scope)

    def released(self, address: int, who: str) -> None:
        """Record the violations of a semaphore write that is about to happen."""
        coherence = self.gpu.machine.coherence
        if coherence is None:
            return
        for host, _ in self.space.runs(address, 4, FaultAccess.WRITE, Client.HOST):
            self.gpu.violations += coherence.released(
                list(self.engines.values()), f"{who} at {address:#x}", host // PAGE
            )
