"""Leaks of file descriptors, told apart from what other tests of the process still close.

Threads and collected garbage of earlier tests close descriptors in their own time, so a count is
taken when it has settled, and a leak is a count that stays higher.
"""

from __future__ import annotations

import gc
import os
import time

LIMIT_S = 60.0


def count() -> int:
    return len(os.listdir("/proc/self/fd"))


def settled() -> int:
    """How many are open once nothing changes any more (at most LIMIT_S)."""
    gc.collect()
    end = time.monotonic() + LIMIT_S
    seen = [count()]
    while time.monotonic() < end:
        time.sleep(0.005)
        seen.append(count())
        if len(seen) >= 4 and len(set(seen[-4:])) == 1:
            break
    return seen[-1]


def leaked(before: int) -> int:
    """How many more than `before` stay open."""
    gc.collect()
    end = time.monotonic() + LIMIT_S
    while count() > before and time.monotonic() < end:
        time.sleep(0.005)
    return max(0, count() - before)
