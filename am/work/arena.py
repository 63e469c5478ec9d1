"""The arena of a queue: memory for the images of submissions, used in a circle.

Positions only rise; the offset in memory is a position modulo the size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.bare.space import Mapping
from ugpu.hcq.work.command_buffer import CommandBuffer

ARENA_SIZE = 1 << 20
_IMAGE_ALIGN = 256


class Arena:
    """One queue's arena. head: the position that is free next. tail: the position up to which
    memory is free again. words: the memory, if it is this process's; otherwise each write is a
    message."""

    def __init__(self, mapping: Mapping) -> None:
        self.address = int(mapping.address)
        self._view = mapping.view
        self.words: NDArray[np.uint32] | None = None
        if isinstance(self._view, memoryview):
            self.words = np.frombuffer(self._view, np.uint32)
        self.restart()

    def restart(self) -> None:
        """Forget all images; their bytes stay until `overwrite`."""
        self.head = self.tail = 0
        # All images that were not overwritten lie between these two positions.
        self._overwritten, self._touched = -ARENA_SIZE, 0

    def find(self, size: int) -> int | None:
        """Return the position where `size` contiguous bytes are free."""
        size = -(-size // _IMAGE_ALIGN) * _IMAGE_ALIGN
        start = self.head
        if start % ARENA_SIZE + size > ARENA_SIZE:
            start += ARENA_SIZE - start % ARENA_SIZE  # the rest at the end stays unused
        return start if start + size - self.tail <= ARENA_SIZE else None

    def fill(self, start: int, buffer: CommandBuffer, values: NDArray[np.uint64]) -> int:
        """Write an image at a position; return the position behind it."""
        count, place = len(buffer.words), start % ARENA_SIZE
        head = start + -(-4 * count // _IMAGE_ALIGN) * _IMAGE_ALIGN
        self._touched = max(self._touched, head)
        if self.words is not None:
            buffer.patch(self.words[place // 4 : place // 4 + count], values)
        else:
            words = np.empty(count, np.uint32)
            buffer.patch(words, values)
            self._view[place : place + 4 * count] = words.tobytes()
        return head

    def overwrite(self) -> None:
        """Overwrite all images; all of them have ended."""
        for start, end in self._used():
            self._view[start:end] = bytes(end - start)
        self._overwritten = self._touched = self.head

    def _used(self) -> Iterator[tuple[int, int]]:
        size = self._touched - self._overwritten
        first = self._overwritten % ARENA_SIZE
        if size >= ARENA_SIZE:
            yield 0, ARENA_SIZE
            return
        yield first, min(first + size, ARENA_SIZE)
        if first + size > ARENA_SIZE:
            yield 0, first + size - ARENA_SIZE

    def close(self) -> None:
        """Release the views."""
        if self.words is not None:
            self.words = np.zeros(0, np.uint32)
        self._view.release()
