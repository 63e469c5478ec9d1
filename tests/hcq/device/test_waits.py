"""How long a wait may take: as long as work ends, or as its caller allows."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.clocks import Manual
from ugpu.hcq.device.waits import Waits
from ugpu.hcq.errors import DeviceHang

LIMIT_S = 1.0


class Slow:
    """A device whose work ends one by one, each after `each_s` of the clock."""

    def __init__(self, each_s: float) -> None:
        self.each_s = each_s
        self.timeline: Any = SimpleNamespace(value=0, name="slow queue")
        self.clock = Manual(on_sleep=self.pass_)
        self.since = 0.0
        driver = SimpleNamespace(
            clock=self.clock, pause_until=self.pause, diagnose=lambda timeline, value: {},
            announces=False, pause=self.pause_for,
        )  # fmt: skip
        self.driver = driver
        self.pauses: list[float] = []
        nothing = SimpleNamespace(tell_recovered=lambda timeline: None, latest=None)
        core = SimpleNamespace(
            limit_s=LIMIT_S, closed=False, failure=None, resets=0, name="slow", idle=False,
            driver=driver, lock=contextlib.nullcontext(), losses=nothing, look=lambda: None,
            recover=lambda: None, check_alive=lambda: None, fail=lambda failure: None,
            is_own=lambda timeline: True,
        )  # fmt: skip
        self.waits = Waits(cast(Any, core))

    def pause(self, timeline: object, value: int, limit_s: float) -> None:
        self.clock.sleep(min(limit_s, 0.1))

    def pause_for(self, limit_s: float) -> None:
        self.pauses.append(limit_s)
        self.clock.sleep(limit_s)

    def pass_(self, seconds: float) -> None:
        self.since += seconds
        while self.since >= self.each_s:
            self.since -= self.each_s
            self.timeline.value += 1


def test_a_wait_without_a_limit_lasts_while_work_ends() -> None:
    slow = Slow(0.6 * LIMIT_S)
    begun = slow.clock.time
    slow.waits.reach(slow.timeline, 20, None)
    assert slow.timeline.value == 20 and slow.clock.time - begun > 10 * LIMIT_S


def test_a_callers_limit_is_for_the_whole_wait() -> None:
    slow = Slow(0.6 * LIMIT_S)
    with pytest.raises(DeviceHang, match=r"not ended within 1\.0 s: expected signal 20, got 1"):
        slow.waits.reach(slow.timeline, 20, LIMIT_S)


def test_work_that_does_not_end_is_a_hang() -> None:
    slow = Slow(1.5 * LIMIT_S)
    slow.timeline.value = 4
    with pytest.raises(DeviceHang, match="expected signal 20, got 4"):
        slow.waits.reach(slow.timeline, 20, None)


def test_pauses_grow_with_the_wait_where_the_device_announces_its_end() -> None:
    slow = Slow(0.9 * LIMIT_S)
    slow.driver.announces = True
    begun = slow.clock.time
    slow.waits.reach(slow.timeline, 3, None)
    assert slow.pauses[0] == 1e-3 and len(slow.pauses) < 150
    before = 0.0
    for pause in slow.pauses:
        assert pause <= max(1e-3, before / 15)
        before += pause
    assert slow.clock.time - begun < 2.7 * LIMIT_S * 17 / 16
