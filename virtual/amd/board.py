"""The board that the blocks share, and the ports through which blocks call each other.

`Board` owns the state that belongs to no single block: facts, the lock, registers, time, VRAM, host
memory and objections. Blocks refer to each other only through the ports defined here. `Chip` builds
and connects them.
"""

from __future__ import annotations

import copy
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from ugpu.am.chips.facts import ChipFacts
from ugpu.am.regs import load
from ugpu.hcq.state.clock import ModelClock
from ugpu.hcq.state.instruction import Culprits
from ugpu.virtual.amd.memory.access import Fault
from ugpu.virtual.amd.memory.tlb import Caches
from ugpu.virtual.amd.memory.vram import Vram
from ugpu.virtual.amd.objections import Level, Objections
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.amd.registers import RegisterSpace
from ugpu.virtual.amd.scheduler import Scheduler
from ugpu.virtual.amd.shader import ShaderMemory
from ugpu.virtual.bus.dma import read_bus, write_bus
from ugpu.virtual.bus.master import BusMaster
from ugpu.virtual.shader.load import Load
from ugpu.virtual.shader.memory import Access

# Register table name in the register space -> block name in the discovery table.
TABLES = {
    "mp": "MP0",
    "mp1": "MP1",
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
    """An engine that receives doorbell writes."""

    def doorbell(self, dword: int, value: int) -> bool:
        """Handle a write of the 64-bit `value` at this dword of BAR2; False if no queue matches.

        Called once per write with the board's lock held; a pair of 32-bit writes makes two calls.
        """
        ...


class EnginePort(DoorbellTarget, Protocol):
    """An engine in the graphics core's power domain."""

    def busy(self) -> bool:
        """Return whether any queue has work or is hung. The board's lock is held."""
        ...


class CutMemory(ShaderMemory, Protocol):
    """Memory of one VMID. cut: True if waves of an aborted launch can no longer access it."""

    cut: bool


class HubPort(Protocol):
    """A memory hub, as used by its clients. `client` is the client id that faults report."""

    @property
    def chip(self) -> Board:
        """The board, whose lock keeps the addresses returned by `pieces` valid."""
        ...

    def read(self, vmid: int, address: int, size: int, client: int) -> tuple[bytes, Fault | None]:
        """Read memory; bytes that fault read as zeros, bytes that the bus refuses as ones."""
        ...

    def write(
        self, vmid: int, address: int, data: bytes | bytearray | memoryview, client: int
    ) -> Fault | None:
        """Write memory; bytes that fault or are refused are dropped."""
        ...

    def pieces(
        self, vmid: int, address: int, size: int, access: Access, client: int
    ) -> tuple[list[tuple[int, int]], Fault | None]:
        """Translate [address, address + size) into (host address, bytes) runs; 0: a faulted run."""
        ...

    def mapped(self, vmid: int, address: int, size: int) -> int:
        """Return how many bytes from `address` on are mapped, without raising a fault."""
        ...

    def shader_memory(self, vmid: int) -> CutMemory:
        """Return one VMID's memory as the shader cores see it; always the same object."""
        ...

    @property
    def caches(self) -> Caches:
        """Return the hub's cached page-table entries."""
        ...

    def frame_buffer(self) -> tuple[int, int]:
        """Return the MC address range of VRAM: the first address and the one past the last."""
        ...


class InterruptPort(DoorbellTarget, Protocol):
    """The interrupt handler, as used by blocks that raise interrupts."""

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
        """Write a ring entry with up to four data dwords, then raise the interrupt."""
        ...


class HostPathPort(Protocol):
    """The host data path, which buffers writes until they are flushed."""

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
        """Flush pending writes, as the flush register does."""
        ...

    def drain(self) -> None:
        """Write pending writes to VRAM."""
        ...


class MetricsPort(Protocol):
    """Measurements of the power manager."""

    @property
    def load(self) -> Load:
        """The load of the engines."""
        ...


class GraphicsPort(Protocol):
    """Power of the graphics core."""

    def ring(self, unit: str) -> None:
        """Report a doorbell write to `unit`, a unit in the graphics core's power domain."""
        ...


class PowerPort(Protocol):
    """The power manager. features: the enabled features, one bit each."""

    features: int

    @property
    def graphics(self) -> GraphicsPort:
        """Return the port for the graphics core's power."""
        ...

    @property
    def metrics(self) -> MetricsPort:
        """Return the power manager's measurements."""
        ...

    def start(self) -> None:
        """Start running; called when the PSP has accepted its firmware."""
        ...


class SecurityPort(Protocol):
    """The security processor."""

    @property
    def loaded(self) -> set[str]:
        """The kinds of firmware that the security processor has accepted."""
        ...

    def forget_graphics(self) -> None:
        """Handle a graphics core reset: firmware loading starts again from the first image."""
        ...


class Board(BusMaster):
    """The board that connects the blocks. See `Chip` for the API for tests and transports.

    mm, gc, ih, hdp, smu, psp, config: ports of blocks, set once every block is built. gfx, sdma:
    set by the engines' `install`. tmr: VRAM offsets of the trusted memory region, the first and one
    past the last. msi: set by the attached transport. clock: the clock that drivers use for waits;
    the model's threads report to it while they are working.
    """

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
        super().__init__(self.options.seed)
        self.objections = Objections()
        self.violations, self.notes = self.objections.violations, self.objections.notes
        self.culprits = Culprits()
        self.tmr: tuple[int, int] | None = None
        self.gfx: EnginePort | None = None
        self.sdma: list[EnginePort] = []
        self.memory_changed: Callable[[], None] = lambda: None  # wakes engines that poll memory
        self._blackout = False
        self.scheduler = Scheduler(self.lock, self.options.seed, manual=self.options.manual_time)
        self.clock = ModelClock()
        self.clock.track(self.scheduler)
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

    # ---- actions that blocks trigger -----------------------------------------------------------

    @abstractmethod
    def mode2_reset(self) -> None:
        """Reset the graphics core and the copy engines; keep memory and the other blocks."""

    @abstractmethod
    def mode1_reset(self) -> None:
        """Reset all but the bus interface: registers stop answering for a while, then IFWI runs."""

    @abstractmethod
    def bus_reset(self) -> None:
        """Perform a function-level reset (FLR) or secondary bus reset."""

    @abstractmethod
    def autoload(self) -> None:
        """Start GFX through the RLC: enable writes to its registers and set its VRAM location."""

    # ---- objections ---------------------------------------------------------------------------

    def fault(self, text: str, *, reported: bool = False) -> None:
        """Record an access that fails on a board; the caller makes it fail too.

        For `reported` see Objections.record.
        """
        self.objections.record(Level.FAULT, text, reported=reported)

    def refused(self, text: str) -> None:
        """See BusMaster."""
        self.fault(text)

    def violation(self, text: str) -> None:
        """Record an access that boards tolerate; the caller continues."""
        self.objections.record(Level.VIOLATION, text)

    def note(self, text: str) -> None:
        """Record an access that boards accept but the kernel's driver does not make."""
        self.objections.record(Level.NOTE, text)

    @property
    def dark(self) -> bool:
        """Return whether a reset in progress keeps registers and memory from answering."""
        return self._blackout

    # ---- the host side: DMA and interrupts ----------------------------------------------------

    def _mapped(self, bus: int, size: int) -> tuple[int, int] | None:
        return None if self.faults.dma_refused else self.iommu.translate(bus, size)

    def dma_read(self, bus: int, size: int) -> bytes:
        """Read host memory; all ones from the first unmapped address on."""
        return read_bus(self.dma_piece, bus, size).ljust(size, b"\xff")

    def dma_write(self, bus: int, data: bytes) -> None:
        """Write host memory; drop the data from the first unmapped address on."""
        write_bus(self.dma_piece, bus, data)

    def dma_host_address(self, bus: int) -> int | None:
        """Return the address in this process behind a bus address, or None."""
        found = self.dma_piece(bus, 1)
        return None if found is None else found[0]

    def signal_msi(self) -> None:
        """Send the MSI; it is a write by the card, so bus mastering must be on."""
        if not self.faults.interrupts_lost:
            self.send_message()

    # ---- protected memory ---------------------------------------------------------------------

    def is_protected(self, address: int, size: int) -> bool:
        """Return whether a range of VRAM touches the trusted memory region."""
        tmr = self.tmr
        return tmr is not None and address < tmr[1] and tmr[0] < address + size
