"""The `cpu` device's driver: the host's threads and memory behind the interface of a GPU.

Unlike on a GPU, a faulty kernel can damage this process. There are no page tables between them, so
a wild pointer is not a PageFault but ends the process. A kernel that never ends cannot be stopped.
It is reported as DeviceHang, and `reset` starts new threads and abandons the old one. From then on
freed memory is kept, since the old kernel may still write to it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import threading
from collections.abc import Sequence

import llvmlite.binding as llvm
import numpy as np

from ugpu.hcq.cpu import tiles
from ugpu.hcq.cpu.caches import caches
from ugpu.hcq.cpu.direct import Quiet
from ugpu.hcq.cpu.memory import CodeMemory, HostMemory, total_memory
from ugpu.hcq.cpu.object import load_object
from ugpu.hcq.cpu.processor import (
    ALARMS,
    CURRENT,
    FAULT,
    HEAD,
    LAUNCH,
    TAIL,
    Bell,
    Pool,
    Server,
    Words,
    native,
)
from ugpu.hcq.cpu.program import CodeDriver, CpuProgram
from ugpu.hcq.cpu.queue import CpuQueue, QueuesDriver
from ugpu.hcq.errors import BadPacket, ChipError, UgpuError
from ugpu.hcq.state import host, life
from ugpu.hcq.state.ladder import Diagnosis, Ladder, Level, PlainRung, Planned
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.state.weak_registry import WeakRegistry
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Kernel, Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import SIZE as TIMELINE_SIZE
from ugpu.hcq.work.timeline import Timeline

log = logging.getLogger(__name__)

PAUSE_S = 0.02  # maximum of a native wait, which delays a keyboard interrupt
PAUSE_NS = int(PAUSE_S * 1e9)


def host_target(threads: int) -> TargetSpec:
    """Return the target description of this machine."""
    listed = tiles.usable(host.features())
    listed |= host.tuning(host.cpu_name(), listed)
    vector = next((size for name, size in (("avx512f", 64), ("avx2", 32)) if listed.get(name)), 16)
    return TargetSpec(
        name="cpu",
        abi="host",
        triple=llvm.get_process_triple(),
        cpu=host.cpu_name(),
        features=host.feature_string(listed),
        wave_size=1,
        max_threads_per_group=1024,
        local_memory=64 << 10,
        compute_units=threads,
        vector_bytes=vector,
        caches=caches(),
    )


class CpuDriver(QueuesDriver, CodeDriver):
    """Host threads. One compute queue, whose launches use all threads, and one copy queue."""

    clock_hertz = 1e9

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(name)
        self.threads = threads
        self.target = host_target(threads)
        self._counted: WeakRegistry[HostMemory | CodeMemory] = WeakRegistry()  # as used
        self.kernel_names: dict[int, str] = {}
        self._memories: WeakRegistry[HostMemory | CodeMemory] = WeakRegistry()
        self._abandoned: list[object] = []  # objects that threads that never ended may access
        self.bell = Bell()
        self._pool = Pool(threads - 1, name)
        self._idle_pool = Pool(0, name)
        servers: list[Server] = []
        try:
            for kind in (QueueKind.COMPUTE, QueueKind.COPY):
                servers.append(self._serve(kind))
            self._compute = CpuQueue(self, QueueKind.COMPUTE, servers[0])
            self._copy = CpuQueue(self, QueueKind.COPY, servers[1])
        except BaseException:
            for server in servers:
                server.stop()
            self._pool.stop(None)
            raise
        self._queues = (self._compute, self._copy)
        self._timelines = compute, copy = (self._compute.timeline, self._copy.timeline)
        self._waiting = Words(4)
        self._waiting.words[:] = (self.bell.state.address, compute.address, copy.address, PAUSE_NS)
        self._alarms = self.bell.state.cells
        self._settle = native().settle.of(self._waiting.address)
        words = [(timeline.address, timeline.cleaned) for timeline in self._timelines]
        self._quiet = Quiet(self.core, self.bell.state.address, words)
        self.core.quiet = self._quiet.look or bool
        self.core.opened()

    def _serve(self, kind: QueueKind) -> Server:
        pool = self._pool if kind is QueueKind.COMPUTE else self._idle_pool
        return Server(self.bell, pool, f"{self.name} {kind.value}")

    # ---- memory ------------------------------------------------------------------------------

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        memory = self.take_memory(size)
        view = memory.view if placement is Placement.HOST else None
        return Buffer(self.core, VirtAddr(memory.address), size, placement, view, memory)

    def free_memory(self, buffer: Buffer) -> None:
        memory = buffer.handle
        buffer.view = None
        if isinstance(memory, HostMemory):
            self.drop_memory(memory)
        elif isinstance(memory, CodeMemory):
            self._release_code(memory)

    def take_memory(self, size: int) -> HostMemory:
        memory = HostMemory(size)
        self._memories.add(memory)
        self._counted.add(memory)
        return memory

    @property
    def used(self) -> int:
        """Bytes of memory that buffers, graphs and programs occupy."""
        return sum(memory.size for memory in self._counted)

    def drop_memory(self, memory: HostMemory) -> None:
        self._counted.discard(memory)
        if self._abandoned:
            self._abandoned.append(memory)
        else:
            memory.close()

    def timeline_memory(self) -> Buffer:
        memory = HostMemory(TIMELINE_SIZE)
        self._memories.add(memory)
        address = VirtAddr(memory.address)
        return Buffer(self.core, address, TIMELINE_SIZE, Placement.HOST, memory.view, memory)

    def _release_code(self, memory: CodeMemory) -> None:
        for address in [address for address in self.kernel_names if memory.holds(address)]:
            del self.kernel_names[address]
        self._counted.discard(memory)
        if self._abandoned:
            self._abandoned.append(memory)
        else:
            memory.close()

    # ---- programs and queues -----------------------------------------------------------------

    def load_program(self, image: bytes) -> Program:
        memory, kernels = load_object(image)
        owner = self.place_code(memory)
        try:
            program = CpuProgram(self, owner)
            for placed in kernels.values():
                self.kernel_names[placed.address] = placed.name
                program.kernels[placed.name] = Kernel(
                    placed.name, program, placed.address, placed.kernarg_size, placed.arguments,
                    details=placed,
                )  # fmt: skip
            return program
        except BaseException:
            self._release_code(memory)
            raise

    def place_code(self, memory: CodeMemory) -> Buffer:
        """Return loaded code as a buffer, which owns it."""
        self._memories.add(memory)
        self._counted.add(memory)
        address = VirtAddr(memory.address)
        return Buffer(self.core, address, memory.size, Placement.DEVICE, None, memory)

    def all_queues(self) -> Sequence[HardwareQueue]:
        return self._queues

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return (self._compute,) if kind is QueueKind.COMPUTE else (self._copy,)

    # ---- copies: the host accesses all memory itself -----------------------------------------

    def write_memory(self, buffer: Buffer, data: memoryview) -> bool:
        memory = buffer.handle
        if isinstance(memory, HostMemory):  # not a slice of a buffer
            memory.view[: len(data)] = data
            return True
        source = np.frombuffer(data, np.uint8)
        ctypes.memmove(int(buffer.address), source.ctypes.data, len(source))
        return True

    def read_memory(self, buffer: Buffer, out: memoryview) -> bool:
        memory = buffer.handle
        if isinstance(memory, HostMemory):
            out[:] = memory.view[: len(out)]
            return True
        target = np.frombuffer(out, np.uint8)
        ctypes.memmove(target.ctypes.data, int(buffer.address), len(target))
        return True

    def reach_memory(self, buffer: Buffer) -> Buffer | None:
        if not isinstance((buffer.owner or buffer).handle, HostMemory):
            return None
        return Buffer(self.core, buffer.address, buffer.size, buffer.placement)[:]

    @property
    def reads_host_memory(self) -> bool:
        return True

    def host_buffer(self, address: int, view: memoryview) -> Buffer:
        return Buffer(self.core, VirtAddr(address), view.nbytes, Placement.HOST, view)

    def memory_view(self, buffer: Buffer) -> memoryview | None:
        memory = (buffer.owner or buffer).handle
        if not isinstance(memory, HostMemory):
            return buffer.view
        start = int(buffer.address) - memory.address
        return memory.view[start : start + buffer.size]

    # ---- failures ----------------------------------------------------------------------------

    def is_idle_fast(self) -> bool:
        """Wait a while, natively; return whether the queues are idle and met only valid
        commands."""
        compute, copy = self._timelines
        first, second = compute.cells, copy.cells
        idle = first[0] >= first[1] and second[0] >= second[1]
        if idle and not self._alarms[ALARMS]:
            return True
        return bool(self._settle(compute.last, copy.last))

    def poll(self) -> UgpuError | None:
        if not self.bell.state.cells[ALARMS]:  # only valid commands
            return None
        for queue in (self._compute, self._copy):
            place = queue.server.state[FAULT]
            if place:
                word = ctypes.c_uint32.from_address(place).value
                return BadPacket(
                    f"{queue.name}: {word:#x} is not a command", queue=queue.name, word=word
                )
        return None

    def pause(self, limit_s: float) -> None:
        timeline = self._compute.timeline
        self.pause_until(timeline, timeline.value + 1, limit_s)

    def pause_until(self, timeline: Timeline, value: int, limit_s: float) -> None:
        # a fault ends it; the limit lets Python handle its own signals
        self.bell.wait(int(timeline.memory.address), value, min(limit_s, PAUSE_S))

    def prefetch_wake(self) -> None:
        if not self.core.closed:
            self._compute.server.expect()

    def notify_memory_written(self) -> None:
        self.bell.ring()

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        queue = self._copy if timeline is self._copy.timeline else self._compute
        state = queue.server.state
        pending, current = state[TAIL] - state[HEAD], state[CURRENT]
        facts: dict[str, object] = {"queue": queue.name, "pending_submissions": pending}
        if current:
            words = (ctypes.c_uint32 * 3).from_address(current)
            facts["operation"] = words[0]
            if words[0] == LAUNCH:
                address = words[2] << 32 | words[1]
                facts["kernel"] = self.kernel_names.get(address, hex(address))
        return facts

    def recover(self, only: Level | None = None) -> Recovery:
        ladder, diagnosis = self._ladder()
        ladder.climb(diagnosis, only)
        return Recovery(diagnosis, tuple(ladder.attempts), (self._compute, self._copy))

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        ladder, diagnosis = self._ladder()
        return diagnosis, ladder.plan(diagnosis, only)

    def _ladder(self) -> tuple[Ladder, Diagnosis]:
        cost = "work of all queues; a thread inside of a kernel that does not end is left behind"
        rung = PlainRung("new threads", Level.QUEUE, cost, self._start_again, self._prove)
        reason = str(self.core.failure or "no failure is known")
        return Ladder(self.name, [rung], self.clock), Diagnosis(Level.QUEUE, reason)

    def _prove(self) -> dict[str, object]:
        alive = [queue.server.thread.is_alive() for queue in (self._compute, self._copy)]
        if not all(alive):
            raise ChipError(f"{self.name}: a queue's thread has ended", alive=alive)
        return {"threads": len(alive)}

    def _start_again(self) -> None:
        self._stop()
        self._pool = Pool(self.threads - 1, self.name)
        for queue in (self._compute, self._copy):
            queue.restart(self._serve(queue.kind))

    def sole_holder(self) -> str:
        return "kernels of the cpu device run in its process and reach all of that process's memory"

    @property
    def opens_elsewhere(self) -> bool:
        return True

    def shutdown(self) -> None:
        self._stop()

    def _stop(self) -> None:
        """End all threads; those inside a kernel are left behind, with everything that they may
        access."""
        left: list[threading.Thread] = []
        for queue in (self._compute, self._copy):
            if not queue.server.stop():
                log.warning("%s: a kernel is still running; its thread was not joined", queue.name)
                self._abandoned += [queue.server, queue._arena, queue.slots, list(queue._alive)]
                left.append(queue.server.thread)
        if not self._pool.stop(self._compute.server):
            self._abandoned.append(self._pool)
            left += self._pool.threads
        if left:
            # RACE: the threads may outlive this device, so everything that they access must too,
            # including memory that is no longer referenced, and memory freed from now on.
            self._abandoned += [self.bell, *self._memories, *self.core.retired.reach()]
            for thread in left:
                life.leave_behind(thread.is_alive, self._abandoned)

    # ---- facts -------------------------------------------------------------------------------

    def info(self) -> dict[str, object]:
        return {
            "device": self.name,
            "processor": self.target.cpu,
            "architecture": platform.machine(),
            "threads": self.threads,
            "memory_bytes": total_memory(),
            "llvm": ".".join(map(str, llvm.llvm_version_info)),
        }

    def sensors(self) -> Sequence[Sensor]:
        return (
            Sensor("memory_used_bytes", "B", lambda: float(self.used)),
            Sensor("load_threads", "threads", lambda: os.getloadavg()[0], "one minute"),
        )
