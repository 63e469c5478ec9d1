"""UVM's shadow buffer: faults of copy engines and of the host unit, which UVM may serve.

The channel of such a fault, with its group, rests until UVM clears its faulted bit, once it has
mapped a page of managed memory, or has the GSP end it.

Sources: open-gpu-kernel-modules 550.163.01 kern_gmmu_gv100.c, kern_gmmu.c, queue.h, queue.c
(circularQueuePushNonManaged), kernel_gsp.c (_kgspRpcMMUFaultQueued),
uvm_gpu_non_replayable_faults.c.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from ugpu.virtual.nvidia.memory.fault_buffers import ENTRY
from ugpu.virtual.nvidia.status import RmError, Status

_PAGE = 4096
_QUEUE = struct.Struct("<Q16xQ32xQ56xQ")  # capacity, size of an entry, GET, PUT
_PUT = 128


class Board(Protocol):
    """The card, as its GSP reaches the buffer."""

    def violation(self, text: str) -> None: ...
    def bus_read(self, address: int, size: int) -> bytes | None: ...
    def bus_write(self, address: int, content: bytes) -> bool: ...


class Resting(Protocol):
    """A channel whose fault may be served."""

    @property
    def rests(self) -> bool:
        """Whether its faulted bit is set."""
        ...

    def end_fault(self) -> None:
        """End the channel, unless it rests no more."""
        ...


class ShadowBuffer:
    """The buffer, and channels that rest. Any thread may call. tell: called after an entry."""

    def __init__(self, board: Board, tell: Callable[[], object]) -> None:
        self._board = board
        self._tell = tell
        self._lock = threading.Lock()
        self._resting: dict[bytes, Resting] = {}  # by entry
        self.place(0, ())

    def place(self, queue: int, pages: Sequence[int]) -> None:
        """Register the buffer: bus addresses of its queue and of its pages; without pages, none."""
        with self._lock:
            self._queue, self._pages = queue, tuple(pages)

    @property
    def registered(self) -> bool:
        """Whether UVM has a buffer."""
        return bool(self._pages)

    def ask(self, entry: bytes, channel: Resting) -> bool:
        """Queue a fault for UVM; return whether the buffer took it."""
        with self._lock:
            raw = self._board.bus_read(self._queue, _QUEUE.size)
            if raw is None:  # which is recorded: the card is off the bus, or may not be its master
                return False
            capacity, size, get, put = _QUEUE.unpack(raw)
            entries = len(self._pages) * _PAGE // ENTRY
            if (capacity, size) != (entries, ENTRY) or get >= capacity or put >= capacity:
                self._board.violation(
                    f"shadow buffer of {entries} entries: the queue has {capacity} of {size} bytes,"
                    f" GET {get}, PUT {put}"
                )
                return False
            if (after := (put + 1) % capacity) == get:
                self._board.violation("the shadow buffer is full")
                return False
            self._resting = {old: each for old, each in self._resting.items() if each.rests}
            self._resting[entry] = channel
            page, at = divmod(put * ENTRY, _PAGE)
            self._board.bus_write(self._pages[page] + at, entry)
            self._board.bus_write(self._queue + _PUT, after.to_bytes(8, "little"))
        self._tell()
        return True

    def end(self, entry: bytes) -> None:
        """End the channel of a fault that UVM does not serve."""
        with self._lock:
            channel = self._resting.pop(entry, None)
        if channel is None:
            raise RmError(Status.INVALID_CHANNEL, "no channel rests for this fault")
        channel.end_fault()
