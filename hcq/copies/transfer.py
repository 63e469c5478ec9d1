"""Synchronous copies between a device's memory and this process: by the host itself if its driver
can, else through staging buffers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.view import HostView
from ugpu.hcq.work.command import Command, Copy, Fill
from ugpu.hcq.work.command_buffer import Symbol
from ugpu.hcq.work.queue import HardwareQueue, QueueKind

if TYPE_CHECKING:
    from ugpu.hcq.work.buffer import Buffer
    from ugpu.hcq.work.graph import GraphState

STAGING_SIZE = 4 << 20  # bytes of each of the two staging buffers


class Transfer:
    """The copies of one device. `upload`, `download`, `view` and `fill` wait until all work
    submitted before has ended, and raise BadArgument while this thread captures a graph.

    `send` and `receive` use two HOST staging buffers, so that the device copies one while the host
    fills the other, and different copy queues, if there are several. A driver without such memory
    overrides them. Thread-safe: one copy at a time; the device's lock is not held while waiting.

    Attributes:
        keeps: whether the device keeps what is copied in; else it need not be read from a file.
    """

    keeps = True

    def __init__(self, core: GraphState, staging_size: int = STAGING_SIZE) -> None:
        self.core = core
        self.staging_size = staging_size
        # See Capture's lock; also, a signal handler may close the device.
        self._lock = threading.RLock()
        self._staging: list[Buffer] = []

    def upload(self, buffer: Buffer, data: memoryview) -> None:
        """See Buffer.copy_from."""
        core = self.core
        if core.capturing is not None:
            self._refuse_in_capture("copy_from")
        if not core.quiet():
            core.synchronize()
        with self._lock:
            if core.closed or core.failure is not None or core.closer is not None:
                core.check_usable()
            if not core.driver.write_memory(buffer, data):
                self.send(buffer, data)

    def download(self, buffer: Buffer, out: memoryview) -> None:
        """See Buffer.copy_to."""
        core = self.core
        if core.capturing is not None:
            self._refuse_in_capture("copy_to")
        if not core.quiet():
            core.synchronize()
        with self._lock:
            if core.closed or core.failure is not None or core.closer is not None:
                core.check_usable()
            if not core.driver.read_memory(buffer, out):
                self.receive(buffer, out)

    def view(self, buffer: Buffer) -> memoryview | None:
        """Return a buffer's bytes for the caller to write, once work in flight has ended; None if
        the host cannot access them itself."""
        self._refuse_in_capture("view")
        self.core.synchronize()
        self.core.check_usable()
        return self.core.driver.memory_view(buffer)

    def fill(self, buffer: Buffer, value: int) -> None:
        """See Buffer.fill."""
        self._refuse_in_capture("fill")
        self.core.synchronize()
        if buffer.size:
            hardware = self.core.driver.hardware_queues(QueueKind.COPY)[0]
            self._run(hardware, Fill(Symbol.of(buffer), value, buffer.size))

    def send(self, destination: Buffer, data: memoryview) -> None:
        """Copy `data` (bytes) to the start of `destination`; return when it has arrived."""
        with self._lock:
            view = destination.access
            if view is not None:
                view[: len(data)] = data
                return
            staging, queues = self._lanes()
            pending = [0] * len(staging)
            for number, start in enumerate(range(0, len(data), self.staging_size)):
                lane = number % len(staging)
                chunk = data[start : start + self.staging_size]
                self._wait_for(queues[lane], pending[lane])
                view = staging[lane].access
                assert view is not None
                view[: len(chunk)] = chunk
                place = Symbol.of(destination, start)
                copy = Copy(place, Symbol.of(staging[lane]), len(chunk))
                pending[lane] = self.core.submit(queues[lane], [copy])
            for queue, value in zip(queues, pending, strict=True):
                self._wait_for(queue, value)

    def receive(self, source: Buffer, out: memoryview) -> None:
        """Copy the start of `source` to `out` (bytes, writable)."""
        with self._lock:
            view = source.access
            if view is not None:
                out[:] = _bytes_of(view[: len(out)])
                return
            staging, queues = self._lanes()
            starts = range(0, len(out), self.staging_size)
            pending = [0] * len(starts)
            for number in range(-1, len(starts)):
                ahead = number + 1
                if ahead < len(starts):
                    lane, start = ahead % len(staging), starts[ahead]
                    size = min(self.staging_size, len(out) - start)
                    copy = Copy(Symbol.of(staging[lane]), Symbol.of(source, start), size)
                    pending[ahead] = self.core.submit(queues[lane], [copy])
                if number < 0:
                    continue
                lane = number % len(staging)
                self._wait_for(queues[lane], pending[number])
                chunk = out[starts[number] : starts[number] + self.staging_size]
                view = staging[lane].access
                assert view is not None
                chunk[:] = _bytes_of(view[: len(chunk)])

    def close(self) -> None:
        """Free the staging buffers; the next copy allocates them again."""
        with self._lock:
            for buffer in self._staging:
                buffer.close()
            self._staging = []

    def stop(self) -> None:
        """Wait until no copy is running; the device is closing, so no new copy begins."""
        with self._lock:
            return

    def _lanes(self) -> tuple[list[Buffer], Sequence[HardwareQueue]]:
        """Return the staging buffers, and the copy queue of each."""
        while len(self._staging) < 2:
            staging = self.core.alloc(self.staging_size, placement=Placement.HOST)
            self._staging.append(staging)
        queues = self.core.driver.hardware_queues(QueueKind.COPY)
        return self._staging, queues[:2] if len(queues) > 1 else (queues[0], queues[0])

    def _run(self, hardware: HardwareQueue, command: Command) -> None:
        """Run a command; return when it has ended."""
        self._wait_for(hardware, self.core.submit(hardware, [command]))

    def _wait_for(self, hardware: HardwareQueue, value: int) -> None:
        if value:
            self.core.wait_for(hardware.timeline, value, None)

    def _refuse_in_capture(self, what: str) -> None:
        capturing = self.core.capturing
        if capturing is not None and capturing.is_mine:
            raise BadArgument(f"{what} cannot be captured; record queue.copy or queue.fill")


def _bytes_of(view: HostView) -> memoryview | bytes:
    return view if isinstance(view, memoryview) else bytes(view)
