"""Time and wait limits of one transport: the only way to wait for hardware.

A limit is the longest time that a chip may take. Whether the other end is a chip, a model in this
process or a model behind a socket depends on the transport. So each transport has a clock
(`transport.clock`, `node.clock`). Waiting code uses it for the time, for sleeping, and to check
whether a limit is used up. A model's speed depends on the host; its clock suspends limits while it
is working. A recorder observes each poll of a waiting thread, since a change in memory causes no
access."""

from __future__ import annotations

import enum
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from ugpu.hcq.errors import UnitTimeout

T = TypeVar("T")

# A limit is counted in this many slices, and each needs a poll at its end: a descheduled process
# must poll once more before it reports a timeout.
_SLICES = 10


class Work(enum.IntEnum):
    """State of a model's work; of several parts, the highest value counts."""

    NONE = 0  # it waits, or runs a program, which may never end; hardware always reports this
    ENGINES = 1  # firmware and engines have work, and only need processor time
    TRANSLATION = 2  # a program is being translated before it runs
    DEBUGGED = 3  # a debugger steps through it, at its user's pace


# TIMEOUT: how long a wait may exceed its limit for each kind of work; our choice. Engines that are
# working for this long without a break hang; translating a large program on a slow host takes
# minutes.
ALLOWANCE_S = {Work.ENGINES: 20.0, Work.TRANSLATION: 600.0, Work.DEBUGGED: math.inf}


class Clock:
    """Real time, for hardware, whose limits are never suspended. Thread-safe, as all clocks are.

    Attributes:
        of_model: whether the other end is a model in this process, which runs at the host's speed.
    """

    of_model = False

    def now(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block for this many seconds; 0 only yields the processor."""
        if seconds > 0:
            time.sleep(seconds)
        else:  # a sleep of 0 sets a timer, which takes 0.1 ms on a virtual machine
            os.sched_yield()

    def work(self) -> Work:
        """Return the model's current kind of work. Never raises."""
        return Work.NONE

    def polled(self, found: bool) -> None:
        """Record that this waiting thread has polled. found: whether the awaited condition holds.
        For waits that do not use `wait_until`."""

    def deadline(self, limit_s: float) -> Deadline:
        """Start counting a limit of `limit_s` seconds."""
        return Deadline(self, limit_s)

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
        Deadline), UnitTimeout carries `unit`, `waiting_for` and the result of `state()`. Spins for
        the first 50 us, since most answers are immediate, then sleeps with growing pauses of at
        most 1 ms, or as long as a probe took if that is more, since each may be a message over a
        link; at most 10 ms.
        """
        deadline = self.deadline(limit_s)
        spinning = deadline.now + 5e-5
        pause, begun = 1e-5, deadline.now
        while True:
            result = probe()
            holds = result is not None and result is not False
            self.polled(holds)
            if holds:
                return cast(T, result)
            if deadline.expired():
                # Poll once more: a descheduled process may have overslept a limit the chip met.
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
            if deadline.now > spinning:
                self.sleep(max(pause, min(deadline.now - begun, 1e-2)))
                pause = min(pause * 2, 1e-3)
                begun = self.now()


class Deadline:
    """One limit as a clock counts it: how much of it is left for a waiting thread.

    The limit is divided into ten slices. Each ends with a poll, however late, and does not count if
    a model is working at that time; see ALLOWANCE_S for how long this may continue. Used by one
    thread.

    Attributes:
        now: the time of the last poll.
        pause_s: how long to sleep at most before the next one.
    """

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._slice_s = limit_s / _SLICES
        self._left = _SLICES
        self._allowance_s = dict(ALLOWANCE_S)
        self.now = self._since = clock.now()
        self.pause_s = self._slice_s

    def expired(self) -> bool:
        """Count the time since the last poll; return whether the limit is used up."""
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
    """Another clock, whose polls are also reported to `watcher`."""

    def __init__(self, inner: Clock, watcher: Callable[[bool], None]) -> None:
        self._inner = inner
        self._watcher = watcher

    def now(self) -> float:
        return self._inner.now()

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(seconds)

    def work(self) -> Work:
        return self._inner.work()

    def polled(self, found: bool) -> None:
        self._inner.polled(found)
        self._watcher(found)


class Part(Protocol):
    """A part of a model of hardware, running in its own thread."""

    @property
    def work(self) -> Work:
        """Return the work that the part will do as soon as a processor is free. Any thread may call
        it; cheap, and takes no lock that the part holds while it works."""
        ...


class ModelClock(Clock):
    """Clock of a model in this process: limits are suspended while one of its parts is working."""

    of_model = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: weakref.WeakSet[Part] = weakref.WeakSet()

    def sleep(self, seconds: float) -> None:
        """Sleep as Clock does; a sleep of 0 yields the interpreter to the model's threads."""
        time.sleep(seconds)

    def track(self, part: Part) -> None:
        """Take the work of `part` into account for as long as it lives."""
        with self._lock:
            self._parts.add(part)

    def work(self) -> Work:
        """Return the highest value of work among the parts."""
        with self._lock:
            parts = list(self._parts)
        return max((part.work for part in parts), default=Work.NONE)
