"""The parts of the graphics engine that rings need: ME 0 with two queues, mapped by KIQ or MES.

Facts: Linux 6.12 gfx_v11_0.c (halt bits, doorbell range, interrupts),
gc_11_0_0_{sh_mask,default}.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from ugpu.virtual.amd.block import Block, Reset
from ugpu.virtual.amd.engines.cp.queue import CLIENT_CPC, ComputeQueue, QueueSetup
from ugpu.virtual.amd.engines.cp.state import MecState, Runner, RunningQueue

HALTED = 0x1500_0000  # CP_ME_CNTL at power-on
QUEUES = 2
HALTS = 1 << 26 | 1 << 28  # PFP_HALT, ME_HALT

NO_UPDATE, NON_PRIVILEGED = 1 << 27, 1 << 15  # of CP_GFX_HQD_CNTL


class Graphics(Block):
    """A unit of two queue slots: the kernel's, and one that the scheduler may use."""

    name = "graphics"
    needs_eop = False

    def __init__(self, mec: MecState, executor: Callable[[RunningQueue], Runner]) -> None:
        super().__init__(mec.chip, "gc")
        self.mec = mec
        self._executor = executor
        self.slots = [GraphicsSlot(mec, self, number) for number in range(QUEUES)]
        self.on_write("CP_ME_CNTL", self._control)
        self.on_read("CP_GFX_HQD_ACTIVE", self._active)

    def reset(self, scope: Reset) -> None:
        """Halt the engine and discard its queues."""
        for slot in self.slots:
            slot.reset()
        self.set("CP_ME_CNTL", HALTED)
        self.set("CP_RB_DOORBELL_RANGE_UPPER", 0x108)

    def running(self, pipe: int) -> bool:
        """Return whether ME and PFP execute their firmware."""
        return not self.get("CP_ME_CNTL") & HALTS and self.mec.rlc_ready()

    def executor(self, queue: RunningQueue) -> Runner:
        """Create an executor for PM4 with the additional packets of a graphics queue."""
        return self._executor(queue)

    def interrupt_control(self, pipe: int) -> str:
        """Return the name of the register that enables the ring's interrupts."""
        return "CP_INT_CNTL_RING0"

    def doorbell(self, dword: int, value: int) -> bool:
        """Handle a doorbell write; False if it does not belong to a graphics queue."""
        for slot in self.slots:
            if slot.active is not None and slot.doorbell_dword() == dword:
                slot.active.ring(value)
                return True
        return False

    def _control(self, value: int) -> None:
        for slot in self.slots:
            if not value & HALTS and slot.active is not None:
                slot.active.worker.wake()

    def _active(self) -> int:
        """Read CP_GFX_HQD_ACTIVE of the slot selected by GRBM_GFX_CNTL."""
        select = self.mec.gfx.select
        if select.MEID or select.PIPEID or select.QUEUEID >= QUEUES:
            return 0
        return int(self.slots[select.QUEUEID].active is not None)


class GraphicsSlot:
    """A queue slot of the graphics engine. All methods run with the chip's lock held."""

    me = pipe = 0

    def __init__(self, mec: MecState, unit: Graphics, queue: int) -> None:
        self.queue = queue
        self.ring_id = queue << 4
        self.name = f"graphics queue 0.0.{queue}"
        self.mec = mec
        self.unit = unit
        self.sh: list[int] = []
        self.active: ComputeQueue | None = None
        self._doorbell = 0

    def reset(self) -> None:
        """Stop the queue."""
        if self.active is not None:
            self.active.kill()
            self.mec.retire(self.active)
            self.active = None
        self.sh = self.mec.sh_registers.power_on()

    def doorbell_dword(self) -> int:
        """Return the dword index of the doorbell, or -1 if the queue has none."""
        return self._doorbell >> 2 & 0x3FF_FFFF if self._doorbell >> 30 & 1 else -1

    def connect(self) -> None:
        """Do nothing: `map` has already read the descriptor."""

    def running(self) -> bool:
        """Return whether the engine executes its firmware."""
        return self.unit.running(0)

    def executor(self, queue: RunningQueue) -> Runner:
        """Create the executor that runs the queue's packets."""
        return self.unit.executor(queue)

    def error(self, field: str) -> None:
        """Record a failed fetch; no register of this queue reports it."""
        self.mec.chip.fault(f"{self.name}: {field}")

    def map(self, mqd: int, wptr: int, vmid: int = 0) -> None:
        """Activate a descriptor's queue in `vmid`; both addresses are in VMID 0."""
        hub, layout = self.mec.chip.gc, self.mec.layout
        data, fault = hub.read(0, mqd, 4 * layout.dwords, CLIENT_CPC)
        pointer, wptr_fault = hub.read(0, wptr, 8, CLIENT_CPC)
        if fault is not None or wptr_fault is not None:
            self.mec.chip.fault(
                f"{self.name}: descriptor at {mqd:#x} or pointer at {wptr:#x} cannot be read"
            )
            return
        if self.active is not None:
            self._flag("mapped while a queue is in the slot")
            self.reset()
        words = struct.unpack(f"<{layout.dwords}I", data)
        if words[layout.graphics.base] | words[layout.graphics.base + 1] << 32 != mqd:
            self._flag(f"descriptor at {mqd:#x} says that it is elsewhere")
        self._doorbell = words[layout.graphics.doorbell]
        setup = self._setup(words, vmid)
        self.active = ComputeQueue(
            self.mec, self, setup, words[layout.graphics.rptr], int.from_bytes(pointer, "little")
        )
        self.active.worker.wake()

    def _setup(self, words: tuple[int, ...], vmid: int) -> QueueSetup:
        layout = self.mec.layout.graphics
        control = words[layout.control]
        base = (words[layout.ring] | words[layout.ring + 1] << 32) << 8
        if not base:
            self._flag("mapped without a ring")
        return QueueSetup(
            vmid=vmid or words[layout.vmid] & 0xF,
            base=base,
            size=2 << (control & 0x3F),
            rptr_report=(words[layout.rptr_address] & ~3) | words[layout.rptr_address + 1] << 32,
            wptr_poll=0,
            eop_base=0,
            eop_size=0,
            report_rptr=not control & NO_UPDATE,
            privileged=not control & NON_PRIVILEGED,
            kernel=True,
        )

    def unmap(self, *, reset: bool) -> None:
        """Unmap the queue: drained, or with `reset` at once."""
        if self.active is None:
            return
        if reset:
            self.reset()
        else:
            self.active.drain_out()

    def drained(self, queue: RunningQueue) -> None:
        """Finish the unmapping of a queue that its thread has drained."""
        queue.worker.stop()
        self.mec.retire(queue)
        self.active = None

    def _flag(self, text: str) -> None:
        self.mec.chip.violation(f"{self.name}: {text}")
