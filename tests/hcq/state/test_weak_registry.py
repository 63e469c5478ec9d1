"""Objects that threads add, drop and list at the same time."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import pytest

from ugpu import hcq
from ugpu.hcq.state.weak_registry import WeakRegistry


class Thing:
    pass


@pytest.fixture
def often() -> Iterator[None]:
    """The interpreter changes threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_it_lists_what_lives() -> None:
    registry: WeakRegistry[Thing] = WeakRegistry()
    first, second = Thing(), Thing()
    for thing in (first, second, second):
        registry.add(thing)
    assert list(registry) == [first, second] and first in registry
    registry.discard(first)
    registry.discard(first)
    assert list(registry) == [second] and first not in registry
    del second, thing
    gc.collect()
    assert list(registry) == []


@pytest.mark.usefixtures("often")
def test_threads_change_it_while_one_lists() -> None:
    registry: WeakRegistry[Thing] = WeakRegistry()
    stop = threading.Event()

    def change() -> None:
        kept: list[Thing] = []
        while not stop.is_set():
            kept.append(Thing())
            registry.add(kept[-1])
            if len(kept) > 20:
                registry.discard(kept.pop(0))
                del kept[5]

    threads = [threading.Thread(target=change) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2000):
            list(registry)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.usefixtures("often")
def test_sensors_beside_allocations() -> None:
    """A device's sensors are read without its lock."""
    stop, errors = threading.Event(), []
    with hcq.open("cpu", threads=1) as device:

        def use() -> None:
            while not stop.is_set():
                device.alloc(64).close()
                device.alloc(64)

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(1000):
                for sensor in device.sensors():
                    sensor.read()
        except RuntimeError as error:
            errors.append(error)
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
