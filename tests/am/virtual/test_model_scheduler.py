"""The chip's own time: order, cancelling, and a thread that ends."""

from __future__ import annotations

import threading

from am.virtual.scheduler import Scheduler


def test_manual_time_runs_callbacks_in_order_of_their_times() -> None:
    scheduler = Scheduler(threading.RLock(), 1, manual=True)
    seen: list[str] = []

    def early() -> None:
        seen.append("early")
        scheduler.after(0.1, lambda: seen.append("next"))

    scheduler.after(4.0, lambda: seen.append("late"))
    scheduler.after(0.1, early)
    scheduler.advance(1.0)
    assert seen == ["early", "next"]
    scheduler.advance(0.5)
    assert seen == ["early", "next"]
    scheduler.advance(10)
    assert seen == ["early", "next", "late"]
    assert scheduler.now() == 11.5


def test_the_thread_runs_callbacks_under_the_lock_and_cancels_what_waits_for_it() -> None:
    lock = threading.RLock()
    scheduler = Scheduler(lock, 1)
    seen: list[str] = []
    done = threading.Event()
    with lock:
        scheduler.after(0.0, lambda: seen.append("cancelled"))
        # The thread may hold the callback already, waiting for our lock.
        threading.Event().wait(0.02)
        scheduler.cancel_all()
        scheduler.after(0.0, done.set)
    assert done.wait(5)
    assert seen == []
    scheduler.close()
    scheduler.after(0.0, lambda: seen.append("after closing"))
    assert seen == []
    assert scheduler.error is None
