"""The executor of shader cores: host threads that run the groups of launches."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ugpu.hcq.device.debugging import Debugger
from ugpu.hcq.objects import jit
from ugpu.virtual.shader.threads.crew import Crew
from ugpu.virtual.shader.threads.worker import NativeWorker, Run

_FEW_WAVES = 4  # up to this many, the calling thread runs a launch alone
_SHORT_S = 300e-6  # also if it should take no longer than this: waking threads takes 100 us
_MOST_KEPT = 1024


class Outcome(Protocol):
    """How a launch, or one thread's part of it, has ended."""

    @property
    def ending(self) -> Enum: ...


K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W", bound=NativeWorker)
T = TypeVar("T", bound=Outcome)


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


class Executor(ABC, Generic[W, T]):
    """Runs launches of translated kernels on host threads, each with a worker.

    name: of the threads. severity: the endings of a launch, worst first; the last one is that of a
    launch that has completed. workers: number of host threads (default: one per host CPU). cache:
    folder for compiled code, shared by processes; None keeps it in memory only. debugger: halts
    waves; one thread then runs all of them.
    """

    name: str
    severity: Sequence[Enum]

    def __init__(
        self, workers: int | None = None, cache: Path | None = None,
        debugger: Debugger | None = None,
    ) -> None:  # fmt: skip
        self._size = 1 if debugger else workers or os.cpu_count() or 1
        self._debugger = debugger
        self._lock = threading.Lock()
        self._objects = jit.ObjectCache(cache)
        self._group_s: dict[int, float] = {}  # by a kernel's address: its last seconds per group
        self._crews = [self._new_crew()]
        self._idle = list(self._crews)  # a launch that yields keeps its crew

    @abstractmethod
    def _worker(self, number: int) -> W:
        """Return a new worker, one of several with numbers from 0 on. Called by the constructor."""

    def _new_crew(self) -> Crew[W]:
        return Crew([self._worker(number) for number in range(self._size)], self.name)

    def close(self) -> None:
        """End the worker threads. May be called again; a later launch starts new ones."""
        for crew in self._crews:
            crew.close()

    def _alone(self, kernel: int, groups: int, waves: int) -> bool:
        """Return whether one thread is enough for `groups` of `waves` waves each."""
        return groups * waves <= _FEW_WAVES or self._group_s.get(kernel, 1.0) * groups < _SHORT_S

    def _execute(
        self, run: Run[Any], work: Callable[[W, int], T], kernel: int, groups: int, most: int,
        *, here: bool = True, prepare: Callable[[Sequence[W]], None] | None = None,
    ) -> tuple[T, float]:  # fmt: skip
        """Do `work(worker, number)` on up to `most` threads; return the worst outcome, and the
        processor seconds that all of them took together, which other programs on a busy host do not
        lengthen. Raises errors of a worker's callbacks.

        prepare: gets the workers before. here: the caller's thread has enough stack for the kernel.
        """

        taken: list[float] = []

        def guarded(worker: W, number: int) -> T:
            start = time.thread_time()
            try:
                outcome = work(worker, number)
            except BaseException:
                run.stop[0] = 1
                raise
            taken.append(time.thread_time() - start)
            if outcome.ending is not self.severity[-1]:
                run.stop[0] = 1  # waves on other threads stop too
            return outcome

        crew = self._crew()
        workers = crew.workers[:most]
        try:
            if self._debugger is not None:
                run.abort.debugged = self._is_debugged
            if prepare is not None:
                prepare(workers)
            outcomes = crew.run(len(workers), guarded, here=here)
            for worker in workers:
                if worker.error is not None:
                    raise worker.error
        finally:
            run.abort.debugged = None
            with self._lock:
                self._idle.append(crew)
        spent = sum(taken)
        self._group_s[kernel] = spent / groups
        return min(outcomes, key=lambda outcome: self.severity.index(outcome.ending)), spent

    def _is_debugged(self) -> bool:
        """Return whether wait limits are suspended."""
        return self._debugger is not None and self._debugger.active

    def _crew(self) -> Crew[W]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._crews.append(self._new_crew())
            return self._crews[-1]
