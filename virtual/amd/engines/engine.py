"""Base of the virtual chip's asynchronous engines: a thread that sleeps until woken."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator

from ugpu.hcq.state.clock import Work
from ugpu.hcq.state.threads import start, was_started
from ugpu.virtual.shader.load import Load
from ugpu.virtual.shader.memory import Abort

log = logging.getLogger(__name__)

CLOCK_PERIOD_NS = (
    10  # the GPU clock counter runs at 100 MHz (Linux 6.12 amdgpu_gfx.c, xclk of SMU 13)
)


def clock_ticks() -> int:
    """Read the 100 MHz GPU clock counter used for timestamps (64 bits, never zero)."""
    return time.perf_counter_ns() // CLOCK_PERIOD_NS


class Stopped(Exception):
    """The engine was stopped while waiting or working; unwinds to the engine's loop."""


class Worker:
    """One daemon thread that runs `step` each time it is woken, until it is stopped.

    `step` returns the maximum number of seconds to sleep before its next run, or None to sleep
    until a wake. `wake` may be called from any thread, with or without the chip's lock held; a wake
    during `step` is kept. The thread starts at the first wake, so an unused engine costs nothing.
    load: counts the time in `step` without its pauses.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float | None],
        failed: Callable[[str], None],
        load: Load,
    ) -> None:
        self.name = name
        self._step = step
        self._failed = failed
        self._load = load
        self._signal = threading.Lock()  # a binary semaphore: held = nothing to do
        self._signal.acquire()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._working = False  # inside `step`, and not in `pause`
        self._program: Abort | None = None  # Abort of the program that runs inside `step`
        self._numbers = itertools.count(1)
        self._woken = self._seen = 0  # number of the last wake, and of the last that `step` saw
        self.stopped = False

    def __repr__(self) -> str:
        return f"Worker({self.name!r}, stopped={self.stopped})"

    def wake(self) -> None:
        """Make the thread run `step` once more."""
        self._woken = next(self._numbers)
        if self._thread is None or self._thread.ident is None:
            self._start()
        # RACE: two wakes may both find the lock held; the second release then raises. The thread
        # runs once, after both wakes, which is all that `wake` guarantees.
        if self._signal.locked():
            try:
                self._signal.release()
            except RuntimeError:
                return

    def pause(self, seconds: float) -> None:
        """Sleep inside `step` for at most `seconds`; a wake ends it early. Raises Stopped."""
        self._rest()
        self._signal.acquire(timeout=seconds)
        self._begin()
        if self.stopped:
            raise Stopped(self.name)

    @contextlib.contextmanager
    def running(self, program: Abort) -> Iterator[None]:
        """Mark that the engine runs a program, which may never end, in this block inside `step`."""
        self._program = program
        try:
            yield
        finally:
            self._program = None

    @property
    def work(self) -> Work:
        """ENGINES while the thread runs or is due to run; a program's own work while one runs.

        See hcq.state.clock.Part.
        """
        if not self.alive:
            return Work.NONE
        program = self._program
        if program is not None:
            return program.work
        return Work.ENGINES if self._working or self._seen != self._woken else Work.NONE

    def check(self) -> None:
        """Raise Stopped if the engine has been stopped."""
        if self.stopped:
            raise Stopped(self.name)

    def stop(self) -> None:
        """Make the thread end at its next check; return at once. A second call does nothing."""
        self.stopped = True
        if was_started(self._thread):
            self.wake()

    def join(self, timeout_s: float = 5.0) -> bool:
        """Wait for the thread to end; True if it has. Do not hold locks that `step` acquires."""
        thread = self._thread
        if not was_started(thread) or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    @property
    def alive(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def asleep(self) -> bool:
        """Whether no wake is pending."""
        return self._signal.locked()

    def _start(self) -> None:
        with self._start_lock:
            if not was_started(self._thread) and not self.stopped:
                self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                start(self._thread)

    def _begin(self) -> None:
        self._working = True
        self._seen = self._woken
        self._load.begin()

    def _rest(self) -> None:
        self._working = False
        self._load.end()

    def _run(self) -> None:
        with self._start_lock:
            if self._thread is not threading.current_thread() or self.stopped:
                return  # see hcq.state.threads
        sleep: float | None = None
        try:
            while True:
                if sleep is None:
                    self._signal.acquire()
                elif sleep > 0:
                    self._signal.acquire(timeout=sleep)
                if self.stopped:
                    return
                self._begin()
                try:
                    sleep = self._step()
                finally:
                    self._rest()
        except Stopped:
            return
        except Exception as error:  # our own bug: it must not look like a hung chip
            log.exception("virtual engine %s failed", self.name)
            self._failed(f"bug in engine {self.name}: {error!r}")


class MemoryWritten:
    """Notify engines that poll memory when another engine has written memory."""

    def __init__(self) -> None:
        self._watchers: set[Worker] = set()

    def notify(self) -> None:
        """Wake all watching engines."""
        if self._watchers:
            for worker in tuple(self._watchers):
                worker.wake()

    @property
    def watched(self) -> bool:
        """Whether any engine is watching memory."""
        return bool(self._watchers)

    @contextlib.contextmanager
    def watching(self, worker: Worker) -> Iterator[None]:
        """Wake `worker` at writes during the block; it must also poll, to see earlier writes."""
        self._watchers.add(worker)
        try:
            yield
        finally:
            self._watchers.discard(worker)
