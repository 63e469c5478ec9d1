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
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import DeviceHang, DeviceLost, UgpuError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command
from ugpu.hcq.work.command_buffer import CommandBuffer, Symbol
from ugpu.hcq.work.queue import HardwareQueue, QueueKind, Resident
from ugpu.hcq.work.timeline import SIZE as TIMELINE_SIZE
from ugpu.hcq.work.timeline import Timeline
from ugpu.nv.packets.encode import Classes, Encoder
from ugpu.nv.packets.holder import LaunchHolder
from ugpu.nv.packets.pushbuffer import Commands, Pushbuffer
from ugpu.nv.rm.channel import ENTRIES, Channel, ChannelError, ChannelMemory, Group
from ugpu.nv.rm.memory import Memory, allocate
from ugpu.nv.rm.session import Region

log = logging.getLogger(__name__)

ARENA_SIZE = 1 << 20
_IMAGE_ALIGN = 256
_FULL_PAUSE_S = 1e-4
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


class Submission(NamedTuple):
    """A committed submission.

    number: its ring entry, counted from 1. words: the number of command words at `address`. head:
    the arena position after its image. end: the timeline value that it signals. kept: memory to
    free once it has ended.
    """

    number: int
    address: int
    words: int
    head: int
    end: int
    kernels: tuple[str, ...]
    kept: OwnImage | Memory | None = None


class OwnImage(Resident):
    """An image in memory of its own."""

    def __init__(self, queue: ChannelQueue, words: int, kernels: tuple[str, ...]) -> None:
        self.kernels = kernels
        self.memory: Memory | None = None
        try:
            self.memory = command_memory(queue.driver, max(words, 1) * 4)
            self.address = self.memory.address
            self.words = np.frombuffer(self.memory.view, np.uint32)[:words]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.memory is not None:
            self.words = np.zeros(0, np.uint32)  # releases the mapping's view
            self.memory.close()
            self.memory = None


