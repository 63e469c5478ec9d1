"""Synchronous copies between a device's memory and this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ugpu.hcq.errors import BadArgument
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import Queue, QueueKind

if TYPE_CHECKING:
    from ugpu.hcq.copies.transfer import Transfer
    from ugpu.hcq.work.graph import GraphState


class Copies:
    """The copies of one device. Each waits until all work submitted before it has ended.
    BadArgument while this thread captures a graph."""

    def __init__(self, core: GraphState, make_transfer: Callable[[], Transfer]) -> None:
        """make_transfer: the driver's, called on first use."""
        self._core = core
        self._make_transfer = make_transfer
        self._transfer: Transfer | None = None
        # Held while the driver itself copies. Reentrant: a signal handler may close the device.
        self._direct = threading.RLock()

    def upload(self, buffer: Buffer, data: memoryview) -> None:
        """See Buffer.copy_from."""
        core = self._core
        if core.capturing is not None:
            self._refuse_in_capture("copy_from")
        core.synchronize()
        with self._direct:
            if core.closed or core.failure is not None or core.closer is not None:
                core.check_usable()
            if core.driver.write_memory(buffer, data):
                return
        self.transfer.upload(buffer, data)

    def download(self, buffer: Buffer, out: memoryview) -> None:
        """See Buffer.copy_to."""
        core = self._core
        if core.capturing is not None:
            self._refuse_in_capture("copy_to")
        core.synchronize()
        with self._direct:
            if core.closed or core.failure is not None or core.closer is not None:
                core.check_usable()
            if core.driver.read_memory(buffer, out):
                return
        self.transfer.download(buffer, out)

    def view(self, buffer: Buffer) -> memoryview | None:
        """Return a buffer's bytes for the caller to write, once work in flight has ended; None if
        the host cannot access them itself."""
        core = self._core
        self._refuse_in_capture("view")
        core.synchronize()
        core.check_usable()
        return core.driver.memory_view(buffer)

    def fill(self, buffer: Buffer, value: int) -> None:
        """See Buffer.fill."""
        self._refuse_in_capture("fill")
        self._core.synchronize()
        queue = Queue(self._core.driver.hardware_queues(QueueKind.COPY)[0]).fill(buffer, value)
        queue.timeline.wait(queue.submit())

    @property
    def transfer(self) -> Transfer:
        """The staging buffers between host and device, made on first use."""
        with self._core.lock:
            self._core.check_usable()
            if self._transfer is None:
                self._transfer = self._make_transfer()
            return self._transfer

    def stop(self) -> None:
        """Wait until no copy is running; the device is about to close, so no new copy begins."""
        with self._direct:
            pass
        if self._transfer is not None:
            self._transfer.stop()

    def _refuse_in_capture(self, what: str) -> None:
        capturing = self._core.capturing
        if capturing is not None and capturing.is_mine:
            raise BadArgument(f"{what} cannot be captured; record queue.copy or queue.fill")
