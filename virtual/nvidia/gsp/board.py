"""What belongs to no single unit of a card, and the ports through which units call each other.

`gsp.card.Card` builds the units and connects them, `gsp.rpc.server.GspServer` is the firmware.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ugpu.hcq.errors import NotSupported
from ugpu.hcq.state.instruction import Culprits
from ugpu.nv import abi
from ugpu.nv.abi.firmware import firmware
from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.bus.dma import read_bus, write_bus
from ugpu.virtual.bus.master import BusMaster
from ugpu.virtual.nvidia.chip import VirtualGpu
from ugpu.virtual.nvidia.files import OpenFile
from ugpu.virtual.nvidia.gsp.facts import boot_facts
from ugpu.virtual.nvidia.gsp.falcon.core import Falcon
from ugpu.virtual.nvidia.gsp.falcon.wpr import PRESCRUBBED, Wpr2, WprMeta
from ugpu.virtual.nvidia.gsp.faults import CardFault, CardFaults
from ugpu.virtual.nvidia.gsp.firmware.vbios import vbios
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.gsp.registers import RegisterSpace
from ugpu.virtual.nvidia.host.errors import ChannelError
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.memory.fault_buffers import MmuFaults
from ugpu.virtual.nvidia.memory.shadow_buffer import ShadowBuffer
from ugpu.virtual.nvidia.rm.channels import ChannelObject
from ugpu.virtual.nvidia.rm.objects import Builder

_NEVER = 1 << 60  # reads
_MOST_NOTES, _MOST_CALLS, _PAGE = 4096, 4096, 4096
_ROM_SIZE = 1 << 20


class Board(BusMaster):
    """The card, as its units use it. `lock` protects all but the GPU behind. violations: uses that
    a board would punish silently; notes: what is unusual but allowed, with how often it happened.
    stall_fsp: has a message in FSP's queue that is not read, a planted fault.
    """

    gsp: Falcon
    sec2: Falcon
    mmu_faults: MmuFaults
    stall_fsp: Callable[[], None]

    def __init__(self, facts: ChipFacts, options: CardOptions | None = None) -> None:
        self.facts = facts
        self.options = chosen = options or CardOptions()
        self.boot = boot_facts(facts.name)
        self.lock = threading.RLock()
        self.machine = VirtualMachine(facts, chosen)
        self.gpu = self.machine.gpu
        self.clock = self.machine.clock
        self.dark = False  # its registers read as ones, though it is on the bus: a planted fault
        self.keeps_wpr2 = False  # resets do not take WPR2 down: a planted fault
        self.notes: Counter[str] = Counter()
        self.faults = CardFaults()
        self.burnt = chosen.fuse if self.boot.fused else 0  # fuse version of every program
        self.shown_memory = self.gpu.memory.size  # as its register shows it
        self.rom = vbios(facts.pci_device, self.boot.descriptor).ljust(_ROM_SIZE, b"\xff")
        # Above the BARs; Turing's register of the flush page has 40 bits.
        super().__init__(chosen.seed, 1 << 38 if self.boot.pio else 1 << 40)
        self.gpu.system_memory = self._system_memory
        self.wpr = Wpr2()
        self.sleeper: Sleeper | None = None  # firmware that was suspended, and saved
        self.calls: deque[str] = deque(maxlen=_MOST_CALLS)  # what the GSP was asked, as text
        self.registers = RegisterSpace()
        self.status: dict[int, int] = {}  # scratch registers that programs of the card write
        self.plain: dict[int, int] = {}  # registers that keep what was written

    def _cold(self) -> None:
        """Enter the state after power-on, of everything but configuration space."""
        self.status.clear()
        self.plain.clear()
        self.sb_done = False
        self.scrub_stage = 0
        self.handoff = False
        self.time_offset = 0  # of PTIMER, as the CPU set it
        # Reads of the GSP's registers until its target mask, and then its lockdown, is released.
        self.masked_reads = self.locked_reads = -1 if self.boot.way == "fsp" else 0
        self.gsp.lockdown = self.boot.way == "fsp"
        self.scrubbed = self._prescrubbed()
        self.progress_reads = self.options.power_on_reads

    def _prescrubbed(self) -> int:
        """Return the address from which the chip's memory is clean after power-on."""
        return max(0, self.memory_size - PRESCRUBBED) if self.boot.way == "fwsec" else 0

    # What the card does

    def power_cycle(self) -> None:
        """Switch off and on: everything is lost, also video memory."""
        with self.lock:
            self.function_reset()
            self.gpu.memory.zero(self.gpu.memory.base, self.memory_size)

    @abstractmethod
    def function_reset(self) -> None:
        """Reset by FLR or the secondary bus: video memory keeps its content."""

    @abstractmethod
    def start_gsp(self, meta: WprMeta, version: str, arguments: int) -> None:
        """Start the firmware of the GSP's RISC-V core."""

    @abstractmethod
    def resume_gsp(self, firmware: Firmware) -> None:
        """Let suspended firmware go on."""

    @property
    @abstractmethod
    def sleeping(self) -> Firmware | None:
        """Return the firmware that was told to suspend, and has ended."""

    @abstractmethod
    def make_apertures(self, start: int, *, fresh: bool = True) -> tuple[int, int]:
        """Turn BAR1 and BAR2 virtual; return their page directories. Each has a directory and an
        instance block, a page each, from `start` on. fresh: they are empty."""

    @abstractmethod
    def gsp_suspended(self) -> None:
        """Handle the end of the unload, which the GSP reports in its mailbox, or by halting."""

    def unplug(self) -> None:
        """Pull the card out: it answers no more, and its work ends."""
        with self.lock:
            self.lost = True
            self.gpu.lose()

    def release(self, *, lockdown: bool) -> None:
        """Release the target mask of the GSP's registers; with `lockdown` also the lockdown."""
        never = self.faults.take(CardFault.MASK_NEVER)
        self.masked_reads = _NEVER if never else self.options.lockdown_reads
        if lockdown:
            never = self.faults.take(CardFault.LOCKDOWN_NEVER)
            self.locked_reads = _NEVER if never else self.options.lockdown_reads
            self.gsp.lockdown = self.locked_reads > 0

    def violation(self, text: str) -> None:
        """Record a use that a board would punish silently."""
        if len(self.gpu.violations) < _MOST_NOTES:
            self.gpu.violations.append(text)

    refused = violation

    def note(self, text: str) -> None:
        """Record something unusual."""
        if text in self.notes or len(self.notes) < _MOST_NOTES:
            self.notes[text] += 1

    @property
    def violations(self) -> list[str]:
        """Return the violations so far, also those of the engines."""
        return self.machine.violations

    # Memory of the host

    def revoked(self, host: int, size: int) -> None:
        """See BusMaster."""
        self.gpu.invalidate(None)

    def _system_memory(self, address: int, size: int) -> tuple[int, int] | None:
        """Translate a bus address for an engine. Where the IOMMU maps nothing, the card's own BAR1
        answers, once it has an address."""
        bar1 = self.config.bar_address(1)
        inside = address - bar1
        decoded = bar1 and self.config.memory_enabled and 0 <= inside < self.config.bar_size(1)
        if not decoded or self.iommu.translate(address, size) is not None:
            return self.dma_piece(address, size)
        memory = self.gpu.memory
        return (memory.base + inside, size) if inside + size <= memory.size else None

    def bus_read(self, address: int, size: int) -> bytes | None:
        """Read memory of the host; None if that is refused."""
        content = read_bus(self._system_memory, address, size)
        return content if len(content) == size else None

    def bus_write(self, address: int, content: bytes) -> bool:
        """Write memory of the host; return whether that was allowed."""
        return write_bus(self.dma_piece, address, content)

    def bus_address(self, address: int, size: int) -> int | None:
        """Return the address in this process of memory of the host; None if it is refused or not
        contiguous."""
        found = self._system_memory(address, size)
        return found[0] if found is not None and found[1] >= size else None

    def address_of(self, kind: int, base: int, size: int) -> int | None:
        """Return the address in this process of physical memory as the resource manager's objects
        name it, kind 1 of the host, kind 2 of the card; None if it cannot be accessed."""
        if kind == 2:
            inside = base + size <= self.memory_size
            return self.gpu.memory.base + base if inside else None
        return self.bus_address(base, size) if kind == 1 else None

    def reaches(self, kind: int, base: int, size: int) -> bool:
        """Return whether all pages of physical memory can be accessed."""
        pages = range(base, base + size, _PAGE) if kind == 1 else range(base, base + 1)
        step = 1 if kind == 1 else size
        return all(self.address_of(kind, page, step) is not None for page in pages)

    def write_memory(self, kind: int, base: int, content: bytes) -> None:
        """Write physical memory; what cannot be accessed is recorded."""
        if kind == 2 and base + len(content) <= self.memory_size:
            self.falcon_memory(base, len(content))[:] = content
        elif kind == 1:
            self.bus_write(base, content)

    # For the falcons and their programs

    @property
    def memory_size(self) -> int:
        """Bytes of video memory."""
        return self.gpu.memory.size

    def falcon_read(self, target: int, address: int, size: int) -> bytes | None:
        """Read for a falcon's DMA: target 0 video memory, 1, 2 system memory; None if refused."""
        if target:
            return self.bus_read(address, size)
        memory = self.gpu.memory
        if address + size > memory.size or self.wpr.touches(address, size):
            return None
        return bytes(memory.view[address : address + size])

    def falcon_memory(self, address: int, size: int) -> memoryview:
        """Return memory of the card, as its programs and firmware access it."""
        return self.gpu.memory.view[address : address + size]


