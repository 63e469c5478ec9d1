"""Work behind the program: by child processes of low priority, while it runs.

The threads are daemons: the end of the process does not wait for work in the queue, and ends the
children. Their work is lost then; a later process begins it again.
"""

from __future__ import annotations

import atexit
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

NICE = 5  # a quarter of a processor, when the program uses all of it
MOST = 4  # maximum children, and at most the host's processors
PAUSE_S, ATTEMPTS = 0.02, 500  # TIMEOUT: a thread ends once its child has


class Worker(Protocol):
    """A child process."""

    def interrupt(self) -> None:
        """End the process while another thread uses it, which gets an error."""

    def close(self) -> None:
        """End the process; idempotent."""


C = TypeVar("C", bound=Worker)
T = TypeVar("T")


class Behind(ABC, Generic[C, T]):
    """A queue of orders, and up to `most` children, each with a thread. Thread-safe."""

    name = "ugpu-behind"  # of the threads

    def __init__(self, most: int) -> None:
        self.owner = os.getpid()
        self.most = most
        self.closed = False
        self._threads: list[tuple[C, threading.Thread]] = []
        self._orders: deque[T] = deque()
        self._changed = threading.Condition()
        self._busy = 0

    @abstractmethod
    def child(self) -> C:
        """Return a new child process, not started."""

    @abstractmethod
    def carry_out(self, child: C, order: T) -> None:
        """Carry out an order, in a thread of the queue. Must not raise, and do nothing with the
        result once the queue is closed: the child was ended on purpose."""

    def submit(self, order: T) -> None:
        """Carry out an order after those submitted before; nothing once closed."""
        with self._changed:
            if self.closed:
                return
            self._orders.append(order)
            if len(self._threads) < min(self.most, self._busy + len(self._orders)):
                child = self.child()
                name = f"{self.name}-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, args=(child,), name=name, daemon=True)
                self._threads.append((child, thread))
                thread.start()
            self._changed.notify_all()

    def wait(self) -> None:
        """Block until all orders submitted so far are done, or it is closed, also by a fork: a
        forked process has none of the threads."""
        with self._changed:
            while not self.closed and self.owner == os.getpid() and (self._orders or self._busy):
                self._changed.wait()

    def _serve(self, child: C) -> None:
        try:
            while (order := self._next()) is not None:
                try:
                    self.carry_out(child, order)
                finally:
                    with self._changed:
                        self._busy -= 1
                        self._changed.notify_all()
        finally:
            child.close()

    def _next(self) -> T | None:
        """Return an order that the caller is busy with from now on; None once closed."""
        with self._changed:
            while not self._orders and not self.closed:
                self._changed.wait()
            if self.closed:
                return None
            self._busy += 1
            return self._orders.popleft()

    def close(self) -> None:
        """Drop the queue, end the children and await their threads; idempotent."""
        with self._changed:
            self.closed = True
            self._orders.clear()
            self._changed.notify_all()
        for child, thread in self._threads:
            for _ in range(ATTEMPTS):
                child.interrupt()  # again and again: it may just be starting
                thread.join(PAUSE_S)
                if not thread.is_alive():
                    break


Q = TypeVar("Q", bound=Behind[Any, Any])


class Shared(Generic[Q]):
    """The queue of this process, closed at exit; a forked process gets its own. make: given the
    number of children. Thread-safe."""

    def __init__(self, make: Callable[[int], Q]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self.queue: Q | None = None

    def get(self) -> Q:
        """Return the queue; make it if there is none."""
        with self._lock:
            if self.queue is None or self.queue.owner != os.getpid():
                if self.queue is None:
                    atexit.register(self._close)
                self.queue = self._make(min(MOST, len(os.sched_getaffinity(0))))
            return self.queue

    def _close(self) -> None:
        if self.queue is not None and self.queue.owner == os.getpid():
            self.queue.close()
