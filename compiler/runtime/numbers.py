"""Where the random numbers of a recorded function are in their stream, anew for each replay.

A kernel that makes random numbers reads the first one's number and the key from memory
(compiler.methods.randomness). The memory of a recording's kernels is filled before each replay, by
one copy for ROOM of them: the numbers are those that the function would get if it ran instead.
"""

from __future__ import annotations

import numpy as np

from compiler.runtime.generator import generator
from compiler.runtime.memory_pool import MemoryPool, Part, Storage

ROOM = 16  # places in one piece of memory
APART = 256  # bytes from one to the next: what kernels take as aligned
PAIR = 16  # bytes of a number and a key


class Places:
    """The places in the stream that one recording takes, in its order."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._counts: list[int] = []
        self._memory: list[Storage] = []

    def take(self, count: int) -> Storage:
        """Memory that will say where the next `count` numbers begin, and the key."""
        number = len(self._counts)
        if number % ROOM == 0:
            self._memory.append(self._pool.take(ROOM * APART))
        self._counts.append(count)
        return Part(self._memory[-1], number % ROOM * APART, PAIR)

    def fill(self) -> None:
        """Take what one replay needs. Waits for kernels that still read what was before."""
        if not self._counts:
            return
        ends = np.cumsum(self._counts, dtype=np.uint64)
        first, key = generator.take(int(ends[-1]))
        words = np.zeros((len(self._memory) * ROOM, APART // 8), np.uint64)
        words[: len(ends), 0] = first + ends - np.array(self._counts, np.uint64)
        words[: len(ends), 1] = key
        for number, memory in enumerate(self._memory):
            memory.buffer.copy_from(words[number * ROOM : (number + 1) * ROOM].reshape(-1))
