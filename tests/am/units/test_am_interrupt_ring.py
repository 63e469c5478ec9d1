"""The interrupt ring wraps, is emptied in time, and an overflow loses no fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, run
from ugpu.hcq.errors import PageFault
from ugpu.hcq.work.queue import QueueKind


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip()
    yield made
    made.close()


def test_the_interrupt_ring_wraps(chip: Any) -> None:
    """More interrupts than the ring has entries: none is lost, none is seen twice."""
    with opened(chip) as device:
        queue = device.queue()
        for _ in range(2100):
            queue.barrier().submit()
            queue.timeline.wait()
        device.synchronize()
        assert device.driver.units.ih.overflows == 0
        assert device.driver.units.ih.read_pointer == 2100 * 32 % 0x10000
    assert chip.violations == []


def test_an_overflow_is_noticed_and_left_behind(chip: Any) -> None:
    with opened(chip) as device:
        ring = device.driver.units.ih
        for number in range(2100):
            chip.ih.raise_interrupt(0x14, 181, data=(number, 0, 0, 0))
        seen = [entry.data[0] for entry in ring.drain()]
        assert ring.overflows == 1
        assert seen == list(range(2100 - len(seen), 2100)) and len(seen) > 2000
        # The pointer's copy in memory says so until the next entry is written; the register does
        # not (Linux 6.12 ih_v6_0.c, ih_v6_0_get_wptr).
        assert ring.drain() == [] and ring.overflows == 1
        chip.ih.raise_interrupt(0x14, 181, data=(7777, 0, 0, 0))
        assert [entry.data[0] for entry in ring.drain()] == [7777]
        assert ring.overflows == 1


def test_submissions_without_a_wait_leave_room_for_faults(chip: Any) -> None:
    """Each signals by an interrupt, and nobody waits: the ring is emptied before it overflows."""
    with opened(chip) as device:
        for kind in QueueKind:
            for index in range(len(device.driver.hardware_queues(kind))):
                queue = device.queue(kind, index)
                for _ in range(2600):
                    queue.barrier().submit()
        device.synchronize()
        assert device.driver.units.ih.overflows == 0
    assert chip.violations == []


def test_a_fault_whose_entry_was_lost_is_found(chip: Any) -> None:
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        check_runs(device, program, out, 1)
        ring = device.driver.units.ih
        real, ring.drain = ring.drain, list  # type: ignore[method-assign]
        run(device, program, "read_at", out, np.uint64(0x1234_5678_9000))
        for number in range(2100):
            chip.ih.raise_interrupt(0x14, 181, data=(number, 0, 0, 0))
        ring.drain = real  # type: ignore[method-assign]
        with pytest.raises(PageFault) as caught:
            device.synchronize()
        assert caught.value.facts["address"] == 0x1234_5678_9000
        assert ring.overflows == 1
        device.reset()
        check_runs(device, program, out, 2)
    assert chip.violations == []
