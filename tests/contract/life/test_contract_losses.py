"""Work that a reset loses: a wait for it raises, whatever other threads did since it was
submitted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.support import faulty_work
from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceHang, UgpuError
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind
from ugpu.hcq.work.timeline import Timeline


class Stuck:
    """Work behind a wait that does not end: `value` of `timeline` marks its end."""

    def __init__(self, device: Device, kind: QueueKind = QueueKind.COMPUTE) -> None:
        self.device = device
        self.gate = device.timeline("gate")
        self.buffer = device.alloc(4096)
        self.buffer.fill(7)
        queue = device.queue(kind)
        self.timeline = queue.timeline
        self.value = queue.wait(self.gate, 1).fill(self.buffer, 9).submit()

    def close(self) -> None:
        self.buffer.close()
        self.gate.close()


@pytest.fixture
def stuck(device: Device) -> Iterator[Stuck]:
    made = Stuck(device)
    yield made
    made.close()


def elsewhere(act: Callable[[], object]) -> None:
    """Call `act` in another thread, to its end."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def check_works(device: Device, buffer: Buffer) -> None:
    """What is submitted now is not affected."""
    queue = device.queue().fill(buffer, 3)
    queue.timeline.wait(queue.submit())
    assert (buffer.numpy(np.uint32) == 3).all()
    device.synchronize()


@pytest.mark.parametrize("kind", list(QueueKind))
def test_a_wait_for_lost_work_raises_each_time(device: Device, kind: QueueKind) -> None:
    stuck = Stuck(device, kind)
    elsewhere(device.reset)
    for _ in range(2):
        with pytest.raises(DeviceHang, match="was reset: its work was lost"):
            stuck.timeline.wait(stuck.value)
    assert (stuck.buffer.numpy(np.uint32) == 7).all()
    check_works(device, stuck.buffer)
    with pytest.raises(DeviceHang):
        stuck.timeline.wait(stuck.value)
    stuck.close()


WAITS: dict[str, Callable[[Stuck], object]] = {
    "synchronize": lambda stuck: stuck.device.synchronize(),
    "timeline": lambda stuck: stuck.timeline.wait(),
    "copy_to": lambda stuck: stuck.buffer.numpy(),
    "copy_from": lambda stuck: stuck.buffer.copy_from(bytes(4096)),
    "fill": lambda stuck: stuck.buffer.fill(1),
}


@pytest.mark.parametrize("wait", list(WAITS))
def test_a_wait_for_all_work_raises_once(device: Device, stuck: Stuck, wait: str) -> None:
    elsewhere(device.reset)
    with pytest.raises(DeviceHang, match="was reset: its work was lost"):
        WAITS[wait](stuck)
    WAITS[wait](stuck)
    check_works(device, stuck.buffer)


def test_work_submitted_since_does_not_hide_it(device: Device, stuck: Stuck) -> None:
    elsewhere(device.reset)
    queue = device.queue().fill(stuck.buffer, 3)
    queue.timeline.wait(queue.submit())  # not affected
    with pytest.raises(DeviceHang):
        device.synchronize()
    check_works(device, stuck.buffer)


def test_a_thread_that_has_waited_is_not_told_of_work_of_others(device: Device) -> None:
    """Its wait found the work ended at once; then another thread's, after it, is lost."""
    with device.alloc(4096) as buffer:
        device.queue().fill(buffer, 1).submit()
        device.driver.clock.wait_until(
            lambda: device.idle, unit="the queue", waiting_for="its end", limit_s=60
        )
        device.synchronize()
        told: list[UgpuError] = []

        def lose_work() -> None:
            stuck = Stuck(device)
            elsewhere(device.reset)
            try:
                device.synchronize()
            except UgpuError as error:
                told.append(error)
            stuck.close()

        elsewhere(lose_work)
        assert len(told) == 1
        check_works(device, buffer)


def test_each_thread_that_lost_work_is_told(device: Device, stuck: Stuck) -> None:
    told: list[str] = []
    resets = threading.Event()
    submitted = threading.Event()

    def lose_work() -> None:
        device.queue(QueueKind.COMPUTE).fill(stuck.buffer, 1).submit()
        submitted.set()
        resets.wait()
        try:
            device.synchronize()
        except DeviceHang:
            told.append("other")

    thread = threading.Thread(target=lose_work)
    thread.start()
    submitted.wait()
    elsewhere(device.reset)
    with pytest.raises(DeviceHang):
        device.synchronize()
    resets.set()
    thread.join()
    assert told == ["other"]
    check_works(device, stuck.buffer)


def test_a_thread_that_joined_the_submitter_is_told(device: Device, stuck: Stuck) -> None:
    device.reset()
    device.synchronize()  # this thread asked for the reset
    device.synchronize()
    elsewhere(lambda: device.queue().wait(stuck.gate, 1).submit())
    elsewhere(device.reset)
    with pytest.raises(DeviceHang):
        device.synchronize()
    check_works(device, stuck.buffer)


