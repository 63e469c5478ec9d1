"""The event bus: steps that take time report their begin and end to subscribers.

    with trace.step("psp.load", image="sos.bin", size=len(image)) as step:
        ...
        step["status"] = status

Without subscribers a step costs one test of a tuple. With subscribers, every event reaches each of
them, in order, on the thread where it happened, before the step continues: no event is lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ugpu.hcq import outfile
from ugpu.hcq.errors import BadArgument

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """An event.

    Attributes:
        name: of the step or point.
        phase: "begin", "end" or "point".
        time: seconds of time.monotonic.
        arguments: the step's own; at the end, including those added to it.
        depth: number of steps around it.
        thread: the thread's name.
        duration_s: only at the end.
        error: the exception that ended the step; only at the end.
    """

    name: str
    phase: str
    time: float
    arguments: dict[str, object]
    depth: int
    thread: str
    duration_s: float | None = None
    error: BaseException | None = None


Listener = Callable[[Event], None]


class Step(dict[str, object]):
    """A running step: a context manager; items set on it are reported at its end."""

    def __init__(self, bus: Bus, name: str, arguments: dict[str, object]) -> None:
        super().__init__(arguments)
        self._bus = bus
        self._name = name
        self._start = 0.0

    def __enter__(self) -> Step:
        self._start = time.monotonic()
        self._bus.send(self._name, "begin", self._start, dict(self))
        self._bus.depth.value = self._bus.current_depth + 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end = time.monotonic()
        self._bus.depth.value = self._bus.current_depth - 1
        self._bus.send(self._name, "end", end, dict(self), end - self._start, error)


class _NoStep(dict[str, object]):
    """No-op step used when there are no subscribers. Shared, so it keeps no items."""

    def __setitem__(self, key: str, value: object) -> None:
        pass

    def __enter__(self) -> _NoStep:
        return self

    def __exit__(self, *_: object) -> None:
        pass


_NO_STEP = _NoStep()


class Bus:
    """Subscribers of events, and their delivery. Thread-safe."""

    def __init__(self) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.depth = threading.local()
        self._lock = threading.Lock()

    @property
    def current_depth(self) -> int:
        """Return the depth of steps on the calling thread."""
        return getattr(self.depth, "value", 0)

    def step(self, name: str, /, **arguments: object) -> Step | _NoStep:
        """Return a context manager around a step that takes time."""
        if not self.listeners:
            return _NO_STEP
        return Step(self, name, arguments)

    def point(self, name: str, /, **arguments: object) -> None:
        """Report an event without duration."""
        if self.listeners:
            self.send(name, "point", time.monotonic(), arguments)

    def send(
        self,
        name: str,
        phase: str,
        when: float,
        arguments: dict[str, object],
        duration_s: float | None = None,
        error: BaseException | None = None,
    ) -> None:
        thread = threading.current_thread().name
        event = Event(name, phase, when, arguments, self.current_depth, thread, duration_s, error)
        for listener in self.listeners:
            try:
                listener(event)
            except Exception:  # a listener's errors must not stop a driver half-way
                log.exception("a listener failed on %s", event)

    def subscribe(self, listener: Listener) -> AbstractContextManager[None]:
        """Have `listener` called with every event until the returned context manager is left."""
        with self._lock:
            self.listeners = (*self.listeners, listener)
        return _Subscription(self, listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Stop calling `listener`; nothing happens if it was not subscribed."""
        with self._lock:
            self.listeners = tuple(kept for kept in self.listeners if kept is not listener)


class _Subscription(AbstractContextManager[None]):
    def __init__(self, bus: Bus, listener: Listener) -> None:
        self._bus = bus
        self._listener = listener

    def __exit__(self, *_: object) -> None:
        self._bus.unsubscribe(self._listener)


_EVENTS = outfile.Kind("a file of trace events", rb'\{"time": ')


class JsonLines:
    """A listener that writes each event as a line of JSON; closed by its owner. BadArgument if the
    file does not open. If it can no longer be written, a warning is logged once."""

    def __init__(self, path: Path) -> None:
        outfile.check_file(path, _EVENTS)
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise BadArgument(f"cannot write the trace to {path}: {error.strerror}") from None
        self._path = path
        self._full = False
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        line = {
            "time": event.time,
            "phase": event.phase,
            "name": event.name,
            "thread": event.thread,
            "depth": event.depth,
            "arguments": event.arguments,
        }
        if event.duration_s is not None:
            line["duration_s"] = event.duration_s
        if event.error is not None:
            line["error"] = f"{type(event.error).__name__}: {event.error}"
        text = json.dumps(line, default=str)
        with self._lock:
            if self._full:
                return
            try:
                self._file.write(text + "\n")
                self._file.flush()  # after a crash, the events before it must be in the file
            except OSError as error:
                self._full = True
                log.warning("the trace in %s was stopped: %s", self._path, error.strerror)
                self._drop()

    def _drop(self) -> None:
        with contextlib.suppress(OSError):  # the rest of its buffer cannot be written either
            self._file.close()

    def close(self) -> None:
        with self._lock:
            self._drop()


bus = Bus()
step = bus.step
point = bus.point
subscribe = bus.subscribe
