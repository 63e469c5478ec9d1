"""One SDMA engine: its registers, queue 0, doorbell, and the thread that copies.

Queues 1 to 7 are not modelled. Units of every pointer are bytes. Facts: Linux 6.12 sdma_v6_0.c
(order of set-up, byte units, interrupt words), gc_11_0_0_{sh_mask,default}.h, irqsrcs_gfx_11_0_0.h.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from am import regs
from am.chips.navi31 import facts
from am.virtual.block import Block, Reset
from am.virtual.engines.engine import MemoryWritten
from am.virtual.engines.sdma_queue import SdmaQueue, SdmaSetup
from am.virtual.registers import Writer
from hcq.fields import RegisterValue

if TYPE_CHECKING:
    from am.virtual.chip import Chip

GFX_CLIENT = 0x0A  # SDMA reports under the GFX client (soc15_ih_clientid.h, SOC21)
SOURCE_REGISTER_WRITE, SOURCE_HANG = 50, 55
HANG_UNIT_S = 0.1  # WATCHDOG_CNTL.QUEUE_HANG_COUNT

POWER_ON = {
    "CNTL": 0x00002440,
    "UTCL1_CNTL": 0x2C000288,
    "UTCL1_PAGE": 0x010CEC00,
    "F32_CNTL": 0x08084001,
    "QUEUE0_RB_CNTL": 0x00040800,
    "QUEUE0_IB_CNTL": 0x00000100,
    "QUEUE0_CONTEXT_STATUS": 0x00000804,
}
SETUP_REGISTERS = (
    "QUEUE0_RB_BASE",
    "QUEUE0_RB_BASE_HI",
    "QUEUE0_RB_RPTR_ADDR_LO",
    "QUEUE0_RB_RPTR_ADDR_HI",
)


class Sdma(Block):
    """`chip.sdma[instance]`."""

    def __init__(self, chip: Chip, instance: int, memory_written: MemoryWritten) -> None:
        super().__init__(chip, "gc")
        self.memory_written = memory_written
        self.instance = instance
        self.client = 13 + instance  # of the graphics hub (Linux 6.12 gfxhub_v3_0.c)
        self.queue: SdmaQueue | None = None
        self.retired: list[SdmaQueue] = []
        self._halted = True
        prefix = f"SDMA{instance}_"
        table = regs.load(facts.REGISTER_TABLES["GC"])
        self._registers = [name for name in table if name.startswith(prefix)]
        write = self._on_write
        write("F32_CNTL", self._f32_control)
        write("FREEZE", self._freeze)
        write("QUEUE_RESET_REQ", self._queue_reset)
        write("QUEUE0_RB_CNTL", self._ring_control)
        write("QUEUE0_RB_WPTR", self._wptr_written)
        write("QUEUE0_RB_WPTR_HI", self._wptr_written)
        write("QUEUE0_MINOR_PTR_UPDATE", self._wptr_written)
        for name in SETUP_REGISTERS:
            write(name, self._setup_written(name))
        self.on_read(self._name("STATUS_REG"), self._status)
        self.on_read(self._name("QUEUE0_RB_RPTR"), lambda: self._rptr() & 0xFFFF_FFFF)
        self.on_read(self._name("QUEUE0_RB_RPTR_HI"), lambda: self._rptr() >> 32)
        self.on_read(self._name("QUEUE0_RB_WPTR"), lambda: self._wptr() & 0xFFFF_FFFF)
        self.on_read(self._name("QUEUE0_RB_WPTR_HI"), lambda: self._wptr() >> 32)
        for number in range(1, 8):
            write(f"QUEUE{number}_RB_CNTL", self._other_queue(number))

    def _name(self, name: str) -> str:
        return f"SDMA{self.instance}_{name}"

    def _on_write(self, name: str, writer: Writer) -> None:
        self.on_write(self._name(name), writer)

    def value(self, name: str) -> RegisterValue:
        """Return a register of this engine with its fields."""
        return self.fields(self._name(name))

    def flag(self, text: str) -> None:
        """Append a violation."""
        self.chip.violation(f"SDMA{self.instance}: {text}")

    # ---- life ---------------------------------------------------------------------------------

    def reset(self, scope: Reset) -> None:
        """Lose the queue; the engine is halted."""
        self._drop()
        for register in self._registers:
            self.set(register, 0)
        for name, value in POWER_ON.items():
            self.set(self._name(name), value)
        self._halted = True

    def stop(self) -> None:
        """Stop at once."""
        if self.queue is not None:
            self.queue.kill()

    def close(self) -> None:
        """Stop and join the threads."""
        with self.chip.lock:
            self.stop()
            queues = self.retired + ([self.queue] if self.queue is not None else [])
            self.retired = []
        for queue in queues:
            queue.worker.join()

    def _drop(self) -> None:
        if self.queue is not None:
            self.queue.kill()
            self.retired = [other for other in self.retired if other.worker.alive]
            self.retired.append(self.queue)
            self.queue = None

    def busy(self) -> bool:
        """There is work left."""
        return self.queue is not None and self.queue.busy

    def running(self) -> bool:
        """The engine executes its firmware."""
        return not self._halted and not self.value("FREEZE").FREEZE

    # ---- engine registers ---------------------------------------------------------------------

    def _f32_control(self, value: int) -> None:
        self._halted = bool(value & 1)
        if not self._halted and self.queue is not None:
            self.queue.worker.wake()

    def _freeze(self, value: int) -> None:
        """FREEZE stops between packets; FROZEN says that it has."""
        freeze = bool(self.value("FREEZE").FREEZE)
        self.set(self._name("FREEZE"), FROZEN=int(freeze))
        if not freeze and self.queue is not None:
            self.queue.worker.wake()

    def _queue_reset(self, value: int) -> None:
        """Reset queue 0; the request bit clears when it is done."""
        if value & ~1:
            self.flag(f"QUEUE_RESET_REQ {value:#x}: only queue 0 is modelled")
        if value & 1:
            self._drop()
            self.set(self._name("QUEUE0_RB_CNTL"), POWER_ON["QUEUE0_RB_CNTL"])
            self.chip.scheduler.after(50e-6, lambda: self.set(self._name("QUEUE_RESET_REQ"), 0))

    def _other_queue(self, number: int) -> Writer:
        def written(value: int) -> None:
            if value & 1:
                self.flag(f"queue {number} enabled: only queue 0 is modelled")

        return written

    def _status(self) -> int:
        register = self.chip.space.register("gc", self._name("STATUS_REG"))
        if self.busy():
            return register.encode(RB_CMD_IDLE=0, REG_IDLE=1)
        return register.decode(0x46DEE557)  # gc_11_0_0_default.h: everything idle

    # ---- the queue ----------------------------------------------------------------------------

    def _wide(self, low: str, high: str) -> int:
        return self.get(self._name(low)) | self.get(self._name(high)) << 32

    def _rptr(self) -> int:
        if self.queue is not None:
            return self.queue.rptr
        return self._wide("QUEUE0_RB_RPTR", "QUEUE0_RB_RPTR_HI")

    def _wptr(self) -> int:
        if self.queue is not None:
            return self.queue.wptr
        return self._wide("QUEUE0_RB_WPTR", "QUEUE0_RB_WPTR_HI")

    def _ring_control(self, value: int) -> None:
        if value & 1 and self.queue is None:
            self._enable()
        elif not value & 1 and self.queue is not None:
            if self.queue.busy and not self.queue.hung:
                self.chip.notes.append(f"SDMA{self.instance}: ring disabled with work in it")
            for name, pointer in (("RPTR", self.queue.rptr), ("WPTR", self.queue.wptr)):
                self.set(self._name(f"QUEUE0_RB_{name}"), pointer & 0xFFFF_FFFF)
                self.set(self._name(f"QUEUE0_RB_{name}_HI"), pointer >> 32)
            self._drop()

    def _enable(self) -> None:
        control = self.value("QUEUE0_RB_CNTL")
        report = self._wide("QUEUE0_RB_RPTR_ADDR_LO", "QUEUE0_RB_RPTR_ADDR_HI")
        setup = SdmaSetup(
            vmid=control.RB_VMID,
            base=self._wide("QUEUE0_RB_BASE", "QUEUE0_RB_BASE_HI") << 8,
            size=4 << control.RB_SIZE,
            rptr_report=report & ~3 if control.RPTR_WRITEBACK_ENABLE else 0,
            privileged=bool(control.RB_PRIV),
        )
        if setup.base == 0 or setup.size < 256:
            self.flag(f"ring enabled at {setup.base:#x} with {setup.size} bytes")
        if control.RB_SWAP_ENABLE or control.WPTR_POLL_SWAP_ENABLE:
            self.flag("byte swapping is not modelled")
        if report & 7:
            self.flag(f"RPTR write-back to {report:#x}, which is not 8-byte aligned")
        if self._minor_update():
            self.flag("ring enabled while MINOR_PTR_UPDATE is set")
        rptr = self._wide("QUEUE0_RB_RPTR", "QUEUE0_RB_RPTR_HI")
        wptr = self._wide("QUEUE0_RB_WPTR", "QUEUE0_RB_WPTR_HI")
        self.queue = SdmaQueue(self, setup, rptr)
        if wptr != rptr:
            self.queue.ring(wptr)

    def _minor_update(self) -> int:
        return self.get(self._name("QUEUE0_MINOR_PTR_UPDATE")) & 1

    def _wptr_written(self, value: int) -> None:
        if self.queue is not None and not self._minor_update():
            wptr = self._wide("QUEUE0_RB_WPTR", "QUEUE0_RB_WPTR_HI")
            if wptr > self.queue.wptr:
                self.queue.ring(wptr)

    def _setup_written(self, name: str) -> Writer:
        def written(value: int) -> None:
            if self.queue is not None:
                self.flag(f"{name} written with {value:#x} while the ring is enabled")

        return written

    def doorbell(self, dword: int, value: int) -> bool:
        """Take a doorbell write; see block.DoorbellTarget."""
        doorbell = self.value("QUEUE0_DOORBELL")
        offset = self.value("QUEUE0_DOORBELL_OFFSET").OFFSET
        if not doorbell.ENABLE or offset != dword:
            return False
        self.set(self._name("QUEUE0_DOORBELL"), CAPTURED=1)
        if self.queue is None:
            return False
        self.queue.ring(value)
        return True

    # ---- interrupts ---------------------------------------------------------------------------

    def interrupt(self, source: int, vmid: int, data: tuple[int, int, int, int]) -> None:
        """Raise an entry: queue in ring_id [3:0], instance in [7:4]."""
        self.chip.ih.raise_interrupt(
            GFX_CLIENT, source, ring_id=self.instance << 4, vmid=vmid, data=data
        )

    def hung(self, queue: SdmaQueue) -> None:
        """A queue stopped at a bad packet: report it, and let the watchdog bite later.

        UNSURE: source 50 is named after register writes; older chips report illegal packets by its
        like (Linux 6.12 sdma_v3_0.c). A bad packet on a board would settle it.
        """
        self.interrupt(SOURCE_REGISTER_WRITE, queue.vmid, (queue.bad_header, 0, 0, 0))
        count = self.value("WATCHDOG_CNTL").QUEUE_HANG_COUNT
        if count:
            self.chip.scheduler.after(count * HANG_UNIT_S, lambda: self._watchdog(queue))

    def _watchdog(self, queue: SdmaQueue) -> None:
        if self.queue is queue:
            self.interrupt(SOURCE_HANG, queue.vmid, (queue.bad_header, 0, 0, 0))
