"""The one way to wait for hardware: with a reason and a limit.

A limit says how long a chip may take. A model of a chip in this process takes as long as the host
lets it, so that a limit does not hold while a model is at work: see `plays`.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from hcq import life
from hcq.errors import UnitTimeout

T = TypeVar("T")

_LEAST_LOOKS = 10  # a process that sleeps longer than a limit has not watched what it waits for
# TIMEOUT: how long a model may be at work beyond a limit, where the host has hardly a processor for
# it; our choice
_AT_WORK_LIMIT_S = 20.0


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


class Player(Protocol):
    """A part of a model of hardware, in a thread of this process."""

    @property
    def at_work(self) -> bool:
        """It has something to do, and will get on as soon as a processor is free. Not while it
        waits for somebody, nor while it runs a program, which may never end. Any thread may ask."""
        ...


class _Players:
    """The models of this process. A forked child has none: their threads are the parent's."""

    def __init__(self) -> None:
        self.abandon()
        life.inherits(self)

    def abandon(self) -> None:
        self.lock = threading.Lock()
        self.all: weakref.WeakSet[Player] = weakref.WeakSet()


_players = _Players()


def plays(player: Player) -> None:
    """Have no limit hold while `player` is at work, for as long as it lives."""
    with _players.lock:
        _players.all.add(player)


def _at_work() -> bool:
    with _players.lock:
        players = list(_players.all)
    return any(player.at_work for player in players)


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

    `probe` raises DeviceLost by itself when it reads all ones. After `limit_s` seconds and ten
    looks, and once no model is at work, UnitTimeout carries `unit`, `waiting_for` and what
    `state()` says then. Spins for the first 50 us, since most answers are immediate, then sleeps
    with growing pauses of at most 1 ms.
    """
    start = clock()
    pause = 1e-5
    looks = 0
    while True:
        looks += 1
        result = probe()
        found = result is not None and result is not False
        looked(found)
        if found:
            return cast(T, result)
        elapsed = clock() - start
        late = elapsed > limit_s and looks >= _LEAST_LOOKS
        if late and (elapsed > limit_s + _AT_WORK_LIMIT_S or not _at_work()):
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
