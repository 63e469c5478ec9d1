"""What drivers' proofs that queues work after a reset check, and their cleaners' submission."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ugpu.hcq.errors import ChipError
from ugpu.hcq.rings.ring import RingQueue
from ugpu.hcq.transport.view import HostView
from ugpu.hcq.work.command import Command
from ugpu.hcq.work.timeline import Timeline

THREADS = 32  # of the kernel, which stores 3 * thread + SEED
SEED = 0x5EED_0000
COPY_BYTES = 1024


def pattern(number: int) -> bytes:
    """Return the data that a copy is tried with; it differs between numbers."""
    return struct.pack("<256I", *(n * 0x0101_0101 ^ number for n in range(COPY_BYTES // 4)))


def check_copy(name: str, copied: HostView, expected: bytes) -> None:
    """Raise ChipError unless the queue `name` has copied the expected data."""
    got = bytes(copied)
    if got != expected:
        byte = next(n for n in range(COPY_BYTES) if got[n] != expected[n])
        raise ChipError(
            f"{name}: byte {byte} of a copy is {got[byte]:#x}, expected {expected[byte]:#x}",
            queue=name,
        )


def check_kernel(name: str, stored: HostView) -> None:
    """Raise ChipError unless the kernel on the queue `name` has stored what it should."""
    for thread, word in enumerate(struct.unpack(f"<{THREADS}I", bytes(stored))):
        if word != 3 * thread + SEED:
            raise ChipError(
                f"{name}: a kernel stored {word:#x} in thread {thread}, expected "
                f"{3 * thread + SEED:#x}",
                queue=name,
            )


class Cleaner(ABC):
    """Overwrites what a holder's kernels left outside memory. A vendor's code is loaded at the
    first use and stays loaded."""

    @property
    @abstractmethod
    def queue(self) -> RingQueue[Any]:
        """The queue that it runs on."""

    @abstractmethod
    def commands(self) -> Sequence[Command]:
        """Return what clears memory and registers."""

    def submit(self) -> tuple[Timeline, int]:
        """Clear after all work submitted to the queue; waits at most for the copy of its code.
        Return the timeline and the value it has afterwards. The lock is held. OutOfMemory if the
        code or the queue's entry does not fit."""
        queue = self.queue
        queue.core.complete()
        value = queue.run(self.commands(), "the kernel that clears registers")
        return queue.timeline, value
