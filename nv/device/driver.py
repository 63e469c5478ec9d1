"""NvDevice: an NVIDIA GPU as an hcq.Device, through the stock kernel driver.

This file contains the device's life cycle and the hooks that hcq requires. The kernel driver owns
the GPU: this driver never resets or reconfigures it. After a failure it recreates its own channels.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ugpu.hcq.errors import AccessDenied, DeviceLost, DriverRefused, NotSupported, UgpuError
from ugpu.hcq.state.clock import Work
from ugpu.hcq.state.ladder import Diagnosis, Level, Planned
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.state.telemetry import Sensor
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import HardwareQueue, QueueKind
from ugpu.hcq.work.recovery import Recovery
from ugpu.hcq.work.timeline import Timeline
from ugpu.nv.device.sensors import describe, make_sensors
from ugpu.nv.failure import reset
from ugpu.nv.failure.faults import Faults
from ugpu.nv.packets.cooperative import Workspaces
from ugpu.nv.packets.encode import Classes
from ugpu.nv.packets.families import COPY_CLASSES, FAMILIES, Family, facts_of
from ugpu.nv.packets.pushbuffer import COMPUTE, COPY, header, method
from ugpu.nv.rm.channel import GPFIFO_CLASSES
from ugpu.nv.rm.gpu import Gpu
from ugpu.nv.rm.memory import Memory, allocate
from ugpu.nv.rm.node_gpu import NodeGpu
from ugpu.nv.rm.node_memory import NodeMemory
from ugpu.nv.rm.requests import GONE
from ugpu.nv.rm.session import LOCAL_WINDOW, SHARED_WINDOW, Region, Session
from ugpu.nv.rm.shared_data import SharedData
from ugpu.nv.work.cleaner import Cleaner
from ugpu.nv.work.holder import WorkHolder
from ugpu.nv.work.programs import Programs
from ugpu.nv.work.queue import ChannelQueue
from ugpu.nv.work.target import target_of

if TYPE_CHECKING:
    from ugpu.hcq.disk.bundle import Evidence

log = logging.getLogger(__name__)

PRESENCE_INTERVAL_S = 0.02
COPY_QUEUES = 2  # at most: the two staging buffers of a transfer use different ones
_SPINS = 200  # polls of the timeline before a waiter sleeps: about 0.1 ms
_SPINS_AT_ONCE = 20  # of them before it checks whether a model translates a kernel
# Then it sleeps a little longer each time: about a hundredth of the time that it has waited, twice
# that for a model, since a poll takes 0.05 ms of the processor that the model needs.
_PAUSE_S, _GROWTH_S, _LONGEST_PAUSE_S = 5e-5, 3e-6, 1e-2
StageHook = Callable[[str, float], None]
OpenGpu = Callable[[Session], Gpu]


class NvDriver(WorkHolder):
    """Driver of one GPU. boot_stages: (name, seconds) of each stage of the start."""

    faults: Faults
    foresees = True
    # open-gpu-kernel-modules 580.142: ctrl2080pmgr.h has only NV2080_CTRL_CMD_PMGR_GET_MODULE_INFO;
    # the internal UPDATE_EDPP_LIMIT of ctrl2080internal.h is for the kernel side of notebooks.
    no_power_limit = (
        "NVIDIA's open headers have no control that sets it (ctrl2080pmgr.h has no power policy); "
        "with the stock driver, `nvidia-smi --power-limit` does"
    )

    def __init__(
        self,
        name: str,
        session: Session,
        open_gpu: OpenGpu,
        *,
        on_stage: StageHook | None = None,
        boot_stages: Sequence[tuple[str, float]] = (),
        commands: Placement = Placement.DEVICE,
        lock: threading.RLock | None = None,
    ) -> None:
        """open_gpu: makes the GPU's objects in a session, for this holder and for tenants.
        boot_stages: what was done before. lock: shared with other holders, if any."""
        super().__init__(name, lock)
        self.command_placement = commands
        self._open_gpu = open_gpu
        self.clock_hertz = 1e9  # semaphores carry nanoseconds of the GPU's PTIMER
        self.boot_stages: list[tuple[str, float]] = list(boot_stages)
        self.debugger = 0
        self.shared_data: SharedData | None = None
        self.unpublished = ""  # why there are no sensors of clocks and power
        self._publishing = threading.Lock()  # one thread asks for them
        self.session = session
        self.clock = session.clock
        self._on_stage = on_stage
        self._queues: dict[QueueKind, list[ChannelQueue]] = {kind: [] for kind in QueueKind}
        self._all: tuple[ChannelQueue, ...] = ()
        self._looked_at = 0.0
        self.looks = 0  # polls of timelines by waiters since the last submission
        self.programs = Programs(self)
        self.workspaces = Workspaces(self)
        self.cleaner = Cleaner(self)
        self.unboosted = False  # at rest
        self._boosts = False  # whether the kernel driver accepts boosts of the clocks
        # Bytes of stack per thread for recursion and alloca, in programs loaded from now on. As in
        # CUDA by default (cudaLimitStackSize, CUDA C++ Programming Guide).
        self.dynamic_stack = 1024
        self.on_print: Callable[[str], None] = _print
        self.faults = Faults(self)
        with self._stage("objects and address space"):
            self.gpu = open_gpu(session)
        try:
            self._bring_up()
        except BaseException:
            self._release()
            raise
        self.core.opened()

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        taken = time.perf_counter() - start
        self.boot_stages.append((name, taken))
        if self._on_stage is not None:
            self._on_stage(name, taken)

    # ---- life --------------------------------------------------------------------------------

    def _identify(self) -> None:
        """Determine the kind of GPU."""
        gpu = self.gpu
        self.family = self._find_family()
        self.compute_class = gpu.client.constants[self.family.compute_class]
        chip = facts_of(gpu.capability)
        self.carveouts = chip.shared_carveouts
        self.target = target_of(self.gpu.capability, self.gpu.sm_count)

    def _bring_up(self) -> None:
        self._identify()
        graphics = self.gpu.client.constants.NV2080_ENGINE_TYPE_GRAPHICS
        with self._stage("copy queues"):
            engines = self.gpu.copy_engines()[:COPY_QUEUES] or [graphics]
            for number, engine in enumerate(engines):
                self._make_queue(f"copy {number}", QueueKind.COPY, engine)
        with self._stage("compute queue"):
            self._make_queue("compute", QueueKind.COMPUTE, graphics)
            self._attach_debugger()
        self._boosts = self.gpu.boost()

    def _make_queue(self, name: str, kind: QueueKind, engine: int) -> ChannelQueue:
        gpu = self.gpu
        compute = self.compute_class if kind is QueueKind.COMPUTE else 0
        classes = Classes(gpu.choose(GPFIFO_CLASSES), compute, gpu.choose(COPY_CLASSES))
        queue = ChannelQueue(self, name, kind, engine, classes)
        self._queues[kind].append(queue)
        self._all = tuple(queue for queues in self._queues.values() for queue in queues)
        return queue

    def _find_family(self) -> Family:
        number = self.gpu.choose([family.compute_class for family in FAMILIES])
        known = self.gpu.client.constants
        return next(
            family
            for family in FAMILIES
            if family.compute_class in known and known[family.compute_class] == number
        )

    def _attach_debugger(self) -> None:
        """Create the object through which the kernel driver reports faults of our own channel.

        Without it, for example while another debugger is attached, errors contain fewer facts.
        """
        gpu = self.gpu
        channel = self.compute_queue.channel
        assert channel is not None
        parameters = gpu.client.structs.NV83DE_ALLOC_PARAMETERS.new(
            hAppClient=gpu.client.root, hClass3dObject=channel.objects[self.compute_class]
        )
        try:
            self.debugger = gpu.client.allocate(gpu.device, "GT200_DEBUGGER", parameters)
        except (DriverRefused, AccessDenied) as error:
            log.info("%s: faults are reported without their location: %s", self.name, error)

    def _detach_debugger(self) -> None:
        debugger, self.debugger = self.debugger, 0
        if debugger:
            with contextlib.suppress(UgpuError):
                self.gpu.client.free(self.gpu.device, debugger)

    def setup_words(self, queue: ChannelQueue) -> list[int]:
        """Methods that a new channel starts with."""
        words: list[int] = []
        classes = queue.classes
        if classes.compute:
            words += [header(COMPUTE, 0, 1), classes.compute]
            for name, address in (
                ("SET_SHADER_SHARED_MEMORY_WINDOW_A", SHARED_WINDOW),
                ("SET_SHADER_LOCAL_MEMORY_WINDOW_A", LOCAL_WINDOW),
            ):
                offset = method(classes.compute, name)
                words += [header(COMPUTE, offset, 2), address >> 32, address & 0xFFFF_FFFF]
            words += self.programs.setup_words()
        return [*words, header(COPY, 0, 1), classes.copy]

    def flush_output(self) -> None:
        """Pass text printed by kernels to `on_print`."""
        self.programs.output.drain()

    def shutdown(self) -> None:
        if self.core.failure is None:
            with contextlib.suppress(UgpuError):
                self.programs.output.drain()
        self._release()

    def _release(self) -> None:
        """Free everything, in any state; the kernel driver frees the rest with the files."""
        self._detach_debugger()
        if self.shared_data is not None:
            self.shared_data.close()
            self.shared_data = None
        for queue in self.all_queues():
            queue.close()
        self._queues, self._all = {kind: [] for kind in QueueKind}, ()
        self.gpu.close()

    def recover(self, only: Level | None = None) -> Recovery:
        """Recreate the failed channels, and all if that fails. DeviceLost if the GPU is gone."""
        return reset.recover(self, only)

    def recovery_plan(self, only: Level | None = None) -> tuple[Diagnosis, list[Planned]]:
        return reset.plan(self, only)

    def rebuild(self, queue: ChannelQueue) -> None:
        """Free a queue's channel and create a new one."""
        log.info("%s: recreating %s", self.name, queue.name)
        if queue.kind is QueueKind.COMPUTE:
            self._detach_debugger()
        queue.build()
        if queue.kind is QueueKind.COMPUTE:
            self._attach_debugger()

    def all_queues(self) -> Sequence[ChannelQueue]:
        return self._all

    @property
    def compute_queue(self) -> ChannelQueue:
        return self._queues[QueueKind.COMPUTE][0]

    @property
    def copy_queue(self) -> ChannelQueue:
        return self._queues[QueueKind.COPY][0]

    # ---- memory ------------------------------------------------------------------------------

    def allocate_memory(self, size: int, placement: Placement) -> Buffer:
        region = Region.HOST if placement is Placement.HOST else Region.DEVICE
        memory = None
        try:
            memory = allocate(self.gpu, size, placement, region)
            view = memory.view[:size] if placement is Placement.HOST else None
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

    def reach_memory(self, buffer: Buffer) -> Buffer | None:
        memory, core = (buffer.owner or buffer).handle, self.core
        if not isinstance(memory, NodeMemory) or memory.gpu.session is not self.session:
            return None
        assert isinstance(self.gpu, NodeGpu)  # as all of its session
        own = memory.gpu.index == self.gpu.index
        if not own and memory.gpu.index not in self.gpu.peers:
            return None
        with core.lock:
            core.check_usable()
            if not own:
                memory.gpu.session.space.map_for(
                    memory.address, memory.size, memory.handle, [self.gpu.uuid]
                )
        return Buffer(core, buffer.address, buffer.size, buffer.placement, buffer.view)[:]

    def load_program(self, image: bytes) -> Program:
        return self.programs.load(image)

    def foresee(self, images: Sequence[bytes]) -> None:
        self.programs.foresee(images)

    def clean(self) -> tuple[Timeline, int]:
        """See Driver and nv.work.cleaner."""
        return self.cleaner.submit()

    def overwrite_commands(self) -> None:
        """See Driver. Texts that kernels printed are overwritten too."""
        super().overwrite_commands()
        self.programs.output.clear()

    @property
    def clean_gap(self) -> str:
        return self.cleaner.gap

    # ---- queues and failures -----------------------------------------------------------------

    def hardware_queues(self, kind: QueueKind) -> Sequence[HardwareQueue]:
        return self._queues[kind]

    def poll(self) -> UgpuError | None:
        self.gpu.poll()
        for queue in self._all:
            error = queue.error()
            if error is not None:
                return self.faults.explain(queue, error)
        now = self.clock.now()
        if now - self._looked_at > PRESENCE_INTERVAL_S:
            self._looked_at = now
            if self.gpu.lost():
                return self.absent()
        return None

    def absent(self) -> DeviceLost:
        """Return the error of a GPU that is lost."""
        return DeviceLost(f"{self.name} no longer answers", device=self.name, remedy=GONE)

    def pause(self, limit_s: float) -> None:
        # Most waits are short: yield the processor without sleeping, then sleep, then sleep longer.
        # A submission restarts this sequence.
        self.looks += 1
        if self.looks == _SPINS_AT_ONCE and self.clock.work() is Work.TRANSLATION:
            self.looks = _SPINS
        if self.looks < _SPINS:
            self.clock.sleep(0)
        else:
            self.doze(limit_s)

    def pause_until(self, timeline: Timeline, value: int, limit_s: float) -> None:
        self.pause(limit_s)

    def doze(self, limit_s: float) -> None:
        """Sleep for a while during a wait that is not short, at most `limit_s`; longest where a
        model translates a kernel, which takes tens of milliseconds of the processor."""
        translating = self.clock.work() is Work.TRANSLATION
        self.clock.sleep(min(limit_s, _LONGEST_PAUSE_S if translating else self.grown_s))

    @property
    def grown_s(self) -> float:
        """The next pause of a wait that is not short."""
        growth_s = _GROWTH_S * (4 if self.clock.of_model else 1)
        return min(_PAUSE_S + growth_s * max(self.looks - _SPINS, 0), _LONGEST_PAUSE_S)

    def is_idle_fast(self) -> bool:
        if self.programs.output.used:  # its text must be passed on
            return False
        for queue in self._all:
            timeline, looks = queue.timeline, 0
            while timeline.value < timeline.last:
                looks += 1
                if looks > _SPINS:
                    return False
                self.clock.sleep(0)
        core = self.core
        with core.lock:  # the queues' resources exist until the device is closed
            if core.closed:
                return False
            return all(queue.intent is None and queue.error() is None for queue in self._all)

    def diagnose(self, timeline: Timeline, value: int) -> dict[str, object]:
        return self.faults.diagnose(timeline)

    def evidence(self, error: UgpuError) -> Evidence:
        from ugpu.nv.failure.evidence import gather  # a working device does not need it

        return gather(self, self.faults, error)

    # ---- rest --------------------------------------------------------------------------------

    @property
    def rests(self) -> bool:
        return self._boosts

    @property
    def at_rest(self) -> bool:
        return self.unboosted

    def begin_rest(self) -> bool:
        """See Driver. Clears the boost of the clocks; the kernel driver does the rest."""
        if not self._boosts or any(
            queue.timeline.value < queue.timeline.last for queue in self._all
        ):
            return False
        self.unboosted = True  # first: after an interruption here, the clocks are boosted again
        self.gpu.boost(clear=True)
        return True

    def end_rest(self) -> None:
        if self.unboosted:
            self.gpu.boost()
            self.unboosted = False

    # ---- several holders ---------------------------------------------------------------------

    def sole_holder(self) -> str:
        return self.session.sole_holder()

    def open_tenant(self, name: str) -> NvDriver:
        """See Driver. A tenant is a client of the resource manager with its own address space and
        channels, like another process; the GPU takes turns between them."""
        self.check_second()
        session = self.session.another()
        return NvDriver(name, session, self._open_gpu, commands=self.command_placement)

    # ---- identity and sensors of the GPU ---------------------------------------------------------

    def sensors(self) -> Sequence[Sensor]:
        """Return the sensors; the first call waits up to 2.5 s for the driver's first samples."""
        with self._publishing:
            if self.shared_data is None and not self.unpublished:
                try:
                    self.shared_data = _shared_data(self.gpu)
                except DeviceLost:
                    raise
                except UgpuError as error:
                    self.unpublished = str(error)
                    log.info("%s: no sensors of clocks and power: %s", self.name, error)
        resting = Sensor("resting", "flag", lambda: float(self.at_rest), "gfx")
        return (*make_sensors(self.gpu, self.shared_data), resting)

    def info(self) -> dict[str, object]:
        facts: dict[str, Any] = describe(self.gpu)
        if self.unpublished:
            facts["no_clocks_and_power"] = self.unpublished
        return {
            **facts,
            "family": self.family.name,
            "isa": self.target.cpu,
            "compute_units": self.target.compute_units,
            "copy_queues": len(self._queues[QueueKind.COPY]),
        }


def _shared_data(gpu: Gpu) -> SharedData:
    if not isinstance(gpu, NodeGpu):
        raise NotSupported("the GSP publishes clocks and power only through the stock driver")
    return SharedData(gpu)


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
