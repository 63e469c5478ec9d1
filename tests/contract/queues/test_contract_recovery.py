"""Recovery: what every device does at a reset, and by itself with on_fault="recover"."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, DeviceHang, UgpuError
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind
from ugpu.hcq.work.recovery import Recovery


@pytest.fixture
def recovering(device: Device) -> Iterator[Device]:
    device.on_fault = "recover"
    yield device
    device.on_fault = "raise"


def check_works(device: Device, program: Program) -> None:
    with device.alloc(256) as source, device.alloc(256) as result:
        values = np.arange(64, dtype=np.uint32)
        source.copy_from(values)
        with device.queue() as queue:
            arguments = (result, source, np.uint32(64), np.uint32(3))
            queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
        assert (result.numpy(np.uint32) == 3 * values).all()


def start_waiting(device: Device, kind: QueueKind) -> None:
    """Let a queue wait for what never comes, and the device learn of it."""
    never = device.timeline("never")
    queue = device.queue(kind)
    value = queue.wait(never, 1).submit()
    try:
        queue.timeline.wait(value, limit_s=0.05)
    finally:
        never.close()


def test_a_reset_says_what_it_did(device: Device, program: Program) -> None:
    recovery = device.reset()
    assert isinstance(recovery, Recovery) and recovery is device.recovery
    assert recovery.attempts[-1].worked and recovery.level is Level.QUEUE
    assert not recovery.memory_lost and recovery.lost == ()
    assert set(recovery.restarted) <= set(device.driver.all_queues())
    check_works(device, program)


def test_a_plan_changes_nothing(device: Device, program: Program) -> None:
    resets = device.resets
    diagnosis, planned = device.driver.recovery_plan()
    assert diagnosis.first is Level.QUEUE and diagnosis.reason
    assert any(one.taken for one in planned) and all(one.cost for one in planned)
    assert device.resets == resets and device.failure is None
    check_works(device, program)


def test_an_unknown_rung_is_refused(device: Device, program: Program) -> None:
    with pytest.raises(BadArgument, match="expected a rung"):
        device.reset("hammer")
    with pytest.raises(BadArgument, match="on_fault"):
        device.on_fault = "ignore"
    check_works(device, program)


@pytest.mark.parametrize("kind", list(QueueKind))
def test_a_failure_is_told_once_and_mended(
    recovering: Device, program: Program, kind: QueueKind
) -> None:
    resets = recovering.resets
    with recovering.alloc(256) as kept:
        values = np.arange(64, dtype=np.uint32)
        kept.copy_from(values)
        with pytest.raises(DeviceHang) as caught:
            start_waiting(recovering, kind)
        assert caught.value.facts["recovered"] == "queue"
        assert recovering.resets == resets + 1 and recovering.failure is None
        recovering.synchronize()
        assert (kept.numpy(np.uint32) == values).all()
        check_works(recovering, program)


def test_a_graph_replays_after_it(recovering: Device, program: Program) -> None:
    with recovering.alloc(256) as source, recovering.alloc(256) as result:
        source.copy_from(np.arange(64, dtype=np.uint32))
        with recovering.capture() as graph, recovering.queue() as queue:
            arguments = (result, source, np.uint32(64), np.uint32(5))
            queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
        with pytest.raises(DeviceHang):
            start_waiting(recovering, QueueKind.COMPUTE)
        graph.replay()
        graph.wait()
        assert (result.numpy(np.uint32) == 5 * np.arange(64)).all()
        graph.close()


def test_without_it_a_failure_stays(device: Device, program: Program) -> None:
    with pytest.raises(DeviceHang):
        start_waiting(device, QueueKind.COMPUTE)
    with pytest.raises(UgpuError):
        device.queue()
    device.reset()
    check_works(device, program)
