"""The MEC, its queues and their slots, as seen by each other; the classes themselves are above.

`MecState` is the MEC for its slots and queues, `RunningQueue` a queue for its executor, and
`QueueSlot` a slot for its queue and for those that map queues. Locks are as in each class.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ugpu.hcq.registers.fields import RegisterMap, RegisterValue
from ugpu.virtual.amd.block import Block
from ugpu.virtual.amd.engines.cp.dispatch import Launcher, ShRegisters
from ugpu.virtual.amd.engines.cp.pm4.surroundings import Surroundings
from ugpu.virtual.amd.engines.engine import MemoryWritten, Worker
from ugpu.virtual.amd.engines.shaders import ShaderArray
from ugpu.virtual.shader.memory import Abort

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board


DEQUEUE_S = 60e-6  # from a request to CP_HQD_ACTIVE = 0


class Kind(enum.IntEnum):
    """Kinds of queue that can be mapped; the first three have the scheduler's numbers."""

    GRAPHICS = 0
    COMPUTE = 1
    SDMA = 2
    SCHEDULER = 3


@dataclass(frozen=True)
class GraphicsDescriptor:
    """Dwords of a graphics queue's descriptor; addresses have two."""

    base: int
    vmid: int
    ring: int
    rptr: int
    rptr_address: int
    doorbell: int
    control: int
    wptr: int


@dataclass(frozen=True)
class DescriptorLayout:
    """Queue descriptors in memory (MQD), in dwords.

    header: the first one of a compute queue's descriptor. first_hqd, last_hqd: dwords that mirror
    the registers from CP_MQD_BASE_ADDR on. compute: dwords that hold a queue's compute registers,
    which CP loads when it connects the queue; registers that each dispatch sets are omitted.
    power_on: the queue's registers at power-on.
    """

    header: int
    dwords: int
    first_hqd: int
    last_hqd: int
    rptr: int
    wptr: int
    compute: Mapping[str, int]
    power_on: Mapping[str, int]
    graphics: GraphicsDescriptor


class Runner(Protocol):
    """Interpreter of a ring's words: PM4 packets, or frames of the MES."""

    consumed: int  # dwords read from the ring; never wraps
    stale: str  # the event since which shader caches may be stale; "" if they are not
    depth: int  # 1 inside an indirect buffer

    def run(self, words: Sequence[int]) -> int:
        """Execute the complete packets; see Executor.run."""
        ...


class MappableSlot(Protocol):
    """A slot of any engine to which KIQ and MES map queues."""

    @property
    def active(self) -> object | None:
        """The queue in the slot."""
        ...

    def doorbell_dword(self) -> int:
        """Return the dword index of the doorbell, or -1 if the queue has none."""
        ...

    def map(self, mqd: int, wptr: int, vmid: int = 0) -> None:
        """Activate a descriptor's queue in `vmid`; both addresses are in VMID 0."""
        ...

    def unmap(self, *, reset: bool) -> None:
        """Unmap the queue: drained, or with `reset` at once."""
        ...


class Unit(Protocol):
    """The engine whose pipes serve queues: MEC, MES or the graphics engine."""

    name: str
    needs_eop: bool  # its queues have a buffer for end-of-pipe events

    def running(self, pipe: int) -> bool:
        """Return whether the pipe executes its firmware."""
        ...

    def executor(self, queue: RunningQueue) -> Runner:
        """Create the executor that runs the packets of a queue of this unit."""
        ...

    def interrupt_control(self, pipe: int) -> str:
        """Return the name of the register that enables a pipe's interrupts; "" if it has none."""
        ...


class QueueSlot(MappableSlot, Protocol):
    """A slot of the command processor. ring_id: the slot's id in interrupt entries.

    sh: registers 0x2C00..0x2FFF of its queue.
    """

    me: int
    pipe: int
    queue: int
    ring_id: int
    name: str
    sh: list[int]

    @property
    def unit(self) -> Unit:
        """The engine that serves the slot."""
        ...

    def running(self) -> bool:
        """Return whether the slot's pipe executes its firmware."""
        ...

    def executor(self, queue: RunningQueue) -> Runner:
        """Create the executor that runs the packets of the slot's queue."""
        ...

    def connect(self) -> None:
        """Load the compute state from the MQD when the queue's first work arrives."""
        ...

    def error(self, field: str) -> None:
        """Report a failed access of the queue."""
        ...

    def drained(self, queue: RunningQueue) -> None:
        """Finish the removal of a queue that its thread has drained."""
        ...


