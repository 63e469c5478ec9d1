"""An exception at any line of the driver leaves the device consistent: results are right, waits end
when the work does, memory in use is not freed, and none is lost."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from tests.contract.conftest import memory_used
from tests.support.devices import DEVICES
from tests.support.interrupts import interrupted
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import Closed
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.prepared import prepare
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind

pytestmark = [pytest.mark.each_driver, pytest.mark.cut_off]

COUNT = 256


class Check:
    """A launch and a copy whose results are looked at; values differ each time."""

    def __init__(self, device: Device, program: Program) -> None:
        self.device, self.kernel = device, program["scale"]
        self.source, self.result = device.alloc(4 * COUNT), device.alloc(4 * COUNT)
        self.host = np.arange(COUNT, dtype=np.uint32)
        self.source.copy_from(self.host)
        self.factors = count(3)

    def launch(self) -> int:
        """Submit; the result is what `expected` says once it has ended."""
        self.factor = np.uint32(next(self.factors))
        queue = self.device.queue()
        args = (self.result, self.source, np.uint32(COUNT), self.factor)
        return queue.launch(self.kernel, grid=(COUNT // 64,), block=(64,), args=args).submit()

    def works(self, where: object) -> None:
        self.device.queue().timeline.wait(self.launch())
        found = self.result.numpy(np.uint32)
        assert (found == self.host * self.factor).all(), where
        assert self.device.failure is None, where
        for kind in QueueKind:
            for hardware in self.device.driver.hardware_queues(kind):
                timeline = hardware.timeline
                assert hardware.intent is None and timeline.value == timeline.last, (where, kind)

    def close(self) -> None:
        self.source.close()
        self.result.close()


@pytest.fixture
def check(device: Device, program: Program) -> Iterator[Check]:
    check = Check(device, program)
    yield check
    check.close()


def test_submitting(device: Device, check: Check) -> None:
    """What was decided on runs, with its own timeline value; what was not leaves no trace."""
    seen: set[int] = set()

    def operation() -> None:
        seen.add(check.launch())

    for place in interrupted(operation):
        timeline = device.queue().timeline
        before = timeline.last
        later = check.launch()
        assert later not in seen and later > before, place
        timeline.wait(later)
        assert timeline.value == later == timeline.last, place
        check.works(place)
    assert seen


def test_submitting_what_was_prepared(device: Device, check: Check) -> None:
    queue = device.queue()
    commands = queue.fill(check.result, 5).barrier().commands
    prepared = prepare(queue.hardware, commands)
    values: list[int] = []
    for place in interrupted(
        lambda: values.append(device.driver.core.submit_prepared(queue.hardware, prepared, []))
    ):
        check.works(place)
    repetition = queue.hardware.repetition(prepared, [], ((), ()))
    for place in interrupted(lambda: values.append(repetition.submit(1, 2))):
        check.works(place)
    assert len(set(values)) == len(values) == 2


def test_replaying(device: Device, check: Check) -> None:
    """A replay whose first queue was told, but not its second, ends: the second is told later."""
    with device.alloc(4 * COUNT) as middle, device.alloc(4 * COUNT) as out, device.alloc(64) as own:
        with device.capture() as graph:
            compute = device.queue()
            compute.fill(middle, 0).barrier().copy(middle, check.source).barrier()
            value = compute.submit()
            copies = device.queue(QueueKind.COPY).wait(compute.timeline, value)
            copies.copy(out, middle).fill(own, 7)
            value = copies.submit()
            device.queue().wait(copies.timeline, value).fill(middle, 9).submit()
        for inputs in ({}, {check.source: middle}):
            for place in interrupted(lambda given=inputs: graph.replay(given)):  # type: ignore[misc]
                check.works(place)
                out.fill(0)
                graph.replay()
                graph.wait()
                device.synchronize()
                assert (out.numpy(np.uint32) == check.host).all(), place
        graph.close()


def test_resting(device: Device, check: Check) -> None:
    """A device is at rest or ready for work, and either way the next request gets its result."""
    for place in interrupted(device.rest):
        check.works(place)
    for call in (device.wake, check.launch):
        assert device.rest() == device.can_rest
        for place in interrupted(call):
            check.works(place)
            assert device.rest() == device.can_rest, place
            assert device.resting == device.can_rest, place
    device.wake()
    assert not device.resting
    device.synchronize()


def test_copying(device: Device, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(1 << 10, dtype=np.uint32)
    other = np.zeros_like(data)
    monkeypatch.setattr(device.driver.core.copies, "staging_size", 1024)
    device.driver.core.copies.close()
    with device.alloc(data.nbytes) as buffer:
        for copy in (lambda: buffer.copy_from(data), lambda: buffer.copy_to(other)):
            for place in interrupted(copy):
                check.works(place)
                buffer.copy_from(data)
                assert (buffer.numpy(np.uint32) == data).all(), place
    assert (other == data).all()
    device.driver.core.copies.close()


@pytest.mark.parametrize("placement", list(Placement))
def test_allocating(device: Device, check: Check, placement: Placement) -> None:
    kept: list[Buffer] = []
    before = memory_used(device)
    for place in interrupted(lambda: kept.append(device.alloc(8192, placement=placement))):
        check.works(place)
        gc.collect(0)
        device.alloc(64).close()
        assert memory_used(device) == before, place
    kept[0].close()
    assert len(kept) == 1 and memory_used(device) == before


def test_freeing(device: Device, check: Check) -> None:
    """A close that was cut off is finished by whatever comes next, and can be called again."""
    made: list[Buffer] = []
    before = memory_used(device)
    for place in interrupted(
        lambda: made[-1].close(), prepare=lambda: made.append(device.alloc(8192))
    ):
        if len(made) % 2 or not made[-1].closed:
            made[-1].close()
        check.works(place)
        assert memory_used(device) == before, place
        assert made[-1].closed, place


def test_loading(device: Device, check: Check) -> None:
    image = contract_object(device.target)
    kept: list[Program] = []
    before = memory_used(device)
    for place in interrupted(lambda: kept.append(device.load(image))):
        check.works(place)
        if not kept:
            gc.collect(0)
            device.alloc(64).close()
            assert memory_used(device) == before, place
    kept[0].close()
    assert len(kept) == 1 and memory_used(device) == before


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in DEVICES if name != "cpu"]


@pytest.mark.parametrize("name", ["cpu", *SLOW])
def test_resetting(name: str) -> None:
    """A reset that was cut off is done again; the device works then."""
    with hcq.open(name) as device, device.load(contract_object(device.target)) as program:
        check = Check(device, program)
        for place in interrupted(device.reset):
            device.reset()
            check.works(place)


@pytest.mark.parametrize("name", ["cpu", *SLOW])
def test_closing(name: str) -> None:
    """A close that was cut off is done by the next one; no thread of the device stays."""
    options = {"threads": 2} if name == "cpu" else {}
    opened: list[Device] = []

    def prepare() -> None:
        opened[:] = [hcq.open(name, **options)]
        with opened[0].alloc(64) as buffer:
            buffer.fill(1)

    threads = threading.active_count()
    for place in interrupted(lambda: opened[0].close(), prepare=prepare):
        opened[0].close()
        assert opened[0].closed and threading.active_count() == threads, place
        with pytest.raises(Closed):
            opened[0].alloc(64)
