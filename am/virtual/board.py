"""The board below the blocks: what each block finds, and how blocks reach each other.

`Board` holds what belongs to no block: facts, the lock, registers, time, VRAM, host memory, and
objections. Blocks know each other by the ports here alone; `Chip` makes them and plugs them in.
"""

from __future__ import annotations

import copy
import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from am.chips.facts import ChipFacts
from am.regs import load
from am.virtual.bus.dma import DmaPool, Iommu
from am.virtual.memory.access import Fault
from am.virtual.memory.tlb import Caches
from am.virtual.memory.vram import Vram
from am.virtual.objections import Level, Objections
from am.virtual.options import ChipOptions
from am.virtual.registers import RegisterSpace
from am.virtual.scheduler import Scheduler
from am.virtual.shader import ShaderMemory
from hcq.clock import ModelClock
from hcq.culprit import Culprits
from hcq.emu.memory import Access

# Name of a register table in the space -> block of the discovery table.
TABLES = {
    "mp": "MP0",
    "osssys": "OSSSYS",
    "hdp": "HDP",
    "mmhub": "MMHUB",
    "athub": "ATHUB",
    "gc": "GC",
    "smuio": "SMUIO",
    "thm": "THM",
    "nbio": "NBIF",
}


class DoorbellTarget(Protocol):
    """An engine that listens to doorbells."""

    def doorbell(self, dword: int, value: int) -> bool:
        """Take a write of the 64-bit `value` at this dword of BAR2; False if no queue matches.

        Called with the board's lock held, at each write; a pair of 32-bit writes makes two calls.
        """
        ...


class EnginePort(DoorbellTarget, Protocol):
    """An engine in the graphics core's domain of power."""

    def busy(self) -> bool:
        """Return whether some queue has work, or hangs. The board's lock is held."""
        ...


class CutMemory(ShaderMemory, Protocol):
    """Memory of one VMID; cut: the waves of an aborted launch no longer reach it."""

    cut: bool


class HubPort(Protocol):
    """A memory hub, for the clients behind it. `client` is who asks, as faults report it."""

    @property
    def chip(self) -> Board:
        """The board, whose lock holds what `pieces` gave in place."""
        ...

    def read(self, vmid: int, address: int, size: int, client: int) -> tuple[bytes, Fault | None]:
        """Read memory; what faulted reads as zeros, what the bus refuses as ones."""
        ...

    def write(
        self, vmid: int, address: int, data: bytes | bytearray | memoryview, client: int
    ) -> Fault | None:
        """Write memory; what faulted or was refused vanishes."""
        ...

    def pieces(
        self, vmid: int, address: int, size: int, access: Access, client: int
    ) -> tuple[list[tuple[int, int]], Fault | None]:
        """Translate [address, address + size) into (host address, bytes) runs; 0: it faulted."""
        ...

    def mapped(self, vmid: int, address: int, size: int) -> int:
        """Return how many of the bytes from `address` on are mapped; faults nowhere."""
        ...

    def shader_memory(self, vmid: int) -> CutMemory:
        """One VMID as the shader cores see it; the same object each time."""
        ...

    @property
    def caches(self) -> Caches:
        """Return the hub's cached page-table entries."""
        ...

    def frame_buffer(self) -> tuple[int, int]:
        """Return the MC addresses of VRAM: first, and the one past the last."""
        ...


class InterruptPort(DoorbellTarget, Protocol):
    """The interrupt handler, for blocks that report."""

    def raise_interrupt(
        self,
        client: int,
        source: int,
        ring_id: int = 0,
        vmid: int = 0,
        data: Sequence[int] = (0, 0, 0, 0),
        *,
        vmid_source: int = 0,
    ) -> None:
        """Write an entry of up to four dwords and interrupt."""
        ...


class HostPathPort(Protocol):
    """The host data path: writes wait until they are flushed."""

    @property
    def waits(self) -> bool:
        """Return whether writes are pending."""
        ...

    def read(self, address: int, size: int) -> bytes:
        """Read VRAM as the host does."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write VRAM as the host does."""
        ...

    def flush(self) -> None:
        """Flush what waits, as a register asks for it."""
        ...

    def drain(self) -> None:
        """Let what waits reach VRAM."""
        ...


class LoadPort(Protocol):
    """Load of the engines."""

    def working(self) -> AbstractContextManager[None]:
        """Count as work what happens meanwhile."""
        ...


class MetricsPort(Protocol):
    """Measurements of the power manager."""

    @property
    def load(self) -> LoadPort:
        """The load of the engines."""
        ...


class GraphicsPort(Protocol):
    """Power of the graphics core."""

    def ring(self, unit: str) -> None:
        """A doorbell of a unit in its domain was rung."""
        ...


class PowerPort(Protocol):
    """The power manager. features: those enabled, one bit each."""

    features: int

    @property
    def graphics(self) -> GraphicsPort:
        """Return the power of the graphics core."""
        ...

    @property
    def metrics(self) -> MetricsPort:
        """Return the power manager's measurements."""
        ...

    def start(self) -> None:
        """Run: its firmware was accepted."""
        ...


class SecurityPort(Protocol):
    """The security processor."""

    @property
    def loaded(self) -> set[str]:
        """Kinds of firmware that it accepted."""
        ...

    def forget_graphics(self) -> None:
        """The graphics core was reset: it starts again with its first firmware."""
        ...


class ConfigPort(Protocol):
    """Permissions of the function in configuration space."""

    memory_enabled: bool
    bus_master: bool


