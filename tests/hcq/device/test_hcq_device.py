"""What all devices share: waiting, failing, freeing, coming back; the hardware is scripted."""

from __future__ import annotations

import threading

import pytest

from tests.support.pci.scripted import ScriptedDevice
from ugpu.hcq.errors import BadArgument, Closed, DeviceHang, DeviceLost, PageFault
from ugpu.hcq.state import trace
from ugpu.hcq.state.trace import Event


def submitted(device: ScriptedDevice) -> int:
    return device.queue().fill(device.alloc(4), 1).submit()


def test_waiting_ends_when_the_value_is_reached() -> None:
    device = ScriptedDevice()
    value = submitted(device)
    steps = iter(range(5))

    def later() -> None:
        if next(steps) == 3:
            device.driver.scripted().finish()

    device.driver.on_pause = later
    device.driver.scripted().timeline.wait(value)
    assert device.driver.pauses == 4


def test_a_reached_value_costs_no_pause() -> None:
    device = ScriptedDevice()
    value = submitted(device)
    device.driver.scripted().finish()
    device.driver.scripted().timeline.wait(value)
    device.synchronize()
    assert device.driver.pauses == 0 and device.idle


def test_nobody_holds_the_lock_while_waiting() -> None:
    """Another thread submits, allocates and frees while this one waits."""
    device = ScriptedDevice()
    value = submitted(device)

    def other_thread() -> None:
        done = threading.Event()

        def work() -> None:
            with device.driver.core.lock:
                submitted(device)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        assert done.wait(60), "the waiting thread holds the lock"
        thread.join()
        device.driver.scripted().finish()

    device.driver.on_pause = other_thread
    device.driver.scripted().timeline.wait(value)
    submitted(device)
    buffer = device.alloc(64)
    buffer.close()  # waits too
    assert device.driver.freed == [buffer]


def test_what_the_device_reports_reaches_the_waiter_and_stays() -> None:
    device = ScriptedDevice()
    value = submitted(device)
    device.driver.problem = PageFault("no page there", address=0x1000)
    with pytest.raises(PageFault):
        device.driver.scripted().timeline.wait(value)
    device.driver.problem = None
    for use in (
        lambda: device.alloc(4),
        lambda: device.queue(),
        lambda: device.synchronize(),
        lambda: device.load(b""),
        lambda: device.driver.scripted().timeline.wait(value),
    ):
        with pytest.raises(PageFault):
            use()
    assert "failed" in repr(device)
    device.reset()
    assert device.driver.calls == ["recover"] and device.idle
    submitted(device)


def test_a_hang_carries_the_diagnosis() -> None:
    device = ScriptedDevice()
    value = submitted(device)
    with pytest.raises(DeviceHang) as caught:
        device.driver.scripted().timeline.wait(value, limit_s=0)
    assert caught.value.facts == {
        "timeline": "scripted compute",
        "reached": 0,
        "limit_s": 0,
        "mood": "scripted",
    }


def test_work_that_ended_while_the_waiter_overslept_is_no_hang() -> None:
    device = ScriptedDevice()
    value = submitted(device)
    polls = iter(range(100))

    def poll() -> None:
        if next(polls) == 0:
            # Between the look at the timeline and the look at the clock.
            device.driver.scripted().finish()

    device.driver.poll = poll
    device.driver.scripted().timeline.wait(value, limit_s=0)
    assert device.failure is None


def test_the_devices_own_limit_holds_where_none_is_given() -> None:
    device = ScriptedDevice()
    device.limit_s = 0.0
    submitted(device)
    with pytest.raises(DeviceHang):
        device.synchronize()


def test_a_reset_does_not_look_like_success_to_those_who_wait() -> None:
    device = ScriptedDevice()
    value = submitted(device)
    fault = PageFault("no page there", address=0)

    def fail_and_reset() -> None:
        device.driver.core.failure = fault
        device.reset()

    device.driver.on_pause = fail_and_reset
    with pytest.raises(PageFault) as caught:
        device.driver.scripted().timeline.wait(value)
    assert caught.value is fault and device.failure is None
    value = submitted(device)
    device.driver.on_pause = device.reset
    with pytest.raises(DeviceHang, match="reset"):
        device.driver.scripted().timeline.wait(value)


def test_closing_ends_the_waits_of_others() -> None:
    device = ScriptedDevice()
    value = submitted(device)
    device.driver.problem = DeviceLost("gone")
    device.driver.core.settle()
    device.driver.problem = None
    device.driver.core.failure = None
    device.driver.on_pause = lambda: setattr(device.driver.core, "closed", True)
    with pytest.raises(Closed):
        device.driver.scripted().timeline.wait(value)


def test_freeing_waits_for_work_and_keeps_its_failure_for_others() -> None:
    device = ScriptedDevice()
    buffer = device.alloc(64)
    submitted(device)
    device.driver.problem = PageFault("no page there", address=0)
    buffer.close()
    assert device.driver.freed == [], "what failed may still run until a reset"
    assert isinstance(device.failure, PageFault)
    device.driver.problem = None
    device.reset()
    assert device.driver.freed == [buffer]
    device.close()
    device.close()
    assert device.driver.calls == ["recover", "shutdown"]


def test_freeing_when_idle_does_not_wait() -> None:
    device = ScriptedDevice()
    device.alloc(64).close()
    assert device.driver.pauses == 0 and len(device.driver.freed) == 1


def test_shutting_down_happens_once_even_when_it_fails() -> None:
    device = ScriptedDevice()

    def fail() -> None:
        device.driver.calls.append("shutdown")
        raise DeviceLost("gone")

    device.driver.shutdown = fail
    with pytest.raises(DeviceLost):
        device.close()
    device.close()
    assert device.driver.calls == ["shutdown"]


def test_own_timelines_are_raised_by_submissions_alone() -> None:
    device = ScriptedDevice()
    with pytest.raises(BadArgument, match="own timeline"):
        device.queue().signal(device.driver.scripted().timeline, 5)


def test_only_the_capturing_thread_is_captured() -> None:
    device = ScriptedDevice()
    failures: list[BaseException] = []

    def other() -> None:
        try:
            assert submitted(device) == 1
        except BaseException as error:
            failures.append(error)

    with pytest.raises(ZeroDivisionError), device.capture():
        assert submitted(device) > 1 << 60
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        raise ZeroDivisionError
    assert not failures
    assert len(device.driver.scripted().submitted) == 1
    assert device.driver.core.capturing is None


def test_failures_resets_and_closing_are_events() -> None:
    events: list[Event] = []
    device = ScriptedDevice()
    with trace.subscribe(events.append):
        device.driver.problem = PageFault("no page there", address=0)
        with pytest.raises(PageFault):
            device.driver.core.check_failures()
        device.reset()
        device.close()
    told = [(e.name, e.phase) for e in events if e.arguments.get("device") == "scripted"]
    assert told == [
        ("failure", "point"),
        ("reset", "begin"),
        ("reset", "end"),
        ("close", "begin"),
        ("close", "end"),
    ]
