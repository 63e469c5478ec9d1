"""The daemon's events as they happen, numbered, with the last ones kept, for the page and
OpenTelemetry.

An event's id contains the daemon's run and a number. A browser that reconnects gets the events that
it missed; after a restart of the daemon it gets all that are kept.

Source of ids and their return: WHATWG HTML, "Server-sent events", Last-Event-ID.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable

from ugpu.tools.base.events import event_of

# The daemon's log: this package's, as it is installed.
DAEMON = "ugpu.tools.service.daemon"
KEPT = 500
Told = dict[str, object]


class Feed(logging.Handler):
    """Collect events from the daemon's log. Thread-safe."""

    def __init__(self, kept: int = KEPT) -> None:
        super().__init__()
        self.run = secrets.token_hex(4)
        self._listeners: set[Callable[[], None]] = set()
        self._last = 0
        self._told: deque[Told] = deque(maxlen=kept)
        self._guard = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        event = event_of(record)
        if event is None:
            return
        with self._guard:
            self._last += 1
            self._told.append(
                {
                    "number": self._last,
                    "time": record.created,
                    "kind": event.kind.name,
                    "level": record.levelname.lower(),
                    "text": event.text,
                    "remedy": event.remedy,
                    "fields": event.fields,
                }
            )
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each event, in the thread that logs it; it must not block."""
        with self._guard:
            self._listeners.add(listener)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """Undo `subscribe`; idempotent."""
        with self._guard:
            self._listeners.discard(listener)

    def after(self, number: int) -> list[Told]:
        """Return the kept events with higher numbers, the oldest first."""
        with self._guard:
            if number >= self._last:
                return []
            return [event for event in self._told if int(str(event["number"])) > number]

    def number_of(self, text: str) -> int:
        """Return the event number in an id; 0 for an id of another run, or a malformed one."""
        run, _, number = text.partition("-")
        if run != self.run or not number.isascii() or not number.isdecimal() or len(number) > 18:
            return 0
        return int(number)

    def id_of(self, told: Told) -> str:
        """Return an event's id."""
        return f"{self.run}-{told['number']}"


def attached(logger: str = "") -> Feed:
    """Create a feed and attach it to the daemon's log, or to `logger`. Undo it with `detach`."""
    feed = Feed()
    logging.getLogger(logger or DAEMON).addHandler(feed)
    return feed


def detach(feed: Feed, logger: str = "") -> None:
    """Undo `attached`."""
    logging.getLogger(logger or DAEMON).removeHandler(feed)
