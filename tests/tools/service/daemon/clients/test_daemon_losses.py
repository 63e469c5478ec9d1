"""Work of a lease that a reset at the server lost: the client's wait raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.service.daemon import Running, started
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceHang
from ugpu.hcq.work.queue import QueueKind
from ugpu.tools.service.daemon.clients.service import Service
from ugpu.tools.service.daemon.clients.work import Work


@pytest.fixture(scope="module", params=["cpu", "virtual:navi31"])
def running(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Running]:
    daemon = started(tmp_path_factory.mktemp("d"), count=1, device=request.param, inside=True)
    yield daemon
    daemon.close()


@pytest.fixture
def gpu(running: Running) -> Iterator[Device]:
    with running.lease() as gpu:
        yield gpu


def work_of(running: Running) -> Work:
    (client,) = [each for each in running.daemon.clients if each.lease is not None]
    assert isinstance(client.holder, Service)
    return client.holder.holder.work


class Stuck:
    """Work of a lease behind a wait that does not end, under way at the server."""

    def __init__(self, running: Running, gpu: Device, kind: QueueKind = QueueKind.COMPUTE) -> None:
        self.work = work_of(running)
        self.core = self.work.core
        self.gpu = gpu
        self.gate = gpu.timeline("gate")
        self.buffer = gpu.alloc(64)
        self.buffer.fill(7)
        queue = gpu.queue(kind).wait(self.gate, 1).fill(self.buffer, 9)
        self.timeline = queue.timeline
        self.value = queue.submit()
        gpu.info()  # a call: what came before it was carried out
        assert not self.core.idle

    def check_works(self) -> None:
        """The client resets, and what it submits then is not affected."""
        self.gpu.reset()
        assert (self.buffer.numpy(np.uint32) == 7).all()
        queue = self.gpu.queue().fill(self.buffer, 3)
        queue.timeline.wait(queue.submit())
        assert (self.buffer.numpy(np.uint32) == 3).all()
        self.gpu.synchronize()


@pytest.mark.parametrize("kind", list(QueueKind))
def test_a_wait_for_lost_work_raises(running: Running, gpu: Device, kind: QueueKind) -> None:
    stuck = Stuck(running, gpu, kind)
    stuck.core.reset()
    for _ in range(2):
        with pytest.raises(DeviceHang, match="was reset: its work was lost"):
            stuck.timeline.wait(stuck.value)
    stuck.check_works()


WAITS: dict[str, Callable[[Stuck], object]] = {
    "synchronize": lambda stuck: stuck.gpu.synchronize(),
    "timeline": lambda stuck: stuck.timeline.wait(),
    "copy_to": lambda stuck: stuck.buffer.numpy(),
    "copy_from": lambda stuck: stuck.buffer.copy_from(bytes(64)),
}


@pytest.mark.parametrize("wait", list(WAITS))
def test_every_wait_raises(running: Running, gpu: Device, wait: str) -> None:
    stuck = Stuck(running, gpu)
    stuck.core.reset()
    with pytest.raises(DeviceHang, match="was reset: its work was lost"):
        WAITS[wait](stuck)
    stuck.check_works()


def test_later_work_that_ended_does_not_hide_it(running: Running, gpu: Device) -> None:
    """The watching thread looks only after later work of the queue has ended too."""
    stuck = Stuck(running, gpu)
    (hardware,) = [each for each in stuck.work.hardware if each.timeline.value < each.timeline.last]
    with stuck.work._lock:
        stuck.core.reset()
        hardware.timeline.wait(stuck.core.submit(hardware, []))
    with pytest.raises(DeviceHang, match="was reset: its work was lost"):
        stuck.timeline.wait(stuck.value)
    stuck.check_works()


def test_a_client_that_resets_before_it_is_told(running: Running, gpu: Device) -> None:
    """Its own reset succeeds: what it lost before is lost anyway."""
    stuck = Stuck(running, gpu)
    lasts = [queue.timeline.last for queue in gpu.driver.all_queues()]
    with stuck.work._lock:
        other = threading.Thread(target=stuck.core.reset)
        other.start()
        other.join()
        stuck.work.reset(lasts, 0, 0)
    assert stuck.work.failed is None
    stuck.check_works()
