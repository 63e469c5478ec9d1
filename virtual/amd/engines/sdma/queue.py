"""An enabled SDMA ring: its thread fetches packets, moves memory and maintains the pointers."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ugpu.virtual.amd.engines import transfer
from ugpu.virtual.amd.engines.engine import Worker
from ugpu.virtual.amd.engines.sdma.packets import BadSdmaPacket, SdmaExecutor
from ugpu.virtual.amd.engines.sdma.state import SlotState

if TYPE_CHECKING:
    from ugpu.virtual.amd.memory.access import Fault

FETCH_BYTES = 1 << 20
SOURCE_TRAP, SOURCE_REGISTER_WRITE, SOURCE_EMPTY, SOURCE_POLL, SOURCE_PAGE = 49, 50, 51, 57, 60


@dataclass(frozen=True)
class SdmaSetup:
    """Values latched when the ring was enabled. Addresses are virtual, sizes in bytes.

    rptr_report 0: the read pointer is not reported.
    """

    vmid: int
    base: int
    size: int
    rptr_report: int
    privileged: bool


class SdmaQueue:
    """Implement SdmaSurroundings; all methods but `ring` and `kill` run on its own thread."""

    def __init__(self, slot: SlotState, setup: SdmaSetup, rptr: int) -> None:
        self.slot = slot
        self.engine = engine = slot.engine
        self.setup = setup
        self.vmid = setup.vmid
        self.privileged = setup.privileged
        self.wptr = rptr
        self.executing = False  # the last packet read may still be executing
        self.hung = ""
        self.bad_header = 0
        self.copied = 0  # bytes, for telemetry
        self._chip = engine.chip
        self._executor = SdmaExecutor(self, engine.packets)
        self._executor.consumed = rptr // 4
        name = f"sdma-{engine.instance}.{slot.number}"
        self.worker = Worker(name, self._step, self._chip.fault, self._chip.smu.metrics.load)
        self._chip.clock.track(self.worker)

    def __repr__(self) -> str:
        return (
            f"SdmaQueue({self.engine.instance}.{self.slot.number}, rptr {self.rptr:#x}, "
            f"wptr {self.wptr:#x}" + (f", {self.hung})" if self.hung else ")")
        )

    @property
    def rptr(self) -> int:
        """Bytes read from the ring; never wraps. Advances packet by packet."""
        return 4 * self._executor.consumed

    @property
    def busy(self) -> bool:
        """Whether the queue has work left or is hung."""
        return bool(self.hung or self.executing or self.rptr != self.wptr)

    @property
    def indirect_enabled(self) -> bool:
        """Whether indirect buffers are enabled (IB_CNTL.IB_ENABLE)."""
        return bool(self.slot.value("IB_CNTL").IB_ENABLE)

    # ---- from outside, with the chip's lock held ----------------------------------------------

    def ring(self, wptr: int) -> None:
        """Set a new write pointer, in bytes."""
        size = self.setup.size
        if wptr & 3:
            self.slot.flag(f"wptr {wptr:#x} is not a multiple of 4 bytes")
            wptr &= ~3
        if wptr < self.wptr:
            self.slot.flag(f"wptr moved back from {self.wptr:#x} to {wptr:#x}")
        elif wptr - self.rptr > size:
            self.slot.flag(
                f"wptr {wptr:#x} is {wptr - self.rptr} bytes ahead of rptr, the ring has {size}"
            )
        self.wptr = wptr
        self.worker.wake()

    def kill(self) -> None:
        """Stop at once; the thread ends by itself, without further accesses (see ComputeQueue)."""
        self.worker.stop()

    # ---- the thread ---------------------------------------------------------------------------

    def _step(self) -> float | None:
        if self.hung:
            return None
        try:
            self._serve()
        except BadSdmaPacket as bad:
            self.hung = f"{bad.reason} (header {bad.header:#010x} at rptr {self.rptr:#x})"
            self._chip.fault(f"SDMA{self.engine.instance} hangs: {self.hung}", reported=True)
            self.bad_header = bad.header
            with self._chip.lock:
                if not self.worker.stopped:
                    self.engine.hung(self.slot.number)
        return None

    def _serve(self) -> None:
        worked = False
        while self.rptr != self.wptr:
            self.worker.check()
            if not self.engine.running() or not self._execute_some():
                return
            worked = True
        if worked and self.engine.value("CNTL").CTXEMPTY_INT_ENABLE:
            self._interrupt(SOURCE_EMPTY, self.vmid, (0, 0, 0, 0))

    def _execute_some(self) -> bool:
        setup, wptr = self.setup, self.wptr
        if not 0 <= wptr - self.rptr <= setup.size:  # a bad wptr: the chip's pointers are modular
            self._executor.consumed = (wptr - (wptr - self.rptr) % setup.size) // 4
        before = self.rptr
        count = min(wptr - before, FETCH_BYTES * 8)
        start = self.rptr % setup.size
        first = min(count, setup.size - start)
        words = self.fetch(self.vmid, setup.base + start, first // 4)
        if first < count:
            words += self.fetch(self.vmid, setup.base, (count - first) // 4)
        executor = self._executor
        executor.position = start // 4
        self.executing = True
        try:
            executor.run(words)
        finally:
            if setup.rptr_report and not self.worker.stopped:
                self.store(self.vmid, setup.rptr_report, struct.pack("<Q", self.rptr))
            self.executing = False
        return self.rptr > before

    # ---- SdmaSurroundings ---------------------------------------------------------------------

    def fetch(self, vmid: int, address: int, dwords: int) -> tuple[int, ...]:
        """Read packets; a fault stops the queue."""
        data, fault = self._read(vmid, address, 4 * dwords)
        if fault is not None:
            raise BadSdmaPacket(f"page fault while fetching {dwords} dwords at {address:#x}", 0)
        return struct.unpack(f"<{dwords}I", data)

    def _read(self, vmid: int, address: int, size: int) -> tuple[bytes, Fault | None]:
        with self._chip.lock:
            self.worker.check()
            data, fault = self._chip.gc.read(vmid, address, size, self.engine.client)
            if fault is not None:
                self._page_fault(vmid, address)
        return data, fault

    def load(self, vmid: int, address: int, size: int) -> bytes:
        """Read memory; a fault reads as zeros."""
        return self._read(vmid, address, size)[0]

    def store(self, vmid: int, address: int, data: bytes) -> None:
        """Write memory and wake engines that wait for memory."""
        with self._chip.lock:
            self.worker.check()
            if self._chip.gc.write(vmid, address, data, self.engine.client) is not None:
                self._page_fault(vmid, address)
        self.engine.memory_written.notify()

    def copy(self, vmid: int, source: int, destination: int, size: int) -> None:
        """Copy memory; overlapping ranges leave poison, because their result is undefined."""
        if transfer.overlaps(source, destination, size):
            self.slot.fault(
                f"copy of {size} bytes from {source:#x} to {destination:#x} overlaps itself"
            )
            self.fill(vmid, destination, transfer.POISON, size)
            return
        hub, check = self._chip.gc, self.worker.check
        for fault in transfer.copy(hub, vmid, source, destination, size, self.engine.client, check):
            self._page_fault(vmid, fault.address)
        self.copied += size

    def fill(self, vmid: int, destination: int, pattern: bytes, size: int) -> None:
        """Fill memory with a repeated pattern of 1, 2 or 4 bytes."""
        hub, check = self._chip.gc, self.worker.check
        for fault in transfer.fill(
            hub, vmid, destination, pattern, size, self.engine.client, check
        ):
            self._page_fault(vmid, fault.address)

    def read_register(self, index: int) -> int:
        """Read a register by absolute dword index."""
        with self._chip.lock:
            self.worker.check()
            return self._chip.space.read(index)

    def write_register(self, index: int, value: int) -> None:
        """Write a register."""
        with self._chip.lock:
            self.worker.check()
            self._chip.space.write(index, value)

    def trap(self, context: int) -> None:
        """Raise source 49 if CNTL.TRAP_ENABLE."""
        if self.engine.value("CNTL").TRAP_ENABLE:
            self._interrupt(SOURCE_TRAP, self.vmid, (context, 0, 0, 0))

    def _interrupt(self, source: int, vmid: int, data: tuple[int, int, int, int]) -> None:
        with self._chip.lock:
            self.worker.check()
            self.engine.interrupt(source, vmid, data, self.slot.number)

    def poll_timeout(self, address: int) -> None:
        """Report a bounded poll that ran out of retries; the queue continues."""
        self._interrupt(SOURCE_POLL, self.vmid, (address & 0xFFFF_FFFF, address >> 32, 0, 0))

    def refused_register(self, index: int) -> None:
        """Report a register write by an unprivileged queue; the write is dropped."""
        self._interrupt(SOURCE_REGISTER_WRITE, self.vmid, (index, 0, 0, 0))

    def _page_fault(self, vmid: int, address: int) -> None:
        """Add SDMA's own interrupt entry, if enabled, for a fault that the hub has reported."""
        if self.engine.value("CNTL").PAGE_FAULT_INT_ENABLE:
            page = address >> 12
            self._interrupt(SOURCE_PAGE, vmid, (page & 0xFFFF_FFFF, page >> 32, 0, 0))

    def pause(self, seconds: float) -> None:
        """Wait for a change of memory, for at most `seconds`. Raises Stopped."""
        watching = self.engine.memory_written
        with watching.watching(self.worker):
            self.worker.pause(seconds)
