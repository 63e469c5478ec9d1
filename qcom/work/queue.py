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

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.rings.arena import Arena
from ugpu.hcq.rings.image import OwnImage
from ugpu.hcq.rings.ring import Held, RingQueue, Submission, timeline_in
from ugpu.hcq.work.command import Command
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.queue import QueueKind, Resident
from ugpu.hcq.work.timeline import SIZE as TIMELINE_SIZE
from ugpu.qcom.kernel_driver import interface as kernel_driver
from ugpu.qcom.kernel_driver.interface import Caching, Memory
from ugpu.qcom.packets.encode import Commands, Segment
from ugpu.qcom.packets.holder import ChipHolder

MOST_PENDING = 1024  # unfinished images of a queue


class QueueHolder(ChipHolder):
    """A holder that has queues."""

    dispatcher: Dispatcher  # submits the segments of both queues
    looks: int  # polls of timelines by waiters since the last submission

    @abstractmethod
    def all_queues(self) -> Sequence[AdrenoQueue]: ...


class AdrenoImage(OwnImage[Memory]):
    """An image that has its own memory.

    Attributes:
        segments: its parts, in order.
        submissions: the last submission of segments, by index of the first one and their number.
    """

    def __init__(self, queue: AdrenoQueue, buffer: Commands) -> None:
        self.segments = buffer.segments
        self.submissions: dict[tuple[int, int], kernel_driver.Submission] = {}
        interface = queue.driver.interface
        super().__init__(
            buffer, lambda size: interface.allocate(size, Caching.COMBINED), interface.free
        )


@dataclass(eq=False)
class Image(Submission):
    """An image to be submitted.

    Attributes:
        resident: the image of a graph, which stays.
        segments: its parts, in order.
        memory: that it is in.
        start: its offset in `memory`, bytes.
        content: its words.
        handed: the number of segments submitted, then the submission in progress, if any, and its
            number of segments: one attribute, so that an exception finds all three or none changed.
    """

    resident: AdrenoImage | None = None
    segments: tuple[Segment, ...] = ()
    memory: Memory = field(init=False)
    start: int = 0
    content: NDArray[np.uint32] = field(init=False)
    handed: tuple[int, kernel_driver.Submission | None, int] = (0, None, 0)

    @property
    def all_handed(self) -> bool:
        return self.handed[0] >= len(self.segments)

    def value(self, word: int) -> int:
        """Return a 64-bit value in the image."""
        return int(self.content[word]) | int(self.content[word + 1]) << 32


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

    def _command(self, image: Image, chosen: list[Segment]) -> kernel_driver.Submission | None:
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


class AdrenoQueue(RingQueue[Image]):
    """One sequence of submissions. See RingQueue."""

    driver: QueueHolder
    entries = MOST_PENDING
    submission = Image

    def __init__(self, driver: QueueHolder, name: str, kind: QueueKind) -> None:
        super().__init__(driver, name, kind)
        self.driver = driver
        self.held: deque[Image] = deque()  # not, or only partly, submitted to the kernel driver
        self._parts: list[Memory] = []
        try:
            interface = driver.interface
            self._parts.append(interface.allocate(self.arena_size, Caching.COMBINED))
            self.arena = Arena(self._parts[0].address, self._parts[0].view, self.arena_size)
            self._parts.append(interface.allocate(TIMELINE_SIZE, interface.caching))
            self.timeline = timeline_in(driver.core, self._parts[1], f"{driver.name} {name}")
        except BaseException:
            self.close()
            raise

    # ---- HardwareQueue ---------------------------------------------------------------------------

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        return self.driver.encoder.encode(commands)

    def submit(
        self, buffer: CommandBuffer, values: NDArray[np.uint64], held: Held | None = None
    ) -> None:
        self.reclaim()  # frees the memory of large images, too
        super().submit(buffer, values, held)

    def own_image(self, buffer: CommandBuffer) -> AdrenoImage:
        """See RingQueue."""
        assert isinstance(buffer, Commands)
        return AdrenoImage(self, buffer)

    def _run(self, source: CommandBuffer | Resident, submission: Image) -> None:
        assert isinstance(source, Commands | AdrenoImage)
        submission.segments = source.segments
        own = submission.resident or submission.held
        if isinstance(own, AdrenoImage):
            assert own.memory is not None
            submission.memory, submission.content = own.memory, own.words
        else:
            assert self.arena.words is not None
            start = submission.address - self.arena.address
            submission.memory, submission.start = self._parts[0], start
            submission.content = self.arena.words[start // 4 :]
        super()._run(source, submission)

    def tell(self, submission: Image) -> None:
        """Submit what can run to the kernel driver."""
        if not submission.all_handed and submission not in self.held:
            self.held.append(submission)
        self.driver.looks = 0
        self.driver.dispatcher.pump()

    def forget(self) -> None:
        """Drop all submissions after the context was lost: none of them will end."""
        self.held.clear()
        super().forget()

    def close(self) -> None:
        """Free all memory; idempotent. Nothing of the queue may be running."""
        self.forget()
        if hasattr(self, "arena"):
            self.arena.close()
        if hasattr(self, "timeline"):
            self.timeline.detach()
        for memory in self._parts:
            memory.close()
        self._parts = []
