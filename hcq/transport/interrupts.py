"""Interrupts and events that the kernel delivers on eventfds."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from ugpu.hcq.errors import BadArgument, Closed, OutOfMemory
from ugpu.hcq.state.threads import start
from ugpu.hcq.transport.system import FILES_REMEDY, System

CLOSE_LIMIT_S = 20.0  # TIMEOUT: a woken waiter needs only a time slice to leave


class EventInterrupts:
    """Interrupts of a function, with an eventfd for each vector; owned by its transport.

    `wait` may block in a separate thread, or in one thread per vector. `close` from another thread
    wakes them, and they raise Closed. `stop` ends a wait early without an interrupt (the device is
    being removed).
    """

    def __init__(
        self, system: System, vectors: int, deliver: Callable[[Sequence[int]], None]
    ) -> None:
        """vectors: number of vectors of the function. deliver: has the kernel signal an eventfd for
        each vector from 0 on, and for no others; called here for vector 0."""
        self.vectors = vectors
        self._system = system
        self._deliver = deliver
        self._events: list[int] = []
        self._wake = _event(system)
        self._stopped = False
        self._closed = False
        self._waiters = 0
        self._changed = threading.Condition()
        try:
            self.enable(1)
        except BaseException:
            self.close()
            raise

    def enable(self, count: int) -> None:
        """Enable vectors 0 to `count` - 1. See hcq.transport.base.Interrupts."""
        if not 1 <= count <= self.vectors:
            raise BadArgument(
                f"requested {count} interrupt vectors, the function has {self.vectors}"
            )
        with self._changed:
            self._check()
            if count <= len(self._events):
                return
            more: list[int] = []
            try:
                for _ in range(count - len(self._events)):
                    more.append(_event(self._system))
                self._deliver((*self._events, *more))
            except BaseException:
                for descriptor in more:
                    self._system.close(descriptor)
                raise
            self._events += more

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        """Block until an interrupt has arrived on `vector` since the last call; False after
        `limit_s` seconds, and immediately when the device is being removed."""
        with self._changed:
            self._check()
            if not 0 <= vector < len(self._events):
                raise BadArgument(
                    "the vector is not enabled", vector=vector, enabled=len(self._events)
                )
            event = self._events[vector]
            self._waiters += 1
        try:
            ready = self._system.poll((event, self._wake), limit_s)
            if event in ready:
                return _drain(event)
            self._check()
            return False
        finally:
            with self._changed:
                self._waiters -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End present and future waits immediately."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Wake all waiters and close the descriptors; idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
            self._changed.wait_for(lambda: not self._waiters, CLOSE_LIMIT_S)
        for descriptor in (*self._events, self._wake):
            self._system.close(descriptor)

    def _check(self) -> None:
        if self._closed:
            raise Closed("the interrupts' transport is closed")


def _event(system: System) -> int:
    """Return an eventfd; OutOfMemory if this process may open no more files."""
    try:
        return system.eventfd()
    except OSError as error:
        raise OutOfMemory(
            f"cannot create an eventfd: {error.strerror}", remedy=FILES_REMEDY
        ) from error


def _drain(event: int) -> bool:
    try:
        return os.eventfd_read(event) > 0
    except BlockingIOError:
        return False  # another waiter took it


class EventWatch:
    """A thread that calls back when one of several eventfds is signalled; owns the eventfds.

    The callbacks run in the watching thread and must not block. One that returns False is not
    called again.
    """

    def __init__(self, system: System, callbacks: dict[str, Callable[[], bool]]) -> None:
        self._system = system
        self.descriptors: dict[str, int] = {}
        self._callbacks = callbacks
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="ugpu-events", daemon=True)
        self._end = _event(system)
        try:
            for name in callbacks:
                self.descriptors[name] = _event(system)
            start(self._thread)
        except BaseException:
            self._give_back()
            raise

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
        """End the thread and close the descriptors; call once. A callback may call it."""
        self._ended = True
        os.eventfd_write(self._end, 1)
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_LIMIT_S)
        self._give_back()

    def _give_back(self) -> None:
        for descriptor in (*self.descriptors.values(), self._end):
            self._system.close(descriptor)
