"""A whole card: the GPU of the resource manager's model, behind registers.

`Card` owns what belongs to no single unit (lock, GPU, memory of the host, registers, resets), and
is the port through which its units call each other. Registers: gsp.wiring.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable

from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.bus.dma import read_bus, write_bus
from ugpu.virtual.bus.master import BusMaster
from ugpu.virtual.faults import named
from ugpu.virtual.nvidia.gsp.apertures import PDB_IN_INSTANCE, Aperture
from ugpu.virtual.nvidia.gsp.bus.config import ConfigSpace
from ugpu.virtual.nvidia.gsp.facts import boot_facts
from ugpu.virtual.nvidia.gsp.falcon import booter, fwsec, loader, sleep
from ugpu.virtual.nvidia.gsp.falcon.core import (
    HWCFG2,
    MAILBOX0,
    RISCV_CPUCTL,
    RISCV_OLD_ACTIVE,
    Falcon,
    refusing,
)
from ugpu.virtual.nvidia.gsp.falcon.fsp import Fsp
from ugpu.virtual.nvidia.gsp.falcon.wpr import Wpr2, WprMeta
from ugpu.virtual.nvidia.gsp.faults import CardFault, CardFaults
from ugpu.virtual.nvidia.gsp.firmware.programs import GSP, SEC2, Program
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE, Terms
from ugpu.virtual.nvidia.gsp.firmware.vbios import vbios
from ugpu.virtual.nvidia.gsp.interrupts import InterruptTree
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.gsp.registers import LOCKED, RegisterSpace
from ugpu.virtual.nvidia.gsp.rpc.controls import GSP_VECTOR, MEMORY_VECTORS, vector_of
from ugpu.virtual.nvidia.gsp.rpc.server import SUSPENDED, GspServer
from ugpu.virtual.nvidia.gsp.strikes import AT_ONCE
from ugpu.virtual.nvidia.machine import VirtualMachine
from ugpu.virtual.nvidia.memory.fault_buffers import REPLAYABLE, MmuFaults

_NEVER = 1 << 60  # reads
_MOST_NOTES, _MOST_CALLS, _PAGE = 4096, 4096, 4096
_VECTOR = 0  # of MSI-X. UNSURE: whether boards divide the tree among their vectors
_ROM_SIZE = 1 << 20
_EFFECTS: dict[Program, Callable[[Card, Falcon], None]] = {
    Program.FWSEC: fwsec.run, Program.BOOTER_LOAD: booter.load,
    Program.BOOTER_UNLOAD: booter.unload, Program.SCRUBBER: booter.scrub,
}  # fmt: skip


class Card(BusMaster):
    """One card. `lock` protects all but the GPU behind. violations: uses that a board would punish
    silently; notes: what is unusual but allowed,
    with how often it happened."""

    config: ConfigSpace

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
        first = 1 << 38 if self.boot.pio else 1 << 40
        super().__init__(chosen.seed, first)
        self.gpu.system_memory = self._system_memory
        self.gpu.non_stall = self._non_stall
        number, size = self.boot.booter
        signed = Terms(0, SEC2, number) if self.boot.pio and size == SIZE else None
        self.gsp, self.sec2 = Falcon(self, "GSP", GSP), Falcon(self, "SEC2", SEC2, signed)
        self.wpr = Wpr2()
        self.interrupts = InterruptTree(self._send_message, rearms=self._rearms)
        self.bar1, self.bar2, self.pramin = (
            Aperture(self, name) for name in ("BAR1", "BAR2", "PRAMIN")
        )
        self.mmu_faults = self.gpu.fault_unit = MmuFaults(self, self._signal_fault)
        self.fsp = Fsp(self) if self.boot.way == "fsp" else None
        self.server: GspServer | None = None
        self.asleep: GspServer | None = None  # firmware that was suspended
        self.waking: GspServer | None = None  # and goes on once the CPU has seen its core run
        self.sleeper: sleep.Sleeper | None = None  # and saved
        self.calls: deque[str] = deque(maxlen=_MOST_CALLS)  # what the GSP was asked, as text
        self.registers = RegisterSpace()
        self.status: dict[int, int] = {}  # scratch registers that programs of the card write
        self.plain: dict[int, int] = {}  # registers that keep what was written
        self._cold()
        self.config = ConfigSpace(self)

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
        self.scrubbed = booter.prescrubbed(self.boot, self.memory_size)
        self.progress_reads = self.options.power_on_reads

    # Life

    def power_cycle(self) -> None:
        """Switch off and on: everything is lost, also video memory."""
        with self.lock:
            self.function_reset()
            self.gpu.memory.zero(self.gpu.memory.base, self.memory_size)

    def function_reset(self) -> None:
        """Reset by FLR or the secondary bus: video memory keeps its content."""
        with self.lock:
            self._stop()
            self.config.reset()

    def _stop(self) -> None:
        self._end_server()
        if self.sleeper is None:
            self._forget_asleep()
        for falcon in (self.gsp, self.sec2):
            falcon.power_on()
        if self.fsp is not None:
            self.fsp.reset()
        if not self.keeps_wpr2:
            self.wpr.clear()
        self.interrupts.reset()
        self.mmu_faults.reset()
        self._cold()

    def _end_server(self) -> None:
        server, self.server, self.waking = self.server, None, None
        if server is not None and server.asleep:
            self.asleep = server
        elif server is not None:
            with self.machine.lock:
                server.close()
        for aperture in (self.bar1, self.bar2):
            aperture.set_block(0)

    def _forget_asleep(self) -> None:
        """Free the objects of firmware that was suspended, and does not go on."""
        server, self.asleep, self.sleeper = self.asleep, None, None
        if server is not None:
            with self.machine.lock:
                server.close()

    def unplug(self) -> None:
        """Pull the card out: it answers no more, and its work ends."""
        with self.lock:
            self.lost = True
            self.gpu.lose()

    def close(self) -> None:
        """Switch off for good. Idempotent."""
        with self.lock:
            self._end_server()
            self._forget_asleep()
        self.machine.close()

    def inject_card(self, fault: CardFault | str, count: int = 1) -> None:
        """Plant a fault, given as a CardFault or by its name."""
        kind = named(CardFault, fault)
        with self.lock:
            strike = AT_ONCE.get(kind)
            if strike is None:
                self.faults.plant(kind, count)
            else:
                self.faults.struck.append(kind)
                strike(self)

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

    # Accesses of the CPU

    @property
    def decodes(self) -> bool:
        """Whether the card answers memory accesses."""
        return not self.lost and not self.dark and self.config.memory_enabled

    def read32(self, offset: int) -> int:
        """Read a register."""
        with self.lock:
            return self.registers.read(offset) if self.decodes else 0xFFFF_FFFF

    def write32(self, offset: int, value: int) -> None:
        """Write a register."""
        with self.lock:
            if self.decodes:
                self.registers.write(offset, value)

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

    def run_program(self, falcon: Falcon, program: Program) -> None:
        """Have the effect of a program; it has been verified."""
        if self.progress_reads:
            self.violation(f"{program.name} was started before power-on had finished")
        if self.faults.take(CardFault.FALCON_HANGS):
            falcon.halted = False
            return
        if program is Program.LOADER:
            found = loader.run(self, falcon)
            if found is not None and found is not Program.LOADER:
                self.run_program(falcon, found)
            return
        place = self.gsp if program is Program.FWSEC else self.sec2
        if falcon is place:
            _EFFECTS[program](self, falcon)
        else:
            self.violation(f"{program.name} does not run on {falcon.name}")

    def falcon_reset(self, falcon: Falcon) -> None:
        """Handle the reset of a falcon and its RISC-V core, which ends the firmware that runs on
        the GSP."""
        if self.faults.take(CardFault.SCRUB_NEVER):
            falcon.never_clean()
        if self.faults.take(CardFault.DMA_NEVER):
            falcon.never_moves()
        if falcon is self.gsp and self.server is not None:
            if self.server.done and not self.server.unloaded and not self.server.dead:
                self.violation("the GSP was reset while its firmware ran")
            self._end_server()

    def start_gsp(self, meta: WprMeta, version: str, arguments: int) -> None:
        """Start the firmware of the GSP's RISC-V core."""
        self._forget_asleep()
        if self._starts():
            self.server = GspServer(self, version, meta)
            self.server.start(arguments)

    def resume_gsp(self, firmware: GspServer) -> None:
        """Let suspended firmware go on."""
        self.asleep = None
        if self._starts():
            self.server = self.waking = firmware
        else:
            firmware.asleep = False
            self.server = firmware  # a reset frees its objects

    def _starts(self) -> bool:
        """Start the RISC-V core; return whether no planted fault keeps its firmware silent."""
        if self.faults.take(CardFault.FALLS_OFF_AT_BOOT):
            self.unplug()
            return False
        if self.faults.take(CardFault.GSP_NOT_STARTED):
            return False
        if self.faults.take(CardFault.GSP_HALTS):
            self.gsp.riscv_halted = True
            return False
        self.gsp.active = True
        self.handoff = True
        return not self.faults.take(CardFault.GSP_SILENT)

    @property
    def sleeping(self) -> GspServer | None:
        """Return the firmware that was told to suspend, and has ended."""
        running = self.server is not None and self.server.asleep
        return self.server if running else self.asleep

    def falcon_memory(self, address: int, size: int) -> memoryview:
        """Return memory of the card, as its programs and firmware access it."""
        return self.gpu.memory.view[address : address + size]

    def release(self, *, lockdown: bool) -> None:
        """Release the target mask of the GSP's registers; with `lockdown` also the lockdown."""
        never = self.faults.take(CardFault.MASK_NEVER)
        self.masked_reads = _NEVER if never else self.options.lockdown_reads
        if lockdown:
            never = self.faults.take(CardFault.LOCKDOWN_NEVER)
            self.locked_reads = _NEVER if never else self.options.lockdown_reads
            self.gsp.lockdown = self.locked_reads > 0

    def gsp_read(self, offset: int) -> int | None:
        """Read a register of the GSP, which may be locked."""
        if self.masked_reads:
            self.masked_reads -= self.masked_reads > 0
            return LOCKED
        if offset == HWCFG2 and self.locked_reads > 0:
            self.locked_reads -= 1
            self.gsp.lockdown = self.locked_reads > 0
        value = self.gsp.read(offset)
        if self.waking is not None and offset in (RISCV_CPUCTL, RISCV_OLD_ACTIVE):
            # A board takes longer. Linux allows the GSP's interrupt already, and a message that
            # came before it waits for INIT_DONE would be taken by another thread.
            firmware, self.waking = self.waking, None
            firmware.resume()
        return value

    def gsp_write(self, offset: int, value: int) -> bool:
        """Write a register of the GSP; while they are locked nothing happens."""
        return True if self.masked_reads else self.gsp.write(offset, value)

    # For the GSP's firmware

    def make_apertures(self, start: int, *, fresh: bool = True) -> tuple[int, int]:
        """Turn BAR1 and BAR2 virtual; return their page directories. Each has a directory and an
        instance block, a page each, from `start` on. fresh: they are empty."""
        made = []
        words = self.gpu.memory.words
        if fresh:
            words[start // 8 : (start + 4 * _PAGE) // 8] = 0
        for aperture in (self.bar1, self.bar2):
            directory, instance = start, start + _PAGE
            words[(instance + PDB_IN_INSTANCE) // 8] = directory
            aperture.set_block(1 << 31 | instance >> 12)
            made.append(directory)
            start += 2 * _PAGE
        return made[0], made[1]

    def gsp_suspended(self) -> None:
        """Handle the end of the unload, which the GSP reports in its mailbox, or by halting."""
        if self.faults.take(CardFault.UNLOAD_SILENT):
            return
        if self.server is not None and self.server.asleep and self.boot.way == "fsp":
            with refusing(self, "GSP"):
                sleep.save(self, self.server.sleep_at)
                self.asleep, self.server = self.server, None
            if self.server is not None:
                return
        self.gsp.registers[MAILBOX0] = SUSPENDED
        if self.boot.way == "fsp" and not self.faults.take(CardFault.HALT_NEVER):
            self.gsp.active, self.gsp.riscv_halted = False, True
            self.wpr.clear()
        for aperture in (self.bar1, self.bar2):
            aperture.set_block(0)

    def falcon_interrupts(self, falcon: Falcon) -> None:
        """Send a falcon's interrupt."""
        if falcon is self.gsp:
            self.interrupts.post(GSP_VECTOR)

    def _non_stall(self, engine_type: int) -> None:
        self.interrupts.post(vector_of(engine_type))

    def _signal_fault(self, buffer: int) -> None:
        name = "REPLAYABLE_FAULT" if buffer == REPLAYABLE else "NON_REPLAYABLE_FAULT"
        self.interrupts.post(MEMORY_VECTORS[name])

    def _rearms(self) -> bool:
        table = self.config.messages
        return self.boot.way != "fsp" and not (table is not None and table.enabled)

    def _send_message(self) -> None:
        if not self.faults.take(CardFault.MESSAGE_LOST):
            self.send_message(_VECTOR)
