"""Rings at their limit: a stalled queue takes what its ring holds and no more, and what waits for a
place does not hold the device's lock."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.stalls import Stall, ring_limit, waiting
from ugpu.hcq.device.device import Device
from ugpu.hcq.work.queue import QueueKind

pytestmark = pytest.mark.each_driver


@pytest.mark.parametrize("kind", QueueKind)
def test_a_ring_is_full_one_before_its_size(
    device: Device, kind: QueueKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = device.queue(kind).hardware
    limit = ring_limit(hardware)
    more = limit // 2  # past the end of the ring, and round
    with device.alloc(4 * (limit + more)) as out:
        out.fill(0)

        def submit(numbers: range) -> None:
            for number in numbers:
                device.queue(kind).fill(out[4 * number : 4 * number + 4], number + 1).submit()

        with Stall(device, kind) as stall:
            count = 1
            while hardware.room(64) and count < 2 * limit:
                submit(range(count, count + 1))
                count += 1
            assert count == limit
            rest = range(count, limit + more)
            thread = waiting(device, monkeypatch, lambda: submit(rest))
            stall.release()
            thread.join()
        found = out.numpy(np.uint32)
        assert (found[1:] == np.arange(2, limit + more + 1)).all()
