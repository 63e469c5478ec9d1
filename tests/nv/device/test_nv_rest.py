"""An idle NVIDIA GPU gives its boost of the clocks back, and has it again with the next work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.interrupts import interrupted
from tests.support.nvidia.nv_machine import hanging, opened, powered, tenant, work
from tests.support.service.daemon import Running, scaled, settings_text
from tests.support.waiting import until
from ugpu.nv.device.device import NvDevice
from ugpu.tools.service.daemon.config import parse
from ugpu.virtual.nvidia.machine import VirtualMachine

TO_MAX = 2


@pytest.fixture(scope="module")
def machine() -> Iterator[VirtualMachine]:
    with powered("tu102") as made:
        yield made


@pytest.fixture
def device(machine: VirtualMachine) -> Iterator[NvDevice]:
    with opened(machine) as made:
        yield made


def boosts(machine: VirtualMachine) -> list[int]:
    """Of each client."""
    return [each for client in machine.clients.values() for each in client.boosts.values()]


def test_an_idle_gpu_has_no_boost_until_it_works(machine: VirtualMachine, device: NvDevice) -> None:
    assert device.can_rest and not device.resting and boosts(machine) == [TO_MAX]
    assert device.rest() and device.resting and boosts(machine) == [0]
    found = {(sensor.name, sensor.label): sensor.read() for sensor in device.sensors()}
    assert found["resting", "gfx"] == 1.0 and device.resting
    work(device)
    assert not device.resting and boosts(machine) == [TO_MAX]
    device.rest()
    device.wake()
    assert not device.resting and boosts(machine) == [TO_MAX]


def test_a_gpu_with_work_does_not_rest(machine: VirtualMachine, device: NvDevice) -> None:
    with hanging(device) as flag:
        with device.driver.core.lock:
            assert not device.driver.begin_rest()
        assert not device.resting and boosts(machine) == [TO_MAX]
        assert flag.view is not None
        flag.view[:4] = b"\1\0\0\0"
        device.synchronize()


def test_each_holder_has_a_boost_of_its_own(machine: VirtualMachine, device: NvDevice) -> None:
    assert device.rest()
    with tenant(device, "one") as one:
        assert device.resting and sorted(boosts(machine)) == [0, TO_MAX]
        work(one)
    assert device.resting and boosts(machine) == [0]


def test_rest_and_wake_that_are_cut_off(machine: VirtualMachine, device: NvDevice) -> None:
    for operation in (device.rest, device.wake):
        for place in interrupted(operation):
            assert device.resting or boosts(machine) == [TO_MAX], place
            device.wake()
            assert boosts(machine) == [TO_MAX] and not device.resting, place
            if operation == device.wake:
                device.rest()
        device.rest()
    work(device)


def test_a_daemon_lets_it_rest_between_leases(tmp_path: Path) -> None:
    made = Running(parse(settings_text(tmp_path, ["virtual:tu102"], "rest_s = 0.05")))
    try:
        (owned,) = made.daemon.owned
        until(lambda: owned.resting, "the GPU rests")
        assert made.daemon.devices()[0]["resting"] is True
        with made.lease() as gpu:
            assert not owned.resting and scaled(gpu)
        until(lambda: owned.resting, "the GPU rests again")
    finally:
        made.close()
