"""What hcq.device.driver asks of every driver, and what a device shows its users of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.device.driver import Driver
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind

SHARED = {"info", "sensors"}  # names that a user and a driver both need


@pytest.fixture
def opener(request: pytest.FixtureRequest) -> Iterator[Callable[[], Device]]:
    yield lambda: hcq.open(request.param)


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_a_device_shows_what_users_need(device: Device) -> None:
    names = public(device)
    assert len(names) < 40
    hooks = public(Driver) - SHARED
    assert not names & hooks, "hooks are the driver's"
    silent = [name for name in names if not inspect.getdoc(getattr(type(device), name))]
    assert silent == []


def test_drivers_override_the_interface_alone(device: Device) -> None:
    """Neither the core nor the user's object has anything that a driver replaces."""
    driver = device.driver
    assert isinstance(driver, Driver) and driver.core.driver is driver
    assert driver.core.device is device and device.name == driver.name
    assert type(driver.core).__name__ == "Core"
    own = {name for name in vars(type(device)) if not name.startswith("_")}
    assert not own & public(Device) - {"driver"}


def test_queues_last_as_long_as_the_device(device: Device) -> None:
    driver = device.driver
    before = list(driver.all_queues())
    assert before == [queue for kind in QueueKind for queue in driver.hardware_queues(kind)]
    assert all(driver.hardware_queues(kind) for kind in QueueKind)
    assert all(queue.core is driver.core for queue in before)
    device.reset()
    assert list(driver.all_queues()) == before


@pytest.mark.parametrize("placement", list(Placement))
def test_memory(device: Device, placement: Placement) -> None:
    driver = device.driver
    with driver.core.lock:
        made = [driver.allocate_memory(5000, placement) for _ in range(2)]
    first, second = made
    assert all(isinstance(buffer, Buffer) and buffer.size == 5000 for buffer in made)
    assert all(int(buffer.address) % 256 == 0 for buffer in made)
    assert all((buffer.access is not None) == (placement is Placement.HOST) for buffer in made)
    low, high = sorted(int(buffer.address) for buffer in made)
    assert low + 5000 <= high
    values = np.arange(5000, dtype=np.uint32).astype(np.uint8)
    second.copy_from(values)
    with driver.core.lock:
        driver.free_memory(first)
        driver.free_memory(first)  # as after an exception: done once
        third = driver.allocate_memory(5000, placement)
    third.copy_from(values[::-1].copy())
    assert (second.numpy() == values).all(), "freed twice, and nothing else"
    assert (third.numpy() == values[::-1]).all()
    with driver.core.lock:
        driver.free_memory(second)
        driver.free_memory(third)


def test_direct_access_is_offered_or_declined(device: Device) -> None:
    driver, values = device.driver, np.arange(64, dtype=np.uint8)
    with device.alloc(64) as buffer:
        device.synchronize()
        found = np.zeros(64, np.uint8)
        stored = driver.write_memory(buffer, values.data)
        assert driver.read_memory(buffer, found.data) == stored
        assert (found == (values if stored else 0)).all()
        buffer.copy_from(values)
        assert (buffer.numpy() == values).all()


def test_an_idle_device_reports_nothing(device: Device) -> None:
    driver = device.driver
    device.synchronize()
    with driver.core.lock:
        assert driver.poll() is None
        timeline = driver.all_queues()[0].timeline
        assert isinstance(driver.diagnose(timeline, timeline.last + 1), dict)
    driver.notify_memory_written()
    driver.prefetch_wake()
    driver.pause(0.0)
    driver.pause_until(timeline, timeline.last, 0.0)
    assert driver.is_idle_fast() in (True, False)
    driver.flush_output()
    assert driver.info() == device.info() and device.failure is None


def test_recovery_keeps_what_users_hold(device: Device) -> None:
    """Queues are made anew behind the same objects; buffers and programs stay where they are."""
    with (
        device.load(contract_object(device.target)) as program,
        device.alloc(256) as source,
        device.alloc(256) as result,
    ):
        places = [int(buffer.address) for buffer in (source, result)]
        entry = program["scale"].address
        device.reset()
        assert places == [int(buffer.address) for buffer in (source, result)]
        assert program["scale"].address == entry
        values = np.arange(64, dtype=np.uint32)
        source.copy_from(values)
        arguments = (result, source, np.uint32(64), np.uint32(3))
        with device.queue() as queue:
            queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
        assert (result.numpy(np.uint32) == 3 * values).all()


def test_a_closed_driver_takes_hints(opener: Callable[[], Device]) -> None:
    device = opener()
    driver = device.driver
    device.close()
    driver.prefetch_wake()
    device.close()
    assert device.closed
