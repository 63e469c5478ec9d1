"""The compute micro-engine: pipes, queue slots behind GRBM selects, doorbells, interrupts.

Facts: Linux 6.12 gfx_v11_0.c (one MEC of 4 pipes with 4 queues; CP_MEC_RS64_CNTL; doorbell range),
gc_11_0_0_{sh_mask,default}.h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ugpu.virtual.amd.block import Reset
from ugpu.virtual.amd.engines.cp import mes
from ugpu.virtual.amd.engines.cp.commands import CommandSet
from ugpu.virtual.amd.engines.cp.graphics import Graphics
from ugpu.virtual.amd.engines.cp.hqd import Slot
from ugpu.virtual.amd.engines.cp.mes import Mes
from ugpu.virtual.amd.engines.cp.queue import GRBM_CP, ComputeQueue
from ugpu.virtual.amd.engines.cp.state import (
    GraphicsCore,
    Kind,
    MecState,
    QueueSlot,
    Runner,
    RunningQueue,
)
from ugpu.virtual.amd.engines.shaders import ShaderArray

ME = 1  # GRBM_GFX_CNTL.MEID of the first MEC; 0 is the graphics engine
PIPES = 4  # in the registers; a generation may have fewer
DOORBELL_PAGE = 0xFFC  # ranges compare the byte offset within a page of doorbells
RS64_HALTED = 0x4000_0000  # CP_MEC_RS64_CNTL at power-on (gc_11_0_0_default.h)
SOURCE_STRAY_DOORBELL = 200


class Mec(MecState):
    """The MEC, which owns the queue slots. `gfx` holds the selects and the RLC's state."""

    name = "compute"
    needs_eop = True

    def __init__(self, gfx: GraphicsCore, array: ShaderArray, commands: CommandSet) -> None:
        super().__init__(gfx, array, commands.descriptors, commands.launcher)
        self._commands = commands
        self.retired: list[RunningQueue] = []  # queues to join at close
        facts = self.chip.facts.generation
        self.slots = [
            [Slot(self, self, ME, pipe, queue) for queue in range(facts.queues_per_pipe)]
            for pipe in range(facts.compute_pipes)
        ]
        self.scheduler = Mes(self, commands)
        self.graphics = Graphics(self, commands.graphics)
        self._program_start = [0] * PIPES
        self._was_reset = [False] * PIPES
        self._install()

    def _install(self) -> None:
        for name in self.gfx.table:
            if name.startswith("CP_HQD_GFX"):
                continue
            if name.startswith("CP_HQD_") or name in (
                "CP_MQD_BASE_ADDR",
                "CP_MQD_BASE_ADDR_HI",
                "CP_MQD_CONTROL",
            ):
                self.on_read(name, partial(self._read_hqd, name))
                self.on_write(name, partial(self._write_hqd, name))
        for name, at in self.sh_registers.items().items():
            self.on_read(name, partial(self._read_sh, at))
            self.on_write(name, partial(self._write_sh, at))
        # The MQD mirrors dwords of this block that no header names (GFX 11: 144 and 178); drivers
        # write the whole block, and there they have no effect.
        layout = self._commands.descriptors
        for dword in range(layout.first_hqd, layout.last_hqd):
            index = self.index("CP_MQD_BASE_ADDR") + dword - layout.first_hqd
            if self.chip.space.owner(index) is None:
                self.chip.space.on_write_at(index, lambda value: None)
        self.on_write("CP_MEC_RS64_CNTL", self._control)
        self.on_write("CP_MEC_RS64_PRGRM_CNTR_START", self._start_address)
        self.on_write("SPI_COMPUTE_QUEUE_RESET", self._reset_waves)
        self.on_write("CP_VMID_RESET", self._reset_vmids)
        self.on_write("CP_SOFT_RESET_CNTL", self._soft_reset)
        self.on_read("CP_CPC_STATUS", self._cpc_status)

    def reset(self, scope: Reset) -> None:
        """Discard all queues and halt the pipes."""
        self.chip.faults.mec_crashed = False
        for slot in self._all():
            slot.reset()
        self.scheduler.reset(scope)
        self.graphics.reset(scope)
        self._program_start = [0] * PIPES
        self._was_reset = [False] * PIPES
        self.set("CP_MEC_RS64_CNTL", RS64_HALTED)
        if scope is not Reset.GFX:
            # GRBM_SOFT_RESET keeps the range: tinygrad's AM driver resets the MEC this way at each
            # warm start, never writes the range again, and its doorbells arrive on boards.
            self.set("CP_MEC_DOORBELL_RANGE_LOWER", 0x110)
            self.set("CP_MEC_DOORBELL_RANGE_UPPER", 0xFFC)
        # The header's default is 0, but on bare metal queues accept doorbells even if this register
        # is never written: the CP's own firmware enables them.
        self.set("CP_PQ_STATUS", DOORBELL_ENABLE=1)

    def stop(self) -> None:
        """Stop all queues at once."""
        for queue in self.queues():
            queue.kill()

    def close(self) -> None:
        """Stop and join all queue threads."""
        with self.chip.lock:
            self.stop()
            queues = [*self.retired, *self.queues()]
            self.retired = []
        for queue in queues:
            queue.worker.join()

    def _slots(self, pipe: int) -> list[Slot]:
        return self.slots[pipe] if pipe < len(self.slots) else []

    def _all(self) -> list[Slot]:
        return [slot for pipe in self.slots for slot in pipe] + self.scheduler.slots

    def executor(self, queue: RunningQueue) -> Runner:
        """Create an executor for the PM4 packets of a compute queue."""
        return self._commands.compute(queue)

    def retire(self, queue: RunningQueue) -> None:
        """Keep a queue that has left its slot until its thread has ended."""
        self.retired = [other for other in self.retired if other.worker.alive]
        self.retired.append(queue)

    def slots_of(self) -> Mapping[Kind, Sequence[Sequence[QueueSlot]]]:
        """Return the slots of the command processor by kind of queue, then by pipe."""
        return {
            Kind.COMPUTE: self.slots,
            Kind.SCHEDULER: [[slot] for slot in self.scheduler.slots],
            Kind.GRAPHICS: [self.graphics.slots],
        }

    # ---- selects ------------------------------------------------------------------------------

    def _selected(self, name: str, value: int | None) -> Slot | None:
        select = self.gfx.select
        if select.MEID == ME:
            queues = self._slots(select.PIPEID)
            if queues[select.QUEUEID :]:
                return queues[select.QUEUEID]
        if select.MEID == mes.ME and select.PIPEID < mes.PIPES and select.QUEUEID == 0:
            return self.scheduler.slots[select.PIPEID]
        if value is not None:
            self.chip.fault(
                f"{name} written with {value:#x} while GRBM_GFX_CNTL selects me {select.MEID} "
                f"pipe {select.PIPEID} queue {select.QUEUEID}, where no compute queue is"
            )
        return None

    def _read_hqd(self, name: str) -> int:
        slot = self._selected(name, None)
        return slot.read(name) if slot is not None else 0

    def _write_hqd(self, name: str, value: int) -> None:
        slot = self._selected(name, value)
        if slot is not None:
            slot.write(name, value)

    def _read_sh(self, at: int) -> int:
        slot = self._selected("", None)
        return slot.sh[at] if slot is not None else 0

    def _write_sh(self, at: int, value: int) -> None:
        slot = self._selected(self.sh_registers.known[at].name, value)
        if slot is not None:
            slot.sh[at] = value

    # ---- pipes --------------------------------------------------------------------------------

    def running(self, pipe: int) -> bool:
        """Return whether the pipe executes its firmware."""
        control = self.get("CP_MEC_RS64_CNTL")
        halted = control >> 30 & 1
        return bool(
            control >> (26 + pipe) & 1
            and not control >> (16 + pipe) & 1
            and not halted
            and not self.chip.faults.mec_crashed
            and self.rlc_ready()
            and self._starts_right(pipe)
        )

    def _starts_right(self, pipe: int) -> bool:
        """Return whether the pipe starts at its firmware's start (counted in 4-byte units)."""
        return self._program_start[pipe] == self._commands.program_start >> 2

    def interrupt_control(self, pipe: int) -> str:
        """Return the name of the register that enables a pipe's interrupts."""
        return f"CP_ME1_PIPE{pipe}_INT_CNTL"

    def _start_address(self, value: int) -> None:
        if self.gfx.select.MEID == ME:
            self._program_start[self.gfx.select.PIPEID] = value

    def _control(self, value: int) -> None:
        for pipe in range(PIPES):
            if value >> (16 + pipe) & 1:
                self._was_reset[pipe] = True
                for slot in self._slots(pipe):
                    slot.reset()
                continue
            if not value >> (26 + pipe) & 1 or value >> 30 & 1:
                continue
            if not self.rlc_ready():
                self.chip.violation(f"MEC pipe {pipe} started before the RLC has booted the CP")
            elif not self._was_reset[pipe]:
                self.chip.violation(f"MEC pipe {pipe} started without a pulse of its reset")
            elif not self._starts_right(pipe):
                self.chip.fault(
                    f"MEC pipe {pipe} started at {self._program_start[pipe]:#x}, its program "
                    f"begins at {self._commands.program_start:#x} / 4"
                )
            for slot in self._slots(pipe):
                if slot.active is not None:
                    slot.active.worker.wake()

    # ---- resets -------------------------------------------------------------------------------

    def _reset_waves(self, value: int) -> None:
        slot = self._selected("SPI_COMPUTE_QUEUE_RESET", value)
        if value & 1 and slot is not None and slot.active is not None:
            if slot.values.get("CP_HQD_DEQUEUE_REQUEST", 0) & 0xF != 2:  # mes_v11_0.c, gfx_v11_0.c
                self.chip.note(f"{slot.name}: SPI_COMPUTE_QUEUE_RESET before DEQUEUE_REQUEST 2")
            if not self.gfx.rlc.safe:
                self.chip.note(f"{slot.name}: SPI_COMPUTE_QUEUE_RESET outside RLC safe mode")
            slot.active.abort.set()

    def _reset_vmids(self, value: int) -> None:
        """Reset the queues of the VMIDs in RESET_REQUEST; the register reads 0 when done."""
        for slot in self._all():
            if slot.active is not None and value >> slot.active.vmid & 1:
                slot.active.kill()
                slot.retire()
        self.later(lambda: self.set("CP_VMID_RESET", 0))

    def _soft_reset(self, value: int) -> None:
        if value & 4:  # CMP_HQD_REG_RESET
            for slot in self._all():
                slot.reset()

    # ---- doorbells ----------------------------------------------------------------------------

    def doorbell(self, dword: int, value: int) -> bool:
        """Handle a doorbell write; see board.DoorbellTarget."""
        byte = dword * 4 & DOORBELL_PAGE
        compute = self._in_range(byte, "MEC")
        # A graphics queue mapped by the scheduler uses the MEC's doorbell range (mes_v11_0.c).
        if (compute or self._in_range(byte, "RB")) and self.graphics.doorbell(dword, value):
            return True
        if not compute or not self.fields("CP_PQ_STATUS").DOORBELL_ENABLE:
            return False
        hit = False
        for slot in self._all():
            if slot.doorbell_dword() == dword:
                slot.values["CP_HQD_PQ_DOORBELL_CONTROL"] |= 1 << 31
                if slot.active is not None:
                    slot.active.ring(value)
                    hit = True
        processes = self.scheduler.processes
        if not hit and processes is not None and processes.waits(dword):
            return True  # the scheduler reads the write pointer in memory when it maps the queue
        if not hit and self.fields("CP_INT_CNTL").CP_VM_DOORBELL_WR_INT_ENABLE:
            self.chip.ih.raise_interrupt(GRBM_CP, SOURCE_STRAY_DOORBELL, data=(4 * dword, 0, 0, 0))
        return hit

    def rival(self, slot: QueueSlot) -> str | None:
        """Return the name of another active slot that shares the doorbell of `slot`: a write would
        ring both."""
        dword = slot.doorbell_dword()
        others = (other for other in self._all() if other.active is not None and other is not slot)
        return next((other.name for other in others if other.doorbell_dword() == dword != -1), None)

    def _in_range(self, byte: int, unit: str) -> bool:
        lower = self.get(f"CP_{unit}_DOORBELL_RANGE_LOWER") & DOORBELL_PAGE
        return lower <= byte <= self.get(f"CP_{unit}_DOORBELL_RANGE_UPPER") & DOORBELL_PAGE

    # ---- reports from queues ------------------------------------------------------------------

    def drained(self, queue: RunningQueue) -> None:
        """Handle the end of a drain, reported by the queue's thread."""
        with self.chip.lock:
            if queue.slot.active is queue:
                queue.slot.drained(queue)

    def queues(self) -> list[ComputeQueue]:
        """Return all active queues."""
        graphics = [slot.active for slot in self.graphics.slots if slot.active is not None]
        return [slot.active for slot in self._all() if slot.active is not None] + graphics

    def interrupt(self, queue: RunningQueue, source: int, enable: str, data: int) -> None:
        """Raise a CP interrupt if CP_ME1_PIPEn_INT_CNTL enables it; set its CPC_INT_STATUS bit."""
        self.set("CPC_INT_STATUS", **{f"{enable}_STATUS": 1})
        name = queue.slot.unit.interrupt_control(queue.slot.pipe)
        if name and self.fields(name)[f"{enable}_ENABLE"]:
            self.chip.ih.raise_interrupt(
                GRBM_CP, source, ring_id=queue.slot.ring_id, vmid=queue.vmid, data=(data, 0, 0, 0)
            )

    def busy(self) -> bool:
        """Return whether any queue has work or is hung."""
        return any(queue.busy for queue in self.queues())

    def _cpc_status(self) -> int:
        register = self.chip.space.register("gc", "CP_CPC_STATUS")
        return register.encode(MEC1_BUSY=1, CPC_BUSY=1) if self.busy() else 0
