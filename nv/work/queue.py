"""Hardware queues: GPFIFO channels that run command images.

Images are stored in an arena; each image of a captured graph has its own memory. Both are in video
memory that the host maps (tinygrad's ops_nv.py and Mesa's NVK keep descriptors and constant banks
there), or in host memory. Every submission ends with a signal of the queue's timeline. Once the
timeline has passed a submission, its arena space and ring entry are free.
"""

from __future__ import annotations

import contextlib
import logging
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.rings.arena import Arena
from ugpu.hcq.rings.image import OwnImage
from ugpu.hcq.rings.ring import RingQueue, Submission, timeline_in
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.command import Command
from ugpu.hcq.work.command_buffer import CommandBuffer, Symbol
from ugpu.hcq.work.queue import QueueKind, Resident
from ugpu.hcq.work.timeline import SIZE as TIMELINE_SIZE
from ugpu.nv.packets.encode import Classes, Encoder
from ugpu.nv.packets.holder import LaunchHolder
from ugpu.nv.packets.pushbuffer import Pushbuffer
from ugpu.nv.rm.channel import ENTRIES, Channel, ChannelError, ChannelMemory, Group
from ugpu.nv.rm.memory import Memory, allocate
from ugpu.nv.rm.session import Region

log = logging.getLogger(__name__)

_LENGTH_SHIFT = 42  # in a ring entry: NVC56F_GP_ENTRY1_LENGTH
_SETUP_LIMIT_S = 5.0  # TIMEOUT: a new channel's first work; microseconds on a healthy GPU


@dataclass(frozen=True)
class Progress:
    """Progress of a channel.

    given, fetched: the next ring entry for the driver to fill and for the host engine to fetch
    (GP_PUT, GP_GET). reached, awaited: the timeline's current value and the last value submitted.
    xid: the Xid that stopped the channel, or None.
    """

    given: int
    fetched: int
    reached: int
    awaited: int
    xid: int | None


class FaultReports(Protocol):
    """What queues and proofs use of nv.failure.faults.Faults."""

    def explain(self, queue: ChannelQueue, error: ChannelError) -> UgpuError: ...


class QueueHolder(LaunchHolder):
    """A holder that has queues."""

    compute_class: int  # its number
    command_placement: Placement  # of rings and images
    looks: int  # polls of timelines by waiters since the last submission
    unboosted: bool  # at rest
    faults: FaultReports

    @abstractmethod
    def setup_words(self, queue: ChannelQueue) -> list[int]:
        """Methods that a new channel starts with."""


def command_memory(driver: QueueHolder, size: int) -> Memory:
    """Allocate memory for images that the host writes, with the device's `command_placement`.

    Host memory is used if video memory or the window to it is exhausted.
    """
    gpu = driver.gpu
    if driver.command_placement is Placement.DEVICE:
        try:
            return allocate(gpu, size, Placement.DEVICE, Region.COMMANDS, reachable=True)
        except DeviceLost:
            raise
        except UgpuError as error:
            log.info("%s: %d bytes of commands go to host memory: %s", driver.name, size, error)
    return allocate(gpu, size, Placement.HOST, Region.COMMANDS)


