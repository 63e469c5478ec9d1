"""A queue of a leased device: encodes commands for the wire; ugpud executes them."""

from __future__ import annotations

import itertools
import threading
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.device.driver import Driver
from ugpu.hcq.errors import BadArgument
from ugpu.hcq.remote import words
from ugpu.hcq.remote.connection import Connection
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Command, Launch
from ugpu.hcq.work.command_buffer import CommandBuffer, values_of
from ugpu.hcq.work.queue import HardwareQueue, QueueKind, Resident
from ugpu.hcq.work.timeline import SIZE, Timeline

#: submissions in flight at a time on one queue: limits what the server must keep for them
OUTSTANDING = 512
_images = itertools.count(1)
Words = NDArray[np.uint32]


class QueuesDriver(Driver):
    """What queues use of hcq.remote.driver.RemoteDriver."""

    connection: Connection

    @abstractmethod
    def replay(self, resident: RemoteResident, value: int) -> None:
        """Have the server run a placed image. The images of all queues of a graph go in one
        message, sent with the last of them."""

    @abstractmethod
    def post_quietly(self, operation: str, *arguments: object) -> None:
        """Send a message that no longer matters if the server is gone."""


class RemoteTimeline(Timeline):
    """A queue's timeline. Its memory is at the server, which reports each value that it reaches."""

    def __init__(self, driver: QueuesDriver, address: int, name: str) -> None:
        local = memoryview(bytearray(SIZE))
        place = VirtAddr(address)
        super().__init__(driver.core, Buffer(driver.core, place, SIZE, Placement.HOST, local), name)
        self._connection = driver.connection
        self._reached = 0
        self._arrived = threading.Condition()

    @property
    def value(self) -> int:
        return self._reached

    def reach(self, value: int) -> None:
        """Record that the queue has reached `value`, as reported by the server."""
        with self._arrived:
            self._reached = max(self._reached, value)
            self._arrived.notify_all()

    def restart(self) -> None:
        self.lose(self.value + 1, self.last)
        self.reach(self.last)

    def pause(self, value: int, limit_s: float) -> None:
        """Wait until the timeline reaches `value`, or until `wake`."""
        self._connection.flush()
        with self._arrived:
            if self._reached < value:
                self._arrived.wait(limit_s)

    def wake(self) -> None:
        """End all pauses: the device has failed."""
        with self._arrived:
            self._arrived.notify_all()

    def detach(self) -> None:
        return


class RemoteResident(Resident):
    """An image that the server keeps for replays. The words here include changes that are not sent
    yet."""

    address = 0

    def __init__(self, queue: RemoteQueue, encoded: CommandBuffer) -> None:
        self.queue = queue
        self.number = next(_images)
        self.words = encoded.words.copy()
        self.places = words.places(encoded)
        self.sent = False
        first = self.places["word"].astype(np.intp)
        pairs = np.stack([first, np.minimum(first + 1, max(len(self.words) - 1, 0))], axis=1)
        self._pairs = pairs.reshape(-1)  # a place's word and the next: 64 bits in all
        self._narrow: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None
        width, lsb = (self.places[name].astype(np.uint64) for name in ("width", "lsb"))
        if (width < 64).any():
            whole = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
            self._narrow = whole >> (np.uint64(64) - width) << lsb, lsb

    def fill(self, encoded: CommandBuffer, values: NDArray[np.uint64]) -> None:
        super().fill(encoded, values)
        self.sent = False

    def values(self) -> NDArray[np.uint64]:
        """Return the values of the places, in their order."""
        values: NDArray[np.uint64] = self.words[self._pairs].view("<u8")
        if self._narrow is not None:
            mask, lsb = self._narrow
            values = (values & mask) >> lsb
        return values

    def place(self) -> None:
        """Send the image to the server, unless the server has it."""
        if not self.sent:
            driver = self.queue.driver
            data = self.words.tobytes() + self.places.tobytes()
            index = self.queue.index
            driver.connection.post("place", self.number, index, len(self.words), data=data)
            self.sent = True

    def close(self) -> None:
        if self.sent:
            self.sent = False
            self.queue.driver.post_quietly("drop", self.number)


class RemoteQueue(HardwareQueue):
    """One queue of the lease. index: among all queues of the device, compute queues first."""

    intent: tuple[int, Words] | None = None

    def __init__(self, driver: QueuesDriver, kind: QueueKind, index: int, address: int) -> None:
        self.core, self.driver = driver.core, driver
        self.kind = kind
        self.index = index
        self.name = f"{driver.name} {kind.value} {index}"
        self.timeline: RemoteTimeline = RemoteTimeline(driver, address, self.name)

    def encode(self, commands: Sequence[Command]) -> CommandBuffer:
        copies_only = self.kind is not QueueKind.COMPUTE
        if copies_only and any(isinstance(command, Launch) for command in commands):
            raise BadArgument("a copy queue cannot launch kernels", queue=self.name)
        return words.encode(commands)

    def room(self, count: int) -> bool:
        return self.timeline.last - self.timeline.value < OUTSTANDING

    def submit(self, buffer: CommandBuffer, values: NDArray[np.uint64]) -> None:
        image = np.empty_like(buffer.words)
        buffer.patch(image, values)
        self.intent = self.timeline.last + 1, image
        self.complete()

    def complete(self) -> None:
        """See HardwareQueue. The server ignores a value that it has seen."""
        if self.intent is not None:
            value, image = self.intent
            if self.timeline.last < value:
                self.driver.connection.post("submit", self.index, value, data=image.data.cast("B"))
                self.timeline.last = value
            self.intent = None

    def overwrite(self) -> None:
        """See HardwareQueue. The server overwrites its own, at the end of the lease."""

    def submit_prepared(
        self, buffer: CommandBuffer, signal: int, parameters: Sequence[int]
    ) -> None:
        self.submit(buffer, values_of(buffer, signal, parameters))

    def place(self, buffer: CommandBuffer) -> Resident:
        return RemoteResident(self, buffer)

    def submit_resident(self, resident: Resident, command_words: int, value: int) -> None:
        assert isinstance(resident, RemoteResident)
        self.driver.replay(resident, value)
        self.timeline.last = value
