"""Interrupts and events that the kernel delivers on eventfds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from hcq.errors import Closed
from hcq.transport.system import System

CLOSE_LIMIT_S = 1.0  # a waiter that was woken needs a time slice to leave, no more


class EventInterrupts:
    """Interrupts of a function, counted on one eventfd; owned by its transport.

    `wait` may block in a thread of its own; `close` from another thread wakes it, and it raises
    Closed. `stop` ends a wait early without an interrupt (the device is being taken away).
    """

    def __init__(self, system: System) -> None:
        self._system = system
        self.descriptor = system.eventfd()
        self._wake = system.eventfd()
        self._stopped = False
        self._closed = False
        self._waiters = 0
        self._changed = threading.Condition()

    def wait(self, limit_s: float) -> bool:
        """Block until an interrupt came since the last call; False after `limit_s` seconds, and at
        once when the device is being taken away."""
        with self._changed:
            self._check()
            self._waiters += 1
        try:
            ready = self._system.poll((self.descriptor, self._wake), limit_s)
            if self.descriptor in ready:
                return self._drain()
            self._check()
            return False
        finally:
            with self._changed:
                self._waiters -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End present and future waits at once."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Wake the waiters and give the descriptors back; idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
            self._changed.wait_for(lambda: not self._waiters, CLOSE_LIMIT_S)
        self._system.close(self.descriptor)
        self._system.close(self._wake)

    def _drain(self) -> bool:
        try:
            return os.eventfd_read(self.descriptor) > 0
        except BlockingIOError:
            return False  # another waiter took it

    def _check(self) -> None:
        if self._closed:
            raise Closed("the transport of these interrupts was closed")


class EventWatch:
    """A thread that calls back when one of several eventfds is signalled; owns the eventfds.

    The callbacks run in the watching thread and must not block. One that returns False is not
    called again.
    """

    def __init__(self, system: System, callbacks: dict[str, Callable[[], bool]]) -> None:
        self._system = system
        self.descriptors = {name: system.eventfd() for name in callbacks}
        self._callbacks = callbacks
        self._end = system.eventfd()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="ugpu-events", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        watched = {descriptor: name for name, descriptor in self.descriptors.items()}
        while not self._ended:
            ready = self._system.poll([*watched, self._end], 3600.0)
            for descriptor in ready:
                if self._ended or descriptor == self._end:
                    return
                os.eventfd_read(descriptor)
                if not self._callbacks[watched[descriptor]]():
                    del watched[descriptor]

    def close(self) -> None:
        """End the thread and give the descriptors back; call once. A callback may call it."""
        self._ended = True
        os.eventfd_write(self._end, 1)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_LIMIT_S)
        for descriptor in (*self.descriptors.values(), self._end):
            self._system.close(descriptor)
