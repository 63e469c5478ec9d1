"""Queues that wait for and signal other devices' timelines: each kind of device, beside `cpu` and
beside another of its kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from ugpu import hcq
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed, DeviceHang, NotSupported
from ugpu.hcq.work.queue import QueueKind
from ugpu.hcq.work.timeline import Timeline

Opener = Callable[[], Device]
LIMIT_S = 300.0  # TIMEOUT: for threads that do not wait for each other


@pytest.fixture
def opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    made: list[Device] = []

    def open_one() -> Device:
        made.append(hcq.open(request.param))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


def gate_on(device: Device) -> Timeline:
    return device.timeline("gate")


def check_order(first: Device, second: Device) -> None:
    """What the second does waits for the first, whose turn comes only with its gate."""
    gate = gate_on(first)
    with first.alloc(64) as source, second.alloc(64) as result:
        source.fill(1)
        result.fill(1)
        ahead = first.queue().wait(gate, gate.advance()).fill(source, 5)
        end = ahead.submit()
        after = second.queue().wait(ahead.timeline, end).fill(result, 6)
        done = after.submit()
        assert after.timeline.value < done and not second.idle
        first.queue(QueueKind.COPY).signal(gate, 1).submit()
        after.timeline.wait(done)
        assert ahead.timeline.value >= end
        assert result.numpy(np.uint32)[0] == 6 and source.numpy(np.uint32)[0] == 5
    gate.memory.close()


@pytest.mark.parametrize("other", ["cpu", "the same"])
def test_a_queue_waits_for_another_device(opener: Opener, other: str) -> None:
    with opener() as device, hcq.open("cpu") if other == "cpu" else opener() as beside:
        check_order(device, beside)
        check_order(beside, device)


def test_devices_take_turns(opener: Opener) -> None:
    """Each hands the other its timeline, and all is submitted before anything runs."""
    with opener() as device, hcq.open("cpu", threads=1) as beside:
        gate = gate_on(device)
        first = device.queue().wait(gate, gate.advance())
        value, timeline = first.submit(), first.timeline
        for turn in range(10):
            queue = (beside if turn % 2 == 0 else device).queue()
            value = queue.wait(timeline, value).submit()
            timeline = queue.timeline
        assert timeline.value < value
        device.queue(QueueKind.COPY).signal(gate, 1).submit()
        timeline.wait(value)
        assert device.failure is None and beside.failure is None
        gate.memory.close()


@pytest.mark.parametrize("kind", list(QueueKind))
def test_a_queue_signals_another_device(opener: Opener, kind: QueueKind) -> None:
    with opener() as device, hcq.open("cpu", threads=1) as beside:
        for here, there in ((device, beside), (beside, device)):
            gate = gate_on(there)
            value = gate.advance()
            waiting = there.queue().wait(gate, value)
            done = waiting.submit()
            here.queue(kind).signal(gate, value).submit()
            waiting.timeline.wait(done)
            assert gate.value == value
            gate.memory.close()


def test_a_wait_is_submitted_while_another_one_ends(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that raises a timeline may need the device's lock, which a submission has."""
    with opener() as device, hcq.open("cpu", threads=1) as beside:
        gate, core, ends = gate_on(beside), device.driver.core, []
        notify_memory_written, notified = core.driver.notify_memory_written, threading.Event()

        def locked() -> None:
            notified.set()
            with core.lock:
                notify_memory_written()

        def submit() -> None:
            with core.lock:
                beside.queue().signal(gate, 1).submit()
                assert notified.wait(LIMIT_S)
                ends.append(device.queue().wait(gate, gate.advance()).submit())

        monkeypatch.setattr(core.driver, "notify_memory_written", locked)
        device.queue().wait(gate, gate.advance()).submit()
        thread = threading.Thread(target=submit, daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        beside.queue().signal(gate, 2).submit()
        device.queue().timeline.wait(ends[0])
        gate.memory.close()


def test_values_that_were_reached_long_ago(opener: Opener) -> None:
    """Also of a device that is closed by now: its work is done."""
    with opener() as device:
        with hcq.open("cpu", threads=1) as beside:
            queue = beside.queue()
            value = queue.submit()
            queue.timeline.wait(value)
            device.queue().wait(queue.timeline, value).submit()
            device.synchronize()
        ours = device.queue().wait(queue.timeline, value)
        ours.timeline.wait(ours.submit())


def test_a_device_that_is_closed_first(opener: Opener) -> None:
    with opener() as device:
        beside = hcq.open("cpu", threads=1)
        never = gate_on(beside)
        queue = device.queue().wait(never, 7)
        value = queue.submit()
        beside.close()
        with pytest.raises(DeviceHang, match=r"waits for gate of cpu to reach 7.*close"):
            queue.timeline.wait(value)
        device.reset()
        with device.alloc(64) as buffer:
            buffer.fill(3)
            assert buffer.numpy(np.uint32)[0] == 3


def test_a_device_that_is_reset_loses_the_work(opener: Opener) -> None:
    """Its reset counts all as reached: nobody elsewhere may go on from that."""
    with opener() as device, hcq.open("cpu", threads=1) as beside:
        stuck, never = gate_on(beside), gate_on(beside)
        lost = beside.queue().wait(stuck, 1)
        end = lost.submit()
        queue = device.queue().wait(lost.timeline, end).signal(never, 3)
        value = queue.submit()
        beside.reset()
        with pytest.raises(DeviceHang, match="which it never will"):
            queue.timeline.wait(value)
        assert never.value == 0
        device.reset()
        fresh = device.queue().wait(beside.queue().timeline)
        fresh.timeline.wait(fresh.submit())
        for gate in (stuck, never):
            gate.memory.close()


def test_graphs_stay_on_their_device(opener: Opener) -> None:
    with opener() as device, hcq.open("cpu", threads=1) as beside:
        timeline = beside.queue().timeline
        for work in ("wait", "signal"):
            gate = gate_on(beside)
            with pytest.raises(NotSupported, match="another device's"), device.capture():
                queue = device.queue()
                (queue.wait(timeline, 1) if work == "wait" else queue.signal(gate, 1)).submit()
            gate.memory.close()
        with pytest.raises(BadArgument, match="own timeline"):
            device.queue().signal(timeline, 1)


def test_what_is_not_submitted_is_not_awaited(opener: Opener) -> None:
    with opener() as device:
        with hcq.open("cpu", threads=1) as beside:
            device.queue().wait(gate_on(beside), 1)
        device.synchronize()
        assert device.failure is None
    with pytest.raises(Closed):
        device.queue()
