"""A fault in one queue leaves the work of the others: it goes on, and ends as it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, run, start_forever
from ugpu import hcq
from ugpu.am.device.device import AmDevice
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceHang, IllegalInstruction, PageFault, UgpuError
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.device.device import NvDevice
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.nvidia.faults import Fault
from ugpu.virtual.nvidia.node import VirtualNode

UNMAPPED = np.uint64(0x1234_5678_9000)


class Held:
    """A copy queue that has work in flight, until it is let go: a fill behind a wait."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.gate = device.timeline("gate")
        self.buffer = device.alloc(4096)
        self.buffer.fill(0)
        self.queue = device.queue(QueueKind.COPY)
        self.value = self.queue.wait(self.gate, 1).fill(self.buffer, 7).submit()

    def check_goes_on(self) -> None:
        """It has not ended, and ends rightly once it may."""
        assert self.queue.timeline.value < self.value, "its work is in flight"
        self.let_go()
        self.check()

    def let_go(self) -> None:
        """End its wait, and wait for its end."""
        self.gate.reach(1)
        self.device.driver.notify_memory_written()
        self.queue.timeline.wait(self.value)

    def check(self) -> None:
        """It did what it should."""
        assert (self.buffer.numpy(np.uint32) == 7).all()
        self.gate.close()


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip(ChipOptions(vram=256 << 20, noise=0))
    yield made
    made.close()


@pytest.fixture(params=["raise", "recover"])
def device(chip: Any, request: pytest.FixtureRequest) -> Iterator[AmDevice]:
    with opened(chip) as made:
        made.on_fault = request.param
        yield made
    assert chip.violations == []


def mend(device: Device) -> None:
    """Reset a device that does not by itself."""
    if device.on_fault == "raise":
        assert device.failure is not None
        device.reset()
    assert device.failure is None and device.recovery is not None


@pytest.mark.parametrize(
    ("kernel", "error"), [("read_at", PageFault), ("illegal", IllegalInstruction)]
)
def test_a_fault_of_a_kernel(device: AmDevice, kernel: str, error: type[UgpuError]) -> None:
    with device.load(faulty_object()) as program:
        out = device.alloc(64)
        check_runs(device, program, out, 1)
        held = Held(device)
        queue = device.queue()
        args = (out, UNMAPPED) if kernel == "read_at" else (out,)
        queue.launch(program[kernel], grid=(1,), block=(32,), args=args)
        value = queue.submit()
        with pytest.raises(error):
            queue.timeline.wait(value)
        mend(device)
        assert device.recovery is not None
        assert [one.name for one in device.recovery.restarted] == ["compute 0.0"]
        held.check_goes_on()
        check_runs(device, program, out, 2)


def test_a_kernel_that_hangs(chip: Any, device: AmDevice) -> None:
    with device.load(faulty_object()) as program:
        out = device.alloc(64)
        check_runs(device, program, out, 1)
        held = Held(device)
        start_forever(chip, device, program, out)
        timeline = device.driver.queues.compute[0].timeline
        with pytest.raises(DeviceHang):
            timeline.wait(limit_s=0.05)
        mend(device)
        held.check_goes_on()
        check_runs(device, program, out, 2)


def test_a_copy_that_hangs(device: AmDevice) -> None:
    """The compute queue and the other copy engine go on."""
    with device.load(faulty_object()) as program:
        out, other = device.alloc(64), Held(device)
        never = device.timeline("never")
        stuck = device.queue(QueueKind.COPY, 1)
        value = stuck.wait(never, 1).fill(out, 1).submit()
        with pytest.raises(DeviceHang):
            stuck.timeline.wait(value, limit_s=0.05)
        mend(device)
        assert device.recovery is not None
        assert [one.name for one in device.recovery.restarted] == ["SDMA1"]
        with device.queue() as queue:
            queue.launch(program["good"], grid=(1,), block=(32,), args=(out, np.uint32(9)))
        queue.timeline.wait()
        other.check_goes_on()
        assert out.numpy(np.uint32)[0] == 9


def test_a_wait_for_another_queue_is_not_told(device: AmDevice) -> None:
    """Where the device recovers by itself, only those learn of it whose work was lost."""
    if device.on_fault == "raise":
        device.on_fault = "recover"
    with device.load(faulty_object()) as program:
        out, held = device.alloc(64), Held(device)
        with device.queue() as queue:
            queue.launch(program["illegal"], grid=(1,), block=(32,), args=(out,))
        held.let_go()
        with pytest.raises(IllegalInstruction) as caught:
            device.synchronize()
        assert caught.value.facts["recovered"] == "queue"
        device.synchronize()
        held.check()
        check_runs(device, program, out, 3)


def test_registers_of_a_doorbell_that_is_lost_need_a_warm_start(chip: Any) -> None:
    """Queues and engines that are reset stay deaf; a warm start sets up what lies around them."""
    with opened(chip) as device, device.load(faulty_object()) as program:
        out, kept = device.alloc(64), device.alloc(4096)
        pattern = np.arange(1024, dtype=np.uint32)
        kept.copy_from(pattern)
        check_runs(device, program, out, 1)
        device.limit_s = 0.2
        device.chip.nbio.RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN.write(0)
        with pytest.raises(DeviceHang):
            run(device, program, "good", out, np.uint32(2))
        recovery = device.reset()
        worked = [one.name for one in recovery.attempts if one.worked]
        assert worked == ["warm start"] and not recovery.memory_lost
        device.limit_s = 30.0
        check_runs(device, program, out, 3)
        assert (kept.numpy(np.uint32) == pattern).all()
    assert [text for text in chip.violations if "aperture is closed" not in text] == []


# ---- NVIDIA ------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["raise", "recover"])
def test_a_channel_that_fails_leaves_the_others(policy: str) -> None:
    with hcq.open("virtual:gh100", on_fault=policy) as device:
        assert isinstance(device, NvDevice)
        held = Held(device)
        node = device.driver.gpu.session.node
        assert isinstance(node, VirtualNode)
        compute = device.driver.compute_queue
        out = device.alloc(64)
        never = device.timeline("never")
        queue = device.queue()
        value = queue.wait(never, 1).fill(out, 1).submit()
        with pytest.raises(DeviceHang):
            queue.timeline.wait(value, limit_s=0.05)
        mend(device)
        assert device.recovery is not None and list(device.recovery.restarted) == [compute]
        held.check_goes_on()
        node.machine.inject(Fault.COPY_FAULT)
        with pytest.raises(PageFault):
            out.fill(3)
        mend(device)
        out.fill(5)
        assert (out.numpy(np.uint32) == 5).all()
