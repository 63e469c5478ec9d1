"""Faults of running work: each is its own error with the facts, and the same program runs after a
reset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, run, start_forever
from tests.support.kernels import compile_ir
from ugpu.am.chips import facts_of
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import BadPacket, DeviceHang, DeviceLost, IllegalInstruction, PageFault
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.command_buffer import CommandBuffer
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind

NULL, UNMAPPED, LAST_LOW, NOT_CANONICAL = 0, 0x1234_5678_9000, 0x7FFF_FFFF_F000, 0x8000_0000_0000

# The host call buffer is at byte 80 of the implicit arguments (code object version 5).
CALLS_HOST = """
target triple = "amdgcn-amd-amdhsa"
declare ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
define amdgpu_kernel void @calls_host(ptr addrspace(1) %out) #0 {
  %implicit = call ptr addrspace(4) @llvm.amdgcn.implicitarg.ptr()
  %at = getelementptr i8, ptr addrspace(4) %implicit, i64 80
  %buffer = load ptr addrspace(1), ptr addrspace(4) %at
  %value = load volatile i32, ptr addrspace(1) %buffer
  store i32 %value, ptr addrspace(1) %out
  ret void
}
attributes #0 = { "amdgpu-no-queue-ptr" "amdgpu-no-dispatch-id" "amdgpu-no-dispatch-ptr"
  "amdgpu-no-heap-ptr" "amdgpu-no-default-queue" "amdgpu-no-completion-action"
  "amdgpu-no-multigrid-sync-arg" "amdgpu-flat-work-group-size"="64,64" }
