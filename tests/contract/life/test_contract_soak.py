"""Many submissions without a wait: past every ring and pool, on all queues, from two threads."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from ugpu.hcq.device.device import Device
from ugpu.hcq.work.queue import QueueKind

pytestmark = pytest.mark.each_driver


def soak(device: Device, kind: QueueKind, index: int, threads: int, count: int) -> None:
    """Each thread fills a buffer of its own, `count` times, with rising numbers."""
    timeline = device.driver.hardware_queues(kind)[index].timeline
    before = timeline.last
    buffers = [device.alloc(64) for _ in range(threads)]
    values: list[list[int]] = [[] for _ in range(threads)]

    def work(number: int) -> None:
        for turn in range(count):
            queue = device.queue(kind, index).fill(buffers[number], turn + 1)
            values[number].append(queue.submit())

    workers = [threading.Thread(target=work, args=(n,)) for n in range(1, threads)]
    for worker in workers:
        worker.start()
    work(0)
    for worker in workers:
        worker.join()
    device.synchronize()
    assert sorted(itertools.chain(*values)) == list(range(before + 1, before + 1 + threads * count))
    assert all(given == sorted(given) for given in values)
    for buffer in buffers:
        assert (buffer.numpy(np.uint32) == count).all()
        buffer.close()


def queues(device: Device) -> list[tuple[QueueKind, int]]:
    hardware = device.driver.hardware_queues
    return [(kind, i) for kind in QueueKind for i in range(len(hardware(kind)))]


def test_more_than_any_ring_holds(device: Device) -> None:
    """The rings have 1,024 or 4,096 places."""
    for kind, index in queues(device):
        soak(device, kind, index, 1, 2100 if device.name != "cpu" else 4500)


def test_two_threads_on_one_queue(device: Device) -> None:
    kind, index = queues(device)[0]
    soak(device, kind, index, 2, 1100 if device.name != "cpu" else 2200)


@pytest.mark.slow
def test_many_thousands(device: Device) -> None:
    """Twice around the longest ring and more; a hundred thousand on cpu, where it costs little."""
    count = 100_000 if device.name == "cpu" else 10_000
    for kind, index in queues(device):
        soak(device, kind, index, 1, count)
        soak(device, kind, index, 2, count // 10)
