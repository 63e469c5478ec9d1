"""The micro-engine scheduler: ME 3, whose pipe 0 schedules queues and whose pipe 1 is the KIQ.

Each pipe serves one queue with the registers of a compute queue. The kernel interface queue accepts
PM4 (pm4/kernel.py), the scheduler accepts frames in its own format (mes_frames.py). Facts: Linux
6.12 mes_v11_0.c (start of the pipes, versions, queue registers), gc_11_0_0_{sh_mask,default}.h.
"""

from __future__ import annotations

from ugpu.virtual.amd.block import Block, Reset
from ugpu.virtual.amd.engines.cp.commands import CommandSet
from ugpu.virtual.amd.engines.cp.hqd import Slot
from ugpu.virtual.amd.engines.cp.mapping import SCHEDULER_PIPE
from ugpu.virtual.amd.engines.cp.mes_processes import Processes
from ugpu.virtual.amd.engines.cp.state import MecState, Runner, RunningQueue

ME = 3
PIPES = 2
HALTED = 0x4000_0000  # CP_MES_CNTL at power-on


class Mes(Block):
    """A unit of queue slots; `slots` has one per pipe. The MEC handles their doorbells."""

    name = "scheduler"
    needs_eop = False  # the kernel gives these queues no end-of-pipe buffer

    def __init__(self, mec: MecState, commands: CommandSet) -> None:
        super().__init__(mec.chip, "gc")
        self.mec = mec
        self._commands = commands
        self._start = commands.program_start
        self._firmware = commands.scheduler_firmware
        self.slots = [Slot(mec, self, ME, pipe, 0) for pipe in range(PIPES)]
        self.processes: Processes | None = None  # None until SET_HW_RSRC
        self._program_start = [0] * PIPES
        self._was_reset = [False] * PIPES
        self.on_write("CP_MES_CNTL", self._control)
        self.on_write("CP_MES_PRGRM_CNTR_START", self._start_address)
        self.on_read("CP_MES_GP3_LO", self._version)

    def reset(self, scope: Reset) -> None:
        """Halt both pipes and lose their queues."""
        for slot in self.slots:
            slot.reset()
        self.processes = None
        self._program_start = [0] * PIPES
        self._was_reset = [False] * PIPES
        self.set("CP_MES_CNTL", HALTED)

    def running(self, pipe: int) -> bool:
        """Return whether the pipe executes its firmware, started at the firmware's start address.

        Start addresses count 4-byte instructions.
        """
        control = self.get("CP_MES_CNTL")
        return bool(
            control >> (26 + pipe) & 1
            and not control >> (16 + pipe) & 1
            and not control >> 30 & 1
            and self.mec.rlc_ready()
            and self._firmware[pipe] in self.chip.psp.loaded
            and self._program_start[pipe] == self._start >> 2
        )

    def executor(self, queue: RunningQueue) -> Runner:
        """Create an executor: frames for the scheduler, PM4 with additional packets for the KIQ."""
        if queue.slot.pipe == SCHEDULER_PIPE:
            return self._commands.frames(queue, self)
        return self._commands.kernel(queue)

    def interrupt_control(self, pipe: int) -> str:
        """Return the name of the register that enables a pipe's interrupts; "" on GFX 12, which has
        none (gc_12_0_0_offset.h)."""
        name = f"CP_ME2_PIPE{pipe}_INT_CNTL"
        return name if self.chip.space.has("gc", name) else ""

    def _start_address(self, value: int) -> None:
        select = self.mec.gfx.select
        if select.MEID == ME and select.PIPEID < PIPES:
            self._program_start[select.PIPEID] = value

    def _version(self) -> int:
        select = self.mec.gfx.select
        if select.MEID != ME or select.PIPEID >= PIPES or not self.running(select.PIPEID):
            return 0
        return self._commands.scheduler_versions[select.PIPEID]

    def _control(self, value: int) -> None:
        for pipe in range(PIPES):
            if value >> (16 + pipe) & 1:
                self._was_reset[pipe] = True
                self.slots[pipe].reset()
                if pipe == SCHEDULER_PIPE:
                    self.processes = None
            elif value >> (26 + pipe) & 1 and not value >> 30 & 1:
                self._started(pipe)

    def _started(self, pipe: int) -> None:
        if not self.mec.rlc_ready():
            self.chip.violation(f"MES pipe {pipe} started before the RLC has booted the CP")
        elif self._firmware[pipe] not in self.chip.psp.loaded:
            self.chip.fault(f"MES pipe {pipe} started without its firmware")
        elif not self._was_reset[pipe]:
            self.chip.violation(f"MES pipe {pipe} started without a pulse of its reset")
        elif self._program_start[pipe] != self._start >> 2:
            self.chip.fault(
                f"MES pipe {pipe} started at {self._program_start[pipe]:#x}, its program begins "
                f"at {self._start:#x} / 4"
            )
        active = self.slots[pipe].active
        if active is not None:
            active.worker.wake()
