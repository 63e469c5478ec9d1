"""Leaks of file descriptors, told apart from what other tests of the process still close.

Threads and collected garbage of earlier tests close descriptors in their own time, so a count is
taken when it has settled, and a leak is a count that stays higher.
"""

from __future__ import annotations

import gc
import os

from tests.support.waiting import came, until

LOOKS = 16  # that see the same number


def count() -> int:
    return len(os.listdir("/proc/self/fd"))


def settled() -> int:
    """How many are open once nothing changes any more. Garbage of what came before stays until
    the collector's next turn, see tests/conftest.py."""
    gc.freeze()
    seen: list[int] = []

    def calm() -> bool:
        seen.append(count())
        return len(seen) >= LOOKS and len(set(seen[-LOOKS:])) == 1

    until(calm, "open files to stay the same")
    return seen[-1]


def leaked(before: int) -> int:
    """How many more than `before` stay open."""
    gc.collect()
    came(lambda: count() <= before)
    return max(0, count() - before)
