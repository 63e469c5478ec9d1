"""Stream positions of the random numbers in a recorded function, set for each replay.

A kernel that makes random numbers reads the first number and the key from memory
(compiler.methods.randomness). Before each replay, this memory is filled for all kernels of a
recording, by one copy for each ROOM of them, with the numbers that the function would get if it ran
instead.
"""

from __future__ import annotations

import numpy as np

from ugpu.compiler.runtime.generator import generator
from ugpu.compiler.runtime.memory_pool import MemoryPool, Part, Storage

ROOM = 16  # places in one piece of memory
APART = 256  # bytes from one to the next: the alignment that kernels assume
PAIR = 16  # bytes of a number and a key


class Places:
    """The places in the stream that one recording uses, in its order."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool
        self._counts: list[int] = []
        self._memory: list[Storage] = []

    def take(self, count: int) -> Storage:
        """Return memory that will hold the first of the next `count` numbers, and the key."""
        number = len(self._counts)
        if number % ROOM == 0:
            self._memory.append(self._pool.take(ROOM * APART))
        self._counts.append(count)
        return Part(self._memory[-1], number % ROOM * APART, PAIR)

    def fill(self) -> None:
        """Take the numbers of one replay. Waits for kernels that still read the previous ones."""
        if not self._counts:
            return
        ends = np.cumsum(self._counts, dtype=np.uint64)
        first, key = generator.take(int(ends[-1]))
        words = np.zeros((len(self._memory) * ROOM, APART // 8), np.uint64)
        words[: len(ends), 0] = first + ends - np.array(self._counts, np.uint64)
        words[: len(ends), 1] = key
        for number, memory in enumerate(self._memory):
            memory.buffer.copy_from(words[number * ROOM : (number + 1) * ROOM].reshape(-1))
