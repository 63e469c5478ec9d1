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
        self.children: list[Child] = []
        self._orders: deque[Order] = deque()
        self._changed = threading.Condition()
        self._busy = 0

    def submit(self, order: Order) -> None:
        """Compile a kernel after those submitted before; nothing once closed."""
        with self._changed:
            if self.closed:
                return
            self._orders.append(order)
            if len(self.children) < min(self.most, self._busy + len(self._orders)):
                child = Child(nice=NICE)
                self.children.append(child)
                name = f"ugpu-behind-{len(self.children)}"
                threading.Thread(target=self._serve, args=(child,), name=name, daemon=True).start()
            self._changed.notify_all()

    def wait(self) -> None:
        """Block until all kernels submitted so far are done, or it is closed, also by a fork: a
        forked process has none of the threads."""
        with self._changed:
            while not self.closed and self.owner == os.getpid() and (self._orders or self._busy):
                self._changed.wait()

    def _serve(self, child: Child) -> None:
        while True:
            with self._changed:
                while not self._orders and not self.closed:
                    self._changed.wait()
                if self.closed:
                    return
                order = self._orders.popleft()
                self._busy += 1
            try:
                result: bytes | UgpuError
                try:
                    result = child.compile(order.text, order.target).image
                except UgpuError as error:
                    result = error
                if not self.closed:  # else the child was ended on purpose
                    order.done(result)
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()

    def close(self) -> None:
        """Drop the queue and end the children; idempotent."""
        with self._changed:
            self.closed = True
            self._orders.clear()
            self._changed.notify_all()
        for child in self.children:
            child.close()


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
