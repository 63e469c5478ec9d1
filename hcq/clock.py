"""Time and wait limits of one transport: the only way to wait for hardware.

A limit says how long a chip may take. Whether a chip, a model in this process or a model behind a
socket is at the other end, only the transport knows: so each has a clock (`transport.clock`,
`node.clock`), and waiting code uses it for the time, for sleep, and whether a limit is used
up. A model takes as long as the host lets it; its clock suspends limits while it is at work.
Recordings watch the looks of those who wait, since memory that changes makes no access.
"""

from __future__ import annotations

import enum
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from hcq.errors import UnitTimeout

T = TypeVar("T")

# A limit is counted in so many slices, and each needs a look at its end: a process that sleeps
# longer than a limit has not watched what it waits for.
_SLICES = 10


class Work(enum.IntEnum):
    """State of a model's work; of several parts, the highest value counts."""

    NONE = 0  # it waits, or runs a program, which may never end; hardware always reports this
    ENGINES = 1  # firmware and engines have something to do, and need only a processor for it
    TRANSLATION = 2  # a program is translated before it runs
    DEBUGGED = 3  # a debugger runs it step by step, as slowly as its user wants


# TIMEOUT: the most time that a wait may last beyond its limit for each kind of work; our choice.
# Engines that are at work for so long on end hang; a large program on a slow host is translated in
# minutes.
ALLOWANCE_S = {Work.ENGINES: 20.0, Work.TRANSLATION: 600.0, Work.DEBUGGED: math.inf}


class Clock:
    """Real time, in front of hardware, which is never too slow. Thread-safe, as all clocks are."""

    def now(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block for this many seconds; 0 only lets others have the processor."""
        if seconds > 0:
            time.sleep(seconds)
        else:  # a sleep of 0 sets a timer, which takes 0.1 ms on a virtual machine
            os.sched_yield()

    def work(self) -> Work:
        """Return what the model behind the transport is busy with now. Never raises."""
        return Work.NONE

    def looked(self, found: bool) -> None:
        """Take note that this thread waits and has looked; found: at what it waits for. For waits
        that are not `wait_until`'s."""

    def patience(self, limit_s: float) -> Patience:
        """Start counting a limit of `limit_s` seconds."""
        return Patience(self, limit_s)

    def wait_until(
        self,
        probe: Callable[[], T | None],
        *,
        unit: str,
        waiting_for: str,
        limit_s: float,
        state: Callable[[], object] | None = None,
    ) -> T:
        """Call `probe` until it returns something other than None or False, and return that.

        `probe` raises DeviceLost by itself when it reads all ones. Once the limit is used up (see
        Patience), UnitTimeout carries `unit`, `waiting_for` and what `state()` says then. Spins for
        the first 50 us, since most answers are immediate, then sleeps with growing pauses of at
        most 1 ms, or as long as a look took where that is more, since each may be a message over a
        link; at most 10 ms.
        """
        patience = self.patience(limit_s)
        spinning = patience.now + 5e-5
        pause, begun = 1e-5, patience.now
        while True:
            result = probe()
            found = result is not None and result is not False
            self.looked(found)
            if found:
                return cast(T, result)
            if patience.over():
                # One last look: a descheduled process may have overslept a limit the chip kept.
                result = probe()
                if result is not None and result is not False:
                    return result
                raise UnitTimeout(
                    f"{unit}: no {waiting_for} within {limit_s} s",
                    unit=unit,
                    waiting_for=waiting_for,
                    limit_s=limit_s,
                    state=state() if state is not None else None,
                )
            if patience.now > spinning:
                self.sleep(max(pause, min(patience.now - begun, 1e-2)))
                pause = min(pause * 2, 1e-3)
                begun = self.now()


class Patience:
    """One limit as a clock counts it: what is left of it for one who waits.

    The limit is divided into ten slices. Each ends with a look, however late that comes, and does
    not count while a model is at work then; see ALLOWANCE_S for how long that may go on. Used by
    one thread.

    now: the time of the last look. pause_s: how long to sleep at most before the next one.
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._slice_s = limit_s / _SLICES
        self._left = _SLICES
        self._allowance_s = dict(ALLOWANCE_S)
        self.now = self._since = clock.now()
        self.pause_s = self._slice_s

    def over(self) -> bool:
        """Count the time since the last look; whether the limit is used up."""
        now = self.now = self._clock.now()
        passed = now - self._since
        if passed < self._slice_s:
            self.pause_s = self._slice_s - passed
            return False
        self._since, self.pause_s = now, self._slice_s
        work = self._clock.work()
        if work is not Work.NONE and self._allowance_s[work] > 0:
            self._allowance_s[work] -= passed
            return False
        self._left -= 1
        return self._left <= 0


class WatchedClock(Clock):
    """Another clock, whose looks are reported to `watcher` too."""

    def __init__(self, inner: Clock, watcher: Callable[[bool], None]) -> None:
        self._inner = inner
        self._watcher = watcher

    def now(self) -> float:
        return self._inner.now()

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)

    def work(self) -> Work:
        return self._inner.work()

    def looked(self, found: bool) -> None:
        self._inner.looked(found)
        self._watcher(found)


class Part(Protocol):
    """A part of a model of hardware, in a thread of its own."""

    @property
    def work(self) -> Work:
        """Return the work that the part does as soon as a processor is free. Any thread may ask;
        cheap, and takes no lock that the part holds while it works."""
        ...


class ModelClock(Clock):
    """Clock of a model in this process: no limit holds while one of its parts is at work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: weakref.WeakSet[Part] = weakref.WeakSet()

    def sleep(self, seconds: float) -> None:
        """As of a clock; a sleep of 0 lets the threads of the model have the interpreter."""
        time.sleep(seconds)

    def plays(self, part: Part) -> None:
        """Heed `part` for as long as it lives."""
        with self._lock:
            self._parts.add(part)

    def work(self) -> Work:
        """Return the most that one of the parts has to do."""
        with self._lock:
            parts = list(self._parts)
        return max((part.work for part in parts), default=Work.NONE)