class ChannelQueue(HardwareQueue):
    """One channel in a group of its own. See HardwareQueue.

    engine: an NV2080_ENGINE_TYPE number. Commands of a submission start in order; a launch may
    overlap the launch before it unless a Barrier stands between.
    """

    driver: QueueHolder
    intent: Submission | None = None
    reuses_launches = True

    def __init__(
        self, driver: QueueHolder, name: str, kind: QueueKind, engine: int, classes: Classes
    ) -> None:
        self.core, self.driver = driver.core, driver
        self.name = name
        self.kind = kind
        self.engine = engine
        self.classes = classes
        self.encoder = Encoder(classes, interrupts=driver.gpu.interrupts)
        self.channel: Channel | None = None
        self.group: Group | None = None
        self.memory: ChannelMemory | None = None
        self._parts: list[Memory] = []
        self._pending: deque[Submission] = deque()
        self._unused: OwnImage | None = None  # made for a submission that did not take place
        self._words = np.zeros(0, np.uint32)
        try:
            self._make(driver)
        except BaseException:
            self.close()
            raise

    def _make(self, driver: QueueHolder) -> None:
        gpu = driver.gpu
        self.memory = ChannelMemory(gpu)
        self.arena = command_memory(driver, ARENA_SIZE)
        self._parts.append(self.arena)
        self._words = np.frombuffer(self.arena.view, np.uint32)
        control = allocate(gpu, TIMELINE_SIZE, Placement.HOST, Region.HOST)
        self._parts.append(control)
        view = control.view[:TIMELINE_SIZE]
        buffer = Buffer(
            driver.core,
            VirtAddr(control.address),
            TIMELINE_SIZE,
            Placement.HOST,
            view,
            handle=control,
        )
        self.timeline = Timeline(driver.core, buffer, f"{driver.name} {self.name}")
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
        self.count = 0  # entries of the ring used so far
        self._head = self._tail = 0  # positions in the arena; they only increase
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
        self.intent = None
        if self._unused is not None:
            self._unused.close()
            self._unused = None
        while self._pending:
            kept = self._pending[0].kept
            if kept is not None:
                kept.close()
            self._pending.popleft()

    def _run_first(self, words: Sequence[int]) -> None:
        """Prepare methods to run before the first submission of a new channel.

        The doorbell announces their ring entry only together with that submission. With work in
        this channel, the GPU would stop a long-running kernel of another process (Xid 109), even
        if this process only copies.
        """
        assert self.memory is not None
        count = len(words)
        self._words[:count] = words
        self._head = -(-4 * count // _IMAGE_ALIGN) * _IMAGE_ALIGN
        self.memory.entries[0] = self.arena.address | count << _LENGTH_SHIFT
        self.count = 1
        end = self.timeline.last + 1  # of the first submission
        self._pending.append(Submission(1, self.arena.address, count, self._head, end, ()))

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

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Names of kernels that were submitted and have not ended."""
        value = self.timeline.value
        running = [submission for submission in self._pending if submission.end > value]
        names = [name for submission in running for name in submission.kernels]
        return tuple(dict.fromkeys(names))

    # ---- HardwareQueue -----------------------------------------------------------------------

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        return self.encoder.encode(commands)

    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        self.submit_keeping(buffer, values, None)

    def submit_keeping(
        self, buffer: CommandBuffer, values: NDArray[np.uint64], memory: Memory | None
    ) -> None:
        """Submit as `submit` does, and take ownership of `memory`.

        `reclaim` frees `memory` once the work has ended. After an exception, `keeps` reports
        whether the queue owns it. For images of at most half the arena.
        """
        count = len(buffer.words)
        if len(self._pending) >= ENTRIES - 1:
            self._await_room(count)
        kept: OwnImage | Memory | None = memory
        head = self._head
        if 4 * count > ARENA_SIZE // 2:
            assert memory is None
            kept = image = self._new_image(count)
            words, address = image.words, image.address
        else:
            start = self._find(4 * count)
            if start is None:
                self._await_room(count)
                start = self._find(4 * count)
                assert start is not None
            head = start + -(-4 * count // _IMAGE_ALIGN) * _IMAGE_ALIGN
            first = start % ARENA_SIZE // 4
            words, address = self._words[first : first + count], self.arena.address + 4 * first
        self._set_image(buffer, values, address)
        buffer.patch(words, values)
        kernels = buffer.kernels if isinstance(buffer, Commands) else ()
        number, end = self.count + 1, self.timeline.last + 1
        self.intent = Submission(number, address, buffer.command_words, head, end, kernels, kept)
        self.complete()  # once `intent` is set, the submission takes place

    def keeps(self, memory: Memory) -> bool:
        """Return whether `submit_keeping` has taken ownership of `memory`."""
        pending = [*self._pending, *([self.intent] if self.intent is not None else [])]
        return any(submission.kept is memory for submission in pending)

    def _new_image(self, count: int) -> OwnImage:
        if self._unused is not None:
            self._unused.close()
        self._unused = OwnImage(self, count, ())
        return self._unused

    @staticmethod
    def _set_image(buffer: CommandBuffer, values: NDArray[np.uint64], address: int) -> None:
        for position in buffer.images:
            values[position] = address

    def place(self, buffer: CommandBuffer) -> Resident:
        kernels = buffer.kernels if isinstance(buffer, Commands) else ()
        return OwnImage(self, len(buffer.words), kernels)

    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        assert isinstance(resident, OwnImage)
        self._await_room(0)
        self.intent = Submission(
            self.count + 1, resident.address, command_words, self._head, value, resident.kernels
        )
        self.complete()

    def room(self, words: int) -> bool:
        if len(self._pending) >= ENTRIES - 1 and not self.reclaim():
            return False
        if not words or 4 * words > ARENA_SIZE // 2 or self._find(4 * words) is not None:
            return True
        return self.reclaim() and self._find(4 * words) is not None

    # ---- ring --------------------------------------------------------------------------------

    def complete(self) -> None:
        """Write the ring entry of `intent` and ring the doorbell."""
        submission = self.intent
        if submission is None:
            return
        memory, channel = self.memory, self.channel
        assert memory is not None and channel is not None
        if self.driver.unboosted:
            self.driver.end_rest()
        number = submission.number
        entry = submission.address | submission.words << _LENGTH_SHIFT
        memory.entries[(number - 1) % ENTRIES] = entry
        if not self._pending or self._pending[-1] is not submission:
            self._pending.append(submission)
        self._unused = None
        self._head = submission.head
        # ORDER: waiters must wait for this submission before the hardware may see it.
        self.timeline.last = submission.end
        self.count = number
        memory.put(number % ENTRIES)
        # ORDER: x86 makes stores to image, ring and GP_PUT visible before this uncached one, which
        # drains write-combining buffers too (Intel SDM, volume 3, "Methods of Caching Available").
        # Inside the GPU, writes of USERD go through BAR1: a doorbell in BAR1 stays behind them, a
        # doorbell in BAR0 can overtake them.
        if not self.driver.gpu.rings_in_order:
            memory.settle()
        self.driver.gpu.ring(channel.token)
        self.driver.looks = 0
        self.intent = None

    def _find(self, size: int) -> int | None:
        """Return a position with `size` free contiguous bytes, or None. Positions only increase."""
        size = -(-size // _IMAGE_ALIGN) * _IMAGE_ALIGN
        start = self._head
        if start % ARENA_SIZE + size > ARENA_SIZE:
            start += ARENA_SIZE - start % ARENA_SIZE  # the rest at the end stays unused
        return start if start + size - self._tail <= ARENA_SIZE else None

    def reclaim(self) -> bool:
        """Free the resources of ended submissions; return whether there were any."""
        value, pending, freed = self.timeline.value, self._pending, False
        while pending and pending[0].end <= value:
            submission = pending[0]
            if submission.kept is not None:
                submission.kept.close()
            self._tail = submission.head
            pending.popleft()
            freed = True
        return freed

    def overwrite(self) -> None:
        """See HardwareQueue. The methods that a new channel begins with stay until they have run
        (`_run_first`)."""
        assert self.memory is not None
        self.reclaim()
        free = self._tail + ARENA_SIZE - self._head  # bytes from the head on
        first = self._head % ARENA_SIZE // 4
        last = first + free // 4
        self._words[first:last] = 0
        self._words[: max(0, last - ARENA_SIZE // 4)] = 0
        pending = {(submission.number - 1) % ENTRIES for submission in self._pending}
        for index in set(range(ENTRIES)) - pending:
            self.memory.entries[index] = 0

    def _await_room(self, words: int) -> None:
        """Wait until there is room for one of the driver's own submissions.

        All other submissions have already waited, without the lock (Device.await_room).
        """
        if not self.room(words):
            self._wait_for(lambda: self.room(words), "entry of the ring, and command memory")

    def _wait_for(self, ready: Callable[[], bool], what: str) -> None:
        clock = self.driver.clock
        deadline = clock.deadline(self.driver.core.limit_s)
        while not ready():
            self.driver.core.check_failures()
            if deadline.expired():
                failure = DeviceHang(
                    f"{self.name} frees no {what} within {self.driver.core.limit_s} s",
                    **self.driver.diagnose(self.timeline, self.timeline.last),
                )
                self.driver.core.failure = failure
                raise failure
            clock.sleep(_FULL_PAUSE_S)

    def close(self) -> None:
        """Tear the channel down and free all memory; idempotent."""
        with contextlib.suppress(UgpuError):  # a lost GPU does not answer
            self.tear_down()
        self._words = np.zeros(0, np.uint32)
        if hasattr(self, "timeline"):
            self.timeline.detach()
        if self.memory is not None:
            self.memory.close()
            self.memory = None
        for part in self._parts:
            part.close()
        self._parts = []
