"""One virtual card: its blocks, power, resets, and its two sides, the bus and host memory.

A chip lives as long as its power is on, over several attachments. `lock` guards all state of
registers and engines; code that runs shaders does so without it.
"""

from __future__ import annotations

import copy
import ctypes
import logging
import threading
from collections.abc import Callable

from am.chips.facts import ChipFacts
from am.regs import load
from am.virtual.block import Block, DoorbellTarget, Reset
from am.virtual.bus.config import ConfigSpace
from am.virtual.bus.dma import DmaPool, Iommu
from am.virtual.bus.ih import InterruptHandler
from am.virtual.bus.nbio import Nbio
from am.virtual.firmware.discovery import build_discovery
from am.virtual.firmware.psp import Psp
from am.virtual.firmware.smu import Smu
from am.virtual.firmware.vbios import Rom
from am.virtual.memory.gmc import Hub
from am.virtual.memory.hdp import Hdp
from am.virtual.memory.vram import Vram
from am.virtual.objections import Level, Objections
from am.virtual.options import ChipOptions
from am.virtual.registers import ALL_ONES, RegisterSpace
from am.virtual.scheduler import Scheduler
from hcq.culprit import Culprits

log = logging.getLogger(__name__)
_BLOCKS = {
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
# VRAM begins here in the MC address space (what IFWI of these boards programs).
FRAME_BUFFER_BASE = 0x80_0000_0000


class Chip:
    """A virtual card. `close` ends its life; `unplug` and `power_cycle` are what a hand does.

    objections: what the chip objects to, by level and counted. violations: what a board fails at
    or forgives; tests require it to stay empty. notes: what boards accept. gfx, sdma: set by the
    engines' `install`. culprits: instructions behind page faults.
    autoload_listeners: called under the lock when RLC autoload starts; the engines then set
    BOOTLOAD_COMPLETE. dma_listeners: called when host memory is taken from the card.
    """

    def __init__(self, facts: ChipFacts, options: ChipOptions | None = None) -> None:
        self.facts = facts
        self.options = (options or ChipOptions()).on(facts)
        self.faults = copy.deepcopy(self.options.faults)
        self.lock = threading.RLock()
        self.objections = Objections()
        self.violations, self.notes = self.objections.violations, self.objections.notes
        self.culprits = Culprits()
        self.accesses = 0
        self.lost = False
        self.tmr: tuple[int, int] | None = None  # offsets in VRAM: first, one past the last
        self.msi: Callable[[], None] | None = None  # set by the attached transport
        self.gfx: DoorbellTarget | None = None
        self.sdma: list[DoorbellTarget] = []
        self.autoload_listeners: list[Callable[[], None]] = []
        self._blackout = False
        self._closed = False
        self._power_ons = 0
        self.scheduler = Scheduler(self.lock, self.options.seed, manual=self.options.manual_time)
        self.space = RegisterSpace(
            {
                block: (load(facts.table(name)), facts.generation.typical_bases[name])
                for block, name in _BLOCKS.items()
                if name in facts.versions
            },
            self.objections,
        )
        self.vram = Vram(self.options.vram, shared=self.options.shared_vram)
        self.iommu = Iommu(self.options.seed)
        self.dma = DmaPool(self.iommu, self._revoked)
        self.config = ConfigSpace(self)
        self.nbio = Nbio(self)
        self.hdp = Hdp(self)
        self.mm = Hub(self, "mmhub", "MM")
        self.gc = Hub(self, "gc", "GC")
        self.ih = InterruptHandler(self)
        self.psp = Psp(self)
        self.smu = Smu(self)
        self.rom = Rom(self)
        self.blocks: list[Block] = [
            self.nbio, self.hdp, self.mm, self.gc, self.ih, self.psp, self.smu, self.rom,
        ]  # fmt: skip
        self.power_cycle()

    def install(self, *blocks: Block) -> None:
        """Add blocks of the engines: resets, stops and closing reach them."""
        with self.lock:
            for block in blocks:
                self.blocks.append(block)
                block.reset(Reset.POWER)

    # ---- life ---------------------------------------------------------------------------------

    def power_cycle(self) -> None:
        """Switch off and on: all is lost, the board firmware starts. Also plugs it back in."""
        with self.lock:
            self.lost = False
            self._reset(Reset.POWER)

    def unplug(self) -> None:
        """Remove the card: every read gives all ones, engines stop, nothing reaches memory."""
        with self.lock:
            self.lost = True
            self.scheduler.cancel_all()
            for block in self.blocks:
                block.stop()

    def bus_reset(self) -> None:
        """FLR or secondary bus reset."""
        with self.lock:
            if not self.lost:
                self._reset(Reset.BUS)

    def mode1_reset(self) -> None:
        """Reset all but the bus interface: registers are dark for a while, then IFWI runs."""
        with self.lock:
            if self.lost or self.faults.mode1_ignored:
                return
            self._reset(Reset.MODE1)
            self._blackout = True
            self.scheduler.cancel_all()
            self.scheduler.after(self.options.delays.blackout, self._light)

    def _light(self) -> None:
        self._blackout = False
        self._start_ifwi()

    def _reset(self, scope: Reset) -> None:
        self.scheduler.cancel_all()
        for block in self.blocks:
            block.stop()
        self._blackout = False
        self._power_ons += 1
        self.tmr = None
        self.vram.scramble(self.options.seed + self._power_ons, self.options.noise)
        for table, name in _BLOCKS.items():
            if name in self.facts.versions:
                self.space.clear(table)
        self.space.closed = {"gc"}
        if scope is not Reset.MODE1 or self.options.config_lost_on_mode1:
            self.config.reset(keep_bars=scope is Reset.MODE1)
        if scope is Reset.POWER:
            self.config.assign_bars()
        for block in self.blocks:
            block.reset(scope)
        self._start_ifwi()

    def _start_ifwi(self) -> None:
        if not self.faults.ifwi_never:
            self.scheduler.after(self.options.delays.ifwi, self._ifwi_done)

    def _ifwi_done(self) -> None:
        blob = build_discovery(self.facts, self.options)
        self.vram.write(self.vram.size - self.facts.generation.discovery_offset, blob)
        self.mm.locate_frame_buffer(FRAME_BUFFER_BASE, self.vram.size)
        self.nbio.ifwi_done()
        self.psp.ifwi_done()

    def autoload(self) -> None:
        """RLC starts GFX: its registers can be written from now on, and know where VRAM is."""
        self.space.closed.discard("gc")
        self.gc.locate_frame_buffer(FRAME_BUFFER_BASE, self.vram.size)
        for listener in self.autoload_listeners:
            listener()

    def close(self) -> None:
        """Stop all threads and log how many objections there were; idempotent. Raises what went
        wrong in the chip's firmware thread."""
        if not self._closed and (summary := self.objections.summary()):
            log.info("the virtual card recorded %s", summary)
        self._closed = True
        self.unplug()
        self.scheduler.close()
        for block in self.blocks:
            block.close()
        self.vram.close()
        if self.scheduler.error is not None:
            raise self.scheduler.error

    def fault(self, text: str, *, reported: bool = False) -> None:
        """Record what a board fails at; the caller does the same. See Objections.record."""
        self.objections.record(Level.FAULT, text, reported=reported)

    def violation(self, text: str) -> None:
        """Record what boards forgive; the caller goes on."""
        self.objections.record(Level.VIOLATION, text)

    def note(self, text: str) -> None:
        """Record what boards accept, and the kernel's driver does not do."""
        self.objections.record(Level.NOTE, text)

    # ---- the bus side: registers --------------------------------------------------------------

    def answers(self) -> bool:
        """Whether the BARs answer: plugged in, decoding on, and not dark after mode1."""
        return not self.lost and self.config.memory_enabled

    def read_register(self, index: int) -> int:
        """One read of a register by the bus; dword index."""
        with self.lock:
            self._count_access()
            if self._blackout or self.lost or not self.config.memory_enabled:
                return ALL_ONES
            return self.space.read(index)

    def write_register(self, index: int, value: int) -> None:
        """One write of a register by the bus."""
        with self.lock:
            self._count_access()
            if not (self._blackout or self.lost) and self.config.memory_enabled:
                self.space.write(index, value)

    def _count_access(self) -> None:
        self.accesses += 1
        if self.accesses == self.faults.lost_at_access:
            self.unplug()

    @property
    def dark(self) -> bool:
        """Whether registers and memory do not answer because of a reset in progress."""
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
        """Let the card reach memory that somebody else owns, at `host` in this process; None: at
        no address of ours, so that its engines are refused."""
        with self.lock:
            self.iommu.add(bus, size, host)

    def unmap_dma(self, bus: int, size: int) -> None:
        """Take back what `map_dma` gave, by the same addresses."""
        with self.lock:
            self.iommu.remove(bus)
            self._revoked(0, size)

    def _revoked(self, host: int, size: int) -> None:
        with self.lock:
            self.gc.caches.revoke_native()
            self.mm.caches.revoke_native()

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
        """Whether a range of VRAM touches the trusted memory region."""
        tmr = self.tmr
        return tmr is not None and address < tmr[1] and tmr[0] < address + size