class Firmware(ABC):
    """One run of the GSP's firmware, as its parts use it. own_controls, builders: beside and
    instead of those of the ioctl interface. saved: pages of the host for its own memory, once
    FBSR_INIT came. sleep_at: GspFwSRMeta's address, as FBSR_INIT says it."""

    own_controls: Mapping[str, Any]  # see rm.controls.control.Handler
    builders: dict[str, Builder]
    shadow: ShadowBuffer

    def __init__(self, board: Board, version: str, meta: WprMeta) -> None:
        self.board = board
        self.gpu = board.gpu
        self.meta = meta
        self.interface = firmware(version)
        self.machine = board.machine
        self.machine.abi = abi.select(version)
        self.gaps: list[NotSupported] = []
        self.culprits = Culprits()
        self.files: dict[int, OpenFile] = {}  # none: the CPU's programs are unknown here
        self.asleep = False
        self.saved: tuple[int, ...] = ()
        self.sleep_at = 0
        self.directories = (0, 0)  # of the apertures, which the resource manager makes

    def has_open(self, gpu: VirtualGpu) -> bool:
        """Return whether the GPU is attached: it is the firmware's own."""
        return gpu is self.gpu

    @abstractmethod
    def channel_failed(self, channel: ChannelObject, error: ChannelError) -> None:
        """Tell the CPU of a channel's error."""


@dataclass
class Sleeper:
    """A suspended run of the firmware. proof: what GspFwSRMeta must hold for it to go on."""

    server: Firmware
    proof: bytes
