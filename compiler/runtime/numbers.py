"""Stream positions of the random numbers in a recorded function, new in each replay.

A kernel that makes random numbers has the number of the first and the key by value
(compiler.methods.randomness). In a recorded function they are parameters of its graphs, and each
replay gives those that the function would get if it ran instead. Several devices may use the same
numbers.
"""

from __future__ import annotations

from weakref import WeakSet

import numpy as np

from ugpu.compiler.graph.node import ByValue
from ugpu.compiler.runtime.generator import generator

Slot = tuple[int, bool]  # which draw of a recording; whether it is its key, not its first number


class Drawn(ByValue):
    """A number that each replay of a recording sets. Its word is that of the last replay.

    Attributes:
        slot: which it is.
    """

    __slots__ = ("__weakref__", "slot")

    def __init__(self, slot: Slot) -> None:
        super().__init__(0)
        self.slot = slot


class Draws:
    """The draws from the stream that one recording makes, in its order."""

    def __init__(self) -> None:
        self._counts: list[int] = []  # of each draw
        self._made: WeakSet[Drawn] = WeakSet()

    def number(self, slot: Slot) -> Drawn:
        """Return a number of a draw."""
        made = Drawn(slot)
        self._made.add(made)
        return made

    def draw(self, count: int) -> int:
        """Take the next `count` numbers; return which draw of the recording it is."""
        self._counts.append(count)
        return len(self._counts) - 1

    @property
    def empty(self) -> bool:
        """Whether the recording uses no random numbers."""
        return not self._counts

    def take(self) -> dict[Slot, int]:
        """Take the numbers of one replay; return the words for it."""
        if not self._counts:
            return {}
        counts = np.array(self._counts, np.uint64)
        ends = np.cumsum(counts, dtype=np.uint64)
        first, key = generator.take(int(ends[-1])).tolist()
        starts = (first + ends - counts).tolist()
        words = {(draw, False): start for draw, start in enumerate(starts)}
        words |= {(draw, True): key for draw in range(len(starts))}
        for number in self._made:  # what the program keeps of the recorded call
            number.word = words[number.slot]
        return words
