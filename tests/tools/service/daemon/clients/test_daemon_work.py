"""Work of a lease at the daemon: signals that nothing waits for are left out, images are placed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

from tests.support.service.daemon import Running, started
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.queue import QueueKind
from ugpu.tools.service.daemon.clients import work
from ugpu.tools.service.daemon.clients.service import Service
from ugpu.tools.service.daemon.clients.work import Work


@pytest.fixture(scope="module", params=["cpu", "virtual:navi31"])
def running(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Running]:
    made = started(tmp_path_factory.mktemp("d"), count=1, device=request.param, inside=True)
    yield made
    made.close()


def work_of(running: Running, gpu: Device) -> Work:
    (client,) = [each for each in running.daemon.clients if each.lease is not None]
    assert isinstance(client.holder, Service)
    return client.holder.holder.work


def told(gpu: Device, queue: int = 0) -> int:
    """What the timeline's memory says, as another queue sees it."""
    return cast(int, gpu.driver.all_queues()[queue].timeline.value)


def test_a_queue_is_signalled_in_memory_once_another_waits_for_it(running: Running) -> None:
    with running.lease() as gpu, gpu.alloc(64) as one, gpu.alloc(64) as two:
        held = work_of(running, gpu)
        timeline = held.timelines[0]
        compute = gpu.queue()
        for number in range(3):
            value = compute.fill(one, number).submit()
        gpu.synchronize()
        assert compute.timeline.value == value == 3
        assert timeline.value == 0, "a signal that nothing waits for"
        # What was submitted before the wait counts too, also where the wait comes late.
        gpu.queue(QueueKind.COPY).wait(compute.timeline, value).copy(two, one).submit()
        gpu.synchronize()
        assert (two.numpy(np.uint32) == 2).all() and timeline.value == 3
        compute.fill(one, 8).submit()
        gpu.synchronize()
        assert timeline.value == 4
        gpu.queue(QueueKind.COPY).wait(compute.timeline, 4).copy(two, one).submit()
        gpu.synchronize()
        assert (two.numpy(np.uint32) == 8).all()


def test_a_graph_placed_before_another_queue_waits_for_it(running: Running) -> None:
    """It is encoded again, with the signal."""
    with running.lease() as gpu, gpu.alloc(64) as one, gpu.alloc(64) as two:
        with gpu.capture() as graph:
            gpu.queue().fill(one, 5).submit()
        graph.replay()
        graph.wait()
        held = work_of(running, gpu)
        (image,) = held._images.values()
        assert image.placed is not None and not image.signals
        timeline = gpu.queue().timeline
        for number in range(3):
            one.fill(0)
            graph.replay()
            gpu.queue(QueueKind.COPY).wait(timeline, timeline.last).copy(two, one).submit()
            gpu.synchronize()
            assert (two.numpy(np.uint32) == 5).all(), number
        graph.replay()
        graph.wait()
        assert image.signals and image.placed is not None
        assert held.timelines[0].value == told(gpu)
        graph.close()
        gpu.synchronize()
        gpu.alloc(64).close()  # a call: what came before it was carried out
        assert not held._images and held._placed == 0


def test_images_without_room_are_copied(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with running.lease() as gpu, gpu.alloc(64) as one:
        graphs = []
        for size in (work.PLACED, 0):
            monkeypatch.setattr(work, "PLACED", size)
            with gpu.capture() as graph:
                gpu.queue().fill(one, 7 + size).submit()
            graphs.append((graph, 7 + size))
        for graph, value in graphs * 2:
            graph.replay()
            graph.wait()
            assert (one.numpy(np.uint32) == value & 0xFFFF_FFFF).all()
        placed = [each.placed is not None for each in work_of(running, gpu)._images.values()]
        assert len(placed) == 2
        for graph, _ in graphs:
            graph.close()


def test_an_image_that_is_under_way_is_not_written(running: Running) -> None:
    """A client that does not wait for its replays gets what it asked for, in order."""
    with running.lease() as gpu, gpu.alloc(64) as one, gpu.alloc(64 * 8) as all_:
        with gpu.capture() as graph:
            gpu.queue().copy(all_[0:64], one).submit()
        one.fill(3)
        gpu.synchronize()
        graph.replay()
        graph.wait()
        connection, resident = gpu.driver.connection, graph.images()[0]
        (queue,) = [q for q in gpu.driver.all_queues() if q.index == 0]
        places = resident.values()
        target = int(all_.address)
        for number in range(8):
            given = np.where(places == target, target + 64 * number, places)
            value = queue.timeline.last + 1
            connection.post("replay", [resident.number, value], data=given.tobytes())
            queue.timeline.last = value
        gpu.synchronize()
        assert (all_.numpy(np.uint32) == 3).all()
        graph.close()