class RunningQueue(Surroundings, Protocol):
    """A queue in a slot, as seen by its executor and by the MEC's interrupts."""

    worker: Worker
    abort: Abort

    @property
    def mec(self) -> MecState:
        """The MEC of the queue."""
        ...

    @property
    def slot(self) -> QueueSlot:
        """The slot of the queue."""
        ...


class Autoload(Protocol):
    """State of the RLC. booted: it has started all graphics firmware. safe: it is in safe mode."""

    booted: bool
    safe: bool


class CopyEngine(Protocol):
    """A copy engine, to whose slots the scheduler maps queues."""

    @property
    def slots(self) -> Sequence[MappableSlot]:
        """The queue slots."""
        ...


class GraphicsCore(Protocol):
    """What the MEC shares with the graphics core. select: the value of GRBM_GFX_CNTL."""

    select: RegisterValue
    table: RegisterMap

    @property
    def chip(self) -> Board:
        """The card."""
        ...

    @property
    def rlc(self) -> Autoload:
        """The run-list controller."""
        ...

    @property
    def sdma(self) -> Sequence[CopyEngine]:
        """The copy engines."""
        ...

    def sh_mem(self, vmid: int, name: str) -> int:
        """Return the value of a per-VMID register for any VMID."""
        ...


class MecState(Block, ABC):
    """Registers, launches and reports of the MEC; `cp.mec.Mec` is the MEC itself."""

    def __init__(
        self,
        gfx: GraphicsCore,
        array: ShaderArray,
        layout: DescriptorLayout,
        launcher: Callable[[ShRegisters, int], Launcher],
    ) -> None:
        super().__init__(gfx.chip, "gc")
        self.gfx = gfx
        self.array = array
        self.layout = layout
        self.memory_written = MemoryWritten()
        self.sh_registers = ShRegisters.of(gfx.table)
        self.launcher = launcher(self.sh_registers, self.chip.facts.board.vector_registers)

    def later(self, callback: Callable[[], None]) -> None:
        """Schedule a firmware action that completes a moment after its request."""
        self.chip.scheduler.after(DEQUEUE_S, callback)

    def rlc_ready(self) -> bool:
        """Return whether the RLC has loaded the CP's firmware."""
        return self.gfx.rlc.booted

    def polls(self) -> bool:
        """Return whether write pointers are polled from memory."""
        return bool(self.get("CP_PQ_WPTR_POLL_CNTL") >> 31)

    def apertures(self, vmid: int) -> tuple[int, int]:
        """Return the LDS and scratch apertures of a VMID (SH_MEM_BASES)."""
        bases = self.gfx.sh_mem(vmid, "SH_MEM_BASES")
        return (bases >> 16) << 48, (bases & 0xFFFF) << 48

    def copy_slots(self) -> list[Sequence[MappableSlot]]:
        """Return the slots of each copy engine."""
        return [engine.slots for engine in self.gfx.sdma]

    @abstractmethod
    def slots_of(self) -> Mapping[Kind, Sequence[Sequence[QueueSlot]]]:
        """Return the slots of the command processor by kind of queue, then by pipe."""

    @abstractmethod
    def rival(self, slot: QueueSlot) -> str | None:
        """Return the name of another active slot that shares the doorbell of `slot`."""

    @abstractmethod
    def retire(self, queue: RunningQueue) -> None:
        """Keep a queue that has left its slot until its thread has ended."""

    @abstractmethod
    def drained(self, queue: RunningQueue) -> None:
        """Handle the end of a drain, reported by the queue's thread."""

    @abstractmethod
    def interrupt(self, queue: RunningQueue, source: int, enable: str, data: int) -> None:
        """Raise a CP interrupt if the queue's pipe enables it."""
