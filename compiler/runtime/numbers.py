"""Stream positions of the random numbers in a recorded function, set for each replay.

A kernel that makes random numbers reads the first number and the key from memory
(compiler.methods.randomness). Before each replay, this memory is filled for all kernels of a
recording, by one copy for each ROOM of them, with the numbers that the function would get if it ran
instead. Several devices may use the same numbers, from memory of their own.
"""

from __future__ import annotations

import numpy as np

from ugpu.compiler.runtime.generator import generator
from ugpu.compiler.runtime.memory_pool import MemoryPool, Part, Storage

ROOM = 16  # places in one piece of memory
APART = 256  # bytes from one to the next: the alignment that kernels assume
PAIR = 16  # bytes of a number and a key


class _Memory:
    """Places on one device. draws: which draw of the recording each has."""

    def __init__(self, pool: MemoryPool) -> None:
        self.pool = pool
        self.draws: list[int] = []
        self.pieces: list[Storage] = []


class Places:
    """The places in the stream that one recording uses, in its order."""

    def __init__(self) -> None:
        self._counts: list[int] = []  # of each draw
        self._memories: dict[int, _Memory] = {}  # by device

    def draw(self, count: int) -> int:
        """Take the next `count` numbers; return which draw of the recording it is."""
        self._counts.append(count)
        return len(self._counts) - 1

    @property
    def empty(self) -> bool:
        """Whether the recording uses no random numbers."""
        return not self._counts

    def memory(self, draw: int, pool: MemoryPool) -> Storage:
        """Return memory that will hold the first number of a draw, and the key."""
        memory = self._memories.setdefault(id(pool.device), _Memory(pool))
        number = len(memory.draws)
        if number % ROOM == 0:
            memory.pieces.append(pool.take(ROOM * APART))
        memory.draws.append(draw)
        return Part(memory.pieces[-1], number % ROOM * APART, PAIR)

    def fill(self) -> None:
        """Take the numbers of one replay. Waits for kernels that still read the previous ones."""
        if not self._counts:
            return
        counts = np.array(self._counts, np.uint64)
        ends = np.cumsum(counts, dtype=np.uint64)
        first, key = generator.take(int(ends[-1]))
        starts = first + ends - counts
        for memory in self._memories.values():
            words = np.zeros((len(memory.pieces) * ROOM, APART // 8), np.uint64)
            words[: len(memory.draws), 0] = starts[memory.draws]
            words[: len(memory.draws), 1] = key
            for number, piece in enumerate(memory.pieces):
                piece.buffer.copy_from(words[number * ROOM : (number + 1) * ROOM].reshape(-1))
