"""Memory that is dropped, or freed after a failure, is released once no work can reach it."""

from __future__ import annotations

import gc

import pytest

from tests.support.pci.scripted import ScriptedDevice
from ugpu.hcq.errors import Closed, DeviceHang, DeviceLost
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.queue import QueueKind


def test_a_dropped_buffer_is_freed_after_the_work_submitted_before() -> None:
    device = ScriptedDevice()
    buffer = device.alloc(64)
    address = id(buffer)
    device.queue().fill(buffer, 1).submit()
    device.driver.scripted().forget()
    del buffer
    gc.collect()
    other = device.alloc(64)
    assert not device.driver.freed and len(device.driver.core.retired) == 1
    device.driver.scripted().finish()
    device.alloc(64).close()
    freed = device.driver.freed
    assert id(freed[0]) == address and freed[0].closed
    assert not device.driver.core.retired and other not in device.driver.freed


def test_all_queues_are_waited_for_and_later_work_is_not() -> None:
    device = ScriptedDevice()
    kept = device.alloc(64)
    for kind in QueueKind:
        device.queue(kind).fill(kept, 1).submit()
    device.alloc(4)  # dropped at once
    device.driver.core.retired.collect()
    assert len(device.driver.core.retired) == 1
    device.queue().fill(kept, 2).submit()  # after it was dropped
    device.driver.scripted(QueueKind.COPY).finish()
    device.driver.core.retired.collect()
    assert not device.driver.freed
    device.driver.scripted().finish(1)
    device.driver.core.retired.collect()
    assert len(device.driver.freed) == 1 and not device.driver.core.retired


def test_slices_and_closed_buffers_free_nothing() -> None:
    device = ScriptedDevice()
    buffer = device.alloc(64)
    part = buffer[8:16]
    del buffer
    device.driver.core.retired.collect()
    assert not device.driver.freed, "the slice keeps it"
    del part
    device.alloc(4).close()
    assert len(device.driver.freed) == 2
    device.alloc(4).close()
    assert len(device.driver.freed) == 3 and not device.driver.core.retired


def test_a_buffer_closed_after_a_hang_is_freed_by_the_reset() -> None:
    device = ScriptedDevice()
    buffer = device.alloc(64)
    value = device.queue().fill(buffer, 1).submit()
    with pytest.raises(DeviceHang):
        device.driver.scripted().timeline.wait(value, limit_s=0)
    buffer.close()
    assert not device.driver.freed
    device.reset()
    assert device.driver.freed == [buffer]


def test_memory_that_does_not_release_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    device = ScriptedDevice()

    def fail(buffer: object) -> None:
        raise DeviceLost("gone")

    device.driver.free_memory = fail
    device.alloc(64)
    device.alloc(64)
    device.driver.core.retired.collect()
    device.driver.core.retired.collect()
    assert caplog.text.count("releasing dropped memory: gone") == 2
    assert not device.driver.core.retired


def test_dropping_takes_no_lock() -> None:
    """A finalizer runs wherever the collector does: also where its thread allocates just now."""
    device = ScriptedDevice()
    buffer = device.alloc(64)
    with device.driver.core.lock:
        del buffer
        assert not device.driver.freed
    device.close()
    assert not device.driver.freed
    assert not device.driver.core.retired, "shutting down frees everything"


def test_nothing_is_dropped_of_a_closed_device() -> None:
    device = ScriptedDevice()
    buffer = device.alloc(64)
    device.close()
    with pytest.raises(Closed):
        buffer.fill(0)
    del buffer
    assert not device.driver.core.retired


class Owner:
    """Hands its buffer on when it dies, as the compiler's pool of buffers does."""

    def __init__(self, buffer: Buffer, heirs: list[Buffer]) -> None:
        self.buffer = buffer
        self.heirs = heirs
        self.itself = self  # garbage for the collector, together with its buffer

    def __del__(self) -> None:
        self.heirs.append(self.buffer)


def test_what_a_finalizer_puts_into_use_again_is_not_freed() -> None:
    device = ScriptedDevice()
    heirs: list[Buffer] = []
    owner = Owner(device.alloc(64), heirs)
    del owner
    gc.collect()
    device.driver.core.retired.collect()
    (buffer,) = heirs
    assert not device.driver.freed and not buffer.closed
    device.queue().fill(buffer, 1)
    buffer.close()
    assert device.driver.freed == [buffer]


def test_a_buffer_that_is_closed_by_a_finalizer_is_freed_once() -> None:
    device = ScriptedDevice()
    buffer = device.alloc(64)
    device.queue().fill(buffer, 1).submit()
    device.driver.scripted().forget()
    buffer.drop()
    buffer.drop()
    buffer.close()
    with pytest.raises(Closed):
        buffer.fill(1)
    device.driver.core.retired.collect()
    assert not device.driver.freed
    device.driver.scripted().finish()
    device.driver.core.retired.collect()
    assert device.driver.freed == [buffer]
    del buffer
    device.driver.core.retired.collect()
    assert len(device.driver.freed) == 1