class Board(ABC):
    """The board that connects the blocks. See `Chip` for what is open to tests and transports.

    mm, gc, ih, hdp, smu, psp, config: ports of blocks, there when all are made. gfx, sdma: set by
    the engines' `install`. tmr: offsets in VRAM, first and one past the last. msi: set by the
    attached transport. clock: what drivers wait by; threads of the model tell it that they are at
    work.
    """

    config: ConfigPort
    mm: HubPort
    gc: HubPort
    ih: InterruptPort
    hdp: HostPathPort
    smu: PowerPort
    psp: SecurityPort

    def __init__(self, facts: ChipFacts, options: ChipOptions | None = None) -> None:
        self.facts = facts
        self.options = (options or ChipOptions()).on(facts)
        self.faults = copy.deepcopy(self.options.faults)
        self.lock = threading.RLock()
        self.objections = Objections()
        self.violations, self.notes = self.objections.violations, self.objections.notes
        self.culprits = Culprits()
        self.lost = False
        self.tmr: tuple[int, int] | None = None
        self.msi: Callable[[], None] | None = None
        self.gfx: EnginePort | None = None
        self.sdma: list[EnginePort] = []
        self.memory_changed: Callable[[], None] = lambda: None  # wakes engines that poll memory
        self._blackout = False
        self.scheduler = Scheduler(self.lock, self.options.seed, manual=self.options.manual_time)
        self.clock = ModelClock()
        self.clock.plays(self.scheduler)
        bases = facts.generation.typical_bases
        self.space = RegisterSpace(
            {
                name: (load(facts.table(block)), bases[block])
                for name, block in TABLES.items()
                if block in facts.versions
            },
            self.objections,
        )
        self.vram = Vram(self.options.vram, shared=self.options.shared_vram)
        self.iommu = Iommu(self.options.seed)
        self.dma = DmaPool(self.iommu, self.revoked)

    # ---- what blocks cause ---------------------------------------------------------------------

    @abstractmethod
    def mode2_reset(self) -> None:
        """Reset the graphics core and the copy engines; memory and the other blocks stay."""

    @abstractmethod
    def mode1_reset(self) -> None:
        """Reset all but the bus interface: registers are dark for a while, then IFWI runs."""

    @abstractmethod
    def bus_reset(self) -> None:
        """FLR or secondary bus reset."""

    @abstractmethod
    def autoload(self) -> None:
        """RLC starts GFX: its registers can be written from now on, and know where VRAM is."""

    @abstractmethod
    def revoked(self, host: int, size: int) -> None:
        """Forget translations: host memory was taken from the card."""

    # ---- objections ---------------------------------------------------------------------------

    def fault(self, text: str, *, reported: bool = False) -> None:
        """Record what a board fails at; the caller does the same. See Objections.record."""
        self.objections.record(Level.FAULT, text, reported=reported)

    def violation(self, text: str) -> None:
        """Record what boards forgive; the caller goes on."""
        self.objections.record(Level.VIOLATION, text)

    def note(self, text: str) -> None:
        """Record what boards accept, and the kernel's driver does not do."""
        self.objections.record(Level.NOTE, text)

    @property
    def dark(self) -> bool:
        """Return whether registers and memory do not answer because of a reset in progress."""
        return self._blackout

    # ---- the host side: DMA and interrupts ----------------------------------------------------

    def dma_piece(self, bus: int, size: int) -> tuple[int, int] | None:
        """Translate a bus address: (host address, bytes in one piece); None if nothing answers."""
        if self.lost:
            return None
        if not self.config.bus_master:
            self.fault(f"DMA to {bus:#x} with bus mastering off")
            return None
        found = None if self.faults.dma_refused else self.iommu.translate(bus, size)
        if found is None:
            self.fault(f"DMA to {bus:#x}: the IOMMU refuses")
        return found

    def dma_read(self, bus: int, size: int) -> bytes:
        """Read host memory; ones where nothing answers."""
        parts = []
        while size > 0:
            found = self.dma_piece(bus, size)
            if found is None:
                parts.append(b"\xff" * size)
                break
            parts.append(ctypes.string_at(found[0], found[1]))
            bus, size = bus + found[1], size - found[1]
        return b"".join(parts)

    def dma_write(self, bus: int, data: bytes) -> None:
        """Write host memory; what nothing answers for vanishes."""
        while data:
            found = self.dma_piece(bus, len(data))
            if found is None:
                return
            ctypes.memmove(found[0], data[: found[1]], found[1])
            bus, data = bus + found[1], data[found[1] :]

    def dma_host_address(self, bus: int) -> int | None:
        """Return where a bus address lies in this process, or None."""
        found = self.dma_piece(bus, 1)
        return None if found is None else found[0]

    def map_dma(self, bus: int, size: int, host: int | None) -> None:
        """Map memory owned by another object, at `host` in this process, for the card; None: at an
        unsupported address, so that its engines are refused."""
        with self.lock:
            self.iommu.add(bus, size, host)

    def unmap_dma(self, bus: int, size: int) -> None:
        """Take back what `map_dma` gave, by the same addresses."""
        with self.lock:
            self.iommu.remove(bus)
            self.revoked(0, size)

    def signal_msi(self) -> None:
        """Send the interrupt message; it is a write by the card, so bus mastering must be on."""
        if self.lost or self.faults.interrupts_lost:
            return
        if not self.config.bus_master:
            self.fault("MSI with bus mastering off")
        elif self.msi is not None:
            self.msi()

    # ---- protected memory ---------------------------------------------------------------------

    def is_protected(self, address: int, size: int) -> bool:
        """Return whether a range of VRAM touches the trusted memory region."""
        tmr = self.tmr
        return tmr is not None and address < tmr[1] and tmr[0] < address + size
