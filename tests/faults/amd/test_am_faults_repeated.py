"""Faults and resets in a row leave nothing behind: threads, descriptors, memory of the chip."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened
from tests.support.pci import descriptors
from tests.support.waiting import came
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import ChipError, DeviceHang, IllegalInstruction, PageFault
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program

TIMES = 6
NOWHERE = np.uint64(0x1234_5678_9000)


def fail(device: AmDevice, program: Program, out: Buffer, kernel: str, *more: np.generic) -> None:
    with device.queue() as queue:
        queue.launch(program[kernel], grid=(1,), block=(32,), args=(out, *more))
    device.synchronize(limit_s=0.2 if kernel == "forever" else None)


class Held:
    """What a device that works holds, once threads and garbage of earlier tests have gone."""

    def __init__(self, device: AmDevice) -> None:
        self.device = device
        self.descriptors = descriptors.settled()
        self.threads = threading.active_count()
        self.memory = device.driver.memory.used

    def __repr__(self) -> str:
        names = [thread.name for thread in threading.enumerate()]
        return f"{self.threads} threads, {self.memory} bytes (threads by now: {names})"

    def still(self) -> bool:
        """No more than that, though others may hold less by now. Engines of the model that a reset
        stopped end in their own time."""
        assert descriptors.leaked(self.descriptors) == 0
        return self.device.driver.memory.used == self.memory and came(
            lambda: threading.active_count() <= self.threads
        )


@pytest.mark.parametrize(
    ("kernel", "more", "error"),
    [
        ("write_at", (NOWHERE,), PageFault),
        ("jump_to", (NOWHERE,), PageFault),
        ("illegal", (), IllegalInstruction),
        ("forever", (), DeviceHang),
    ],
)
def test_nothing_is_left_behind(
    kernel: str, more: tuple[np.generic, ...], error: type[ChipError]
) -> None:
    chip = build_chip()
    try:
        with (
            opened(chip) as device,
            device.load(faulty_object()) as program,
            device.alloc(64) as out,
        ):
            first: Held | None = None
            for turn in range(TIMES):
                with pytest.raises(error):
                    fail(device, program, out, kernel, *more)
                device.reset()
                check_runs(device, program, out, turn)
                first = first or Held(device)
                assert first.still(), f"{first} then, {Held(device)} now"
        assert chip.violations == []
    finally:
        chip.close()
