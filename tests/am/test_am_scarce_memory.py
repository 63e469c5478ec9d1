"""The driver where the chip reaches hardly any memory outside itself: rings, counters and images
lie in VRAM, copies go through what there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from am.device import AmDevice, open_device
from am.virtual.chip import Chip
from am.virtual.options import ChipOptions
from hcq.errors import DeviceHang, DeviceLost
from hcq.memory import Placement
from hcq.queue import QueueKind
from tests.support.am_navi31 import attach, build_chip
from tests.support.scarce_transport import BYTES, ScarceTransport


@pytest.fixture
def chip() -> Iterator[Chip]:
    made = build_chip(ChipOptions(vram=256 << 20))
    yield made
    made.close()


def opened(chip: Chip, **options: str) -> AmDevice:
    attachment = attach(chip=chip)
    scarce = ScarceTransport(attachment.transport)
    return open_device("virtual:scarce", replace(attachment, transport=scarce), **options)


def test_copies_and_fills(chip: Chip) -> None:
    data = np.random.default_rng(1).integers(0, 1 << 32, 300_000, np.uint32)
    with opened(chip) as device:
        assert isinstance(device.transport, ScarceTransport)
        buffer = device.alloc(data.nbytes)
        buffer.copy_from(data)
        assert (buffer.numpy(np.uint32) == data).all()
        assert device.transport.taken <= BYTES
        buffer.fill(7)
        assert (buffer.numpy(np.uint32) == 7).all()
        host = device.alloc(4096, placement=Placement.HOST)
        assert host.view is None and host.access is not None
        host.copy_from(b"abc")
        assert host.numpy()[:3].tobytes() == b"abc"
        with device.queue() as queue:
            queue.copy(buffer[:4096], host)
        device.synchronize()
        assert buffer.numpy()[:3].tobytes() == b"abc"
    assert not chip.violations


def test_many_submissions_and_a_graph(chip: Chip) -> None:
    with opened(chip) as device:
        one, two = device.alloc(1 << 16), device.alloc(1 << 16)
        one.fill(1)
        for _ in range(50):
            with device.queue() as queue:
                queue.copy(two, one)
        device.synchronize()
        with device.capture() as graph, device.queue(QueueKind.COMPUTE) as queue:
            for _ in range(20):
                queue.copy(two, one)
        other = device.alloc(1 << 16)
        other.fill(3)
        graph.replay()
        graph.replay(inputs={one: other})
        graph.wait()
        assert (two.numpy(np.uint32) == 3).all()
        graph.replay()
        graph.wait()
        assert (two.numpy(np.uint32) == 1).all()


def test_a_warm_start_and_a_reset(chip: Chip) -> None:
    with opened(chip) as device:
        assert not device.warm
    with opened(chip) as device:
        assert device.warm
        device.failure = DeviceHang("told so")
        device.reset()
        buffer = device.alloc(4096)
        buffer.fill(9)
        assert (buffer.numpy(np.uint32) == 9).all()


def test_a_chip_that_is_pulled_out(chip: Chip) -> None:
    device = opened(chip)
    buffer = device.alloc(4096)
    chip.unplug()
    with pytest.raises(DeviceLost):
        buffer.fill(1)
    device.close()
