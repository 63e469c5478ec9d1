"""A virtual chip whose engines are worked by hand: no driver, packets as plain dwords."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from tests.support.amd.am_navi31 import build_chip
from tests.support.waiting import came, until
from ugpu.virtual.amd.chip import FRAME_BUFFER_BASE, Chip
from ugpu.virtual.amd.engines.cp.queue import ComputeQueue
from ugpu.virtual.amd.engines.gfx import Gfx
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.amd.shader import Dispatch, Ending, Outcome, ShaderMemory, ShaderWave
from ugpu.virtual.shader.memory import Abort

VRAM = 64 << 20
LIMIT_S = 60.0  # a bound on real threads; everything takes microseconds

# Where things lie in VRAM; addresses are those of the system aperture (VMID 0, no page tables).
RING = FRAME_BUFFER_BASE + 0x10_0000
MQD = FRAME_BUFFER_BASE + 0x20_0000
EOP = FRAME_BUFFER_BASE + 0x21_0000
RPTR_REPORT = FRAME_BUFFER_BASE + 0x22_0000
WPTR_POLL = FRAME_BUFFER_BASE + 0x22_0040
SDMA_RING = FRAME_BUFFER_BASE + 0x30_0000
SDMA_RPTR = FRAME_BUFFER_BASE + 0x31_0000
IH_RING = FRAME_BUFFER_BASE + 0x32_0000
DATA = FRAME_BUFFER_BASE + 0x40_0000
TABLES = FRAME_BUFFER_BASE + 0x80_0000
UNMAPPED = 0x1234_5678_9000  # outside the aperture, in no context

RING_DWORDS = 1024
SDMA_RING_BYTES = 4096
DOORBELL_DWORD = 6
SDMA_DOORBELL_DWORD = 0x200


class FakeCore:
    """A shader core that notes what it is told to run and ends as it is told."""

    def __init__(self) -> None:
        self.launches: list[Dispatch] = []
        self.outcomes: list[Outcome] = []
        self.body: Callable[[Dispatch, ShaderMemory, Abort], Outcome | None] | None = None
        self.closed = 0

    def run(self, dispatch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome:
        """Run one launch."""
        self.launches.append(dispatch)
        if self.body is not None:
            outcome = self.body(dispatch, memory, abort)
            if outcome is not None:
                return outcome
        return self.outcomes.pop(0) if self.outcomes else Outcome(Ending.DONE)

    def look(self, abort: Abort, limit_s: float) -> list[ShaderWave]:
        """See ShaderCore: no wave can be looked at."""
        return []

    def close(self) -> None:
        """Count."""
        self.closed += 1


def spin_until_aborted(dispatch: Dispatch, memory: ShaderMemory, abort: Abort) -> Outcome:
    """Behave as an infinite loop does."""
    until(lambda: abort.flag[0], "the abort")
    return Outcome(Ending.ABORTED)


class Bench:
    """A chip after AUTOLOAD_RLC, both hubs in the system aperture, and hands to work it."""

    def __init__(self, *, manual_time: bool = True) -> None:
        self.core = FakeCore()
        self.chip: Chip = build_chip(
            ChipOptions(vram=VRAM, noise=0, manual_time=manual_time, shader_core=lambda: self.core)
        )
        gfx = self.chip.gfx
        assert isinstance(gfx, Gfx)
        self.gfx = gfx
        self.wptr = 0
        self.sdma_wptr = [0, 0]
        self.advance(1.0)
        with self.chip.lock:
            self.chip.autoload()
        self.advance(1.0)
        for prefix in ("GC", "MM"):
            block = "gc" if prefix == "GC" else "mmhub"
            self.set(f"{prefix}MC_VM_MX_L1_TLB_CNTL", 0x1859, block)
            self.set(f"{prefix}MC_VM_SYSTEM_APERTURE_LOW_ADDR", FRAME_BUFFER_BASE >> 18, block)
            top = (FRAME_BUFFER_BASE + VRAM - 1) >> 18
            self.set(f"{prefix}MC_VM_SYSTEM_APERTURE_HIGH_ADDR", top, block)
        # Context 0 on, with a range that our addresses are outside of.
        self.set("GCVM_CONTEXT0_CNTL", 0x1FFFE01)
        self.set("GCVM_CONTEXT1_CNTL", 0x1FFFE01)
        self.start_interrupts()

    def close(self) -> None:
        """Stop everything."""
        self.chip.close()

    def advance(self, seconds: float) -> None:
        """Let the firmware's time pass."""
        if self.chip.options.manual_time:
            self.chip.scheduler.advance(seconds)
        else:
            self.wait(lambda: self.chip.scheduler.idle, "the firmware does not come to rest")

    # ---- registers and memory -----------------------------------------------------------------

    def set(self, name: str, value: int, block: str = "gc") -> None:
        """Write a register as the bus does."""
        with self.chip.lock:
            self.chip.space.write(self.chip.space.index(block, name), value)

    def get(self, name: str, block: str = "gc") -> int:
        """Read a register as the bus does."""
        with self.chip.lock:
            return self.chip.space.read(self.chip.space.index(block, name))

    def store(self, address: int, data: bytes) -> None:
        """Write VRAM behind the engines' back."""
        self.chip.vram.write(address - FRAME_BUFFER_BASE, data)

    def load(self, address: int, size: int) -> bytes:
        """Read VRAM."""
        return self.chip.vram.read(address - FRAME_BUFFER_BASE, size)

    def dword(self, address: int) -> int:
        """Read a dword of VRAM."""
        return int.from_bytes(self.load(address, 4), "little")

    def qword(self, address: int) -> int:
        """Read eight bytes of VRAM."""
        return int.from_bytes(self.load(address, 8), "little")

    def wait(self, probe: Callable[[], object], what: str = "") -> None:
        """Wait for an engine's thread."""
        assert came(probe), f"nothing happened: {what} {self.chip.violations}"

    # ---- interrupts ---------------------------------------------------------------------------

    def start_interrupts(self) -> None:
        """Set up the interrupt ring: 4096 bytes in MC space."""
        self.set("IH_RB_BASE", IH_RING >> 8 & 0xFFFF_FFFF, "osssys")
        self.set("IH_RB_BASE_HI", IH_RING >> 40, "osssys")
        self.set("IH_RB_RPTR", 0, "osssys")
        # MC_SPACE 4, RB_SIZE 10 (log2 of dwords), RB_ENABLE
        self.set("IH_RB_CNTL", 4 << 28 | 10 << 1 | 1, "osssys")

    def interrupts(self) -> list[tuple[int, int, int, int, tuple[int, ...]]]:
        """Return all entries so far: client, source, ring id, vmid, data."""
        found = []
        for at in range(0, self.get("IH_RB_WPTR", "osssys") & 0x3FFFC, 32):
            words = struct.unpack("<8I", self.load(IH_RING + at, 32))
            head = words[0]
            found.append(
                (head & 0xFF, head >> 8 & 0xFF, head >> 16 & 0xFF, head >> 24 & 0xF, words[4:])
            )
        return found

    # ---- the compute queue --------------------------------------------------------------------

    def select(self, pipe: int = 0, queue: int = 0, me: int = 1, vmid: int = 0) -> None:
        """Write GRBM_GFX_CNTL."""
        self.set("GRBM_GFX_CNTL", pipe | me << 2 | vmid << 4 | queue << 8)

    def start_mec(self, pipe: int = 0) -> None:
        """Start a pipe: program counter, reset pulse, ACTIVE."""
        self.select(pipe)
        self.set("CP_MEC_RS64_PRGRM_CNTR_START", 0xC00)
        self.set("CP_MEC_RS64_CNTL", 1 << (16 + pipe))
        self.set("CP_MEC_RS64_CNTL", 0)
        self.set("CP_MEC_RS64_CNTL", 1 << (26 + pipe))
        self.set("CP_MEC_DOORBELL_RANGE_LOWER", 0)
        self.set("CP_MEC_DOORBELL_RANGE_UPPER", 0x450)
        for number in range(4):
            self.set(f"CP_ME1_PIPE{number}_INT_CNTL", 1 << 26 | 1 << 24 | 1 << 23)

    def write_mqd(self) -> None:
        """Write a minimal MQD: header and all CUs."""
        mqd = [0] * 512
        mqd[0] = 0xC0310800
        for dword in (23, 24, 26, 27, 44, 45, 46, 47):
            mqd[dword] = 0xFFFF_FFFF
        self.store(MQD, struct.pack("<512I", *mqd))

    def activate(
        self, pipe: int = 0, queue: int = 0, doorbell: int = DOORBELL_DWORD, **more: int
    ) -> None:
        """Program a queue slot and activate it."""
        self.write_mqd()
        self.select(pipe, queue)
        size = RING_DWORDS.bit_length() - 2
        values = {
            "CP_MQD_BASE_ADDR": MQD & 0xFFFF_FFFF,
            "CP_MQD_BASE_ADDR_HI": MQD >> 32,
            "CP_HQD_VMID": 0,
            "CP_HQD_PQ_BASE": RING >> 8 & 0xFFFF_FFFF,
            "CP_HQD_PQ_BASE_HI": RING >> 40,
            "CP_HQD_PQ_RPTR": 0,
            "CP_HQD_PQ_RPTR_REPORT_ADDR": RPTR_REPORT & 0xFFFF_FFFF,
            "CP_HQD_PQ_RPTR_REPORT_ADDR_HI": RPTR_REPORT >> 32,
            "CP_HQD_PQ_WPTR_POLL_ADDR": WPTR_POLL & 0xFFFF_FFFF,
            "CP_HQD_PQ_WPTR_POLL_ADDR_HI": WPTR_POLL >> 32,
            "CP_HQD_PQ_DOORBELL_CONTROL": doorbell << 2 | 1 << 30,
            "CP_HQD_PQ_CONTROL": 5 << 8 | size,
            "CP_HQD_EOP_BASE_ADDR": EOP >> 8 & 0xFFFF_FFFF,
            "CP_HQD_EOP_BASE_ADDR_HI": EOP >> 40,
            "CP_HQD_EOP_CONTROL": 9,
            "CP_HQD_PQ_WPTR_LO": 0,
            "CP_HQD_PQ_WPTR_HI": 0,
        } | more
        for name, value in values.items():
            self.set(name, value)
        self.set("CP_HQD_ACTIVE", 1)
        self.wptr = 0

    def gone(self) -> bool:
        """Let the firmware work a moment; queue 0.0 is no longer active."""
        self.advance(0.001)
        return not self.active()

    def active(self, pipe: int = 0, queue: int = 0) -> int:
        """Read CP_HQD_ACTIVE of a slot."""
        self.select(pipe, queue)
        return self.get("CP_HQD_ACTIVE")

    def push(self, words: Sequence[int]) -> None:
        """Put packets into the ring, wrapping, without a doorbell."""
        for word in words:
            self.store(RING + 4 * (self.wptr % RING_DWORDS), struct.pack("<I", word))
            self.wptr += 1

    def ring(self) -> None:
        """Ring the doorbell."""
        with self.chip.lock:
            assert self.gfx.doorbell(DOORBELL_DWORD, self.wptr)

    def submit(self, *packets: Sequence[int], wait: bool = True) -> None:
        """Put packets in, ring, and wait until all are consumed."""
        for packet in packets:
            self.push(packet)
        self.ring()
        if wait:
            self.wait(self.idle, "the compute queue does not become idle")

    def queue(self, pipe: int = 0, number: int = 0) -> ComputeQueue:
        """The active queue of a slot."""
        queue = self.gfx.mec.slots[pipe][number].active
        assert queue is not None
        return queue

    def asleep(self) -> bool:
        """Queue 0.0 waits for memory, or hangs."""
        return bool(self.queue().hung or self.gfx.memory_written.watched)

    def idle(self) -> bool:
        """The queue has nothing to do and no waves run."""
        queue = self.gfx.mec.slots[0][0].active
        return queue is None or (not queue.busy and not self.gfx.array.running)

    def hung(self) -> str:
        """Why queue 0.0 hangs; waits for it."""
        queue = self.queue()
        self.wait(lambda: queue.hung, "the queue does not hang")
        return queue.hung

    # ---- SDMA ---------------------------------------------------------------------------------

    def start_sdma(self, instance: int = 0, **more: int) -> None:
        """Enable queue 0 of an SDMA engine, as the kernel orders it."""
        prefix = f"SDMA{instance}_"
        size = (SDMA_RING_BYTES // 4).bit_length() - 1
        ring = SDMA_RING + instance * 0x8000
        values = {
            "QUEUE0_MINOR_PTR_UPDATE": 1,
            "QUEUE0_RB_RPTR": 0,
            "QUEUE0_RB_RPTR_HI": 0,
            "QUEUE0_RB_WPTR": 0,
            "QUEUE0_RB_WPTR_HI": 0,
            "QUEUE0_RB_BASE": ring >> 8 & 0xFFFF_FFFF,
            "QUEUE0_RB_BASE_HI": ring >> 40,
            "QUEUE0_RB_RPTR_ADDR_LO": SDMA_RPTR & 0xFFFF_FFFF,
            "QUEUE0_RB_RPTR_ADDR_HI": SDMA_RPTR >> 32,
            "QUEUE0_DOORBELL_OFFSET": (SDMA_DOORBELL_DWORD + 20 * instance) << 2,
            "QUEUE0_DOORBELL": 1 << 28,
            "QUEUE0_MINOR_PTR_UPDATE ": 0,
            "WATCHDOG_CNTL": 1,
            "CNTL": 1,
            "F32_CNTL": 0,
            # RB_ENABLE, RB_SIZE, F32_WPTR_POLL_ENABLE, RPTR_WRITEBACK_ENABLE, RB_PRIV
            "QUEUE0_RB_CNTL": 1 | size << 1 | 1 << 11 | 1 << 12 | 1 << 23,
            "QUEUE0_IB_CNTL": 1,
        } | more
        for name, value in values.items():
            self.set(prefix + name.strip(), value)

    def sdma(self, *packets: Sequence[int], instance: int = 0, wait: bool = True) -> None:
        """Put packets into an SDMA ring, wrapping, and ring its doorbell in bytes."""
        ring = SDMA_RING + instance * 0x8000
        wptr = self.sdma_wptr[instance]
        for packet in packets:
            for word in packet:
                self.store(ring + wptr % SDMA_RING_BYTES, struct.pack("<I", word))
                wptr += 4
        self.sdma_wptr[instance] = wptr
        with self.chip.lock:
            assert self.gfx.sdma[instance].doorbell(SDMA_DOORBELL_DWORD + 20 * instance, wptr)
        if wait:
            self.wait(lambda: not self.gfx.sdma[instance].busy(), "SDMA does not become idle")


def low(address: int) -> int:
    """The low dword."""
    return address & 0xFFFF_FFFF


def high(address: int) -> int:
    """The high dword."""
    return address >> 32
