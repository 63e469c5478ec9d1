"""virtual.amd.scheduler: what the chip does later, and what happens to it."""

from __future__ import annotations

import threading

from ugpu.virtual.amd.scheduler import Scheduler


def test_what_happens_to_the_chip_is_not_its_work() -> None:
    scheduler = Scheduler(threading.RLock(), 0, manual=True)
    done: list[str] = []
    scheduler.after(1.0, lambda: done.append("outside"), outside=True)
    assert scheduler.idle
    scheduler.after(0.1, lambda: done.append("work"))
    assert not scheduler.idle
    scheduler.advance(0.2)
    assert scheduler.idle and done == ["work"]
    scheduler.advance(1.0)
    assert done == ["work", "outside"]
