"""RingQueue: a hardware queue whose submissions wait in a ring, in order.

An image is placed in the queue's arena, or in memory of its own if it is large or a captured
graph's. Every submission raises the queue's timeline; once that has passed it, its ring entry and
its memory are free again. A vendor encodes commands, makes memory, and tells the hardware of an
entry.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.core import Core
from ugpu.hcq.device.driver import Driver
from ugpu.hcq.errors import DeviceHang, OutOfMemory, UnitTimeout
from ugpu.hcq.rings.arena import Arena
from ugpu.hcq.rings.image import OwnImage
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command, Signal
from ugpu.hcq.work.command_buffer import CommandBuffer, Symbol, values_of
from ugpu.hcq.work.queue import HardwareQueue, QueueKind, Resident
from ugpu.hcq.work.timeline import SIZE as TIMELINE_SIZE
from ugpu.hcq.work.timeline import Timeline


class Held(Protocol):
    """What a submission holds until it has ended."""

    def close(self) -> None: ...


@dataclass(eq=False)
class Submission:
    """A submission that will take place.

    Attributes:
        number: of its ring entry, counted from 1.
        address: of the image.
        words: of the image that are commands.
        head: the arena's position behind the image.
        end: the timeline's value at its end.
        kernels: names of the kernels that it launches.
        held: memory to free once it has ended.
        resident: the captured image that it runs.
    """

    number: int
    address: int
    words: int
    head: int
    end: int
    kernels: tuple[str, ...]
    held: Held | None = None
    resident: OwnImage[Any] | None = None


S = TypeVar("S", bound=Submission)


class RingQueue(HardwareQueue, Generic[S]):
    """See HardwareQueue. A subclass makes `arena` and `timeline`.

    Attributes:
        arena_size: bytes of its arena.
        entries: submissions that the ring has room for.
        submission: the class of its submissions.
        count: entries of the ring used so far.
    """

    arena_size: ClassVar[int] = 1 << 20
    entries: int
    submission: type[S]
    arena: Arena
    intent: S | None = None
    count = 0

    def __init__(self, driver: Driver, name: str, kind: QueueKind) -> None:
        self.core: Core = driver.core
        self.name, self.kind = name, kind
        self._driver = driver
        self._pending: deque[S] = deque()
        self._unused: Held | None = None  # memory made for a submission that did not take place

    # ---- what a vendor provides --------------------------------------------------------------

    @abstractmethod
    def own_image(self, buffer: CommandBuffer) -> OwnImage[Any]:
        """Give an image (unpatched) its own memory."""

    @abstractmethod
    def tell(self, submission: S) -> None:
        """Write the ring entry and ring the doorbell. May be repeated after an exception."""

    def passed(self) -> int:
        """Return a value of the timeline whose submission no longer needs its ring entry."""
        return self.timeline.value

    # ---- HardwareQueue -----------------------------------------------------------------------

    def submit(
        self, buffer: CommandBuffer, values: NDArray[np.uint64], held: Held | None = None
    ) -> None:
        """See HardwareQueue. held: `reclaim` closes it once the work has ended; after an exception,
        `keeps` tells whether the queue owns it. For images of at most half the arena."""
        count, arena = len(buffer.words), self.arena
        if len(self._pending) >= self.entries:
            self._await_room(count)
        image: OwnImage[Any] | None = None
        start: int | None = None
        if 8 * count > arena.size:
            assert held is None
            if self._unused is not None:
                self._unused.close()
            self._unused = held = image = self.own_image(buffer)
            address = image.address
        else:
            start = arena.find(4 * count)
            if start is None:
                self._await_room(count)
                start = arena.find(4 * count)
                assert start is not None
            address = arena.address + start % arena.size
        for position in buffer.images:
            values[position] = address
        head = arena.head
        if start is not None:
            head = arena.fill(start, buffer, values)
        elif image is not None:
            image.fill(buffer, values)
        number, end = self.count + 1, self.timeline.last + 1
        self._run(
            buffer,
            self.submission(number, address, buffer.command_words, head, end, buffer.kernels, held),
        )

    def keeps(self, held: Held) -> bool:
        """Return whether `submit` has taken ownership."""
        pending = [*self._pending, *([self.intent] if self.intent is not None else [])]
        return any(submission.held is held for submission in pending)

    def place(self, buffer: CommandBuffer) -> Resident:
        return self.own_image(buffer)

    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        assert isinstance(resident, OwnImage)
        if len(self._pending) >= self.entries:
            self._await_room(0)
        number, address, head = self.count + 1, resident.address, self.arena.head
        kernels = resident.kernels
        self._run(
            resident,
            self.submission(number, address, command_words, head, value, kernels, None, resident),
        )

    def room(self, words: int) -> bool:
        if len(self._pending) >= self.entries and not self.reclaim():
            return False
        size, arena = 4 * words, self.arena
        if not words or 2 * size > arena.size or arena.find(size) is not None:
            return True
        return self.reclaim() and arena.find(size) is not None

    def _run(self, source: CommandBuffer | Resident, submission: S) -> None:
        """Carry out a submission of `source`."""
        self.intent = submission  # from here on the submission takes place
        self.complete()

    def complete(self) -> None:
        submission = self.intent
        if submission is None:
            return
        if not self._pending or self._pending[-1] is not submission:
            self._pending.append(submission)
        self._unused = None
        self.arena.head = submission.head
        # ORDER: waiters must wait for this value before the hardware may see the submission.
        self.timeline.last = submission.end
        self.count = submission.number
        self.tell(submission)
        self.intent = None

    def reclaim(self) -> bool:
        pending, freed = self._pending, False
        value = self.passed() if pending else 0
        while pending and pending[0].end <= value:
            submission = pending[0]
            if submission.held is not None:
                submission.held.close()
            self.arena.tail = submission.head
            pending.popleft()
            freed = True
        return freed

    def overwrite(self) -> None:
        self.reclaim()
        self.arena.overwrite()

    @property
    def in_flight(self) -> tuple[str, ...]:
        """Names of kernels that were submitted and have not ended."""
        value = self.timeline.value
        running = [submission for submission in self._pending if submission.end > value]
        return tuple(dict.fromkeys(name for one in running for name in one.kernels))

    # ---- the driver's own work ---------------------------------------------------------------

    def run(self, commands: Sequence[Command], refusal: str = "") -> int:
        """Submit commands; return the timeline's value at their end. refusal: what has no room; if
        it is given, OutOfMemory where a wait would be needed."""
        value = self.timeline.last + 1
        buffer = self.encode([*commands, Signal(self.timeline, Symbol.constant(value))])
        if refusal and not self.room(len(buffer.words)):
            raise OutOfMemory(f"{self.name} has no room for {refusal}; wait for its work")
        self.submit(buffer, values_of(buffer, value))
        return value

    def _await_room(self, words: int) -> None:
        """Wait for room for the driver's own submissions; all others have waited without the lock
        (Core.await_room)."""
        if not self.room(words):
            self._wait_for(lambda: self.room(words), "entry of the ring, and command memory")

    def _wait_for(self, ready: Callable[[], bool], what: str) -> None:
        core, driver = self.core, self._driver

        def probe() -> bool:
            if ready():
                return True
            core.check_failures()
            return False

        try:
            driver.clock.wait_until(probe, unit=self.name, waiting_for=what, limit_s=core.limit_s)
        except UnitTimeout as error:
            core.failure = DeviceHang(
                f"{self.name} frees no {what} within {core.limit_s} s",
                **driver.diagnose(self.timeline, self.timeline.last),
            )
            raise core.failure from error

    # ---- the end -----------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all submissions, which have ended with the hardware queue, and free their memory."""
        self.intent = None
        if self._unused is not None:
            self._unused.close()
            self._unused = None
        while self._pending:
            held = self._pending[0].held
            if held is not None:
                held.close()
            self._pending.popleft()
        self.count = 0
        if hasattr(self, "arena"):  # otherwise it was not made yet
            self.arena.restart()


class TimelineMemory(Protocol):
    """Memory for a timeline, which this process reaches."""

    @property
    def address(self) -> int: ...
    @property
    def view(self) -> memoryview: ...


def timeline_in(core: Core, memory: TimelineMemory, name: str) -> Timeline:
    """Make a queue's timeline at the start of memory, which the caller owns."""
    view = memory.view[:TIMELINE_SIZE]
    address = VirtAddr(memory.address)
    buffer = Buffer(core, address, TIMELINE_SIZE, Placement.HOST, view, handle=memory)
    return Timeline(core, buffer, name)
