"""Waiting for what other threads and processes do. The only tests' code that looks at the clock.

A test waits for a condition, never for a time: it goes on at once when the condition holds, and a
host that is busy with others takes longer and comes to the same result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LIMIT_S = 120.0  # TIMEOUT: what has not come by then never comes; four times what was ever seen
_PAUSE_S = 5e-4


def came(condition: Callable[[], object]) -> bool:
    """Wait until `condition()` is true. False where it has not become so within LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            return bool(condition())
        time.sleep(_PAUSE_S)
    return True


def until(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait until `condition()` is true; AssertionError names `what` has not come."""
    assert came(condition), f"waited {LIMIT_S:g} s for {what}"


def when(condition: Callable[[], object], act: Callable[[], object]) -> threading.Thread:
    """Start a thread that does `act` once `condition()` is true; to be joined."""

    def wait() -> None:
        until(condition)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread
