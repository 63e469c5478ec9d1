"""Drivers whose limits have all passed at once: a virtual device that is at work is waited for.

What a host does that gives a model no processor for as long as a board would need altogether.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, start_forever
from tests.support.nvidia.nv_machine import opened as opened_nv
from tests.support.nvidia.nv_machine import powered, work
from ugpu.hcq.errors import DeviceHang
from ugpu.hcq.state.clock import Clock


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until = Clock.wait_until

    def at_once(clock: Clock, probe: Any, **options: Any) -> Any:
        return wait_until(clock, probe, **{**options, "limit_s": 0.0})

    monkeypatch.setattr(Clock, "wait_until", at_once)


def test_navi31_boots_works_and_is_reset() -> None:
    chip = build_chip()
    try:
        with opened(chip) as device, device.load(faulty_object()) as program:
            out = device.alloc(64)
            check_runs(device, program, out, 1)
            start_forever(chip, device, program, out)
            with pytest.raises(DeviceHang):
                device.synchronize(limit_s=0.05)
            device.reset()
            assert device.reset_report[-1].name == "kill waves", "told to end, it is waited for"
            check_runs(device, program, out, 2)
            copied = device.alloc(64)
            copied.copy_from(np.full(16, 3, np.uint32))
            assert (copied.numpy(np.uint32) == 3).all()
        assert chip.violations == []
    finally:
        chip.close()


@pytest.mark.parametrize("chip", ["tu102", "gh100", "gb202"])
def test_nvidia_gpus_come_up_and_work(chip: str) -> None:
    with powered(chip) as machine, opened_nv(machine) as device, opened_nv(machine) as other:
        work(device)
        work(other)
        assert device.sensors()
