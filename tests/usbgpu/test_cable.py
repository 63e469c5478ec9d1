"""The cable is pulled anywhere while the driver works: one named error for all who wait, nothing
that hangs, and after plugging it in again everything works. All transfers are counted ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions

LIMIT_S = 60.0


def some(quick: int, slow: int) -> list[object]:
    """Numbers of examples, most of them for the slow suite."""
    marked = [pytest.param(number, marks=pytest.mark.slow) for number in range(quick, slow)]
    return [*range(quick), *marked]


DATA = np.arange(200_000, dtype=np.uint32)


@pytest.fixture(scope="module")
def box() -> Iterator[Enclosure]:
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
    made = Enclosure(card, EnclosureOptions())
    yield made
    made.close()
    card.chip.close()


def plugged(box: Enclosure) -> None:
    box.pulls.clear()
    if not box.plugged:
        box.plug()


def opened(box: Enclosure) -> Device:
    return hcq.open("virtual:navi31+usb", enclosure=box)


def work(device: Device) -> None:
    buffer, other = device.alloc(DATA.nbytes), device.alloc(DATA.nbytes)
    buffer.copy_from(DATA)
    with device.queue() as queue:
        queue.copy(other, buffer)
    with device.capture() as graph, device.queue(QueueKind.COPY) as queue:
        queue.copy(buffer, other)
    device.synchronize()
    graph.replay()
    graph.wait()
    assert (buffer.numpy(np.uint32) == DATA).all()


@pytest.mark.parametrize("number", some(3, 12))
def test_pulled_while_it_comes_up(box: Enclosure, number: int) -> None:
    plugged(box)
    # A cold start is about 1,500 transfers.
    transfer = int(np.random.default_rng(number).integers(0, 1500))
    box.pull_at(transfer)
    try:
        opened(box).close()
    except UgpuError as error:
        assert isinstance(error, DeviceLost), error
        assert not box.plugged
    plugged(box)
    with opened(box) as device:
        work(device)


@pytest.mark.parametrize("number", some(4, 30))
def test_pulled_while_it_works(box: Enclosure, number: int) -> None:
    plugged(box)
    transfer = int(np.random.default_rng(100 + number).integers(0, 200))
    with opened(box) as device:
        box.pull_at(transfer)
        with pytest.raises(DeviceLost):
            for _ in range(50):
                work(device)
        for use in (device.synchronize, lambda: device.alloc(16), device.reset):
            with pytest.raises(UgpuError):
                use()
    assert device.closed and not box.plugged
    plugged(box)
    with opened(box) as device:
        work(device)


@pytest.mark.parametrize("transfer", [1, 20])
def test_pulled_while_it_closes(box: Enclosure, transfer: int) -> None:
    plugged(box)
    device = opened(box)
    box.pull_at(transfer)
    device.close()
    assert device.closed
    plugged(box)
    with opened(box) as device:
        work(device)


def test_all_who_wait_are_told_at_once(box: Enclosure) -> None:
    plugged(box)
    with opened(box) as device, ThreadPoolExecutor(4) as pool:
        timelines = [device.queue(kind).timeline for kind in QueueKind]
        waiting = threading.Barrier(5)

        def wait(number: int) -> None:
            timeline = timelines[number % len(timelines)]
            waiting.wait(LIMIT_S)
            with pytest.raises(DeviceLost):
                timeline.wait(timeline.last + 1, limit_s=LIMIT_S)

        told = [pool.submit(wait, number) for number in range(4)]
        waiting.wait(LIMIT_S)
        box.unplug()
        for one in told:
            one.result(LIMIT_S)
