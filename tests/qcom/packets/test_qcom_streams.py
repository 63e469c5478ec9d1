"""What whole workloads give to an Adreno's command processor, against golden files; nothing is
violated."""

from __future__ import annotations

import pytest

from tests.conftest import Golden
from tests.support.adreno.adreno_streams import Streams
from tests.support.adreno.mesa import needs_mesa
from tests.support.corpus.workloads import Places, lines_of
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.virtual.adreno.gpu import build_machine


def name_queues(device: Device, places: Places) -> None:
    """Name the memory of the device's queues."""
    for queue in device.driver.all_queues():
        short = queue.name.replace(" ", "")
        places.add(f"{short}.arena", queue.arena.address, queue.arena.size)
        places.add(f"{short}.timeline", queue.timeline.memory.address, 16)


@needs_mesa
@pytest.mark.golden
@pytest.mark.parametrize("chip", ["a630", "a740"])
def test_streams_of_workloads(chip: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = build_machine(chip)
    try:
        with (
            hcq.open(f"virtual:{chip}", chip=machine) as device,
            device.load(contract_object(device.target)) as program,
        ):
            places = Places()
            name_queues(device, places)
            places.add("scale", program["scale"].address, 4)
            streams = Streams(monkeypatch, machine, places)
            lines = lines_of(device, program, places, streams.take)
        assert machine.violations == []
    finally:
        machine.close()
    golden.check(f"streams/{chip}.txt", "\n".join(lines))
