"""Random numbers by counting: each is a function of its number and of a key, on the device.

B. Widynski, "Squares: A Fast Counter-Based RNG", arXiv:2004.06278: four rounds of squaring that
exchange the halves of 64 bits. Integers alone, so that every device makes the same numbers.
"""

from __future__ import annotations

import threading
import time
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from compiler.methods.elementwise import Elementwise

Numbers = TypeVar("Numbers", bound=Elementwise)
_MASK = (1 << 64) - 1


class Generator:
    """Where the numbers of this process come from. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key = 0
        self._next = 0

    def seed(self, seed: int) -> None:
        """Begin again, with the numbers that belong to a seed."""
        with self._lock:
            self._key, self._next = _key(seed), 0

    def take(self, count: int) -> NDArray[np.uint64]:
        """The first of `count` numbers that nobody else gets, and the key."""
        with self._lock:
            if not self._key:
                self._key = _key(time.time_ns())
            first = self._next
            self._next += count
            return np.array([first & _MASK, self._key], np.uint64)


generator = Generator()


def _key(seed: int) -> int:
    """64 bits without a pattern (SplitMix64: G. Steele et al., OOPSLA 2014), odd."""
    mixed = (seed + 0x9E3779B97F4A7C15) & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31 | 1


def squares(number: Numbers, key: Numbers) -> Numbers:
    """32 random bits for each number, as uint64; both are uint64."""
    first = number * key
    second = first + key
    mixed = _turned(first * first + first)
    mixed = _turned(mixed * mixed + second)
    mixed = _turned(mixed * mixed + first)
    return (mixed * mixed + second) >> 32


def _turned(bits: Numbers) -> Numbers:
    return (bits >> 32) | (bits << 32)