"""


@pytest.fixture(scope="module", params=["navi31", "navi48"])
def chip(request: pytest.FixtureRequest) -> Iterator[Any]:
    made = build_chip(facts=facts_of(request.param))
    yield made
    made.close()


@pytest.fixture(scope="module")
def device(chip: Any) -> Iterator[AmDevice]:
    with opened(chip) as made:
        yield made
    assert chip.violations == []


@pytest.fixture(scope="module")
def program(device: AmDevice) -> Iterator[Program]:
    with device.load(faulty_object(device.target.cpu)) as loaded:
        yield loaded


@pytest.fixture
def out(device: AmDevice, program: Program) -> Iterator[Buffer]:
    """A result buffer; leaves the device as it was: usable, nothing leaked, same program."""
    with device.alloc(64) as buffer:
        check_runs(device, program, buffer, 41)
        used = device.driver.memory.used
        yield buffer
        assert device.failure is not None, "the fault must be remembered until the reset"
        with pytest.raises(type(device.failure)):
            device.queue()
        device.reset()
        assert device.reset_report[-1].worked
        check_runs(device, program, buffer, 42)
        assert device.driver.memory.used == used


@pytest.mark.parametrize("address", [NULL, UNMAPPED, LAST_LOW, NOT_CANONICAL])
@pytest.mark.parametrize("access", ["read", "write"])
def test_wild_pointer(
    device: AmDevice, program: Program, out: Buffer, access: str, address: int
) -> None:
    with pytest.raises(PageFault) as caught:
        run(device, program, f"{access}_at", out, np.uint64(address))
    facts = caught.value.facts
    assert (facts["address"], facts["access"], facts["vmid"]) == (address, access, 8)
    assert (facts["hub"], facts["client"]) == ("GFXHUB", "TCP")


def test_write_to_code_is_refused(device: AmDevice, program: Program, out: Buffer) -> None:
    address = program["good"].address
    with pytest.raises(PageFault) as caught:
        run(device, program, "write_at", out, np.uint64(address))
    assert caught.value.facts["address"] == address // 4096 * 4096
    assert caught.value.facts["refused"] == "write"


def test_beyond_the_end_of_a_buffer(device: AmDevice, program: Program, out: Buffer) -> None:
    with device.alloc(4096) as small, pytest.raises(PageFault) as caught:
        run(device, program, "read_at", out, np.uint64(small.address + 4096))
    assert caught.value.facts["address"] == small.address + 4096
    assert caught.value.facts["kernel"] == "read_at"
    assert "device.reset()" in str(caught.value.facts["remedy"])
    text = str(caught.value)
    assert text.startswith(
        f"{device.name}: read_at: a read of {small.address + 4096:#x} faulted, by `global_load_b32"
    )
    end = f"bytes behind the end of 4096 bytes of device memory at {small.address:#x}"
    assert f" of the kernel: in the page 0 {end}" in text


def test_the_kernel_that_faulted_is_told_from_those_before_it(
    device: AmDevice, program: Program, out: Buffer
) -> None:
    """The fault is reported after its kernel has ended; what ended well before is not suspected."""
    run(device, program, "good", out, np.uint32(1))
    with device.capture() as graph, device.queue() as queue:
        queue.launch(
            program["write_at"], grid=(1,), block=(32,),
            args=(out, np.uint64(program["good"].address)),
        )  # fmt: skip
    graph.replay()
    with pytest.raises(PageFault, match=r"write_at: a write to .* of code at") as caught:
        device.synchronize()
    assert caught.value.facts["kernel"] == "write_at"


def test_a_pointer_that_the_driver_does_not_provide(
    device: AmDevice, program: Program, out: Buffer
) -> None:
    with device.load(compile_ir(CALLS_HOST, "amdgcn-amd-amdhsa", device.target.cpu)) as other:
        with pytest.raises(PageFault, match="does not provide hidden_hostcall_buffer") as caught:
            run(device, other, "calls_host", out)
        assert caught.value.facts["kernel"] == "calls_host"
        assert caught.value.facts["address"] == 0


def test_a_copy_that_faults_names_its_engine(
    device: AmDevice, program: Program, out: Buffer
) -> None:
    victim = device.alloc(4096)
    queue = device.queue(QueueKind.COPY)
    queue.fill(victim, 1)
    device.driver.memory.tables.clear(int(victim.address), 4096)
    device.driver.memory.stale = True
    with pytest.raises(PageFault, match=r"SDMA0: a write to .* of device memory") as caught:
        queue.timeline.wait(queue.submit())
    assert caught.value.facts["kernel"] is None
    device.driver.memory.release(victim.handle)
    victim.closed = True


def test_freed_memory_faults(device: AmDevice, program: Program, out: Buffer) -> None:
    """Unmapping reaches the TLBs: an access that hit them before faults after the free."""
    victim = device.alloc(4096)
    address = np.uint64(victim.address)
    run(device, program, "read_at", out, address)
    victim.close()
    with pytest.raises(PageFault):
        run(device, program, "read_at", out, address)


def test_jump_into_data(device: AmDevice, program: Program, out: Buffer) -> None:
    with device.alloc(4096) as data, pytest.raises(PageFault) as caught:
        run(device, program, "jump_to", out, np.uint64(data.address))
    assert caught.value.facts["access"] == "execute"
    assert caught.value.facts["address"] == data.address


@pytest.mark.parametrize("address", [NULL, UNMAPPED, LAST_LOW, NOT_CANONICAL])
def test_jump_to_nowhere(device: AmDevice, program: Program, out: Buffer, address: int) -> None:
    with pytest.raises(PageFault) as caught:
        run(device, program, "jump_to", out, np.uint64(address))
    facts = caught.value.facts
    assert (facts["address"], facts["access"]) == (address, "execute")
    assert (facts["hub"], facts["client"]) == ("GFXHUB", "SQC (inst)")


def test_illegal_instruction(device: AmDevice, program: Program, out: Buffer) -> None:
    with pytest.raises(IllegalInstruction) as caught:
        run(device, program, "illegal", out)
    kernel = program["illegal"].address
    assert caught.value.facts["pc"] in range(kernel, kernel + 256)


@pytest.mark.parametrize("group", [1, 6, 11, 12, 47, 50])
def test_the_state_of_a_wave_is_found_wherever_it_runs(
    device: AmDevice, program: Program, out: Buffer, group: int
) -> None:
    """Six or four shader engines of two arrays of four WGPs of four SIMDs."""
    board = device.driver.facts.board
    engines, wgps = board.shader_engines, board.wgps_per_array
    with pytest.raises(IllegalInstruction) as caught:
        with device.queue() as queue:
            args = (out, np.uint32(group))
            queue.launch(program["illegal_in"], grid=(64,), block=(32,), args=args)
        device.synchronize()
    facts = caught.value.facts
    place = (facts["shader_engine"], facts["array"], facts["wgp"], facts["simd"])
    arrays = engines * board.arrays_per_engine
    assert place == (
        group % engines, group // engines % 2, group // arrays % wgps, group // (arrays * wgps)
    )  # fmt: skip
    illegal = {"gfx11": 1 << 11, "gfx12": 1 << 6}[device.driver.facts.generation.name]
    assert facts["kernel"] == "illegal_in" and facts["trap_status"] == illegal
    start = f"{device.name}: illegal_in: a wave stopped: illegal instr"
    assert str(caught.value).startswith(start)
    assert str(facts["instruction"]).startswith(
        "0xf7ffffff"
    )  # as tests.support.amd.am_faulty wrote it
    kernel = program["illegal_in"].address
    assert facts["pc"] in range(kernel, kernel + 256)


def test_endless_loop(chip: Any, device: AmDevice, program: Program, out: Buffer) -> None:
    start_forever(chip, device, program, out)
    with pytest.raises(DeviceHang) as caught:
        device.synchronize(limit_s=0.2)
    facts = caught.value.facts
    assert facts["active"] == 1
    assert facts["slots_submitted"] != facts["slots_done"]
    text = str(caught.value)
    start = f"{device.name} compute 0.0: kernel forever has not ended within 0.2 s"
    assert text.startswith(start)
    assert f"expected signal {facts['reached'] + 1}, got {facts['reached']}" in text


def test_unknown_packet(device: AmDevice, out: Buffer) -> None:
    queue = device.driver.queues.compute[0]
    image = CommandBuffer(np.array([0xC000_FE00, 0], np.uint32), 2, ())
    queue.submit(image, np.zeros(0, np.uint64))
    queue.timeline.advance()
    with pytest.raises(BadPacket) as caught:
        queue.timeline.wait(limit_s=60)
    assert caught.value.facts["source"] == 183
    assert caught.value.facts["queue"] == 0


def test_copy_from_nowhere(device: AmDevice, out: Buffer) -> None:
    nowhere = Buffer(device.driver.core, out.address, 64, out.placement, owner=out)
    nowhere.address = type(out.address)(UNMAPPED)
    with device.queue(QueueKind.COPY) as queue:
        queue.copy(out, nowhere, 64)
    with pytest.raises(PageFault) as caught:
        device.synchronize()
    assert caught.value.facts["address"] == UNMAPPED
    assert "SDMA0" in str(caught.value)


def test_surprise_removal() -> None:
    chip = build_chip()
    try:
        with opened(chip) as device, device.load(faulty_object()) as program:
            out = device.alloc(64)
            check_runs(device, program, out, 1)
            chip.unplug()
            with device.queue() as queue:
                queue.launch(program["good"], grid=(1,), block=(32,), args=(out, np.uint32(2)))
            with pytest.raises(DeviceLost):
                device.synchronize()
            with pytest.raises(DeviceLost):
                device.alloc(64)
            with pytest.raises(DeviceLost):
                device.reset()
    finally:
        chip.close()


def test_pulled_out_and_plugged_in_again() -> None:
    chip = build_chip()
    try:
        with opened(chip) as device, device.load(faulty_object()) as program:
            out = device.alloc(64)
            check_runs(device, program, out, 1)
            chip.unplug()
            with pytest.raises(DeviceLost):
                check_runs(device, program, out, 2)
            chip.power_cycle()
            device.reset()
            assert [step.name for step in device.reset_report] == ["boot after power loss"]
            check_runs(device, program, out, 3)
            assert chip.violations == []
    finally:
        chip.close()
