"""Eventfds of a client, which deliver interrupts to it. The client keeps them too, and may do
anything to them, so a write may not return: eventfd(2) blocks if the count is at its maximum and
O_NONBLOCK is off, and that flag belongs to the file, which the client shares with us."""

from __future__ import annotations

import contextlib
import os
import select
import threading

from ugpu.hcq.errors import BadArgument

_EVENTFD = "anon_inode:[eventfd]"


class Events:
    """The eventfds of `count` vectors, owned. Thread-safe."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._events: list[int | None] = [None] * count
        self._lock = threading.Lock()
        self._releasing = threading.Lock()  # while a descriptor is closed, or `release` uses it
        self._written: int | None = None  # the descriptor that is being written to
        self._closed = False

    def assign(self, start: int, count: int, events: list[int]) -> None:
        """Assign eventfds to vectors, and remove them from `events`; without events, remove those
        of the vectors. BadArgument for a descriptor that is not an eventfd, or a wrong number of
        them."""
        if events and len(events) != count:
            raise BadArgument(f"expected {count} descriptors for interrupts, got {len(events)}")
        for event in events:
            # Another kind of descriptor could block us, or be a file to write numbers into.
            if os.readlink(f"/proc/self/fd/{event}") != _EVENTFD:
                raise BadArgument("expected an eventfd as an interrupt's descriptor")
        with self._lock:
            for vector in range(start, start + count):
                self._forget(vector)
                if events and not self._closed:
                    self._events[vector] = events.pop(0)

    def assigned(self) -> frozenset[int]:
        """Return the vectors that have an eventfd."""
        with self._lock:
            return frozenset(at for at, event in enumerate(self._events) if event is not None)

    def _forget(self, vector: int) -> None:
        event, self._events[vector] = self._events[vector], None
        if event is not None:
            with self._releasing:
                os.close(event)

    def signal(self, vector: int) -> None:
        """Raise the count, if there is one and it can be raised."""
        with self._lock:
            event = self._events[vector] if vector < len(self._events) else None
            if event is None:
                return
            # The client may have changed the flag since the last time.
            os.set_blocking(event, False)
            ready = select.poll()
            ready.register(event, select.POLLOUT)
            if ready.poll(0):
                # RACE: a client that fills the count and makes it block between here and the write
                # blocks this thread until `release`.
                self._written = event
                try:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_write(event, 1)
                finally:
                    self._written = None

    def release(self) -> None:
        """Release a thread that the client blocks in `signal`: the count is reset."""
        with self._releasing:
            event = self._written
            if event is not None:
                with contextlib.suppress(OSError):  # the count was 0, or the kernel is too old
                    os.preadv(event, [bytearray(8)], -1, os.RWF_NOWAIT)

    def close(self) -> None:
        """Close all eventfds; none is signalled afterwards. Idempotent."""
        self._closed = True
        while not self._lock.acquire(timeout=0.1):
            self.release()
        try:
            for vector in range(len(self._events)):
                self._forget(vector)
        finally:
            self._lock.release()
