"""The driver of a null device: addresses instead of memory, code objects that are checked and read,
queues that count. Elements are nowhere: what is copied in is dropped, reading raises."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Sequence
from dataclasses import asdict, replace

from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.device.driver import Driver
from ugpu.hcq.errors import NotSupported, OutOfMemory, UgpuError
from ugpu.hcq.null.chip import Counts, PlannedChip, ReadKernel
from ugpu.hcq.null.queue import NullQueue
from ugpu.hcq.paging.allocator import RangeAllocator
from ugpu.hcq.state.ladder import Diagnosis, Level
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Kernel, Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import SIZE, Timeline

PAGE = 4096  # bytes: memory of a card is allocated in whole pages
# Addresses, different on all devices of the process, as they copy from each other. Pages may lie
# anywhere in a card's memory, so that only their sum has to fit.
RANGE, MOST_RANGES = 1 << 44, 1 << 18
_serials = itertools.count()


class NullDriver(Driver):
    """A chip without hardware. Owns no memory but its timelines' and HOST buffers'."""

    clock_hertz = 1e9
    counts_work = True

    def __init__(self, name: str, chip: PlannedChip, memory_bytes: int) -> None:
        super().__init__(name)
        self.chip = chip
        self.target = chip.target
        self.memory_bytes = memory_bytes
        self.counts = Counts(instructions=0 if chip.instruction_bytes else None)
        base = (next(_serials) % MOST_RANGES * 2 + 1) * RANGE
        self._ranges = {
            Placement.DEVICE: RangeAllocator(base, RANGE, PAGE, name=f"{name}'s addresses"),
            Placement.HOST: RangeAllocator(base + RANGE, RANGE, PAGE, name="host addresses"),
        }
        self._queues = [self._make_queue(kind) for kind in QueueKind]
        self._by_kind = {queue.kind: [queue] for queue in self._queues}
        self.core.opened()

    def _make_queue(self, kind: QueueKind) -> NullQueue:
        memory = self.allocate_memory(SIZE, Placement.HOST)
        timeline = Timeline(self.core, memory, f"{self.name} {kind.value}")
        return NullQueue(self, kind, timeline, self.counts)

    # ---- memory and programs -----------------------------------------------------------------

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        need = -(-max(1, size) // PAGE) * PAGE
        if placement is Placement.DEVICE and self.used + need > self.memory_bytes:
            raise OutOfMemory(
                f"{self.name}: no {need} bytes", used=self.used, size=self.memory_bytes
            )
        address = self._ranges[placement].allocate(need)
        view = None
        if placement is Placement.HOST:  # pages take memory when they are touched
            try:
                view = memoryview(mmap.mmap(-1, max(1, size)))[:size]
            except (OSError, ValueError, OverflowError):
                self._ranges[placement].free(address)
                raise OutOfMemory("the host is out of memory", size=size) from None
        self.counts.allocated_peak = max(self.counts.allocated_peak, self.used)
        return Buffer(self.core, VirtAddr(address), size, placement, view, handle=placement)

    def free_memory(self, buffer: Buffer) -> None:
        placement, buffer.handle, buffer.view = buffer.handle, None, None
        if isinstance(placement, Placement):
            self._ranges[placement].free(int(buffer.address))

    @property
    def used(self) -> int:
        """Bytes of the device's memory that are allocated."""
        return self._ranges[Placement.DEVICE].used

    def load_program(self, image: bytes) -> Program:
        kernels = self.chip.read(image)
        code_bytes = sum(kernel.code_bytes for kernel in kernels)
        memory = self.allocate_memory(code_bytes, Placement.DEVICE)
        program = Program(self.core, memory)
        address = int(memory.address)
        for kernel in kernels:
            program.kernels[kernel.name] = _kernel(program, kernel, address)
            address += kernel.code_bytes
        self.counts.programs += 1
        self.counts.code_bytes += code_bytes
        if self.counts.instructions is not None:
            self.counts.instructions += code_bytes // self.chip.instruction_bytes
        return program

    # ---- queues and copies -------------------------------------------------------------------

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return self._by_kind[kind]

    def all_queues(self) -> Sequence[HardwareQueue]:
        return self._queues

    def pause(self, limit_s: float) -> None:
        self.clock.sleep(min(limit_s, 1e-3))  # for a value that nothing submitted signals

    def is_idle_fast(self) -> bool:
        return True

    def memory_view(self, buffer: Buffer) -> memoryview | None:
        return None

    def reach_memory(self, buffer: Buffer) -> Buffer | None:
        if not isinstance(buffer.core.driver, NullDriver):
            return None
        return Buffer(self.core, buffer.address, buffer.size, buffer.placement)[:]

    def make_transfer(self) -> Transfer:
        return NullTransfer(self)

    # ---- failures, life, facts ---------------------------------------------------------------

    def poll(self) -> UgpuError | None:
        return None

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        return {"cause": f"{self.name} signals only what was submitted"}

    def recover(self, only: Level | None = None) -> Recovery:
        return Recovery(Diagnosis(Level.QUEUE, "nothing runs"), (), tuple(self._queues))

    def sole_holder(self) -> str:
        return "nothing of it is shared: open another"

    def shutdown(self) -> None:
        """Do nothing: buffers' memory goes with them."""

    def info(self) -> dict[str, object]:
        return {
            "device": self.name,
            "chip": self.chip.title,
            "processor": self.target.name,
            "memory_bytes": self.memory_bytes,
            **asdict(self.counts),
        }

    def sensors(self) -> Sequence[Sensor]:
        return (Sensor("memory_used_bytes", "B", lambda: float(self.used)),)

    def snapshot(self, restart: bool) -> Counts:
        """Return a copy of the counts. restart: begin again, except what is loaded."""
        with self.core.lock:
            found = replace(self.counts)
            if restart:
                counts = self.counts
                counts.kernels = counts.moved_bytes = counts.flops = 0
                counts.copied_bytes = counts.uploaded_bytes = 0
                counts.allocated_peak = self.used
            return found


class NullTransfer(Transfer):
    """Copies of a null device: in, they are counted; out, there is nothing."""

    keeps = False

    def __init__(self, driver: NullDriver) -> None:
        super().__init__(driver.core)
        self._driver = driver

    def send(self, destination: Buffer, data: memoryview) -> None:
        with self.core.lock:
            self._driver.counts.uploaded_bytes += len(data)

    def receive(self, source: Buffer, out: memoryview) -> None:
        raise NotSupported(
            f"{self._driver.name} runs nothing and stores no elements: it compiles, plans and "
            "counts; realize() the result, then see device.counts() and "
            "device.memory_peak(); open a real or virtual device to compute it"
        )


def _kernel(program: Program, kernel: ReadKernel, address: int) -> Kernel:
    return Kernel(
        name=kernel.name,
        program=program,
        address=address,
        kernarg_size=kernel.kernarg_size,
        arguments=kernel.arguments,
        local_size=kernel.local_size,
        private_size=kernel.private_size,
    )
