"""The command processor, as seen by its packets; `cp.processor.CommandProcessor` executes them."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from ugpu.hcq.errors import NotSupported
from ugpu.qcom.regs import constants, load
from ugpu.virtual.adreno.cp.registers import RegisterState
from ugpu.virtual.adreno.faults import Cause, GpuFault, PageFault
from ugpu.virtual.adreno.memory.objects import MemoryObject
from ugpu.virtual.adreno.memory.space import AddressSpace
from ugpu.virtual.adreno.planted import Planted
from ugpu.virtual.adreno.state import MachineState
from ugpu.virtual.shader.memory import Abort


class Ring(Protocol):
    """The GPU's ring, as seen by the submission that it runs.

    abort: ends the dispatch. processing: whether the shader processors run a dispatch.
    """

    abort: Abort
    processing: bool

    @property
    def halts_at_page_faults(self) -> bool:
        """Whether a page fault ends the running submission."""
        ...

    def note_faults(self, faults: Sequence[PageFault]) -> None:
        """Log page faults that do not halt the GPU."""
        ...

    def poll_memory(self, limit_s: float) -> bool:
        """Wait briefly for memory to change; False once the submission counts as hung."""
        ...


class ProcessorState(ABC):
    """Registers and memory of one submission. indirect: the current dispatch reads its grid from
    memory."""

    def __init__(self, machine: MachineState, space: AddressSpace, engine: Ring) -> None:
        self.machine = machine
        self.space = space
        self.engine = engine
        generation = machine.facts.generation
        self.packets = load(f"a{generation}xx_packets")
        self.codes = constants(f"a{generation}xx")
        self.registers = RegisterState(machine.facts, machine.violate)
        self.indirect = False
        self._scratch: list[MemoryObject] = []
        self._loses_store = machine.take(Planted.LOST_SIGNAL)
        self._last_store: tuple[int, bytes] | None = None

    @abstractmethod
    def wait_for_idle(self) -> None:
        """Run the pending dispatches."""

    def gap(self, what: str, at: int) -> GpuFault:
        """Return the fault for a feature that hardware has and the model lacks: it ends the
        submission and names the feature."""
        self.machine.gaps.append(NotSupported(f"the virtual Adreno does not model {what}"))
        return GpuFault(Cause.NOT_MODELLED, what, at)

    def words(self, address: int, count: int) -> list[int]:
        """Read words of memory."""
        return list(struct.unpack(f"<{count}I", self.space.read(address, 4 * count)))

    def store(self, address: int, data: bytes) -> None:
        """Write memory; where the last store is to be lost, each store is delayed until the
        next."""
        if not self._loses_store:
            self.space.write(address, data)
            return
        if self._last_store is not None:
            self.space.write(*self._last_store)
        self._last_store = address, data

    def scratch(self, offset: int, words: list[int]) -> int:
        """Copy on-chip state to memory allocated until `close`; return its address."""
        machine, size = self.machine, offset + 4 * len(words)
        with machine.lock:
            at = machine.memory.allocate(size)
            found = MemoryObject(0, size, 0, at, machine.memory.address + at, cached=False)
            self.space.place(found, 1, low=False)
            self._scratch.append(found)
        self.space.write(found.gpuaddr + offset, struct.pack(f"<{len(words)}I", *words))
        return found.gpuaddr

    def close(self) -> None:
        """End the submission: publish its writes, free the memory of on-chip state."""
        self.space.publish()
        with self.machine.lock:
            for found in self._scratch:
                self.space.remove(found)
                self.machine.memory.free(found.offset)
            self._scratch = []
