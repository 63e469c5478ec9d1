"""One channel, two engines: what a submission promises of copies and kernels, on a chip that waits
for no engine unless it is told to. (dev_pbdma.ref.txt: WFI and releases wait for the engine that
the channel last sent methods to.)"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.kernels import contract_object
from tests.support.nvidia.nv_machine import opened, powered
from ugpu.hcq.work.program import Program
from ugpu.nv.device.device import NvDevice

COUNT = 256
BYTES = 4 * COUNT
ramp = np.arange(COUNT, dtype=np.uint32)
BETWEEN = ("", "wait", "barrier", "timestamp", "wait, barrier", "timestamp, wait")


@pytest.fixture(scope="module", params=["tu102", "gh100", "gb202"])
def device(request: pytest.FixtureRequest) -> Iterator[NvDevice]:
    with powered(request.param) as machine, opened(machine) as made:
        yield made
        assert machine.violations == []


@pytest.fixture(scope="module")
def program(device: NvDevice) -> Program:
    return device.load(contract_object(device.target))


@pytest.mark.parametrize("between", BETWEEN)
def test_each_step_sees_the_one_before(device: NvDevice, program: Program, between: str) -> None:
    for steps in itertools.product(("copy", "launch"), repeat=3):
        run(device, program, steps, between)


def run(device: NvDevice, program: Program, steps: tuple[str, ...], between: str) -> None:
    buffers = [device.alloc(BYTES) for _ in range(len(steps) + 1)]
    clock = device.alloc(8)
    buffers[0].copy_from(ramp)
    for buffer in buffers[1:]:
        buffer.fill(0xFFFF_FFFF)
    queue = device.queue()
    factor, before = 1, ""
    for number, step in enumerate(steps):
        if step == before == "launch":
            queue.barrier()  # kernels alone may overlap
        if step == "launch":
            factor *= 3
            args = (buffers[number + 1], buffers[number], np.uint32(COUNT), np.uint32(3))
            queue.launch(program["scale"], grid=(4,), block=(64,), args=args)
        else:
            queue.copy(buffers[number + 1], buffers[number])
        before = step
        for each in filter(None, between.split(", ")):
            if each == "wait":
                queue.wait(device.driver.copy_queue.timeline, 0)  # reached long ago
            elif each == "barrier":
                queue.barrier()
            else:
                queue.timestamp(clock)
    end = queue.submit()
    queue.timeline.wait(end)
    result = buffers[-1].numpy(np.uint32)
    for buffer in (*buffers, clock):
        buffer.close()
    assert (result == factor * ramp).all(), (steps, between)
