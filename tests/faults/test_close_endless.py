"""Closing one holder of a shared device while its kernel never ends: it waits once, up to its
limit, then stops its own queue; the other holder works on."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.device.waits import Waits
from ugpu.hcq.work.timeline import Timeline


@pytest.mark.parametrize("name", ["virtual:navi31", "virtual:gh100"])
def test_a_tenant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs: list[float] = []
    report = Waits._report_hang

    def counted(waits: Waits, timeline: Timeline, value: int, limit_s: float) -> None:
        hangs.append(limit_s)
        report(waits, timeline, value, limit_s)

    monkeypatch.setattr(Waits, "_report_hang", counted)
    with hcq.open(name) as device, device.alloc(64) as buffer:
        for _ in range(2):  # its place is free again
            tenant = Device(device.driver.open_tenant("tenant"))
            tenant.limit_s = 0.1
            flag = tenant.alloc(64)
            flag.fill(0)
            queue = tenant.queue()
            spin = tenant.load(contract_object(tenant.target))["spin"]
            queue.launch(spin, grid=(1,), block=(1,), args=(flag,)).submit()
            tenant.close()
            assert tenant.closed and not device.failure
        assert hangs == [0.1, 0.1]
        buffer.fill(5)
        assert (buffer.numpy(np.uint32) == 5).all()
