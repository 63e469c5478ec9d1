"""Rest of an idle device: it changes no result, whether the driver can rest or not."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import Closed
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind


def scaled(device: Device, program: Program, factor: int) -> None:
    """A kernel and a copy give the right answer."""
    values = np.arange(64, dtype=np.uint32)
    with device.alloc(256) as source, device.alloc(256) as out, device.alloc(256) as copy:
        source.copy_from(values)
        arguments = (out, source, np.uint32(64), np.uint32(factor))
        with device.queue() as queue:
            queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
        device.synchronize()
        with device.queue(QueueKind.COPY) as queue:
            queue.copy(copy, out)
        device.synchronize()
        assert np.array_equal(copy.numpy(np.uint32), values * np.uint32(factor))


def test_work_after_a_rest_is_right(device: Device, program: Program) -> None:
    can = device.can_rest
    with device.alloc(4096) as kept:
        kept.fill(0x5EED)
        device.synchronize()
        for factor in (3, 5):
            assert device.rest() == can and device.resting == can
            assert device.rest() == can
            assert device.sensors() and device.info() and device.idle
            assert device.resting == can  # looking at it does not wake it
            scaled(device, program, factor)
            device.synchronize()
            assert not device.resting
        assert device.rest() == can
        assert (kept.numpy(np.uint32) == 0x5EED).all()
    device.wake()
    device.wake()
    assert not device.resting
    scaled(device, program, 7)


def test_rest_waits_for_work(device: Device, program: Program) -> None:
    flag = device.alloc(64, placement=Placement.HOST)
    flag.fill(0)
    gate = device.timeline()
    with device.queue(QueueKind.COPY) as queue:
        queue.wait(gate, 1).fill(flag, 1)
    release = threading.Timer(0.02, gate.reach, (1,))
    release.start()
    can = device.can_rest
    assert device.rest() == can
    release.join()
    device.synchronize()
    assert (flag.numpy(np.uint32) == 1).all()
    device.wake()
    gate.close()
    flag.close()


def test_a_graph_wakes_it(device: Device, program: Program) -> None:
    with device.alloc(256) as out, device.alloc(256) as source:
        source.copy_from(np.full(64, 3, np.uint32))
        arguments = (out, source, np.uint32(64), np.uint32(5))
        with device.capture() as graph, device.queue() as queue:
            queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
        for _ in range(3):
            device.rest()
            graph.replay()
            device.synchronize()
            assert (out.numpy(np.uint32) == 15).all()
        graph.close()
    device.wake()


@pytest.fixture
def opener(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_device_closes_at_rest(opener: str) -> None:
    device = hcq.open(opener)
    device.rest()
    device.close()
    for call in (device.rest, device.wake):
        with pytest.raises(Closed):
            call()