class ChannelQueue(RingQueue[Submission]):
    """One channel in a group of its own. See RingQueue.

    engine: an NV2080_ENGINE_TYPE number. Commands of a submission start in order; a launch may
    overlap the launch before it unless a Barrier stands between.
    """

    driver: QueueHolder
    entries = ENTRIES - 1
    submission = Submission
    reuses_launches = True

    def __init__(
        self, driver: QueueHolder, name: str, kind: QueueKind, engine: int, classes: Classes
    ) -> None:
        super().__init__(driver, name, kind)
        self.driver = driver
        self.engine = engine
        self.classes = classes
        self.encoder = Encoder(classes, interrupts=driver.gpu.interrupts)
        self.channel: Channel | None = None
        self.group: Group | None = None
        self.memory: ChannelMemory | None = None
        self._parts: list[Memory] = []
        try:
            self._make(driver)
        except BaseException:
            self.close()
            raise

    def _make(self, driver: QueueHolder) -> None:
        gpu = driver.gpu
        self.memory = ChannelMemory(gpu)
        memory = command_memory(driver, self.arena_size)
        self._parts.append(memory)
        self.arena = Arena(memory.address, memory.view, self.arena_size)
        control = allocate(gpu, TIMELINE_SIZE, Placement.HOST, Region.HOST)
        self._parts.append(control)
        self.timeline = timeline_in(driver.core, control, f"{driver.name} {self.name}")
        self.build()

    # ---- the channel -------------------------------------------------------------------------

    def build(self) -> None:
        """Tear down the existing channel, if any; create a new one and set up its engines."""
        assert self.memory is not None
        self.tear_down()
        gpu = self.driver.gpu
        is_compute = self.kind is QueueKind.COMPUTE
        self.group = Group(gpu, self.engine, context_share=is_compute)
        # The graphics engine has a context only once an object of its own exists; UVM refuses a
        # channel without a context (observed on an H100).
        graphics = gpu.client.constants.NV2080_ENGINE_TYPE_GRAPHICS
        own = self.driver.compute_class if self.engine == graphics else 0
        objects = [number for number in (own, self.classes.copy) if number]
        self.channel = Channel(gpu, self.group, self.memory, objects)
        self.group.schedule()
        self.channel.start()
        words = self.driver.setup_words(self)
        if is_compute:
            self._run_first(words)
        else:
            self.run_setup(words)

    def tear_down(self) -> None:
        """Free the channel, which ends its work, and then the memory kept for that work."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        if self.group is not None:
            self.group.close()
            self.group = None
        self.forget()

    def _run_first(self, words: Sequence[int]) -> None:
        """Prepare methods to run before the first submission of a new channel.

        The doorbell announces their ring entry only together with that submission. With work in
        this channel, the GPU would stop a long-running kernel of another process (Xid 109), even
        if this process only copies.
        """
        assert self.memory is not None
        count, arena = len(words), self.arena
        image = CommandBuffer(np.array(words, np.uint32), count, ())
        arena.head = arena.fill(0, image, np.zeros(0, np.uint64))
        self.memory.entries[0] = arena.address | count << _LENGTH_SHIFT
        self.count = 1
        end = self.timeline.last + 1  # of the first submission
        self._pending.append(Submission(1, arena.address, count, arena.head, end, ()))

    def run_setup(self, words: Sequence[int]) -> None:
        """Run the driver's own methods after all earlier work has ended, and wait for their end."""
        image = Pushbuffer()
        self.encoder.wait_idle(image)
        image.words += words
        value = self.timeline.last + 1
        address = Symbol.constant(int(self.timeline.memory.address))
        self.encoder.signal(image, address, Symbol.constant(value))
        encoded = image.finish()
        self.submit(encoded, np.zeros(0, np.uint64))
        self.driver.clock.wait_until(
            lambda: self.timeline.value >= value or self.error() is not None,
            unit=self.name,
            waiting_for="end of its first work",
            limit_s=_SETUP_LIMIT_S,
            state=self.progress,
        )
        failed = self.error()
        if failed is not None:
            raise self.driver.faults.explain(self, failed)

    def error(self) -> ChannelError | None:
        """Return the error that stopped the channel, if any."""
        return self.memory.error() if self.memory is not None else None

    def progress(self) -> Progress:
        """Return the progress of the channel. Reads over the bus."""
        failed = self.error()
        return Progress(
            given=self.count % ENTRIES,
            fetched=self.memory.got if self.memory is not None else 0,
            reached=self.timeline.value,
            awaited=self.timeline.last,
            xid=failed.xid if failed is not None else None,
        )

    @property
    def submissions_in_flight(self) -> int:
        """The number of submissions that have not ended."""
        value = self.timeline.value
        return sum(submission.end > value for submission in self._pending)

    # ---- HardwareQueue -----------------------------------------------------------------------

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        return self.encoder.encode(commands)

    def own_image(self, buffer: CommandBuffer) -> OwnImage[Memory]:
        """See RingQueue."""

        def allocate(size: int) -> Memory:
            return command_memory(self.driver, size)

        return OwnImage(buffer, allocate, lambda memory: memory.close())

    # ---- ring --------------------------------------------------------------------------------

    def _run(self, source: CommandBuffer | Resident, submission: Submission) -> None:
        if self.driver.unboosted:
            self.driver.end_rest()
        self.intent = submission
        self.complete()

    def tell(self, submission: Submission) -> None:
        """Write the ring entry and ring the doorbell."""
        memory, channel, number = self.memory, self.channel, submission.number
        assert memory is not None and channel is not None
        entry = submission.address | submission.words << _LENGTH_SHIFT
        memory.entries[(number - 1) % ENTRIES] = entry
        memory.put(number % ENTRIES)
        # ORDER: x86 makes stores to image, ring and GP_PUT visible before this uncached one, which
        # drains write-combining buffers too (Intel SDM, volume 3, "Methods of Caching Available").
        # Inside the GPU, writes of USERD go through BAR1: a doorbell in BAR1 stays behind them, a
        # doorbell in BAR0 can overtake them.
        if not self.driver.gpu.rings_in_order:
            memory.settle()
        self.driver.gpu.ring(channel.token)
        self.driver.looks = 0

    def overwrite(self) -> None:
        """See HardwareQueue. The methods that a new channel begins with stay until they have run
        (`_run_first`)."""
        assert self.memory is not None
        super().overwrite()
        pending = {(submission.number - 1) % ENTRIES for submission in self._pending}
        for index in set(range(ENTRIES)) - pending:
            self.memory.entries[index] = 0

    def close(self) -> None:
        """Tear the channel down and free all memory; idempotent."""
        with contextlib.suppress(UgpuError):  # a lost GPU does not answer
            self.tear_down()
        if hasattr(self, "arena"):
            self.arena.close()
        if hasattr(self, "timeline"):
            self.timeline.detach()
        if self.memory is not None:
            self.memory.close()
            self.memory = None
        for part in self._parts:
            part.close()
        self._parts = []