def test_a_thread_is_not_told_twice(device: Device, stuck: Stuck) -> None:
    """It was raised the failure, and has reset the device itself."""
    with pytest.raises(DeviceHang):
        stuck.timeline.wait(stuck.value, limit_s=0.05)
    device.reset()
    check_works(device, stuck.buffer)


def test_the_failure_is_raised_that_was_reset(
    device: Device, program: Program, stuck: Stuck
) -> None:
    """Also for work that had ended by then, if no wait had found it free of failures: a kernel that
    faults may go on to its end."""
    device.reset()
    queue = device.queue().fill(stuck.buffer, 5)
    clean = queue.submit()
    queue.timeline.wait(clean)
    value = faulty_work.submit(device, program)

    def fail_and_reset() -> None:
        with pytest.raises(UgpuError):
            device.synchronize()
        device.reset()

    elsewhere(fail_and_reset)
    failure = device.last_failure
    assert failure is not None
    with pytest.raises(type(failure)) as caught:
        queue.timeline.wait(value)
    assert caught.value is failure
    queue.timeline.wait(clean)
    check_works(device, stuck.buffer)


def test_a_replay_that_was_lost(device: Device, stuck: Stuck) -> None:
    with device.alloc(64) as out:
        with device.capture() as graph, device.queue() as queue:
            queue.fill(out, 4)
        graph.replay()
        elsewhere(device.reset)
        with pytest.raises(DeviceHang):
            graph.wait()
        graph.replay()
        graph.wait()
        assert (out.numpy(np.uint32) == 4).all()
        graph.close()
    check_works(device, stuck.buffer)


def test_a_second_replay_tells_of_the_first(device: Device, stuck: Stuck) -> None:
    with device.alloc(64) as out:
        with device.capture() as graph, device.queue() as queue:
            queue.fill(out, 4)
        graph.replay()
        elsewhere(device.reset)
        with pytest.raises(DeviceHang):
            graph.replay()
        graph.replay()
        graph.wait()
        graph.close()
    check_works(device, stuck.buffer)


@pytest.mark.parametrize("how", ["recorded after", "submitted after", "all so far"])
def test_queues_do_not_go_on_behind_lost_work(device: Device, stuck: Stuck, how: str) -> None:
    other = device.queue(QueueKind.COPY)
    if how == "submitted after":
        other.wait(stuck.timeline, stuck.value).fill(stuck.buffer, 1)
    elsewhere(device.reset)
    with pytest.raises(DeviceHang):
        if how == "recorded after":
            other.wait(stuck.timeline, stuck.value)
        elif how == "all so far":
            other.wait(stuck.timeline)
        other.submit()
    check_works(device, stuck.buffer)
    done = device.queue(QueueKind.COPY).wait(stuck.timeline)  # nothing is under way now
    done.timeline.wait(done.submit())


def test_other_devices_do_not_go_on_behind_lost_work(device: Device, stuck: Stuck) -> None:
    with hcq.open("cpu", threads=1) as beside:
        queue = beside.queue()
        elsewhere(device.reset)
        with pytest.raises(DeviceHang):
            queue.wait(stuck.timeline, stuck.value)
        follow(beside, device, stuck.timeline)
    check_works(device, stuck.buffer)


def follow(beside: Device, device: Device, timeline: Timeline) -> None:
    """A reset between the record and its submission."""
    gate = device.timeline("gate")
    lost = device.queue().wait(gate, 1).submit()
    queue = beside.queue().wait(timeline, lost)
    elsewhere(device.reset)
    value = queue.submit()
    with pytest.raises(DeviceHang):
        queue.timeline.wait(value)
    beside.reset()
    with pytest.raises(DeviceHang):
        device.synchronize()
    gate.close()


def test_by_itself(device: Device, program: Program, stuck: Stuck) -> None:
    """With on_fault="recover" a thread that lost work is told of it, although another has been."""
    device.on_fault = "recover"
    told: list[UgpuError] = []

    def hang() -> None:
        try:
            stuck.timeline.wait(stuck.value, limit_s=0.05)
        except UgpuError as error:
            told.append(error)

    elsewhere(hang)
    with pytest.raises(DeviceHang) as caught:
        device.synchronize()
    assert told == [caught.value]
    device.on_fault = "raise"
    check_works(device, stuck.buffer)


def test_many_resets_leave_nothing_to_tell(device: Device, program: Program) -> None:
    """Of work whose failure was raised to this thread, also where the losses are long ago."""
    graph = faulty_work.capture(device, program)
    for _ in range(20):  # more than the resets whose errors are kept
        graph.replay()
        with pytest.raises(UgpuError):
            device.synchronize()
        elsewhere(device.reset)
    with device.alloc(64) as buffer:
        check_works(device, buffer)
    graph.close()
