"""An SDMA engine, as seen by its queues and their slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from ugpu.hcq.registers.fields import RegisterValue
from ugpu.virtual.amd.block import Block
from ugpu.virtual.amd.engines.engine import MemoryWritten, Worker
from ugpu.virtual.amd.engines.sdma.packets import CopyPackets

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board


class Threaded(Protocol):
    """A queue with a thread of its own."""

    worker: Worker


class SlotState(Protocol):
    """A queue's slot: its number, registers and objections."""

    number: int

    @property
    def engine(self) -> EngineState:
        """The engine of the slot."""
        ...

    def value(self, name: str) -> RegisterValue:
        """Return a register of this slot with its fields."""
        ...

    def flag(self, text: str) -> None:
        """Record a violation: an access that boards tolerate."""
        ...

    def fault(self, text: str) -> None:
        """Record a fault: an access that fails on a board."""
        ...


class EngineState(Block, ABC):
    """Registers, reports and interrupts of an engine; `sdma.engine.Sdma` is the engine itself."""

    def __init__(
        self, chip: Board, instance: int, memory_written: MemoryWritten, packets: CopyPackets
    ) -> None:
        super().__init__(chip, "gc")
        self.packets = packets
        self.memory_written = memory_written
        self.instance = instance
        self.client = 13 + instance  # client of the graphics hub (Linux 6.12 gfxhub_v3_0.c)

    def value(self, name: str) -> RegisterValue:
        """Return a register of this engine with its fields."""
        return self.fields(f"SDMA{self.instance}_{name}")

    def flag(self, text: str) -> None:
        """Record a violation: an access that boards tolerate."""
        self.chip.violation(f"SDMA{self.instance}: {text}")

    def fault(self, text: str) -> None:
        """Record a fault: an access that fails on a board."""
        self.chip.fault(f"SDMA{self.instance}: {text}")

    @abstractmethod
    def running(self) -> bool:
        """Return whether the engine executes its firmware."""

    @abstractmethod
    def rival(self, slot: int) -> int | None:
        """Return the number of another enabled slot that shares the doorbell of `slot`."""

    @abstractmethod
    def retire(self, queue: Threaded) -> None:
        """Keep a queue that has left its slot until its thread has ended."""

    @abstractmethod
    def interrupt(
        self, source: int, vmid: int, data: tuple[int, int, int, int], queue: int = 0
    ) -> None:
        """Raise an interrupt entry: ring_id has the queue in [3:0], the instance in [7:4]."""

    @abstractmethod
    def hung(self, slot: int) -> None:
        """Report that the slot's queue stopped at a bad packet, and schedule its watchdog."""
