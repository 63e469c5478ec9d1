"""Time inside the virtual chip: one thread that runs the firmware's delayed actions."""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable

from ugpu.hcq.state.clock import Work
from ugpu.hcq.state.threads import start, was_started

# A callback due within this time counts as work in progress: it is not late itself, but it may
# continue an action whose earlier callback was.
_SOON_S = 0.05


class Scheduler:
    """Run callbacks after a delay, under the chip's lock, in the order of their times.

    With `manual` the scheduler starts no thread, and only `advance` moves time. `cancel_all` drops
    pending callbacks (the chip lost power). `close` ends the thread; idempotent.
    """

    def __init__(self, lock: threading.RLock, seed: int, *, manual: bool = False) -> None:
        self._lock = lock
        self._random = random.Random(seed)
        self._manual = manual
        self._now = 0.0
        self._pending: list[tuple[float, int, Callable[[], None], bool]] = []
        self._count = itertools.count()
        self._epoch = 0  # grows with each cancel_all
        self._wake = threading.Condition(threading.Lock())
        self._closed = False
        self._running = False  # a callback was taken and has not returned
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None  # a bug in a callback; `Chip.close` raises it

    def now(self) -> float:
        """Seconds of the chip's own clock."""
        return self._now if self._manual else time.monotonic()

    def after(self, delay_s: float, callback: Callable[[], None], *, outside: bool = False) -> None:
        """Run `callback` once, after a random (seeded) half to all of `delay_s` from now.

        outside: the callback is an event from outside the chip, not the chip's own work, which
        hosts behind slow links are given time to observe.
        """
        due = self.now() + delay_s * self._random.uniform(0.5, 1.0)
        with self._wake:
            if self._closed:
                return
            heapq.heappush(self._pending, (due, next(self._count), callback, outside))
            if not self._manual and not was_started(self._thread):
                self._thread = threading.Thread(
                    target=self._run, name="virtual-chip-firmware", daemon=True
                )
                start(self._thread)
            elif self._pending[0][2] is callback:
                self._wake.notify()

    @property
    def idle(self) -> bool:
        """Whether no callback is running and no work of the chip is pending."""
        with self._wake:
            return not self._running and all(outside for *_, outside in self._pending)

    @property
    def work(self) -> Work:
        """ENGINES while a callback is running or due soon, else NONE; see hcq.state.clock.Part."""
        if self._manual:
            return Work.NONE
        with self._wake:
            soon = bool(self._pending) and self._pending[0][0] < self.now() + _SOON_S
            return Work.ENGINES if self._running or soon else Work.NONE

    def cancel_all(self) -> None:
        """Drop all pending callbacks, including one taken that still waits for the chip's lock."""
        with self._wake:
            self._pending.clear()
            self._epoch += 1

    def advance(self, seconds: float) -> None:
        """Advance manual time, running the callbacks that fall due in order."""
        assert self._manual
        end = self._now + seconds
        while self._pending and self._pending[0][0] <= end:
            due, _, callback, _ = heapq.heappop(self._pending)
            self._now = max(self._now, due)
            with self._lock:
                callback()
        self._now = end

    def _next(self) -> tuple[int, Callable[[], None]] | None:
        """Wait until a callback is due; return its epoch and the callback, or None when closed."""
        with self._wake:
            while not self._closed:
                if not self._pending:
                    self._wake.wait()
                    continue
                wait = self._pending[0][0] - time.monotonic()
                if wait <= 0:
                    self._running = True
                    return self._epoch, heapq.heappop(self._pending)[2]
                self._wake.wait(wait)
        return None

    def _run(self) -> None:
        with self._wake:
            if self._thread is not threading.current_thread():
                return  # see hcq.state.threads
        while (due := self._next()) is not None:
            epoch, callback = due
            with self._lock:
                try:
                    if epoch == self._epoch:
                        callback()
                except Exception as error:  # a bug in the model must not look like a silent chip
                    self.error = error
                    raise
                finally:
                    self._running = False

    def close(self) -> None:
        """End the thread. Must not be called with the chip's lock held."""
        with self._wake:
            self._closed = True
            self._pending.clear()
            self._wake.notify()
        if was_started(self._thread) and self._thread is not threading.current_thread():
            self._thread.join()
