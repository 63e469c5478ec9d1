"""A virtual Navi31 with the real driver on it, for tests that look at both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from am.device import AmDevice, open_device
from am.virtual.gpu import attach
from hcq.buffer import Buffer
from hcq.poll import wait_until
from hcq.program import Program

NAME = "virtual:navi31"


def plug_in(chip: Any, **options: Any) -> AmDevice:
    """Open the driver on a chip that stays powered when the device is closed."""
    return open_device(NAME, attach(chip=chip), **options)


@contextmanager
def opened(chip: Any, **options: Any) -> Iterator[AmDevice]:
    with plug_in(chip, **options) as device:
        assert isinstance(device, AmDevice)
        yield device


def run(device: AmDevice, program: Program, name: str, *args: object) -> None:
    """Run one wave of a kernel and wait for it."""
    with device.queue() as queue:
        queue.launch(program[name], grid=(1,), block=(32,), args=args)
    device.synchronize()


def start_forever(chip: Any, device: AmDevice, program: Program, out: Buffer) -> None:
    """Launch a kernel that never ends, and wait until it runs."""
    launches = chip.gfx.mec.array.launches
    with device.queue() as queue:
        queue.launch(program["forever"], grid=(1,), block=(32,), args=(out,))
    wait_until(
        lambda: chip.gfx.mec.array.launches > launches,
        unit="shader array", waiting_for="the launch", limit_s=60,
    )  # fmt: skip


def check_runs(device: AmDevice, program: Program, out: Buffer, value: int) -> None:
    """The program's good kernel gives the right answer."""
    run(device, program, "good", out, np.uint32(value))
    assert out.numpy(np.uint32)[0] == value
