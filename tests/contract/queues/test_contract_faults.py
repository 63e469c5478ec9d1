"""A wait that covers a fault raises it, each time: three times here, 50 times in the slow suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import faulty_work
from tests.support.kernels import contract_object
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import UgpuError
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind

TIMES = [3, pytest.param(50, marks=pytest.mark.slow)]


def on_its_point(device: Device, program: Program, kind: QueueKind) -> None:
    value = faulty_work.submit(device, program, kind)
    device.queue(kind).timeline.wait(value)


def on_the_device(device: Device, program: Program, kind: QueueKind) -> None:
    faulty_work.submit(device, program, kind)
    device.synchronize()


def on_the_timeline(device: Device, program: Program, kind: QueueKind) -> None:
    faulty_work.submit(device, program, kind)
    device.queue(kind).timeline.wait()


def on_later_work(device: Device, program: Program, kind: QueueKind) -> None:
    faulty_work.submit(device, program, kind)
    later = device.queue(kind).barrier()
    later.timeline.wait(later.submit())


def on_another_queue(device: Device, program: Program, kind: QueueKind) -> None:
    value = faulty_work.submit(device, program, kind)
    other = QueueKind.COPY if kind is QueueKind.COMPUTE else QueueKind.COMPUTE
    behind = device.queue(other).wait(device.queue(kind).timeline, value)
    behind.timeline.wait(behind.submit())


def on_a_copy(device: Device, program: Program, kind: QueueKind) -> None:
    with device.alloc(64) as buffer:
        faulty_work.submit(device, program, kind)
        buffer.numpy()


def on_a_copy_in(device: Device, program: Program, kind: QueueKind) -> None:
    with device.alloc(64) as buffer:
        faulty_work.submit(device, program, kind)
        buffer.copy_from(bytes(64))


WAITS = (
    on_its_point,
    on_the_device,
    on_the_timeline,
    on_later_work,
    on_another_queue,
    on_a_copy,
    on_a_copy_in,
)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("kind", list(QueueKind))
@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_raises(
    device: Device,
    program: Program,
    wait: Callable[[Device, Program, QueueKind], None],
    kind: QueueKind,
    times: int,
) -> None:
    for _ in range(times):
        with pytest.raises(UgpuError):
            wait(device, program, kind)
        assert device.failure is not None
        device.reset()
        device.synchronize()


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("wait", ["graph", "device"])
def test_a_wait_for_a_replay_raises(
    device: Device, program: Program, wait: str, times: int
) -> None:
    graph = faulty_work.capture(device, program)
    for _ in range(times):
        graph.replay()
        with pytest.raises(UgpuError):
            graph.wait() if wait == "graph" else device.synchronize()
        assert device.failure is not None
        device.reset()
    graph.close()


@pytest.mark.parametrize("kind", list(QueueKind))
def test_the_end_of_a_block_raises(opener: Callable[[], Device], kind: QueueKind) -> None:
    """Leaving `with hcq.open(...)` waits for work in flight, and raises its fault."""
    with pytest.raises(UgpuError), opener() as device:
        program = device.load(contract_object(device.target))
        faulty_work.submit(device, program, kind)
    assert device.closed


def test_the_end_of_a_block_raises_nothing_twice(opener: Callable[[], Device]) -> None:
    with opener() as device:
        program = device.load(contract_object(device.target))
        faulty_work.submit(device, program)
        with pytest.raises(UgpuError):
            device.synchronize()
    with pytest.raises(ValueError, match="of the block"), opener() as device:
        program = device.load(contract_object(device.target))
        faulty_work.submit(device, program)
        raise ValueError("of the block")
    assert device.closed


@pytest.fixture
def opener(request: pytest.FixtureRequest) -> Iterator[Callable[[], Device]]:
    made: list[Device] = []

    def open_one() -> Device:
        made.append(hcq.open(request.param))
        return made[-1]

    yield open_one
    for each in made:
        each.close()
