"""One active queue: it fetches its ring, runs packets, maintains pointers, and can hang.

A queue exists from CP_HQD_ACTIVE 0 -> 1 until it is dequeued or reset. It has its own thread, so a
queue that waits for memory does not delay others (where the MEC switches queues). Sources: Linux
6.12 gfx_v11_0.c (MQD values, rptr report), v11_structs.h, gc_11_0_0_sh_mask.h;
kfd_int_process_v11.c (SQ interrupt words); irqsrcs_gfx_11_0_0.h.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.virtual.amd.engines import transfer
from ugpu.virtual.amd.engines.cp.dispatch import BadDispatch
from ugpu.virtual.amd.engines.cp.pm4.packets import BadPacket, PrivilegedRegister
from ugpu.virtual.amd.engines.cp.state import MecState, QueueSlot
from ugpu.virtual.amd.engines.engine import Worker
from ugpu.virtual.amd.shader import Dispatch, Ending, Outcome, WavePlace, place_of
from ugpu.virtual.shader.memory import Abort

# Client ids of the graphics hub (Linux 6.12 gfxhub_v3_0.c).
CLIENT_CPF = 4  # fetches rings and buffers
CLIENT_CPC = 5  # all other accesses of the MEC

# Interrupt clients and sources (soc15_ih_clientid.h, irqsrcs_gfx_11_0_0.h).
GRBM_CP = 0x14
SOURCE_END_OF_PIPE = 181
SOURCE_BAD_OPCODE = 183
SOURCE_PRIVILEGED_REGISTER = 184
SOURCE_SQ = 239
SQ_ENCODING_ERROR = 2 << 6
SQ_ILLEGAL_INSTRUCTION = 1 << 21

FETCH_DWORDS = 0x8000  # larger than any packet
EOP_ENTRY = 32
POLL_S = 1e-3  # CP_PQ_WPTR_POLL_CNTL.PERIOD is far shorter on the chip


class Hang(Exception):
    """The queue stops permanently: only a reset of its waves or of its pipe frees it."""


@dataclass(frozen=True)
class QueueSetup:
    """HQD register values latched at activation. Addresses are virtual, sizes in dwords."""

    vmid: int
    base: int
    size: int
    rptr_report: int
    wptr_poll: int
    eop_base: int
    eop_size: int
    report_rptr: bool
    privileged: bool
    kernel: bool


class ComputeQueue:
    """Implement Surroundings; all methods but `ring`, `drain_out`, `kill` run on its own thread."""

    def __init__(
        self, mec: MecState, slot: QueueSlot, setup: QueueSetup, rptr: int, wptr: int
    ) -> None:
        self.mec = mec
        self.slot = slot
        self.setup = setup
        self.sh = slot.sh
        self.undefined_sh = mec.sh_registers.undefined
        self.vmid = setup.vmid
        self.may_choose_vmid = setup.kernel
        self.privileged = setup.privileged or setup.vmid == 0
        self.wptr = wptr  # dwords, never wraps
        self.hung = ""  # the reason, once the queue hangs
        self.wave: Outcome | None = None  # the halted wave, if it caused the hang
        self.wave_place = WavePlace(0, 0, 0, 0)  # of the halted wave
        self.executing = False  # the last packet read may still be executing
        self.draining = False
        self.done = False  # a drain was completed
        self.abort = Abort()
        self.eop_wptr = 0
        self._connected = False
        self._pending: deque[tuple[Dispatch, int]] = deque()
        self._chip = mec.chip
        self._executor = slot.executor(self)
        self._executor.consumed = wptr - (wptr - rptr) % setup.size
        name = f"cp-{slot.me}.{slot.pipe}.{slot.queue}"
        load = self._chip.smu.metrics.load
        self.worker = Worker(name, self._step, self._chip.fault, load)
        self._chip.clock.track(self.worker)

    def __repr__(self) -> str:
        state = self.hung or ("draining" if self.draining else "active")
        return (
            f"ComputeQueue({self.slot.me}.{self.slot.pipe}.{self.slot.queue}, vmid {self.vmid}, "
            f"rptr {self.rptr:#x}, wptr {self.wptr:#x}, {state})"
        )

    @property
    def rptr(self) -> int:
        """Dwords read from the ring; never wraps. Advances packet by packet."""
        return self._executor.consumed

    @property
    def busy(self) -> bool:
        """Whether the queue has work left or is hung."""
        return bool(self.hung or self.executing or self._pending or self.rptr != self.wptr)

    # ---- from outside, with the chip's lock held ----------------------------------------------

    def ring(self, wptr: int) -> None:
        """Set a new write pointer."""
        if wptr < self.wptr:
            self._violation(f"wptr moved back from {self.wptr:#x} to {wptr:#x}")
        elif wptr - self.rptr > self.setup.size:
            self._violation(
                f"wptr {wptr:#x} is {wptr - self.rptr} dwords ahead of rptr, "
                f"the ring has {self.setup.size}"
            )
        self.wptr = wptr
        self.worker.wake()

    def drain_out(self) -> None:
        """Stop after the current packet and waves (DEQUEUE_REQ 1)."""
        self.draining = True
        self.worker.wake()

    def kill(self) -> None:
        """Abort the waves and stop at once; the thread ends by itself.

        From then on the queue accesses neither memory nor registers: its thread accesses them only
        under the chip's lock, after checking whether it was stopped.
        """
        self.abort.set()
        self.mec.array.cut(self.abort)
        self.worker.stop()

    # ---- the thread ---------------------------------------------------------------------------

    def _step(self) -> float | None:
        if self.hung or self.done or not self.slot.running():
            return None
        try:
            return self._serve()
        except Hang as hang:
            self.hung = str(hang)
            self._fault(f"hangs: {self.hung}", reported=True)
        except BadPacket as bad:
            self._bad_packet(bad)
        return None

    def _serve(self) -> float | None:
        if self.rptr != self.wptr:
            self._connect()
            self._executor.stale = "the host's doorbell"
        while self.rptr != self.wptr and not self.draining:
            self.worker.check()
            # RACE: checked after reading the write pointer, so that work that arrived after the
            # firmware stopped does not run.
            if not self.slot.running():
                return None
            if not self._execute_some():
                break
        self.drain()
        if self.draining:
            self.done = True
            self.mec.drained(self)
            return None
        if self.setup.wptr_poll and self.mec.polls():
            return self._poll()
        return None

    def _connect(self) -> None:
        """Load the queue's state from its descriptor, once."""
        if self._connected:
            return
        with self._chip.lock:
            self.worker.check()
            self.slot.connect()
        self._connected = True

    def _execute_some(self) -> bool:
        """Run packets from the ring; False if only an incomplete packet is left."""
        setup, wptr = self.setup, self.wptr
        if not 0 <= wptr - self.rptr <= setup.size:  # a bad wptr: the chip's pointers are modular
            self._executor.consumed = wptr - (wptr - self.rptr) % setup.size
        before = self.rptr
        count = min(wptr - before, FETCH_DWORDS)
        start = self.rptr % setup.size
        first = min(count, setup.size - start)
        words = self.fetch(self.vmid, setup.base + 4 * start, first)
        if first < count:
            words += self.fetch(self.vmid, setup.base, count - first)
        self.executing = True
        try:
            self._executor.run(words)
        finally:
            self._report()
            self.executing = False
        return self.rptr > before

    def _report(self) -> None:
        if self.setup.report_rptr and not self.worker.stopped:
            rptr = struct.pack("<I", self.rptr % self.setup.size)
            self.store(self.vmid, self.setup.rptr_report, rptr)

    def _poll(self) -> float:
        data = self.load(self.vmid, self.setup.wptr_poll, 8)
        wptr = int.from_bytes(data, "little")
        if wptr != self.wptr:
            with self._chip.lock:
                self.ring(wptr)
        return POLL_S

    def _bad_packet(self, bad: BadPacket) -> None:
        self.hung = f"{bad.reason} (header {bad.header:#010x} at rptr {self.rptr:#x})"
        self._fault(f"hangs: {self.hung}", reported="not modelled" not in bad.reason)
        source, field = SOURCE_BAD_OPCODE, "OPCODE_ERROR_INT"
        if isinstance(bad, PrivilegedRegister):
            source, field = SOURCE_PRIVILEGED_REGISTER, "PRIV_REG_INT"
        with self._chip.lock:
            self.worker.check()
            self.mec.interrupt(self, source, field, bad.header)

    def _violation(self, text: str) -> None:
        self._chip.violation(f"{self.slot.name}: {text}")

    def _fault(self, text: str, *, reported: bool = False) -> None:
        with self._chip.lock:
            self._chip.fault(f"{self.slot.name}: {text}", reported=reported)

    # ---- Surroundings: memory and registers ---------------------------------------------------

    def fetch(self, vmid: int, address: int, dwords: int) -> tuple[int, ...]:
        """Read packets. Raises Hang after a fault, because there is nothing left to execute."""
        with self._chip.lock:
            self.worker.check()
            data, fault = self._chip.gc.read(vmid, address, 4 * dwords, CLIENT_CPF)
            if fault is not None:
                self.slot.error("IB_UTCL1_ERROR" if self._executor.depth else "PQ_UTCL1_ERROR")
        if fault is not None:
            raise Hang(f"page fault while fetching {dwords} dwords at {address:#x}")
        return struct.unpack(f"<{dwords}I", data)

    def load(self, vmid: int, address: int, size: int) -> bytes:
        """Read memory; bytes that fault read as zeros, and the hub reports the fault."""
        with self._chip.lock:
            self.worker.check()
            return self._chip.gc.read(vmid, address, size, CLIENT_CPC)[0]

    def store(self, vmid: int, address: int, data: bytes) -> None:
        """Write memory and wake engines that wait for memory."""
        with self._chip.lock:
            self.worker.check()
            self._chip.gc.write(vmid, address, data, CLIENT_CPC)
        self.mec.memory_written.notify()

    def copy(self, vmid: int, source: int, destination: int, size: int) -> None:
        """Copy memory; overlapping ranges leave poison, because their result is undefined."""
        if transfer.overlaps(source, destination, size):
            self._fault(f"copy of {size} bytes at {source:#x} overlaps itself")
            self.fill(vmid, destination, transfer.POISON, size)
            return
        hub, check = self._chip.gc, self.worker.check
        transfer.copy(hub, vmid, source, destination, size, CLIENT_CPC, check)

    def fill(self, vmid: int, destination: int, pattern: bytes, size: int) -> None:
        """Fill memory with a repeated pattern."""
        hub, check = self._chip.gc, self.worker.check
        transfer.fill(hub, vmid, destination, pattern, size, CLIENT_CPC, check)

    def read_register(self, index: int) -> int:
        """Read any register by absolute dword index."""
        with self._chip.lock:
            self.worker.check()
            return self._chip.space.read(index)

    def write_register(self, index: int, value: int) -> None:
        """Write any register."""
        with self._chip.lock:
            self.worker.check()
            self._chip.space.write(index, value)

    def check_sh(self, offset: int, values: Sequence[int]) -> None:
        """Record writes to SH registers that a compute queue does not have."""
        undefined = self.undefined_sh
        for number, value in enumerate(values, offset):
            if value & undefined[number]:
                self._note_sh(number, value)

    def _note_sh(self, offset: int, value: int) -> None:
        known = self.mec.sh_registers.known.get(offset)
        if known is None:
            self._violation(f"SET_SH_REG of {offset:#x} = {value:#x}: no compute register is there")
        else:
            bits = value & known.undefined
            self.forgive(f"{known.name}: undefined bits {bits:#x} written as ones", True)

    def forgive(self, text: str, accepted: bool) -> None:
        """Record packet contents that the MEC ignores; see Surroundings.forgive."""
        with self._chip.lock:
            if accepted:
                self._chip.note(text)
            else:
                self._violation(text)

    def pause(self, seconds: float) -> None:
        """Wait for a change of memory, for at most `seconds`. Raises Stopped."""
        with self.mec.memory_written.watching(self.worker):
            self.worker.pause(seconds)

    # ---- Surroundings: waves and events -------------------------------------------------------

    def dispatch(self, vmid: int, dims: Sequence[int], initiator: int) -> None:
        """Queue a launch; a launch that SPI cannot start hangs the queue."""
        shared, private = self.mec.apertures(vmid)
        try:
            launch = self.mec.launcher.build(self.sh, dims, initiator, shared, private)
        except BadDispatch as bad:
            self._fault(f"dispatch that never launches: {bad}")
            raise Hang(f"invalid dispatch: {bad}") from bad
        if launch is not None:
            self._pending.append((launch, vmid))

    def unacquired(self, since: str) -> None:
        """Record a launch whose waves may read stale caches."""
        self._violation(f"launch without ACQUIRE_MEM of GLK, GLV and GL1 since {since}")

    def drain(self) -> bool:
        """Run all launches to completion, newest first, because only a wait orders them.

        A board starts them in order but overlaps them, so a launch may run before the results of an
        earlier one exist. Here it always does, unless `options.launch_in_order` is set.
        """
        in_order = self._chip.options.launch_in_order
        any_pending = bool(self._pending)
        while self._pending:
            launch, vmid = self._pending.popleft() if in_order else self._pending.pop()
            with self.worker.running(self.abort):
                outcome = self.mec.array.run(launch, vmid, self.abort)
            for text in outcome.violations:
                self._violation(text)
            if outcome.ending is Ending.DONE:
                continue
            if outcome.ending is Ending.ABORTED:
                self.worker.check()
                self.abort.clear()  # SPI reset the waves; the queue itself continues
                continue
            self._wave_failed(outcome, launch, vmid)
        return any_pending

    def _wave_failed(self, outcome: Outcome, launch: Dispatch, vmid: int) -> None:
        options = self._chip.options
        sizes = options.shader_engines, options.arrays_per_engine, options.wgps_per_array
        self.wave = outcome
        self.wave_place = place = place_of(outcome.group, launch.groups, sizes)
        if outcome.ending is Ending.BAD_DISPATCH:
            self._fault(f"dispatch that never launches: {outcome.detail}")
        elif outcome.ending is Ending.ILLEGAL_INSTRUCTION:
            detail = (outcome.words[0] if outcome.words else 0) & 0x1FFFFF
            data0 = detail | SQ_ILLEGAL_INSTRUCTION | (outcome.wave & 0x1F) << 27
            data0 |= place.array << 25
            with self._chip.lock:
                self.worker.check()
                self._chip.ih.raise_interrupt(
                    GRBM_CP,
                    SOURCE_SQ,
                    ring_id=self.slot.ring_id,
                    vmid=vmid,
                    data=(data0, SQ_ENCODING_ERROR | place.wgp << 2 | place.simd, 0, 0),
                )
        raise Hang(f"{outcome.ending.value} at pc {outcome.pc:#x} {outcome.detail}".rstrip())

    def end_of_pipe(self, address: int, data: bytes) -> None:
        """Write the entry of an end-of-pipe event to the EOP buffer."""
        setup = self.setup
        if not setup.eop_base:
            return  # a graphics queue does not have an EOP buffer
        entry = struct.pack("<Q8s16x", address, data)
        place = setup.eop_base + self.eop_wptr
        with self._chip.lock:
            self.worker.check()
            if self._chip.gc.write(self.vmid, place, entry, CLIENT_CPC) is not None:
                self.slot.error("EOP_UTCL1_ERROR")
        self.eop_wptr = (self.eop_wptr + EOP_ENTRY) % (4 * setup.eop_size)

    def end_of_pipe_interrupt(self, context: int) -> None:
        """Raise source 181 if the pipe's TIME_STAMP interrupt is enabled."""
        with self._chip.lock:
            self.worker.check()
            self.mec.interrupt(self, SOURCE_END_OF_PIPE, "TIME_STAMP_INT", context)
