"""Compiling behind the program: by child processes of low priority, while it runs.

The threads are daemons: the end of the process does not wait for kernels in the queue, and ends the
children. Their work is lost then; a later process begins it again.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.compiler.codegen.process.children import MOST, Child
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.state.target import TargetSpec

NICE = 5  # a quarter of a processor, when the program uses all of it
PAUSE_S, ATTEMPTS = 0.02, 500  # TIMEOUT: a thread ends once its child has


@dataclass(frozen=True)
class Order:
    """A kernel to compile. done: called with its object, or the error, in another thread; it must
    not raise."""

    text: str
    target: TargetSpec
    done: Callable[[bytes | UgpuError], None]


class Behind:
    """A queue of kernels, and up to `most` children, each with a thread. Thread-safe."""

    def __init__(self, most: int) -> None:
        self.owner = os.getpid()
        self.most = most
        self.closed = False
        self._threads: list[tuple[Child, threading.Thread]] = []
        self._orders: deque[Order] = deque()
        self._changed = threading.Condition()
        self._busy = 0

    def submit(self, order: Order) -> None:
        """Compile a kernel after those submitted before; nothing once closed."""
        with self._changed:
            if self.closed:
                return
            self._orders.append(order)
            if len(self._threads) < min(self.most, self._busy + len(self._orders)):
                child = Child(nice=NICE)
                name = f"ugpu-behind-{len(self._threads)}"
                thread = threading.Thread(target=self._serve, args=(child,), name=name, daemon=True)
                self._threads.append((child, thread))
                thread.start()
            self._changed.notify_all()

    def wait(self) -> None:
        """Block until all kernels submitted so far are done, or it is closed, also by a fork: a
        forked process has none of the threads."""
        with self._changed:
            while not self.closed and self.owner == os.getpid() and (self._orders or self._busy):
                self._changed.wait()

    def _serve(self, child: Child) -> None:
        try:
            while (order := self._next()) is not None:
                try:
                    self._compile(child, order)
                finally:
                    with self._changed:
                        self._busy -= 1
                        self._changed.notify_all()
        finally:
            child.close()

    def _next(self) -> Order | None:
        """Return an order that the caller is busy with from now on; None once closed."""
        with self._changed:
            while not self._orders and not self.closed:
                self._changed.wait()
            if self.closed:
                return None
            self._busy += 1
            return self._orders.popleft()

    def _compile(self, child: Child, order: Order) -> None:
        result: bytes | UgpuError
        try:
            result = child.compile(order.text, order.target).image
        except UgpuError as error:
            result = error
        if not self.closed:  # else the child was ended on purpose
            order.done(result)

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


_lock = threading.Lock()
_shared: Behind | None = None


def behind() -> Behind:
    """Return the queue of this process (a forked one gets its own); closed at exit."""
    global _shared
    with _lock:
        if _shared is None or _shared.owner != os.getpid():
            if _shared is None:
                atexit.register(_close)
            _shared = Behind(min(MOST, len(os.sched_getaffinity(0))))
        return _shared


def _close() -> None:
    if _shared is not None and _shared.owner == os.getpid():
        _shared.close()
