"""Synchronous copies between host memory and device buffers, through a transport's BulkMemory.

The two halves of that memory are used in turn, so that the device copies one while the other is
transferred. One transfer of the bridge carries both halves, in two pieces. Many chunks are
submitted to the copy queue at once.

Upload: for each chunk the queue waits for a mark after the data, copies it, and raises the fence;
then the half is free. Download: the queue copies into a half as soon as the host has emptied it.
Once it has filled what a transfer carries and the host has started to receive, it releases the
data. The host signals all its steps by one number, which rises by 1 for each transfer that it
starts, by 1 for each first half that has arrived if another one follows, and by 1 when all data has
arrived.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from ugpu.hcq.copies.transfer import Transfer
from ugpu.hcq.errors import TransferTimeout, UgpuError, UnitTimeout
from ugpu.hcq.transport.bulk import BulkMemory
from ugpu.hcq.work.queue import Queue, QueueKind
from ugpu.hcq.work.timeline import Timeline

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.graph import GraphState
    from ugpu.hcq.work.queue import QueueState

_MARK = 4  # bytes at the end of each half
_ALIGN = 256  # of the data in a half, for the copy engine
_GROUP = 240  # chunks of one submission; the number that the host signals has 8 bits
_LOOKS = 20  # about 3 ms, if a poll is a control transfer
_SOON_S = 2.0  # TIMEOUT: for a chunk that follows one that is done; it takes a card 0.1 ms

_Chunk: TypeAlias = tuple[int, int]  # start and size, in bytes
_Run: TypeAlias = tuple[int, list[_Chunk]]


class Mark(Timeline):
    """Memory that a queue waits for, and that the host writes by its own means."""

    def __init__(self, core: QueueState, memory: Buffer, name: str) -> None:
        self.core = core
        self.memory = memory
        self.address = int(memory.address)
        self.name = name
        self.last = self._seen = 0


class Fence(Mark):
    """Memory that a queue raises and that the host reads at the cost of one transfer."""

    def __init__(self, core: QueueState, memory: Buffer, bulk: BulkMemory) -> None:
        super().__init__(core, memory, f"{core.name} transfers")
        self.bulk = bulk

    @property
    def value(self) -> int:
        return self.bulk.read_fence()


class BulkTransfer(Transfer):
    """See Transfer. memory: the memory of `bulk`, as the device's work sees it; fence: 8 bytes;
    release and start: 4 bytes at their places in `bulk`."""

    def __init__(
        self,
        core: GraphState,
        bulk: BulkMemory,
        memory: Buffer,
        fence: Buffer,
        release: Buffer,
        start: Buffer,
    ) -> None:
        half = bulk.size // 2 // bulk.granule * bulk.granule
        super().__init__(core, half - _ALIGN)
        self.half = half
        self.bulk = bulk
        self._halves = (memory[:half], memory[half : 2 * half])
        self._marks = [
            Mark(core, one[half - _MARK :], f"{core.name} half {number}")
            for number, one in enumerate(self._halves)
        ]
        self._fence = Fence(core, fence, bulk)
        self.release = release
        self.started = Mark(core, start, f"{core.name} receives")
        self._number = 0  # of the last chunk, counted from 1
        self._reached = 0  # last chunk done, by the last read of the fence
        self._resets = -1  # the device's count of resets when the marks were cleared

    def send(self, destination: Buffer, data: memoryview) -> None:
        """Copy `data` (bytes) to the start of `destination`."""
        with self._lock:
            self._clear()
            starts = range(0, len(data), self.staging_size)
            for first in range(0, len(starts), _GROUP):
                group = [
                    (start, min(self.staging_size, len(data) - start))
                    for start in starts[first : first + _GROUP]
                ]
                self._send_group(destination, data, group)

    def _send_group(self, destination: Buffer, data: memoryview, group: list[_Chunk]) -> None:
        base, queue = self._number, self._queue()
        for number, (start, size) in enumerate(group, base + 1):
            half, place = self._halves[number % 2], self._place(size)
            queue.wait(self._marks[number % 2], number)
            queue.copy(destination[start : start + size], half[place : place + size])
            queue.signal(self._fence, number)
        end = self._number = base + len(group)
        with self._released(lambda: self._mark_all(end)):
            value = queue.submit()
            for first, run in _runs(base + 1, group):
                self._send_run(first, [data[start : start + size] for start, size in run])
        queue.timeline.wait(value)

    def _place(self, size: int) -> int:
        """Return the offset of data in a half: it ends at the mark, which is the last to arrive."""
        return (self.half - _MARK - size) // _ALIGN * _ALIGN

    def _send_run(self, number: int, chunks: list[memoryview]) -> None:
        """Send the chunks from `number` on in one transfer: one chunk, or one for each half."""
        granule = self.bulk.granule
        skipped = self._place(len(chunks[0])) // granule * granule
        place, size = number % 2 * self.half + skipped, len(chunks) * self.half - skipped
        self._await(number - 2)  # the first half is free
        try:
            self.bulk.send(place, size, self._wire(number, chunks, skipped))
        except UnitTimeout:
            self._await(number - 1)  # raises the failure; if none, the engine was late
            self.bulk.send(place, size, self._wire(number, chunks, skipped))  # the same bytes

    def _wire(self, number: int, chunks: list[memoryview], skipped: int) -> Iterator[bytearray]:
        """Yield the pieces of a transfer. LOCK: the transfer holds the bridge until it ends, and
        threads that wait for the bridge may hold the device's lock or a window's. So this code must
        not check for failures; UnitTimeout if the second half is not free soon after the first."""
        for data in chunks:
            self._await_inside(number - 2)
            place = self._place(len(data)) - skipped
            wire = bytearray(self.half - skipped)
            wire[place : place + len(data)] = data
            wire[-_MARK:] = _mark(number)
            yield wire
            number, skipped = number + 1, 0
        self._look()  # while the last one is in flight

    def _mark_all(self, number: int) -> None:
        """Release the queue, whatever it copies."""
        granule = self.bulk.granule
        for half in range(2):
            wire = bytes(granule - _MARK) + _mark(number)
            self.bulk.send((half + 1) * self.half - granule, granule, [wire])

    def receive(self, source: Buffer, out: memoryview) -> None:
        """Copy the start of `source` to `out` (bytes, writable)."""
        with self._lock:
            self._clear()
            starts = range(0, len(out), self.half)
            for first in range(0, len(starts), _GROUP):
                group = [
                    (start, min(self.half, len(out) - start))
                    for start in starts[first : first + _GROUP]
                ]
                self._receive_group(source, out, group)

    def _receive_group(self, source: Buffer, out: memoryview, group: list[_Chunk]) -> None:
        base, queue = self._number, self._queue()
        runs = list(_runs(base + 1, group))
        last = self._encode(queue, source, runs)
        # The end of a half no longer contains a mark. ORDER: it is data until that has arrived.
        queue.wait(self.started, last)
        for half in self._halves:
            queue.fill(half[self.half - _MARK :], 0)
        self._number = base + len(group)
        self.bulk.write_start(0)  # the queue has ended all groups before
        with self._released(lambda: self.bulk.write_start(last)):
            value = queue.submit()
            told = 0
            for run in runs:
                self._await(run[0])
                told = self._receive_run(run, out, told + 1, more=_goes_on(run, runs))
            self.bulk.write_start(last)
        queue.timeline.wait(value)

    def _encode(self, queue: Queue, source: Buffer, runs: list[_Run]) -> int:
        """Encode the queue's part of a download; return the last number that the host signals."""
        told = 0
        for run in runs:
            first, chunks = run
            emptied, told = told, told + 1
            for number, (start, size) in enumerate(chunks, first):
                half = number % 2
                # The first half of the previous transfer is empty when the host has signalled that
                # it arrived. The second half is empty when all has arrived, which the start of
                # this transfer signals.
                if run is not runs[0]:
                    queue.wait(self.started, told if half else emptied)
                queue.copy(self._halves[half], source[start : start + size], size)
                if number == first:  # the host waits for this before it starts
                    queue.signal(self._fence, number)
            queue.wait(self.started, told)
            queue.fill(self.release, 0)
            told += _goes_on(run, runs)
        return told + 1

    def _receive_run(self, run: _Run, out: memoryview, told: int, *, more: bool) -> int:
        """Receive a transfer, which the number `told` starts; return the last number signalled.
        more: whether its first half is filled again while the second one is in flight."""
        first, chunks = run

        def arrived(position: int, data: bytes) -> None:
            start, size = chunks[position]
            out[start : start + size] = data
            if position == 0 and more:
                self.bulk.write_start(told + 1)
                self._look()

        sizes = [size for _, size in chunks]
        try:
            self.bulk.receive(
                first % 2 * self.half, sizes, lambda: self.bulk.write_start(told), arrived
            )
        except TransferTimeout:
            self.core.check_failures()
            raise
        return told + more

    @contextlib.contextmanager
    def _released(self, let_go: Callable[[], object]) -> Iterator[None]:
        """Keep the queue from waiting forever if an exception interrupts the host's part."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(UgpuError):
                let_go()
            raise

    def _await(self, number: int) -> None:
        """Wait for chunk `number`: at first by reading the fence alone, since a chunk takes little
        time, then by a normal wait, which checks for failures."""
        for _ in range(_LOOKS):
            if self._reached >= number:
                return
            self._look()
        self._fence.wait(number)
        self._reached = number

    def _await_inside(self, number: int) -> None:
        """Wait by reading the fence alone, for `_wire`."""

        def free() -> bool:
            if self._reached < number:
                self._look()
            return self._reached >= number

        unit, chunk, limit_s = self._fence.name, f"chunk {number}", min(_SOON_S, self.core.limit_s)
        clock = self.core.driver.clock
        clock.wait_until(free, unit=unit, waiting_for=chunk, limit_s=limit_s)

    def _look(self) -> None:
        self._reached = self._fence.value

    def _queue(self) -> Queue:
        return Queue(self.core.driver.hardware_queues(QueueKind.COPY)[0])

    def _clear(self) -> None:
        """Clear the marks, at first and after a reset: the device clears the marks, the host the
        rest."""
        if self._resets == self.core.resets:
            return
        self._number = self._reached = 0
        self.bulk.clear()
        queue = self._queue()
        for mark in self._marks:
            queue.fill(mark.memory, 0)
        queue.timeline.wait(queue.submit())
        self._resets = self.core.resets


def _runs(number: int, group: list[_Chunk]) -> Iterator[_Run]:
    """Group the chunks by transfers: each fills the halves in order, once. Yield the number of the
    first chunk of each transfer, and its chunks. `number`: that of the group's first chunk."""
    done = 0
    while done < len(group):
        count = 2 - (number + done) % 2
        yield number + done, group[done : done + count]
        done += count


def _goes_on(run: _Run, runs: list[_Run]) -> bool:
    """Return whether a transfer of both halves is followed by another one."""
    return len(run[1]) == 2 and run is not runs[-1]


def _mark(number: int) -> bytes:
    return (number & 0xFFFF_FFFF).to_bytes(_MARK, "little")
