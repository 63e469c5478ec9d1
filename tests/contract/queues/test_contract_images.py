"""Transient memory of queues at its limit: nothing overwrites an image that waits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

import ugpu.hcq.cpu.queue
from tests.support import holdings
from tests.support.stalls import Stall, ring_limit, waiting
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.rings.ring import RingQueue
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import Queue, QueueKind

pytestmark = pytest.mark.each_driver

ARENA = 1 << 16  # smaller than it usually is: small images reach its limits


@pytest.fixture(scope="module")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """A device whose queues have little transient memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RingQueue, "arena_size", ARENA)
        patch.setattr(ugpu.hcq.cpu.queue, "ARENA_SIZE", ARENA)
        with hcq.open(request.param) as opened:
            yield opened


def image(device: Device, kind: QueueKind, out: Buffer, number: int, share: float) -> Queue:
    """A submission whose image takes `share` of the queue's transient memory, and then notes its
    number."""
    queue = device.queue(kind)
    (fill,) = queue.fill(out[:4], 7).commands
    one, many = (len(queue.hardware.encode([fill] * count).words) for count in (1, 65))
    for _ in range(64 * int(share * ARENA) // (4 * (many - one)) - 3):
        queue.fill(out[:4], 7)
    return queue.fill(out[4 * number : 4 * number + 4], number)


def submit_all(queues: list[Queue]) -> None:
    for queue in queues:
        queue.submit()


@pytest.mark.parametrize("kind", QueueKind)
def test_images_that_wait_are_not_overwritten(
    device: Device, kind: QueueKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = device.queue(kind).hardware
    ring_limit(hardware)
    with device.alloc(4 * 64) as out:
        for share in (0.07, 0.113):
            out.fill(0)
            with Stall(device, kind) as stall:
                number, held = 1, 0
                while number < 32:
                    queue = image(device, kind, out, number, share)
                    words = len(hardware.encode(queue.commands).words)
                    if not hardware.room(words + 16):
                        break
                    queue.submit()
                    held += 4 * words
                    number += 1
                assert 0.75 * ARENA < held <= ARENA, "all that fits is taken, and no more"
                rest = [image(device, kind, out, number + n, share) for n in range(3)]
                thread = waiting(device, monkeypatch, partial(submit_all, rest))
                stall.release()
                thread.join()
            expected = np.arange(1, number + 3)
            assert (out.numpy(np.uint32)[1 : number + 3] == expected).all()


@pytest.mark.parametrize("kind", QueueKind)
def test_images_of_all_sizes_pass(
    device: Device, kind: QueueKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that would not fit behind each other have memory of their own."""
    monkeypatch.setattr(device, "limit_s", 5.0)
    with device.alloc(4 * 64) as out:
        for number, share in enumerate((0.3, 0.75, 0.45, 0.49, 0.51, 0.3, 0.97, 1.2), 1):
            image(device, kind, out, number, share).submit()
        device.synchronize()
        assert (out.numpy(np.uint32)[1:9] == np.arange(1, 9)).all()


@pytest.mark.parametrize("kind", QueueKind)
def test_memory_of_large_images_is_given_back(device: Device, kind: QueueKind) -> None:
    hardware = device.queue(kind).hardware
    with device.alloc(16) as out:

        def once() -> None:
            image(device, kind, out, 1, 0.75).submit()
            device.synchronize()
            with device.driver.core.lock:
                hardware.reclaim()

        once()
        before = holdings.count(device)
        for _ in range(3):
            once()

        def no_more() -> bool:
            """Less is no leak: earlier work may end meanwhile. A slot's fence comes after the
            timeline that `synchronize` waits for."""
            with device.driver.core.lock:
                hardware.reclaim()
            after = holdings.count(device)
            return not after.kernel - before.kernel and after.device_bytes <= before.device_bytes

        until(no_more, "the memory of the images")
