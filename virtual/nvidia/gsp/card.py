"""A whole card: the GPU of the resource manager's model, behind registers.

`Card` builds the units of a board and connects them. Registers: gsp.wiring.
"""

from __future__ import annotations

from collections.abc import Callable

from ugpu.nv.chips.facts import ChipFacts
from ugpu.virtual.faults import named
from ugpu.virtual.nvidia.gsp.apertures import PDB_IN_INSTANCE, Aperture
from ugpu.virtual.nvidia.gsp.board import Board, Firmware
from ugpu.virtual.nvidia.gsp.bus.config import ConfigSpace
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
from ugpu.virtual.nvidia.gsp.falcon.wpr import WprMeta
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.firmware.programs import GSP, SEC2, Program
from ugpu.virtual.nvidia.gsp.firmware.sign import SIZE, Terms
from ugpu.virtual.nvidia.gsp.interrupts import InterruptTree
from ugpu.virtual.nvidia.gsp.options import CardOptions
from ugpu.virtual.nvidia.gsp.registers import LOCKED
from ugpu.virtual.nvidia.gsp.rpc.controls import GSP_VECTOR, MEMORY_VECTORS, vector_of
from ugpu.virtual.nvidia.gsp.rpc.server import SUSPENDED, GspServer
from ugpu.virtual.nvidia.gsp.strikes import AT_ONCE
from ugpu.virtual.nvidia.memory.fault_buffers import REPLAYABLE, MmuFaults

_PAGE = 4096
_VECTOR = 0  # of MSI-X. UNSURE: whether boards divide the tree among their vectors
_EFFECTS: dict[Program, Callable[[Card, Falcon], None]] = {
    Program.FWSEC: fwsec.run, Program.BOOTER_LOAD: booter.load,
    Program.BOOTER_UNLOAD: booter.unload, Program.SCRUBBER: booter.scrub,
}  # fmt: skip


class Card(Board):
    """One card; see Board."""

    config: ConfigSpace

    def __init__(self, facts: ChipFacts, options: CardOptions | None = None) -> None:
        super().__init__(facts, options)
        self.gpu.non_stall = self._non_stall
        number, size = self.boot.booter
        signed = Terms(0, SEC2, number) if self.boot.pio and size == SIZE else None
        self.gsp, self.sec2 = Falcon(self, "GSP", GSP), Falcon(self, "SEC2", SEC2, signed)
        self.interrupts = InterruptTree(self._send_message, rearms=self._rearms)
        self.bar1, self.bar2, self.pramin = (
            Aperture(self, name) for name in ("BAR1", "BAR2", "PRAMIN")
        )
        self.mmu_faults = self.gpu.fault_unit = MmuFaults(self, self._signal_fault)
        self.fsp = Fsp(self) if self.boot.way == "fsp" else None
        self.stall_fsp = self.fsp.stall if self.fsp is not None else lambda: None
        self.server: GspServer | None = None
        self.asleep: GspServer | None = None  # firmware that was suspended
        self.waking: GspServer | None = None  # and goes on once the CPU has seen its core run
        self._cold()
        self.config = ConfigSpace(self)

    # Life

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

    # For the falcons and their programs

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

    def resume_gsp(self, firmware: Firmware) -> None:
        """See Board."""
        assert isinstance(firmware, GspServer)
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
            with refusing(self.violation, "GSP"):
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
