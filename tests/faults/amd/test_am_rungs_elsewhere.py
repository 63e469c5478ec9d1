"""Each level of the ladder on the other chips, and on a card behind a USB bridge."""

from __future__ import annotations

import numpy as np
import pytest

from ugpu import hcq

PATTERN = np.arange(1024, dtype=np.uint32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "virtual:navi32",
        "virtual:navi33",
        "virtual:navi44",
        "virtual:navi31+usb",
        "virtual:navi48+usb",
    ],
)
def test_each_level(name: str) -> None:
    with hcq.open(name) as device, device.alloc(PATTERN.nbytes) as buffer:
        for rung in ("queue", "block", "warm", "mode1", "bus", "power"):
            buffer.copy_from(PATTERN)
            recovery = device.reset(rung)
            assert recovery.level.label == rung and recovery.attempts[-1].worked
            kept = bool((buffer.numpy(np.uint32) == PATTERN).all())
            assert kept is (buffer not in recovery.lost), rung
            assert kept is (rung in ("queue", "block", "warm")), rung
            assert recovery.restarted == tuple(device.driver.all_queues())
            buffer.copy_from(PATTERN)
            assert (buffer.numpy(np.uint32) == PATTERN).all()
