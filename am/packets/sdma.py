"""SDMA: the copy engines: their packets (6.0), and one engine's ring.

Pointers, doorbells and counts are bytes. Source: Linux 6.12 sdma_v6_0.c (set-up, packets as the
kernel fills them), sdma_v6_0_0_pkt_open.h (layouts), kfd_mqd_manager_v11.c (user queues' RB_CNTL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from ugpu.am.chip.chip import Chip
from ugpu.am.packets.assembler import Assembler
from ugpu.am.packets.mqd import log2
from ugpu.am.regs import constants
from ugpu.hcq.bare.chip import batched
from ugpu.hcq.errors import UnitTimeout
from ugpu.hcq.registers.fields import BoundRegister, Field
from ugpu.hcq.work.command_buffer import Symbol

MOST = 0x40_0000  # bytes per packet; the kernel's limit for this engine
ALIGN_WORDS = 8  # indirect buffers and their packets end at multiples of this
NOP = 0
_MTYPE_UC = 3
_DWORD_FILL = 2
_GREATER_EQUAL = 5
_POLL_MEMORY = 1
_RETRIES = 0xFFF  # retry for ever (ROCr runtime, amd_blit_sdma.cpp)
_INTERVAL = 10
_WRITEBACK_TIMER = 6
_RESP_MODE, _REDO_DELAY = 3, 9
# L2 policies of UTCL1_PAGE: reads do not allocate, writes bypass. They are the kernel's "default"
# (sdma_common.h, CACHE_READ_POLICY_L2__DEFAULT and CACHE_WRITE_POLICY_L2__DEFAULT; sdma_v6_0.c) and
# tinygrad's. With 0, LRU, copied data may stay in GL2, which the host's BAR does not read.
_READ_NO_ALLOCATE, _WRITE_BYPASS = 2, 3
_HANG_COUNT = 1  # units of 100 ms
_HALT_LIMIT_S = 0.1
_MICRO_PAUSE_S = 100e-6


class Sdma(Assembler):
    """An image of SDMA packets. table: layouts and numbers in am/regs; a generation with others has
    a subclass (record.Generation.copy_queue, CopyQueue.packets)."""

    table: ClassVar[str] = "sdma_v6_0_0_pkt_open"
    copies: ClassVar[Mapping[str, int]] = {}  # further fields of a copy's header
    after_copy: ClassVar[tuple[int, ...]] = ()  # further words of a copy
    fills: ClassVar[int] = 0  # further bits of a fill's header

    @classmethod
    def number(cls, name: str) -> int:
        """Return the number of an operation or sub-operation, such as OP_COPY."""
        return constants(cls.table)[f"SDMA_{name}"]

    @classmethod
    def field(cls, name: str) -> Field:
        """Return a field of a packet."""
        return constants(cls.table).field(f"SDMA_PKT_{name}")

    @classmethod
    def header(cls, packet: str, operation: str, sub: str = "", **fields: int) -> int:
        """Return the first dword of a packet."""
        value = cls.field(f"{packet}_HEADER_OP").insert(0, cls.number(f"OP_{operation}"))
        low = cls.number(f"SUBOP_{sub}") if sub else 0
        value = cls.field(f"{packet}_HEADER_SUB_OP").insert(value, low)
        for name, field in fields.items():
            value = cls.field(f"{packet}_HEADER_{name}").insert(value, field)
        return value

    @classmethod
    def indirect_header(cls, vmid: int) -> int:
        """Return the first dword of an INDIRECT packet that reads its buffer in a VMID."""
        return cls.header("INDIRECT", "INDIRECT", VMID=vmid)

    def copy(self, destination: Symbol, source: Symbol, size: int) -> None:
        head = self.header("COPY_LINEAR", "COPY", "COPY_LINEAR", **self.copies)
        for start in range(0, size, MOST):
            self.emit(head, min(MOST, size - start) - 1, 0)
            self.pair(source.plus(start))
            self.pair(destination.plus(start))
            self.emit(*self.after_copy)

    def fill(self, destination: Symbol, value: int, size: int) -> None:
        head = self.header("CONSTANT_FILL", "CONST_FILL", FILLSIZE=_DWORD_FILL) | self.fills
        for start in range(0, size, MOST):
            self.emit(head)
            self.pair(destination.plus(start))
            self.emit(value & 0xFFFF_FFFF, min(MOST, size - start) - 1)

    def fence(self, address: Symbol, value: Symbol) -> None:
        """Write the value's low 32 bits when all earlier packets have finished."""
        self.emit(self._fence())
        self.pair(address)
        self.low(value)

    def signal(self, address: Symbol, value: Symbol) -> None:
        """Write 64 bits, the low half first: a rising counter then never reads too high."""
        self.fence(address, value)
        self.emit(self._fence())
        self.pair(address.plus(4))
        self.high(value)
        self.trap()

    def _fence(self) -> int:
        return self.header("FENCE", "FENCE", MTYPE=_MTYPE_UC)

    def trap(self) -> None:
        self.emit(self.header("TRAP", "TRAP"), 0)

    def wait_memory(self, address: Symbol, value: Symbol) -> None:
        """Stall until the 32 bits at `address` reach the value's low 32 bits."""
        self.emit(
            self.header("POLL_REGMEM", "POLL_REGMEM", FUNC=_GREATER_EQUAL, MEM_POLL=_POLL_MEMORY)
        )
        self.pair(address)
        self.low(value)
        pause = self.field("POLL_REGMEM_DW5_INTERVAL").insert(0, _INTERVAL)
        pause = self.field("POLL_REGMEM_DW5_RETRY_COUNT").insert(pause, _RETRIES)
        self.emit(0xFFFF_FFFF, pause)

    def timestamp(self, address: Symbol) -> None:
        self.emit(self.header("TIMESTAMP_GET_GLOBAL", "TIMESTAMP", "TIMESTAMP_GET_GLOBAL"))
        self.pair(address)

    def barrier(self) -> None:
        """Emit a NOP, which keeps packets from overlapping in the engine. Packets of one queue
        finish in order."""
        self.emit(NOP)


