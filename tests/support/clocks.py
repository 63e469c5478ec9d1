"""Clocks for searches: how far one gets is the test's to say, not the machine's."""

from __future__ import annotations

import time
from collections.abc import Callable

from ugpu.hcq.state.clock import Clock, Work


class Looks:
    """A second a look: a budget is so many looks, on a busy machine as on an idle one."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Quickening:
    """From look to look less time passes, never a second in all: what runs again is faster, as a
    second launch is."""

    def __init__(self) -> None:
        self.left = 1.0

    def __call__(self) -> float:
        self.left *= 0.75
        return 1.0 - self.left


class Manual(Clock):
    """Time of waits that passes in sleep, and `tick` seconds with each look at it.

    on_sleep(seconds) is called in place of sleeping. busy: says what a model is busy with.
    """

    def __init__(
        self,
        tick: float = 1e-6,
        *,
        on_sleep: Callable[[float], object] = lambda seconds: None,
        busy: Callable[[], Work] = lambda: Work.NONE,
    ) -> None:
        self.time = 100.0
        self.tick = tick
        self.on_sleep = on_sleep
        self.busy = busy

    def now(self) -> float:
        self.time += self.tick
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.on_sleep(seconds)

    def work(self) -> Work:
        return self.busy()


class Jumping:
    """Real time, which the test sets forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead

    def jump(self, to: float) -> None:
        """Forward, or not at all."""
        self.ahead += max(0.0, to - self())
