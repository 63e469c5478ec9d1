"""One SDMA engine: its registers, eight queue slots, resets and interrupts.

Facts: Linux 6.12 sdma_v6_0.c (order of set-up, interrupt words), gc_11_0_0_{sh_mask,default}.h,
irqsrcs_gfx_11_0_0.h.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ugpu.virtual.amd.block import Reset
from ugpu.virtual.amd.engines.engine import MemoryWritten
from ugpu.virtual.amd.engines.sdma.packets import CopyPackets
from ugpu.virtual.amd.engines.sdma.queue import SdmaQueue
from ugpu.virtual.amd.engines.sdma.slot import SdmaSlot
from ugpu.virtual.amd.engines.sdma.state import EngineState, Threaded
from ugpu.virtual.amd.registers import Writer

if TYPE_CHECKING:
    from ugpu.virtual.amd.board import Board

GFX_CLIENT = 0x0A  # SDMA reports under the GFX client (soc15_ih_clientid.h, SOC21)
SOURCE_REGISTER_WRITE, SOURCE_HANG = 50, 55
HANG_UNIT_S = 0.1  # unit of WATCHDOG_CNTL.QUEUE_HANG_COUNT

QUEUES = 8
# UTCL1_PAGE.RD_L2_POLICY and WR_L2_POLICY of proven drivers: NOA and BYPASS, which sdma_common.h
# calls the defaults. The model does not have a GL2, so stale lines would not show.
L2_POLICIES = (2, 3)


class Sdma(EngineState):
    """One copy engine, `chip.sdma[instance]`.

    control: the register that halts its processor; stopped: its bits that do. freeze_field:
    of FREEZE. power_on: registers after a reset; the others are 0. idle: STATUS_REG without work.
    """

    control = "F32_CNTL"
    stopped = 1
    freeze_field = "FREEZE"
    power_on: ClassVar[Mapping[str, int]] = {
        "CNTL": 0x00002440,
        "UTCL1_CNTL": 0x2C000288,
        "UTCL1_PAGE": 0x010CEC00,
        "F32_CNTL": 0x08084001,
    }
    idle = 0x46DEE557  # gc_11_0_0_default.h

    def __init__(
        self, chip: Board, instance: int, memory_written: MemoryWritten, packets: CopyPackets
    ) -> None:
        super().__init__(chip, instance, memory_written, packets)
        self.retired: list[Threaded] = []
        self._halted = True
        write = self._on_write
        write(self.control, self._processor_control)
        write("FREEZE", self._freeze)
        write("QUEUE_RESET_REQ", self._queue_reset)
        self.on_read(self._name("STATUS_REG"), self._status)
        self.slots = [SdmaSlot(self, number) for number in range(QUEUES)]

    def _name(self, name: str) -> str:
        return f"SDMA{self.instance}_{name}"

    def _on_write(self, name: str, writer: Writer) -> None:
        self.on_write(self._name(name), writer)

    # ---- life ---------------------------------------------------------------------------------

    def reset(self, scope: Reset) -> None:
        """Discard the queues and halt the engine."""
        self.chip.faults.sdma_crashed = False
        self.chip.space.clear_prefixed(self.block, self._name(""))
        for name, value in self.power_on.items():
            self.set(self._name(name), value)
        for slot in self.slots:
            slot.reset()
        self._halted = True

    def stop(self) -> None:
        """Stop at once."""
        for queue in self.queues():
            queue.kill()

    def close(self) -> None:
        """Stop and join the threads."""
        with self.chip.lock:
            self.stop()
            queues = [*self.retired, *self.queues()]
            self.retired = []
        for queue in queues:
            queue.worker.join()

    @property
    def queue(self) -> SdmaQueue | None:
        """The kernel's queue, in slot 0."""
        return self.slots[0].queue

    def rival(self, slot: int) -> int | None:
        """Return the number of another enabled slot that shares the doorbell of `slot`: a write
        rings both."""
        dword = self.slots[slot].doorbell_dword()
        others = (other for other in self.slots if other.queue is not None and other.number != slot)
        return next(
            (other.number for other in others if other.doorbell_dword() == dword != -1), None
        )

    def queues(self) -> list[SdmaQueue]:
        """Return all enabled queues."""
        return [slot.queue for slot in self.slots if slot.queue is not None]

    def retire(self, queue: Threaded) -> None:
        """Keep a queue that has left its slot until its thread has ended."""
        self.retired = [other for other in self.retired if other.worker.alive]
        self.retired.append(queue)

    def busy(self) -> bool:
        """Return whether work is left."""
        return any(queue.busy for queue in self.queues())

    def doorbell(self, dword: int, value: int) -> bool:
        """Handle a doorbell write; see board.DoorbellTarget."""
        return any(slot.doorbell(dword, value) for slot in self.slots)

    def running(self) -> bool:
        """Return whether the engine executes its firmware."""
        crashed = self.chip.faults.sdma_crashed
        return not (self._halted or crashed or self.value("FREEZE")[self.freeze_field])

    # ---- engine registers ---------------------------------------------------------------------

    def _processor_control(self, value: int) -> None:
        self._halted = bool(value & self.stopped)
        if not self._halted:
            page = self.value("UTCL1_PAGE")
            if (page.RD_L2_POLICY, page.WR_L2_POLICY) != L2_POLICIES:
                self.chip.note(
                    f"SDMA{self.instance} runs with L2 policies {page.RD_L2_POLICY} (read) and "
                    f"{page.WR_L2_POLICY} (write), not {L2_POLICIES[0]} and {L2_POLICIES[1]}"
                )
            self._wake()

    def _wake(self) -> None:
        for queue in self.queues():
            queue.worker.wake()

    def _freeze(self, value: int) -> None:
        """Handle FREEZE, which stops the engine between packets; FROZEN acknowledges it."""
        freeze = bool(self.value("FREEZE")[self.freeze_field])
        self.set(self._name("FREEZE"), FROZEN=int(freeze))
        if not freeze:
            self._wake()

    def _queue_reset(self, value: int) -> None:
        """Reset the queues whose bits are set, as the engine's firmware does; the request bits
        clear when it is done (Linux 6.12 mes_v11_0.c, mes_v11_0_reset_queue_mmio)."""
        if self._halted or self.chip.faults.sdma_crashed:
            return
        for slot in self.slots:
            if value >> slot.number & 1:
                slot.unmap(reset=True)
        if value & (1 << QUEUES) - 1:
            self.chip.scheduler.after(50e-6, lambda: self.set(self._name("QUEUE_RESET_REQ"), 0))

    def _status(self) -> int:
        register = self.chip.space.register("gc", self._name("STATUS_REG"))
        if self.busy():
            return register.encode(RB_CMD_IDLE=0, REG_IDLE=1)
        return self.idle

    # ---- interrupts ---------------------------------------------------------------------------

    def interrupt(
        self, source: int, vmid: int, data: tuple[int, int, int, int], queue: int = 0
    ) -> None:
        """Raise an interrupt entry: ring_id has the queue in [3:0], the instance in [7:4]."""
        self.chip.ih.raise_interrupt(
            GFX_CLIENT, source, ring_id=self.instance << 4 | queue, vmid=vmid, data=data
        )

    def hung(self, slot: int) -> None:
        """Report a slot's queue that stopped at a bad packet, and schedule its watchdog interrupt.

        UNSURE: source 50 is named after register writes; older chips report illegal packets with a
        similar source (Linux 6.12 sdma_v3_0.c). A bad packet on a board would settle it.
        """
        queue = self.slots[slot].queue
        if queue is None:
            return
        self.interrupt(SOURCE_REGISTER_WRITE, queue.vmid, (queue.bad_header, 0, 0, 0), slot)
        count = self.value("WATCHDOG_CNTL").QUEUE_HANG_COUNT
        if count:
            self.chip.scheduler.after(count * HANG_UNIT_S, lambda: self._watchdog(slot, queue))

    def _watchdog(self, slot: int, queue: SdmaQueue) -> None:
        if self.slots[slot].queue is queue:
            self.interrupt(SOURCE_HANG, queue.vmid, (queue.bad_header, 0, 0, 0), slot)
