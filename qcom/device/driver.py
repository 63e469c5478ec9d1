"""AdrenoDriver: an Adreno GPU above its kernel driver, KGSL or msm.

This file contains the device's life cycle and the hooks that hcq calls. The kernel driver owns the
GPU: a failure here affects only our context, which is then created again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ugpu.hcq.errors import DeviceNotFound, UgpuError
from ugpu.hcq.state.clock import Work
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.timeline import SIZE as TIMELINE_SIZE
from ugpu.hcq.work.timeline import Timeline
from ugpu.qcom import chips, kernels
from ugpu.qcom.chips.facts import ChipFacts
from ugpu.qcom.device.sensors import kgsl_sensors, msm_sensors
from ugpu.qcom.failure.faults import Faults
from ugpu.qcom.kernel_driver.imports import memory_of
from ugpu.qcom.kernel_driver.interface import (
    CACHE_LINE,
    Identity,
    KernelInterface,
    Memory,
    ResetState,
)
from ugpu.qcom.packets.encode import Encoder
from ugpu.qcom.packets.pm4 import Tables
from ugpu.qcom.work import proof
from ugpu.qcom.work.cleaner import Cleaner
from ugpu.qcom.work.holder import WorkHolder
from ugpu.qcom.work.programs import Programs
from ugpu.qcom.work.queue import AdrenoQueue, Dispatcher

if TYPE_CHECKING:
    from ugpu.hcq.disk.bundle import Evidence
    from ugpu.hcq.state.ladder import Diagnosis, Level, Planned
    from ugpu.hcq.work.recovery import Recovery

log = logging.getLogger(__name__)

COUNTER_HERTZ = 19.2e6  # of CP_ALWAYS_ON_COUNTER: tu_device.cc, timestampPeriod
LOOK_INTERVAL_S = 0.02  # between checks whether the context was lost
_SPINS = 200  # polls of the timeline before a waiter sleeps: about 0.1 ms
_NEAR = 1 << 20  # bytes after an allocation that an overrun may reach
_SHORT_PAUSES = 2000  # polls before the pauses grow: about 0.1 s
_PAUSE_S, _LONG_PAUSE_S = 5e-5, 5e-4
_TRANSLATING_S = 1e-2  # while a model translates a kernel, which takes as long
StageHook = Callable[[str, float], None]


class AdrenoDriver(WorkHolder):
    """One GPU. boot_stages: durations of the start, (name, seconds)."""

    def __init__(
        self,
        name: str,
        interface: KernelInterface,
        index: int,
        *,
        on_stage: StageHook | None = None,
    ) -> None:
        super().__init__(name)
        self.interface = interface
        self.index = index
        self.clock = interface.node.clock
        self.clock_hertz = COUNTER_HERTZ
        self.boot_stages: list[tuple[str, float]] = []
        self.looks = 0  # polls of timelines by waiters since the last submission
        self._on_stage = on_stage
        self._looked_at = 0.0
        self._queues: tuple[AdrenoQueue, ...] = ()
        self._own: list[Program] = []
        self._probe_memory: Memory | None = None
        self.dispatcher = Dispatcher(self)
        self.programs = Programs(self)
        self.faults = Faults(self)
        self.cleaner = Cleaner(self)
        try:
            self._bring_up()
        except BaseException:
            self._release()
            raise
        self.core.opened()

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = self.clock.now()
        yield
        taken = self.clock.now() - start
        self.boot_stages.append((name, taken))
        if self._on_stage is not None:
            self._on_stage(name, taken)

    # ---- life ------------------------------------------------------------------------------------

    def _bring_up(self) -> None:
        with self._stage("identify"):
            self.identity = self.interface.identify()
            self.memory_size = self.interface.memory_size()
            self.facts = _facts_of(self.identity)
            self.target = self.facts.target()
            self.encoder = Encoder(self.facts, Tables.of(self.facts.generation))
        with self._stage("context"):
            self.interface.create_context()
            self._queues = (AdrenoQueue(self, "compute", QueueKind.COMPUTE),)
            self._queues += (AdrenoQueue(self, "copy", QueueKind.COPY),)
        with self._stage("first work"):
            self._make_probe()
            proof.signal(self)
        for name, image in kernels.objects(self.facts).items():
            program = self.programs.load(image)
            self._own.append(program)
            self.encoder.own[name] = program[name]

    def _make_probe(self) -> None:
        self._probe_memory = memory = self.interface.allocate(TIMELINE_SIZE, self.interface.caching)
        buffer = Buffer(
            self.core, VirtAddr(memory.address), TIMELINE_SIZE, Placement.HOST,
            memory.view[:TIMELINE_SIZE], handle=memory,
        )  # fmt: skip
        self.probe = Timeline(self.core, buffer, f"{self.name} probe")

    def rebuild(self) -> None:
        """Create a new context; the work of the old one is lost, and the queues are empty."""
        self.interface.destroy_context()
        for queue in self._queues:
            queue.forget()
        self.dispatcher = Dispatcher(self)
        self.interface.create_context()

    def recover(self, only: Level | None = None) -> Recovery:
        return self.faults.recover(only)

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        return self.faults.plan(only)

    def sole_holder(self) -> str:
        return self.interface.sole_holder()

    def open_tenant(self, name: str) -> AdrenoDriver:
        """See Driver. A tenant is another open file of msm, with its own address space and submit
        queue, as another program would have."""
        return AdrenoDriver(name, self.interface.another(), self.index)

    def shutdown(self) -> None:
        self._release()

    def _release(self) -> None:
        """Free everything, in any state; the kernel driver frees the rest when its file is
        closed."""
        with contextlib.suppress(UgpuError):
            self.interface.destroy_context()
        for queue in self._queues:
            queue.close()
        self._queues = ()
        self._own.clear()
        self.programs.close()
        self.interface.close()

    # ---- memory ----------------------------------------------------------------------------------

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        host, interface = placement is Placement.HOST, self.interface
        memory = None
        try:
            caching = interface.caching if host else interface.device_caching
            memory = interface.allocate(size, caching)
            view = memory.view[:size] if host else None
            return Buffer(self.core, VirtAddr(memory.address), size, placement, view, handle=memory)
        except BaseException:
            if memory is not None:
                memory.close()
            raise

    def free_memory(self, buffer: Buffer) -> None:
        memory = buffer.handle
        assert isinstance(memory, Memory)
        if buffer.view is not None:
            buffer.view.release()
            buffer.view = None
        self.programs.forget(memory)
        memory.close()

    def load_program(self, image: bytes) -> Program:
        return self.programs.load(image)

    def clean(self) -> tuple[Timeline, int]:
        """See Driver and qcom.work.cleaner."""
        return self.cleaner.submit()

    def write_memory(self, buffer: Buffer, data: memoryview) -> bool:
        memory, start = _place(buffer)
        if not memory.has_view:
            return False
        # ORDER: before a line is written in part, it must contain the GPU's writes to it.
        for edge in (start, start + len(data)):
            if edge % CACHE_LINE:
                line = edge - edge % CACHE_LINE
                self.interface.sync(memory, line, CACHE_LINE, to_gpu=False)
        memory.view[start : start + len(data)] = data
        self.interface.sync(memory, start, len(data), to_gpu=True)
        return True

    def read_memory(self, buffer: Buffer, out: memoryview) -> bool:
        memory, start = _place(buffer)
        if not memory.has_view:
            return False
        self.interface.sync(memory, start, len(out), to_gpu=False)
        out[:] = memory.view[start : start + len(out)]
        return True

    def find(self, address: int) -> str:
        """Describe where an address is relative to the memory in use."""
        code = self.programs.find(address)
        if code is not None:
            return f"at byte {code[1]} of the code of {code[0]}"
        below = [memory for memory in list(self.interface.memories) if memory.address <= address]
        nearest = max(below, key=lambda memory: memory.address, default=None)
        if nearest is None:
            return "below all memory of this device"
        what = f"{nearest.size} bytes of memory at {nearest.address:#x}"
        past = address - nearest.address - nearest.size
        if past < 0:
            return f"at byte {address - nearest.address} of {what}"
        if past < _NEAR:
            return f"{past} bytes behind the end of {what}"
        return "nothing of this device is mapped near it"

    # ---- queues and failures ---------------------------------------------------------------------

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return [queue for queue in self._queues if queue.kind is kind]

    def all_queues(self) -> Sequence[AdrenoQueue]:
        return self._queues

    def notify_memory_written(self) -> None:
        with self.core.lock:
            if not self.core.closed:
                self.dispatcher.pump()

    def poll(self) -> UgpuError | None:
        self.dispatcher.pump()
        now = self.clock.now()
        if self.dispatcher.refusal is None and now - self._looked_at < LOOK_INTERVAL_S:
            return None
        self._looked_at = now
        state = self.interface.reset_state()
        if state is not ResetState.NONE:
            return self.faults.explain(state)
        return self.dispatcher.refusal

    def pause(self, limit_s: float) -> None:
        # Most waits are short: yield the processor without sleeping, then sleep, then sleep
        # longer. A submission restarts this sequence.
        self.looks += 1
        if self.looks < _SPINS:
            self.clock.sleep(0)
        else:
            pause = _PAUSE_S if self.looks < _SHORT_PAUSES else _LONG_PAUSE_S
            translating = self.clock.work() is Work.TRANSLATION
            self.clock.sleep(min(limit_s, _TRANSLATING_S if translating else pause))

    def pause_until(self, timeline: Timeline, value: int, limit_s: float) -> None:
        self.pause(limit_s)

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        return self.faults.diagnose(timeline)

    def evidence(self, error: UgpuError) -> Evidence:
        return self.faults.evidence()

    # ---- facts -----------------------------------------------------------------------------------

    def sensors(self) -> Sequence[Sensor]:
        own = [Sensor("memory_used_bytes", "bytes", self._memory_used)]
        total = self.memory_size
        if total is not None:
            own.append(Sensor("memory_total_bytes", "bytes", lambda: float(total)))
        if self.identity.facts["kernel_driver"] != "kgsl":
            return (*own, *msm_sensors(self.interface.node, self.facts.register_base))
        return (*own, *kgsl_sensors(self.interface.node, self.index))

    def _memory_used(self) -> float:
        """Return the memory of this device: neither kernel driver reports that of others."""
        return float(sum(memory.size for memory in list(self.interface.memories)))

    def info(self) -> dict[str, object]:
        memory = self.memory_size
        return {
            "chip": self.facts.name,
            "chip_id": f"{self.identity.chip_id:#010x}",
            "generation": self.facts.generation,
            "gmem": self.identity.gmem,
            "compute_units": self.target.compute_units,
            "products": ", ".join(self.facts.products),
            **({} if memory is None else {"memory_bytes": memory}),
            "host_memory": self.interface.caching.value,
            "device_memory": self.interface.device_caching.value,
            **self.identity.facts,
        }


def _facts_of(identity: Identity) -> ChipFacts:
    """Return the facts of the GPU; for an unknown one of a known generation, those of its oldest
    chip."""
    exact = chips.by_id(identity.chip_id)
    if exact is not None:
        return exact
    tried = chips.stand_in(identity.chip_id)
    if tried is None:
        have = ", ".join(chips.names())
        raise DeviceNotFound(
            f"no driver supports the Adreno GPU with id {identity.chip_id:#010x}; supported: {have}"
        )
    log.warning(
        "the Adreno GPU with id %#010x is not known; trying it as an %s",
        identity.chip_id, tried.name,
    )  # fmt: skip
    return tried


def _place(buffer: Buffer) -> tuple[Memory, int]:
    """Return the memory that contains a buffer or a slice of one, and the offset in it."""
    memory = memory_of(buffer)
    return memory, int(buffer.address) - memory.address
