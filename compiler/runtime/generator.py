"""The random number stream of this process: tracks which numbers are used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ugpu.hcq.errors import BadArgument

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

    @property
    def state(self) -> tuple[int, int]:
        """The key and the position; a stream without a seed takes one now."""
        with self._lock:
            self._begin()
            return self._key, self._next

    def restore(self, state: tuple[int, int]) -> None:
        """Continue from a state. BadArgument if it is none."""
        fits = isinstance(state, tuple | list) and len(state) == 2
        if not fits or not all(type(n) is int and 0 <= n <= _MASK for n in state) or not state[0]:
            raise BadArgument(f"expected a state of get_rng_state, got {state!r}")
        with self._lock:
            self._key, self._next = state

    def _begin(self) -> None:
        if not self._key:
            self._key = _key(time.time_ns())

    def take(self, count: int) -> NDArray[np.uint64]:
        """Reserve `count` numbers of the stream; return the first, and the key."""
        with self._lock:
            self._begin()
            first = self._next
            self._next += count
            return np.array([first & _MASK, self._key], np.uint64)


generator = Generator()
_thread = threading.local()


class Same:
    """While entered, the thread's draws are noted; after `again` they are repeated from the first
    on, for another device. drawn: numbers and keys, or in a recorded function, which draw."""

    def __init__(self) -> None:
        self.drawn: list[Any] = []
        self._next = 0

    def __enter__(self) -> Same:
        self._outer = getattr(_thread, "same", None)
        _thread.same = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.same = self._outer

    def again(self) -> None:
        """Repeat the draws."""
        self._next = 0

    def take(self, draw: Callable[[], Any]) -> Any:
        """Return the next draw, made now or before."""
        if self._next == len(self.drawn):
            self.drawn.append(draw())
        self._next += 1
        return self.drawn[self._next - 1]


def drawn(draw: Callable[[], Any]) -> Any:
    """Return what `draw` takes from the stream, or what the first device took (Same)."""
    same: Same | None = getattr(_thread, "same", None)
    return draw() if same is None else same.take(draw)


def _key(seed: int) -> int:
    """Return 64 bits without a pattern (SplitMix64: G. Steele et al., OOPSLA 2014), odd."""
    mixed = (seed + 0x9E3779B97F4A7C15) & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31 | 1
