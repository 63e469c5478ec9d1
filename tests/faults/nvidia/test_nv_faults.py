"""Every fault that the virtual NVIDIA machine can be told to have: named, with its facts and the
kernel; and work goes on afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.nvidia import ptx_kernels
from tests.support.nvidia.nv_machine import LIMIT_S, left_behind, opened, powered, work
from ugpu.hcq.errors import (
    AccessDenied,
    BadPacket,
    ChipError,
    DeviceHang,
    DeviceLost,
    DriverRefused,
    FirmwareSilent,
    IllegalInstruction,
    ModuleMissing,
    OutOfMemory,
    PageFault,
    TransportError,
    UgpuError,
)
from ugpu.hcq.state.memory import Placement, VirtAddr
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command import Barrier
from ugpu.hcq.work.queue import QueueKind
from ugpu.nv.work import queue as queue_module
from ugpu.virtual.nvidia.faults import Fault

# Fault -> the error, and facts that it must carry.
WHILE_RUNNING: dict[Fault, tuple[type[UgpuError], dict[str, Any]]] = {
    Fault.UNMAPPED: (PageFault, {"xid": 31, "access": "read", "fault": "PTE", "kernel": "scale"}),
    Fault.READ_ONLY: (
        PageFault,
        {"xid": 31, "access": "write", "fault": "RO_VIOLATION", "kernel": "scale"},
    ),
    Fault.BAD_KIND: (PageFault, {"xid": 31, "fault": "UNSUPPORTED_KIND", "kernel": "scale"}),
    Fault.POISON: (PageFault, {"xid": 31, "fault": "POISONED", "kernel": "scale"}),
    Fault.COPY_FAULT: (
        PageFault,
        {"xid": 31, "queue": "copy 0", "fault": "PTE", "access": "read"},
    ),
    Fault.ILLEGAL_INSTRUCTION: (
        IllegalInstruction,
        {"xid": 13, "kind": "ILLEGAL_INSTR_ENCODING", "kernel": "scale", "warp": 0, "sm": 0},
    ),
    Fault.MISALIGNED: (PageFault, {"xid": 13, "kind": "MISALIGNED_ADDR", "kernel": "scale"}),
    Fault.OUT_OF_RANGE: (PageFault, {"xid": 13, "kind": "OOR_ADDR", "kernel": "scale"}),
    Fault.ASSERTION: (IllegalInstruction, {"xid": 13, "kernel": "scale"}),
    Fault.HANG: (DeviceHang, {"limit_s": 0.5, "kernel": "scale"}),
    Fault.CONTEXT_SWITCH: (DeviceHang, {"xid": 109, "kernel": "scale"}),
    Fault.PUSHBUFFER: (BadPacket, {"xid": 32}),
    Fault.CLASS_ERROR: (BadPacket, {"xid": 69, "kernel": "scale"}),
    Fault.LOST_DOORBELL: (DeviceHang, {"limit_s": 0.5}),
    Fault.LOST_RELEASE: (DeviceHang, {"limit_s": 0.5}),
    Fault.PREEMPTED: (ChipError, {"xid": 45}),
    Fault.ECC_UNCORRECTED: (ChipError, {"xid": 48, "kernel": "scale"}),
    Fault.ECC_CONTAINED: (ChipError, {"xid": 94, "kernel": "scale"}),
    Fault.FIRMWARE_TIMEOUT: (FirmwareSilent, {"status": "NV_ERR_TIMEOUT"}),
    Fault.NO_VIDEO_MEMORY: (OutOfMemory, {"status": "NV_ERR_NO_MEMORY"}),
    Fault.NO_SYSTEM_MEMORY: (OutOfMemory, {"status": "NV_ERR_NO_MEMORY"}),
    Fault.NO_PAGE_TABLES: (OutOfMemory, {"request": "UVM_MAP_EXTERNAL_ALLOCATION"}),
    Fault.MAPPING_REFUSED: (TransportError, {"request": "mmap"}),
    Fault.OPEN_DENIED: (AccessDenied, {"path": "/dev/nvidiactl"}),
}
# Faults that the driver copes with: nobody notices.
COPED = (Fault.BUSY, Fault.INTERRUPTED, Fault.ROW_REMAP)
# Faults that nothing of ours can mend.
FINAL: dict[Fault, type[UgpuError]] = {
    Fault.FELL_OFF: DeviceLost,
    Fault.RESET_REQUIRED: DriverRefused,
}
WHILE_OPENING: dict[Fault, type[UgpuError]] = {
    Fault.FIRMWARE_TIMEOUT: FirmwareSilent,
    Fault.NO_CHANNELS: OutOfMemory,
    Fault.NO_VIDEO_MEMORY: OutOfMemory,
    Fault.NO_SYSTEM_MEMORY: OutOfMemory,
    Fault.NO_PAGE_TABLES: OutOfMemory,
    Fault.OPEN_DENIED: AccessDenied,
    Fault.NO_UVM: ModuleMissing,
    Fault.UVM_REFUSED: DriverRefused,
    Fault.MAPPING_REFUSED: TransportError,
    Fault.LOST_DOORBELL: UgpuError,
    Fault.PUSHBUFFER: BadPacket,
}


@pytest.mark.parametrize("fault", WHILE_RUNNING, ids=lambda fault: fault.name)
def test_a_fault_is_named_and_work_goes_on(fault: Fault) -> None:
    error, facts = WHILE_RUNNING[fault]
    with powered() as machine, opened(machine) as device:
        work(device)
        limit_s = facts.get("limit_s", LIMIT_S)
        assert isinstance(limit_s, float)
        device.limit_s = limit_s
        machine.inject(fault)
        with pytest.raises(error) as caught:
            work(device)
        device.limit_s = LIMIT_S
        assert {key: caught.value.facts.get(key) for key in facts} == facts
        if "xid" in facts or error is DeviceHang:
            assert caught.value.facts["remedy"]
            assert facts.get("kernel", "") in str(caught.value)
        if fault in (Fault.LOST_DOORBELL, Fault.HANG):
            assert "GP_GET" in str(caught.value.facts["ring"])
        if device.failure is not None:
            assert device.failure is caught.value
            device.reset()
        work(device)
        work(device)


@pytest.mark.parametrize("fault", COPED, ids=lambda fault: fault.name)
def test_what_the_driver_copes_with(fault: Fault) -> None:
    with powered() as machine, opened(machine) as device:
        machine.inject(fault)
        work(device)
        assert fault in machine.faults.struck


@pytest.mark.parametrize("fault", FINAL, ids=lambda fault: fault.name)
def test_what_cannot_be_mended_leaves_the_process_clean(fault: Fault) -> None:
    with powered() as machine:
        device = opened(machine)
        work(device)
        machine.inject(fault)
        with pytest.raises(FINAL[fault]):
            work(device)
        device.close()
        assert left_behind(machine)["clients"] == 0


@pytest.mark.parametrize("fault", WHILE_OPENING, ids=lambda fault: fault.name)
def test_a_fault_while_opening_leaves_nothing(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "_SETUP_LIMIT_S", 0.5)
    with powered() as machine:
        clean = left_behind(machine)
        machine.inject(fault)
        with pytest.raises(WHILE_OPENING[fault]):
            opened(machine)
        assert left_behind(machine) == clean
        with opened(machine) as device:
            work(device)


def test_a_new_compute_channel_that_is_refused_says_so_at_its_first_work() -> None:
    """Its first methods go with the first submission."""
    with powered() as machine:
        clean = left_behind(machine)
        machine.inject(Fault.CLASS_ERROR)
        with opened(machine) as device:
            with pytest.raises(BadPacket):
                work(device)
            device.reset()
            work(device)
        assert left_behind(machine) == clean


def test_other_channels_go_on_while_one_hangs() -> None:
    with powered() as machine, opened(machine) as device, opened(machine) as other:
        work(device)
        device.limit_s = 1.5
        machine.inject(Fault.HANG)
        with pytest.raises(DeviceHang):
            work(device)
        device.limit_s = LIMIT_S
        work(other)
        device.reset()
        work(device)
        work(other)


def test_a_kernel_that_reads_and_one_that_writes_where_nothing_is() -> None:
    with powered() as machine, opened(machine) as device, device.alloc(256) as out:
        for name, access in (("read_at", "read"), ("write_at", "write")):
            program = device.load(ptx_kernels.text(ptx_kernels.FAULTY, device.target.cpu))
            address = 0x5_0000_0000_0000 >> 4
            queue = device.queue()
            queue.launch(program[name], grid=(1,), block=(64,), args=(out, np.uint64(address)))
            with pytest.raises(PageFault) as caught:
                queue.timeline.wait(queue.submit())
            assert caught.value.facts["address"] // 4096 == address // 4096
            assert caught.value.facts["access"] == access
            assert caught.value.facts["kernel"] == name
            device.reset()


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_copy_from_and_to_where_nothing_is(side: str) -> None:
    with powered() as machine, opened(machine) as device, device.alloc(4096) as good:
        address = 0x1234_5678_9000
        bad = Buffer(device.driver.core, VirtAddr(address), 4096, Placement.DEVICE, None)
        pair = (good, bad) if side == "source" else (bad, good)
        queue = device.queue(QueueKind.COPY).copy(*pair)
        with pytest.raises(PageFault, match="nothing of this device is mapped near it") as caught:
            queue.timeline.wait(queue.submit())
        facts = caught.value.facts
        access = {"source": "read", "destination": "write"}[side]
        assert (facts["address"], facts["queue"], facts["access"]) == (address, "copy 0", access)
        assert device.driver.session.events.take(None) is None, "it was told once"
        device.reset()
        work(device)


def test_an_overrun_names_the_memory_that_it_left() -> None:
    with powered() as machine, opened(machine) as device, device.alloc(4 << 20) as good:
        end = int(good.address) + (4 << 20)
        program = device.load(ptx_kernels.text(ptx_kernels.FAULTY, device.target.cpu))
        queue = device.queue().launch(
            program["write_at"], grid=(1,), block=(64,), args=(good, np.uint64(end))
        )
        with pytest.raises(PageFault, match="0 bytes behind the end of 4194304 bytes") as caught:
            queue.timeline.wait(queue.submit())
        assert hex(int(good.address)) in str(caught.value)
        device.reset()
        work(device)


def test_a_trap_is_named_with_its_place() -> None:
    with powered() as machine, opened(machine) as device, device.alloc(256) as out:
        program = device.load(ptx_kernels.text(ptx_kernels.FAULTY, device.target.cpu))
        queue = device.queue().launch(program["stop"], grid=(1,), block=(64,), args=(out,))
        with pytest.raises(IllegalInstruction) as caught:
            queue.timeline.wait(queue.submit())
        facts = caught.value.facts
        assert (
            facts["kernel"] == "stop" and facts["offset"] == facts["pc"] - program["stop"].address
        )
        device.reset()
        work(device)


def test_graphs_replay_after_a_fault() -> None:
    with powered() as machine, opened(machine) as device, device.alloc(256) as buffer:
        with device.capture() as graph, device.queue(QueueKind.COPY) as queue:
            queue.fill(buffer, 5)
        graph.replay()
        machine.inject(Fault.ILLEGAL_INSTRUCTION)
        with pytest.raises(IllegalInstruction):
            work(device)
        device.reset()
        buffer.fill(0)
        graph.replay()
        graph.wait()
        assert (buffer.numpy(np.uint32) == 5).all()


def test_a_failed_rebuild_says_so_and_can_be_tried_again() -> None:
    with powered() as machine, opened(machine) as device:
        work(device)
        device.limit_s = 1.5
        machine.inject(Fault.HANG)
        with pytest.raises(DeviceHang):
            work(device)
        device.limit_s = LIMIT_S
        machine.inject(Fault.NO_CHANNELS)
        with pytest.raises(OutOfMemory):
            device.reset("queue")
        device.reset()
        work(device)


def test_faults_again_and_again_leave_nothing_behind() -> None:
    with powered() as machine:
        clean = left_behind(machine)
        with opened(machine) as device:
            work(device)
            before = left_behind(machine)
            for fault in (Fault.UNMAPPED, Fault.ILLEGAL_INSTRUCTION, Fault.COPY_FAULT) * 5:
                machine.inject(fault)
                with pytest.raises(UgpuError):
                    work(device)
                device.reset()
            work(device)
            assert left_behind(machine) == before
        assert left_behind(machine) == clean


def test_a_barrier_is_no_error() -> None:
    with powered() as machine, opened(machine) as device:
        queue = device.queue()
        queue.commands.append(Barrier())
        queue.timeline.wait(queue.submit())
