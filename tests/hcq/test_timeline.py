"""A timeline's values rise, whoever raises it."""

from __future__ import annotations

import hcq
from hcq.cpu.device import CpuDevice
from hcq.timeline import Timeline


def test_the_host_never_takes_a_timeline_back() -> None:
    with hcq.open("cpu", threads=1) as device:
        assert isinstance(device, CpuDevice)
        timeline = Timeline(device.driver.core, device.driver.timeline_memory(), "test")
        assert (timeline.value, timeline.last) == (0, 0)
        timeline.reach(5)
        assert (timeline.value, timeline.last) == (5, 5)
        timeline.reach(3)  # told late: another thread has told of 5
        assert (timeline.value, timeline.last) == (5, 5)
        assert timeline.advance() == 6
        assert (timeline.value, timeline.last) == (5, 6)
        timeline.restart()
        assert timeline.value == 6
