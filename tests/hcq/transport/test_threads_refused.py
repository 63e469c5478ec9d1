"""A system that starts no more threads: a named error, and neither threads nor memory stay."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ugpu import hcq
from ugpu.hcq.cpu import processor
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import OutOfMemory, UgpuError
from ugpu.hcq.transport.interrupts import EventWatch
from ugpu.hcq.transport.system import System
from ugpu.virtual.shader.threads.crew import Crew

THREADS = 5  # of the device: four helpers, and one for each of two queues
STARTED = THREADS - 1 + 2


class Limit:
    """Lets so many threads start, then none, as Python says it where pthread_create gives
    EAGAIN."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.started: list[threading.Thread] = []
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if not self.left:
                raise RuntimeError("can't start new thread")
            self.left -= 1
            self.started.append(thread)
            real(thread)

        monkeypatch.setattr(threading.Thread, "start", start)

    def allow(self, count: int) -> None:
        self.left, self.started = count, []

    @property
    def alive(self) -> list[str]:
        return [thread.name for thread in self.started if thread.is_alive()]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    return Limit(monkeypatch)


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """What was made of the structures that native threads use."""
    made: list[weakref.ref[Any]] = []
    for kind in (processor.Pool, processor.Server):
        real = kind.__init__

        def init(self: Any, *arguments: Any, _real: Any = real) -> None:
            made.append(weakref.ref(self))
            _real(self, *arguments)

        monkeypatch.setattr(kind, "__init__", init)
    yield made


@pytest.mark.parametrize("allowed", range(STARTED))
def test_opening_cpu_leaves_nothing(
    limit: Limit, words: list[weakref.ref[Any]], allowed: int
) -> None:
    limit.allow(allowed)
    with pytest.raises(OutOfMemory, match="could not start thread 'cpu") as caught:
        hcq.open("cpu", threads=THREADS)
    assert "ulimit -u" in str(caught.value.facts["remedy"])
    assert len(limit.started) == allowed and limit.alive == []
    del caught
    gc.collect()
    assert words and [ref() for ref in words if ref() is not None] == []


@pytest.mark.parametrize("allowed", [0, THREADS - 2, THREADS - 1, THREADS])
def test_a_reset_that_fails_can_be_repeated(limit: Limit, allowed: int) -> None:
    limit.allow(STARTED)
    with hcq.open("cpu", threads=THREADS) as device:
        before = limit.started
        limit.allow(allowed)
        with pytest.raises(OutOfMemory):
            device.reset()
        assert not any(thread.is_alive() for thread in before)
        half = limit.started
        limit.allow(STARTED)
        device.reset()
        assert not any(thread.is_alive() for thread in half)
        with device.alloc(64) as buffer:
            device.queue().fill(buffer, 7).submit()
            device.synchronize()
            assert (buffer.numpy(np.uint32) == 7).all()
    assert limit.alive == []


def test_closing_after_a_reset_that_failed(limit: Limit) -> None:
    limit.allow(STARTED)
    device = hcq.open("cpu", threads=THREADS)
    limit.allow(THREADS)
    with pytest.raises(OutOfMemory):
        device.reset()
    device.close()
    assert limit.alive == []


def test_a_crew_goes_on_with_those_it_has(limit: Limit) -> None:
    crew = Crew([0, 1, 2], "crew")
    limit.allow(1)
    done: list[int] = []
    with pytest.raises(OutOfMemory):
        crew.run(3, lambda worker, number: done.append(number))
    limit.allow(1)
    crew.run(3, lambda worker, number: done.append(number))
    assert sorted(done[-3:]) == [0, 1, 2]
    crew.close()
    assert limit.alive == []


def test_a_watch_gives_its_descriptors_back(limit: Limit) -> None:
    class Counting(System):
        held = 0

        def eventfd(self) -> int:
            self.held += 1
            return super().eventfd()

        def close(self, descriptor: int) -> None:
            self.held -= 1
            super().close(descriptor)

    system = Counting()
    with pytest.raises(OutOfMemory):
        EventWatch(system, {"one": bool, "two": bool})
    assert system.held == 0


def _works(device: Device) -> bool:
    """Whether work comes to its end; the device is closed once threads can be had again."""
    try:
        with device.alloc(64) as buffer:
            device.queue().fill(buffer, 7).submit()
            device.synchronize()
    except UgpuError:
        return False
    return True


@pytest.mark.parametrize("name", ["virtual:navi31", "virtual:gh100"])
def test_a_model_that_gets_no_thread_says_so_and_closes(limit: Limit, name: str) -> None:
    """The thread that is missing is one of its engines, which a doorbell starts."""
    for allowed in range(64):
        limit.allow(allowed)
        try:
            device = hcq.open(name)
        except UgpuError:
            assert limit.alive == []
            continue
        worked = _works(device)
        limit.left = 64
        device.close()
        assert limit.alive == []
        if worked:
            assert allowed, "it works without a thread"
            return
    pytest.fail("it never worked")
