"""The driver where the card reaches hardly any memory outside itself, behind the virtual bridge:
rings, counters and images lie in VRAM, copies go through the bridge's SRAM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from ugpu import hcq
from ugpu.am.device.device import AmDevice
from ugpu.hcq.copies.bulk_transfer import BulkTransfer
from ugpu.hcq.errors import DeviceHang, DeviceLost, FirmwareSilent, LinkDown
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import QueueKind
from ugpu.usbgpu.bridge.transport import UsbTransport
from ugpu.virtual.amd.bus.endpoint import ChipEndpoint
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions


@dataclass
class Box:
    card: ChipEndpoint
    enclosure: Enclosure

    @contextmanager
    def opened(self) -> Iterator[AmDevice]:
        with hcq.open("virtual:navi31+usb", enclosure=self.enclosure) as device:
            assert isinstance(device, AmDevice)
            yield device


@pytest.fixture
def box() -> Iterator[Box]:
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
    made = Box(card, Enclosure(card, EnclosureOptions()))
    yield made
    made.enclosure.close()
    card.chip.close()
    assert made.enclosure.objections == [] and card.chip.violations == []


def test_copies_in_and_out_of_all_sizes(box: Box) -> None:
    random = np.random.default_rng(1)
    with box.opened() as device:
        half = device.driver.core.copies
        assert isinstance(half, BulkTransfer)
        whole = device.alloc(5 << 20)
        for size in (1, 4, 511, 4096, half.staging_size, half.staging_size + 1, half.half + 4,
                     3 * half.half + 5, 40 * (100 << 10)):  # fmt: skip
            data = random.integers(0, 256, size, np.uint8)
            buffer = whole[256 : 256 + size]
            buffer.copy_from(data)
            assert (buffer.numpy() == data).all(), size


def test_host_buffers_lie_in_vram(box: Box) -> None:
    with box.opened() as device:
        buffer, host = device.alloc(4096), device.alloc(4096, placement=Placement.HOST)
        assert host.view is None and host.access is not None
        host.copy_from(b"abc")
        assert host.numpy()[:3].tobytes() == b"abc" and bytes(host.access[:3]) == b"abc"
        with device.queue() as queue:
            queue.copy(buffer, host)
        device.synchronize()
        assert buffer.numpy()[:3].tobytes() == b"abc"


def test_many_submissions_and_a_graph(box: Box) -> None:
    with box.opened() as device:
        one, two = device.alloc(1 << 12), device.alloc(1 << 12)
        one.fill(1)
        for _ in range(50):
            with device.queue() as queue:
                queue.copy(two, one)
        device.synchronize()
        with device.capture() as graph, device.queue(QueueKind.COMPUTE) as queue:
            for _ in range(20):
                queue.copy(two, one)
        other = device.alloc(1 << 12)
        other.fill(3)
        graph.replay()
        graph.replay(inputs={one: other})
        graph.wait()
        assert (two.numpy(np.uint32) == 3).all()
        graph.replay()
        graph.wait()
        assert (two.numpy(np.uint32) == 1).all()


def test_a_warm_start_and_a_reset(box: Box) -> None:
    with box.opened() as device:
        assert not device.warm
        device.alloc(4096).copy_from(b"abc")
    with box.opened() as device:
        assert device.warm
        for _ in range(2):
            buffer = device.alloc(4096)
            buffer.copy_from(b"abc")
            assert buffer.numpy()[:3].tobytes() == b"abc"
            device.driver.core.failure = DeviceHang("told so")
            device.reset()


def test_a_graph_survives_the_loss_of_vram(box: Box) -> None:
    with box.opened() as device:
        buffer = device.alloc(4096)
        with device.capture() as graph, device.queue(QueueKind.COPY) as queue:
            queue.fill(buffer, 5)
        for broken in (None, FirmwareSilent("told so"), LinkDown("told so")):
            if broken is not None:
                device.driver.core.failure = broken
                device.reset()
                assert device.vram_lost
            graph.replay()
            graph.wait()
            assert (buffer.numpy(np.uint32) == 5).all()
            buffer.fill(0)


def test_copies_that_are_cut_off_leave_the_queue_usable(box: Box) -> None:
    with box.opened() as device:
        transport = device.transport
        assert isinstance(transport, UsbTransport)
        usb = transport.bridge.usb
        size = 4 << 20
        buffer, data = device.alloc(size), np.arange(size // 4, dtype=np.uint32)
        for name, copy in (
            ("submit_out", lambda: buffer.copy_from(data)),
            ("submit_in", lambda: buffer.numpy()),
        ):
            submit, left = getattr(usb, name), [6]

            def cut_off(*args: int, submit: object = submit, left: list[int] = left) -> object:
                left[0] -= 1
                if not left[0]:
                    raise KeyboardInterrupt
                return submit(*args)  # type: ignore[operator]

            setattr(usb, name, cut_off)
            with pytest.raises(KeyboardInterrupt):
                copy()
            setattr(usb, name, submit)
            buffer.copy_from(data)
            assert (buffer.numpy(np.uint32) == data).all()


@pytest.mark.parametrize("what", ["cable", "card"])
def test_pulled_out(box: Box, what: str) -> None:
    with box.opened() as device:
        buffer = device.alloc(4096)
        box.enclosure.unplug() if what == "cable" else box.card.chip.unplug()
        with pytest.raises(DeviceLost):
            buffer.fill(1)
        with pytest.raises(DeviceLost):
            device.synchronize()
