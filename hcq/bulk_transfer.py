"""Synchronous copies between host memory and device buffers, through a transport's BulkMemory.

Two halves of it are used in turn, so that the device copies one while the other is transferred. The
copy queue is told of many chunks at once. In: for each chunk it waits for a mark behind the data,
copies, and raises the fence, after which the half is free. Out: it copies into a half, raises the
fence, waits until the host has started to receive, and releases the data.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hcq.errors import UgpuError
from hcq.queue import Queue, QueueKind
from hcq.timeline import Timeline
from hcq.transfer import Transfer
from hcq.transport.bulk import BulkMemory

if TYPE_CHECKING:
    from hcq.buffer import Buffer
    from hcq.core import Core

_MARK = 4  # bytes at the end of each half
_ALIGN = 256  # of the data in a half, for the copy engine
_GROUP = 32  # chunks of one submission, at most 255
_LOOKS = 20  # about 3 ms, where a look is a control transfer


class Mark(Timeline):
    """Memory that a queue waits for, and that the host writes in its own way."""

    def __init__(self, core: Core, memory: Buffer, name: str) -> None:
        self.core = core
        self.memory = memory
        self.address = int(memory.address)
        self.name = name
        self.last = self.restarts = self._seen = 0


class Fence(Mark):
    """Memory that a queue raises and the host reads at the cost of one transfer."""

    def __init__(self, core: Core, memory: Buffer, bulk: BulkMemory) -> None:
        super().__init__(core, memory, f"{core.name} transfers")
        self._bulk = bulk

    @property
    def value(self) -> int:
        return self._bulk.read_fence()


class BulkTransfer(Transfer):
    """See Transfer. memory: what `bulk` has, as work sees it; fence: 8 bytes, release and start: 4
    bytes at its places."""

    def __init__(
        self,
        core: Core,
        bulk: BulkMemory,
        memory: Buffer,
        fence: Buffer,
        release: Buffer,
        start: Buffer,
    ) -> None:
        half = bulk.size // 2 // bulk.granule * bulk.granule
        super().__init__(core, half - _ALIGN)
        self.half = half
        self._bulk = bulk
        self._halves = (memory[:half], memory[half : 2 * half])
        self._marks = [
            Mark(core, one[half - _MARK :], f"{core.name} half {number}")
            for number, one in enumerate(self._halves)
        ]
        self._fence = Fence(core, fence, bulk)
        self._release = release
        self._started = Mark(core, start, f"{core.name} receives")
        self._number = 0  # of the last chunk, counted from 1
        self._reached = 0  # chunk, as the fence said when it was last read
        self._resets = -1  # the device's, when the marks were cleared

    def upload(self, destination: Buffer, data: memoryview) -> None:
        """Copy `data` (bytes) to the start of `destination`."""
        with self._lock:
            self.core.check_usable()
            self._clear()
            starts = range(0, len(data), self.staging_size)
            for first in range(0, len(starts), _GROUP):
                group = [
                    (start, min(self.staging_size, len(data) - start))
                    for start in starts[first : first + _GROUP]
                ]
                self._upload(destination, data, group)

    def _upload(self, destination: Buffer, data: memoryview, group: list[tuple[int, int]]) -> None:
        base, queue = self._number, self._queue()
        for number, (start, size) in enumerate(group, base + 1):
            half, place = self._halves[number % 2], self._place(size)
            queue.wait(self._marks[number % 2], number)
            queue.copy(destination[start : start + size], half[place : place + size])
            queue.signal(self._fence, number)
        end = self._number = base + len(group)
        with self._released(lambda: self._mark_all(end)):
            value = queue.submit()
            for number, (start, size) in enumerate(group, base + 1):
                self._await(number - 2)  # its half is free
                self._send(number, data[start : start + size], self._look)
        queue.timeline.wait(value)

    def _place(self, size: int) -> int:
        """Where data lies in a half: up to the mark, which is the last to arrive."""
        return (self.half - _MARK - size) // _ALIGN * _ALIGN

    def _send(self, number: int, data: memoryview, meanwhile: Callable[[], object]) -> None:
        place, granule = self._place(len(data)), self._bulk.granule
        first = place // granule * granule
        wire = bytearray(self.half - first)
        wire[place - first : place - first + len(data)] = data
        wire[-_MARK:] = _mark(number)
        self._bulk.send(number % 2 * self.half + first, wire, meanwhile)

    def _mark_all(self, number: int) -> None:
        """Let the queue go on, whatever it copies."""
        granule = self._bulk.granule
        for half in range(2):
            self._bulk.send((half + 1) * self.half - granule, bytes(granule - 4) + _mark(number))

    def download(self, source: Buffer, out: memoryview) -> None:
        """Copy the start of `source` to `out` (bytes, writable)."""
        with self._lock:
            self.core.check_usable()
            self._clear()
            starts = range(0, len(out), self.half)
            for first in range(0, len(starts), _GROUP):
                group = [
                    (start, min(self.half, len(out) - start))
                    for start in starts[first : first + _GROUP]
                ]
                self._download(source, out, group)

    def _download(self, source: Buffer, out: memoryview, group: list[tuple[int, int]]) -> None:
        base, queue = self._number, self._queue()
        for number, (start, size) in enumerate(group, base + 1):
            queue.copy(self._halves[number % 2], source[start : start + size], size)
            queue.signal(self._fence, number)
            queue.wait(self._started, number - base)
            queue.fill(self._release, 0)
        # The end of a half no longer contains a mark.
        for half in self._halves:
            queue.fill(half[self.half - _MARK :], 0)
        self._number = base + len(group)
        self._bulk.write_start(0)  # the queue has ended all groups before
        with self._released(lambda: self._bulk.write_start(len(group))):
            value = queue.submit()
            for number, (start, size) in enumerate(group, base + 1):
                self._await(number)
                place = number % 2 * self.half
                out[start : start + size] = self._bulk.receive(
                    place, size, functools.partial(self._release_one, number - base)
                )
        queue.timeline.wait(value)

    def _release_one(self, count: int) -> None:
        """The receive of the group's chunk `count` has begun."""
        self._bulk.write_start(count)
        self._look()

    @contextlib.contextmanager
    def _released(self, let_go: Callable[[], object]) -> Iterator[None]:
        """Have the queue not wait for ever where an exception cuts the host's part off."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(UgpuError):
                let_go()
            raise

    def _await(self, number: int) -> None:
        """Wait for chunk `number`: by reads of the fence alone for a while, since a chunk takes no
        time, then as all waits do, with a look at failures."""
        for _ in range(_LOOKS):
            if self._reached >= number:
                return
            self._look()
        self._fence.wait(number)
        self._reached = number

    def _look(self) -> None:
        self._reached = self._fence.value

    def _queue(self) -> Queue:
        return Queue(self.core.driver.hardware_queues(QueueKind.COPY)[0])

    def _clear(self) -> None:
        """At first, and after a reset: the device clears the marks, the host the rest."""
        if self._resets == self.core.resets:
            return
        self._number = self._reached = 0
        self._bulk.clear()
        queue = self._queue()
        for mark in self._marks:
            queue.fill(mark.memory, 0)
        queue.timeline.wait(queue.submit())
        self._resets = self.core.resets


def _mark(number: int) -> bytes:
    return (number & 0xFFFF_FFFF).to_bytes(_MARK, "little")