@dataclass(frozen=True)
class RingMemory:
    """Addresses of an engine's ring: virtual, in bytes. doorbell: dword index."""

    ring: int
    ring_size: int
    read_pointer: int
    write_pointer: int
    doorbell: int
    vmid: int


class Engine:
    """Drive an SDMA engine and one of its queues. number: of the queue.

    What differs between generations: processor_reset: field of the processor's control register
    that holds it in reset. polls: field of RB_CNTL that lets it poll the write pointer. page:
    fields of UTCL1_PAGE. waits_fail: whether waits for semaphores have a timer. freezes: field of
    FREEZE that keeps the engine from starting accesses while it is reset; "" without.
    """

    processor_reset: ClassVar[str] = "TH1_RESET"
    polls: ClassVar[str] = "F32_WPTR_POLL_ENABLE"
    page: ClassVar[Mapping[str, int]] = {
        "RD_L2_POLICY": _READ_NO_ALLOCATE, "WR_L2_POLICY": _WRITE_BYPASS, "LLC_NOALLOC": 1,
    }  # fmt: skip
    waits_fail: ClassVar[bool] = True
    freezes: ClassVar[str] = "FREEZE"

    def __init__(self, chip: Chip, index: int, number: int = 0) -> None:
        self.chip = chip
        self.index = index
        self.number = number
        self.name = f"SDMA{index}"

    def register(self, name: str) -> BoundRegister:
        return self.chip.gc[f"{self.name}_{name}"]

    @property
    def processor(self) -> BoundRegister:
        """The control of the engine's processor."""
        return self.register(self.chip.generation.copy_processor)

    def queue(self, name: str) -> BoundRegister:
        return self.chip.gc[f"{self.name}_QUEUE{self.number}_{name}"]

    @batched
    def start(self, memory: RingMemory, *, engine: bool = True) -> None:
        """Set the queue up on an empty ring. engine: also set the engine up and let it run; False
        for a further queue of a running engine."""
        if engine and self.waits_fail:
            self.register("SEM_WAIT_FAIL_TIMER_CNTL").write(0)
        # The registers of the ring are neighbours and travel together behind a bridge.
        control = self.queue("RB_CNTL")
        control.write(
            RB_SIZE=log2(memory.ring_size // 4), RB_VMID=memory.vmid, RPTR_WRITEBACK_ENABLE=1,
            RPTR_WRITEBACK_TIMER=_WRITEBACK_TIMER, WPTR_POLL_ENABLE=0, **{self.polls: 1},
            RB_PRIV=int(memory.vmid == 0),  # as the kernel's own ring, which is in VMID 0
        )  # fmt: skip
        self.queue("RB_BASE").write(memory.ring >> 8 & 0xFFFF_FFFF)
        self.queue("RB_BASE_HI").write(memory.ring >> 40)
        self._set_pointers(memory)
        if engine:
            self._start_engine()
        control.update(RB_ENABLE=1)
        self.queue("IB_CNTL").update(IB_ENABLE=1)

    def _start_engine(self) -> None:
        self.register("WATCHDOG_CNTL").update(QUEUE_HANG_COUNT=_HANG_COUNT)
        self.register("UTCL1_CNTL").update(RESP_MODE=_RESP_MODE, REDO_DELAY=_REDO_DELAY)
        self.register("UTCL1_PAGE").update(**self.page)
        self.processor.update(HALT=0, **{self.processor_reset: 0})
        self.register("CNTL").update(TRAP_ENABLE=1)

    def _set_pointers(self, memory: RingMemory) -> None:
        """Set the ring's pointers. ORDER: MINOR_PTR_UPDATE around the write of a pointer to a lower
        value."""
        for name in ("RB_RPTR", "RB_RPTR_HI", "RB_WPTR", "RB_WPTR_HI"):
            self.queue(name).write(0)
        self._pair("RB_WPTR_POLL_ADDR", memory.write_pointer)
        self._pair("RB_RPTR_ADDR", memory.read_pointer)
        self.queue("MINOR_PTR_UPDATE").write(ENABLE=1)
        self.queue("RB_WPTR").write(0)
        self.queue("RB_WPTR_HI").write(0)
        self.queue("DOORBELL").update(ENABLE=1)
        self.queue("DOORBELL_OFFSET").update(OFFSET=memory.doorbell)
        self.queue("MINOR_PTR_UPDATE").write(ENABLE=0)

    def _pair(self, stem: str, address: int) -> None:
        self.queue(f"{stem}_LO").write(address & 0xFFFF_FFFF)
        self.queue(f"{stem}_HI").write(address >> 32)

    def stop(self, *, alone: bool = True) -> bool:
        """Stop the queue; return whether it is idle. alone: wait for the whole engine; False
        if another queue of the engine may be running."""
        self.queue("DOORBELL").update(ENABLE=0)
        self.queue("RB_CNTL").update(RB_ENABLE=0)
        self.queue("IB_CNTL").update(IB_ENABLE=0)
        try:
            self.chip.wait(
                self.register("STATUS_REG") if alone else self.queue("CONTEXT_STATUS"),
                lambda value: bool(value.IDLE),
                unit=self.name,
                waiting_for="the engine to rest",
                limit_s=_HALT_LIMIT_S,
            )
        except UnitTimeout:
            return False
        return True

    def halt(self) -> None:
        """Halt the engine's firmware; the queue is off."""
        self.processor.update(HALT=1)

    def reset(self) -> None:
        """Freeze, halt and soft-reset the engine; its queues are gone afterwards.

        A doorbell that stays on, or its offset, would reach the engine again as soon as it runs
        (tinygrad 0.14 clears both).
        """
        self.queue("DOORBELL").update(ENABLE=0)
        self.queue("DOORBELL_OFFSET").update(OFFSET=0)
        self.queue("RB_CNTL").update(RB_ENABLE=0)
        self.queue("IB_CNTL").update(IB_ENABLE=0)
        if self.freezes:
            self.register("FREEZE").update(**{self.freezes: 1})
        self.processor.update(HALT=1, **{self.processor_reset: 1})
        self.queue("PREEMPT").write(0)
        self.chip.clock.sleep(_MICRO_PAUSE_S)
        reset = self.chip.gc.GRBM_SOFT_RESET
        reset.update(**{f"SOFT_RESET_SDMA{self.index}": 1})
        self.chip.clock.sleep(_MICRO_PAUSE_S)
        reset.update(**{f"SOFT_RESET_SDMA{self.index}": 0})
        self.chip.clock.sleep(_MICRO_PAUSE_S)
        if self.freezes:
            self.register("FREEZE").update(**{self.freezes: 0})

    def reset_queue(self) -> bool:
        """Reset the queue alone; False if the engine does not do it (Linux 6.12 mes_v11_0.c,
        mes_v11_0_reset_queue_mmio)."""
        self.queue("DOORBELL").update(ENABLE=0)
        request, bit = self.register("QUEUE_RESET_REQ"), 1 << self.number
        request.write(bit)
        try:
            self.chip.wait(
                request,
                lambda value: not value & bit,
                unit=self.name,
                waiting_for=f"the reset of queue {self.number}",
                limit_s=_HALT_LIMIT_S,
            )
        except UnitTimeout:
            return False
        self.queue("DOORBELL_OFFSET").update(OFFSET=0)
        self.queue("RB_CNTL").update(RB_ENABLE=0)
        self.queue("IB_CNTL").update(IB_ENABLE=0)
        return True

    def state(self) -> dict[str, object]:
        return {
            "status": int(self.register("STATUS_REG").read()),
            "rptr": int(self.queue("RB_RPTR").read()),
            "wptr": int(self.queue("RB_WPTR").read()),
            "context_status": int(self.queue("CONTEXT_STATUS").read()),
        }
