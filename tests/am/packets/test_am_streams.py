"""What whole workloads give to the queues, against golden files; nothing is violated."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Golden
from tests.support.amd.am_navi31 import build_chip, opened
from tests.support.amd.am_streams import Streams
from tests.support.corpus.workloads import Places, lines_of
from tests.support.kernels import contract_object
from ugpu.am.chips import facts_of
from ugpu.am.device.device import AmDevice


def name_queues(device: AmDevice, places: Places) -> None:
    """Name the memory of the device's queues."""
    for queue in device.driver.all_queues():
        short = queue.name.replace(" ", "")
        places.add(f"{short}.arena", queue.arena.address, queue.arena.size)
        places.add(f"{short}.ring", queue.ring.address, queue.ring.size)
        places.add(f"{short}.control", queue.control.address, queue.control.size)
        places.add(f"{short}.timeline", queue.timeline.memory.address, 16)


@pytest.mark.golden
@pytest.mark.parametrize("name", ["navi31", "navi48"])
def test_streams_of_workloads(golden: Golden, name: str) -> None:
    chip: Any = build_chip(facts=facts_of(name))
    try:
        with opened(chip) as device, device.load(contract_object(device.target)) as program:
            places = Places()
            name_queues(device, places)
            places.add("scale", program["scale"].address, 4)
            streams = Streams(chip, places)
            lines = lines_of(device, program, places, streams.take)
        assert chip.violations == []
    finally:
        chip.close()
    golden.check(f"streams/{name}.txt", "\n".join(lines))
