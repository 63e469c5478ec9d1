"""Bookkeeping of kernels shared by all shader cores: translated kernels and their durations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from ugpu.virtual.shader.threads.crew import Crew
from ugpu.virtual.shader.threads.worker import NativeWorker

_FEW_WAVES = 4  # up to this many, the calling thread runs a launch alone
_SHORT_S = 300e-6  # also if it should take no longer than this: waking threads takes 100 us
_MOST_KEPT = 1024

K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W", bound=NativeWorker)
T = TypeVar("T")


class Recent(Generic[K, V]):
    """The most recently stored values, by key."""

    def __init__(self) -> None:
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return a value if it is still stored."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> V:
        """Store a value, replacing the oldest one if there are too many; return it."""
        while len(self._values) >= _MOST_KEPT:
            del self._values[next(iter(self._values))]
        self._values[key] = value
        return value


class Pace:
    """Number of threads for launches, based on the durations of earlier launches of the same
    kernel."""

    def __init__(self) -> None:
        self._group_s: dict[int, float] = {}  # by a kernel's address: its last seconds per group

    def alone(self, kernel: int, groups: int, waves: int) -> bool:
        """Return whether one thread is enough for `groups` of `waves` waves each."""
        if groups * waves <= _FEW_WAVES:
            return True
        return self._group_s.get(kernel, 1.0) * groups < _SHORT_S

    def run(
        self, crew: Crew[W], count: int, work: Callable[[W, int], T], kernel: int, groups: int,
        *, here: bool = True,
    ) -> tuple[list[T], float]:  # fmt: skip
        """Do `work` with `count` workers, see `Crew.run`; return the results, and the seconds that
        all of them took together. Raises errors of a worker's callbacks."""
        start = time.perf_counter()
        found = crew.run(count, work, here=here)
        for worker in crew.workers[:count]:
            if worker.error is not None:
                raise worker.error
        spent = (time.perf_counter() - start) * count
        self._group_s[kernel] = spent / groups
        return found, spent
