"""Hardware queues: two sequences of submissions in one context of the kernel driver.

An image is stored in its queue's arena, or in memory of its own. Its segments are submitted to the
kernel driver in order, each as soon as its waits hold or will hold through work submitted before
(`Dispatcher`): the context runs everything in order of submission. Every image ends by signalling
its queue's timeline, which frees the image's memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import DeviceHang, UgpuError
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.queue import HardwareQueue, QueueKind, Resident
from ugpu.hcq.work.timeline import SIZE as TIMELINE_SIZE
from ugpu.hcq.work.timeline import Timeline
from ugpu.qcom.kernel_driver.interface import Caching, Memory, Submission
from ugpu.qcom.packets.encode import Commands, Segment
from ugpu.qcom.packets.holder import ChipHolder

ARENA_SIZE = 1 << 20
MOST_PENDING = 1024  # unfinished images of a queue
_IMAGE_ALIGN = 256
_FULL_PAUSE_S = 1e-4


class QueueHolder(ChipHolder):
    """A holder that has queues."""

    dispatcher: Dispatcher  # submits the segments of both queues
    looks: int  # polls of timelines by waiters since the last submission

    @abstractmethod
    def all_queues(self) -> Sequence[AdrenoQueue]: ...


class OwnImage(Resident):
    """An image that has its own memory."""

    def __init__(self, queue: AdrenoQueue, buffer: Commands) -> None:
        self.segments = buffer.segments
        self.kernels = buffer.kernels
        # The last submission of segments, by index of the first one and their number.
        self.submissions: dict[tuple[int, int], Submission] = {}
        self.memory: Memory | None = None
        try:
            size = 4 * max(len(buffer.words), 1)
            self.memory = queue.driver.interface.allocate(size, Caching.COMBINED)
            self.address = self.memory.address
            self.words = np.frombuffer(self.memory.view, np.uint32)[: len(buffer.words)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.memory is not None:
            self.words = np.zeros(0, np.uint32)  # releases the mapping's view
            self.memory.close()
            self.memory = None


@dataclass
class Image:
    """An image to be submitted. start: its offset in `memory`, bytes. head: the arena's position
    after it. end: the timeline's value when it has ended. kept: memory to free with it; resident:
    the image of a graph, which stays. given: the number of segments submitted, then the submission
    in progress, if any, and its number of segments: one attribute, so that an exception finds all
    three or none changed."""

    segments: tuple[Segment, ...]
    memory: Memory
    start: int
    words: NDArray[np.uint32]
    head: int
    end: int
    kernels: tuple[str, ...]
    kept: OwnImage | None = None
    resident: OwnImage | None = None
    handed: tuple[int, Submission | None, int] = (0, None, 0)

    @property
    def all_handed(self) -> bool:
        return self.handed[0] >= len(self.segments)

    def value(self, word: int) -> int:
        """Return a 64-bit value in the image."""
        return int(self.words[word]) | int(self.words[word + 1]) << 32


@dataclass
class Dispatcher:
    """Submits segments to the kernel driver. promised: the highest value of each timeline, by its
    address, that work submitted so far signals. refusal: the error with which the kernel driver
    refused a submission; nothing is submitted after it."""

    driver: QueueHolder
    promised: dict[int, int] = field(default_factory=dict)
    refusal: UgpuError | None = None

    def _holds(self, image: Image, segment: Segment) -> bool:
        for point in segment.waits:
            value = image.value(point.word)
            timeline = point.timeline
            if self.promised.get(timeline.address, 0) < value and timeline.value < value:
                return False
        return True

    def pump(self) -> None:
        """Submit everything that can be. The device's lock is held. May be repeated after an
        exception at any point."""
        again = True
        while again:
            again = False
            for queue in self.driver.all_queues():
                while self.refusal is None and queue.held and self._give(queue):
                    again = True

    def _give(self, queue: AdrenoQueue) -> bool:
        """Submit the segments of the queue's first held image that can run; return whether all
        were."""
        image = queue.held[0]
        while not image.all_handed:
            handed, command, many = image.handed
            if command is None:
                chosen = self._ready(image)
                if not chosen:
                    return False
                many = len(chosen)
                command = self._command(image, chosen)
                image.handed = (handed, command, many)
            if command is not None:
                try:
                    command.submit()
                except UgpuError as error:
                    self.refusal = error
                    return False
            for segment in image.segments[handed : handed + many]:
                self._promise(image, segment)
            image.handed = (handed + many, None, 0)
        queue.held.popleft()
        return True

    def _command(self, image: Image, chosen: list[Segment]) -> Submission | None:
        """Return the submission for these segments; None where they have no packets. A resident
        image keeps it for the next time."""
        key = image.handed[0], len(chosen)
        earlier = image.resident.submissions.get(key) if image.resident is not None else None
        command = earlier.again() if earlier is not None else None
        if command is not None:
            return command
        ranges = [
            (image.memory, image.start + 4 * first, 4 * words)
            for segment in chosen
            for first, words in segment.ranges
        ]
        if not ranges:
            return None
        command = self.driver.interface.prepare(ranges)
        if image.resident is not None:
            image.resident.submissions[key] = command
        return command

    def _ready(self, image: Image) -> list[Segment]:
        """Return the next segments that can run now, including those that the earlier ones of them
        enable."""
        promised, chosen = dict(self.promised), []
        try:
            for segment in image.segments[image.handed[0] :]:
                if not self._holds(image, segment):
                    break
                chosen.append(segment)
                self._promise(image, segment)
        finally:
            self.promised = promised
        return chosen

    def _promise(self, image: Image, segment: Segment) -> None:
        for point in segment.signals:
            address, value = point.timeline.address, image.value(point.word)
            self.promised[address] = max(value, self.promised.get(address, 0))


class AdrenoQueue(HardwareQueue):
    """One sequence of submissions. See HardwareQueue."""

    driver: QueueHolder
    intent: Image | None = None

    def __init__(self, driver: QueueHolder, name: str, kind: QueueKind) -> None:
        self.core, self.driver = driver.core, driver
        self.name, self.kind = name, kind
        self.held: deque[Image] = deque()  # not, or only partly, submitted to the kernel driver
        self._pending: deque[Image] = deque()
        self._unused: OwnImage | None = None
        self._head = self._tail = 0  # positions in the arena; they only rise
        self.arena: Memory | None = None
        self._control: Memory | None = None
        self._words = np.zeros(0, np.uint32)
        try:
            interface = driver.interface
            self.arena = interface.allocate(ARENA_SIZE, Caching.COMBINED)
            self._words = np.frombuffer(self.arena.view, np.uint32)
            self._control = interface.allocate(TIMELINE_SIZE, interface.caching)
            buffer = Buffer(
                driver.core, VirtAddr(self._control.address), TIMELINE_SIZE, Placement.HOST,
                self._control.view[:TIMELINE_SIZE], handle=self._control,
            )  # fmt: skip
            self.timeline = Timeline(driver.core, buffer, f"{driver.name} {name}")
        except BaseException:
            self.close()
            raise

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Return the names of kernels that were submitted and have not ended."""
        value = self.timeline.value
        running = [image for image in self._pending if image.end > value]
        return tuple(dict.fromkeys(name for image in running for name in image.kernels))

    # ---- HardwareQueue ---------------------------------------------------------------------------

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        return self.driver.encoder.encode(commands)

    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        assert isinstance(buffer, Commands) and self.arena is not None
        count = len(buffer.words)
        self.reclaim()  # frees the memory of large images, too
        self._await_room(count)
        kept, head = None, self._head
        if 4 * count > ARENA_SIZE // 2:
            if self._unused is not None:
                self._unused.close()
            self._unused = kept = OwnImage(self, buffer)
            assert kept.memory is not None
            memory, first, words = kept.memory, 0, kept.words
        else:
            start = self._find(4 * count)
            assert start is not None
            head = start + -(-4 * count // _IMAGE_ALIGN) * _IMAGE_ALIGN
            memory, first = self.arena, start % ARENA_SIZE
            words = self._words[first // 4 : first // 4 + count]
        address = memory.address + first
        for position, symbol in enumerate(buffer.symbols):
            if symbol.kind == "image":
                values[position] = address
        buffer.patch(words, values)
        end = self.timeline.last + 1
        self.intent = Image(buffer.segments, memory, first, words, head, end, buffer.kernels, kept)
        self.complete()  # once `intent` is set the submission takes place

    def place(self, buffer: CommandBuffer) -> Resident:
        assert isinstance(buffer, Commands)
        return OwnImage(self, buffer)

    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        assert isinstance(resident, OwnImage) and resident.memory is not None
        self._await_room(0)
        self.intent = Image(
            resident.segments, resident.memory, 0, resident.words, self._head, value,
            resident.kernels, resident=resident,
        )  # fmt: skip
        self.complete()

    def room(self, words: int) -> bool:
        if len(self._pending) >= MOST_PENDING and not self.reclaim():
            return False
        if not words or 4 * words > ARENA_SIZE // 2 or self._find(4 * words) is not None:
            return True
        return self.reclaim() and self._find(4 * words) is not None

    def complete(self) -> None:
        image = self.intent
        if image is None:
            return
        if not self._pending or self._pending[-1] is not image:
            self._pending.append(image)
            self.held.append(image)
        elif not image.all_handed and image not in self.held:
            self.held.append(image)
        self._unused = None
        self._head = image.head
        # ORDER: waiters must wait for this value before the hardware may see the image.
        self.timeline.last = max(self.timeline.last, image.end)
        self.driver.looks = 0
        self.driver.dispatcher.pump()
        self.intent = None

    # ---- memory ----------------------------------------------------------------------------------

    def _find(self, size: int) -> int | None:
        """Return where `size` contiguous bytes of the arena are free, as a position that only
        rises; None where there is no room."""
        size = -(-size // _IMAGE_ALIGN) * _IMAGE_ALIGN
        start = self._head
        if start % ARENA_SIZE + size > ARENA_SIZE:
            start += ARENA_SIZE - start % ARENA_SIZE  # the end of the arena stays unused
        return start if start + size - self._tail <= ARENA_SIZE else None

    def reclaim(self) -> bool:
        value, freed = self.timeline.value, False
        while self._pending and self._pending[0].end <= value:
            image = self._pending[0]
            if image.kept is not None:
                image.kept.close()
            self._tail = image.head
            self._pending.popleft()
            freed = True
        return freed

    def overwrite(self) -> None:
        self.reclaim()
        first = self._head % ARENA_SIZE // 4
        last = first + (self._tail + ARENA_SIZE - self._head) // 4
        self._words[first:last] = 0
        self._words[: max(0, last - ARENA_SIZE // 4)] = 0

    def _await_room(self, words: int) -> None:
        """Wait for room, for the driver's own submissions; other callers have waited without the
        lock."""
        clock = self.driver.clock
        deadline = clock.deadline(self.driver.core.limit_s)
        while not self.room(words):
            self.driver.core.check_failures()
            if deadline.expired():
                raise DeviceHang(
                    f"{self.name} did not free any command memory", limit_s=self.driver.core.limit_s
                )
            clock.sleep(_FULL_PAUSE_S)

    def forget(self) -> None:
        """Drop all submissions after the context was lost: none of them will end."""
        self.intent = None
        self.held.clear()
        if self._unused is not None:
            self._unused.close()
            self._unused = None
        while self._pending:
            kept = self._pending[0].kept
            if kept is not None:
                kept.close()
            self._pending.popleft()
        self._head = self._tail = 0

    def close(self) -> None:
        """Free all memory; idempotent. Nothing of the queue may be running."""
        self.forget()
        self._words = np.zeros(0, np.uint32)
        if hasattr(self, "timeline"):
            self.timeline.detach()
        for memory in (self.arena, self._control):
            if memory is not None:
                memory.close()
        self.arena = self._control = None
