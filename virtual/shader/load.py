"""Load of a model's engines, averaged over a time of its own as firmware averages it."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator


class Load:
    """Share of time that at least one engine worked: an average whose past fades within `fade_s`.

    It does not depend on when, how often and by whom it is read. clock: seconds of the model's own
    clock. An engine works from the request to its end, however long the host lets its thread wait.
    Thread-safe.
    """

    def __init__(self, clock: Callable[[], float], fade_s: float) -> None:
        self._clock = clock
        self._fade_s = fade_s
        self._lock = threading.Lock()
        self._working = 0
        self._share = 0.0
        self._at = clock()

    def begin(self) -> None:
        """One more engine works."""
        with self._lock:
            self._count()
            self._working += 1

    def end(self) -> None:
        """One engine has ended the work that `begin` announced."""
        with self._lock:
            self._count()
            self._working -= 1

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count an engine as working in this context. Several threads may enter at once."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def share(self) -> float:
        """Return the average, 0 to 1."""
        with self._lock:
            self._count()
            return self._share

    def _count(self) -> None:
        now = self._clock()
        passed = max(0.0, now - self._at)
        target = 1.0 if self._working else 0.0
        self._share = target + (self._share - target) * math.exp(-passed / self._fade_s)
        self._at = now
