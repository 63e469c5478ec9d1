"""The random number stream of this process: tracks which numbers are used."""

from __future__ import annotations

import threading
import time

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1


class Generator:
    """The position in the stream of this process's random numbers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key = 0
        self._next = 0

    def seed(self, seed: int) -> None:
        """Restart with the numbers of a seed."""
        with self._lock:
            self._key, self._next = _key(seed), 0

    def take(self, count: int) -> NDArray[np.uint64]:
        """Reserve `count` numbers of the stream; return the first, and the key."""
        with self._lock:
            if not self._key:
                self._key = _key(time.time_ns())
            first = self._next
            self._next += count
            return np.array([first & _MASK, self._key], np.uint64)


generator = Generator()


def _key(seed: int) -> int:
    """Return 64 bits without a pattern (SplitMix64: G. Steele et al., OOPSLA 2014), odd."""
    mixed = (seed + 0x9E3779B97F4A7C15) & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31 | 1
