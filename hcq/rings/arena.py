"""The arena of a queue: memory for the images of submissions, used in a circle.

Positions only rise; the offset in memory is a position modulo the size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.transport.view import HostView
from ugpu.hcq.work.command_buffer import CommandBuffer

_IMAGE_ALIGN = 256


class Arena:
    """One queue's arena. The caller owns the memory.

    Attributes:
        address: of the memory, for the device.
        size: of the memory, in bytes.
        head: the position that is free next.
        tail: the position up to which memory is free again.
        words: the memory, if it is this process's; otherwise each write is a message.
    """

    def __init__(self, address: int, view: HostView, size: int) -> None:
        self.address = address
        self.size = size
        self._view = view[:size]
        self.words: NDArray[np.uint32] | None = None
        if isinstance(self._view, memoryview):
            self.words = np.frombuffer(self._view, np.uint32)
        self.restart()

    def restart(self) -> None:
        """Forget all images; their bytes stay until `overwrite`."""
        self.head = self.tail = 0
        # Images that were not overwritten lie between these two positions.
        self._overwritten, self._touched = -self.size, 0

    def find(self, size: int) -> int | None:
        """Return the position where `size` contiguous bytes are free; None if there are none."""
        size = -(-size // _IMAGE_ALIGN) * _IMAGE_ALIGN
        start = self.head
        if start % self.size + size > self.size:
            start += self.size - start % self.size  # the rest at the end stays unused
        return start if start + size - self.tail <= self.size else None

    def fill(self, start: int, buffer: CommandBuffer, values: NDArray[np.uint64]) -> int:
        """Write an image at a position; return the position behind it."""
        count, place = len(buffer.words), start % self.size
        head = start + -(-4 * count // _IMAGE_ALIGN) * _IMAGE_ALIGN
        if self._touched < head:
            self._touched = head
        if self.words is not None:
            buffer.patch(self.words[place // 4 : place // 4 + count], values)
        else:
            words = np.empty(count, np.uint32)
            buffer.patch(words, values)
            self._view[place : place + 4 * count] = words.tobytes()
        return head

    def overwrite(self) -> None:
        """Overwrite all images but those in flight, which lie between `tail` and `head`."""
        for start, end in self._used():
            self._view[start:end] = bytes(end - start)
        self._overwritten, self._touched = self.tail, self.head

    def _used(self) -> Iterator[tuple[int, int]]:
        """Yield the parts of the memory with images that are not in flight, in bytes. Images at
        least a whole arena behind the head were overwritten by later ones; one behind the head
        itself was never submitted."""
        ended = max(self._overwritten, self.head - self.size), self.tail
        for first, last in (ended, (self.head, self._touched)):
            start, size = first % self.size, max(0, last - first)
            yield start, min(start + size, self.size)
            yield 0, max(0, start + size - self.size)

    def close(self) -> None:
        """Release the memory."""
        if self.words is not None:
            self.words = np.zeros(0, np.uint32)
        self._view = memoryview(b"")
