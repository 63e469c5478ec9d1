"""The one way to wait for hardware: with a reason and a limit."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from hcq.errors import UnitTimeout

T = TypeVar("T")


class Watcher(Protocol):
    """Somebody who must know when others wait: memory that changes tells nobody
    (hcq.transport.record and replay)."""

    def looked(self, found: bool) -> None:
        """Somebody waited and has looked, in this thread; found: it is what was waited for."""
        ...


_watchers: tuple[weakref.ref[Watcher], ...] = ()


def watch(watcher: Watcher) -> None:
    """Have `watcher` told of each look, for as long as it lives or until `unwatch`."""
    global _watchers
    _watchers = (*_watchers, weakref.ref(watcher))


def unwatch(watcher: Watcher) -> None:
    """End what `watch` began, and forget who is gone."""
    global _watchers
    _watchers = tuple(kept for kept in _watchers if kept() not in (None, watcher))


def looked(found: bool) -> None:
    """Tell the watchers of a look; for waits that are not `wait_until`'s."""
    for reference in _watchers:
        watcher = reference()
        if watcher is not None:
            watcher.looked(found)


def wait_until(
    probe: Callable[[], T | None],
    *,
    unit: str,
    waiting_for: str,
    limit_s: float,
    state: Callable[[], object] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call `probe` until it returns something other than None or False, and return that.

    `probe` raises DeviceLost by itself when it reads all ones. After `limit_s` seconds UnitTimeout
    carries `unit`, `waiting_for` and what `state()` says then. Spins for the first 50 us, since
    most answers are immediate, then sleeps with growing pauses of at most 1 ms.
    """
    start = clock()
    pause = 1e-5
    while True:
        result = probe()
        found = result is not None and result is not False
        looked(found)
        if found:
            return cast(T, result)
        elapsed = clock() - start
        if elapsed > limit_s:
            # One last look: a descheduled process may have overslept a limit the chip kept.
            result = probe()
            if result is not None and result is not False:
                return result
            raise UnitTimeout(
                f"{unit}: no {waiting_for} within {limit_s} s",
                unit=unit,
                waiting_for=waiting_for,
                limit_s=limit_s,
                state=state() if state is not None else None,
            )
        if elapsed > 5e-5:
            sleep(pause)
            pause = min(pause * 2, 1e-3)
