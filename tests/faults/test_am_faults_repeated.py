"""Faults and resets in a row leave nothing behind: threads, descriptors, memory of the chip."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

from am.device import AmDevice
from am.virtual.gpu import build_chip
from hcq.buffer import Buffer
from hcq.errors import ChipError, DeviceHang, IllegalInstruction, PageFault
from hcq.program import Program
from tests.support.am_faulty import faulty_object
from tests.support.am_navi31 import check_runs, opened

TIMES = 6
NOWHERE = np.uint64(0x1234_5678_9000)


def fail(device: AmDevice, program: Program, out: Buffer, kernel: str, *more: np.generic) -> None:
    with device.queue() as queue:
        queue.launch(program[kernel], grid=(1,), block=(32,), args=(out, *more))
    device.synchronize(limit_s=0.2 if kernel == "forever" else None)


def held(device: AmDevice) -> tuple[int, int, int]:
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd")), device.memory.used


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
            first: tuple[int, int, int] | None = None
            for turn in range(TIMES):
                with pytest.raises(error):
                    fail(device, program, out, kernel, *more)
                device.reset()
                check_runs(device, program, out, turn)
                first = first or held(device)
            assert held(device) == first
        assert chip.violations == []
    finally:
        chip.close()
