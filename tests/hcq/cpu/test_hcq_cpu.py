"""What is particular to the cpu device: native objects, its command processor, its threads."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.kernels import compile_ir, contract_object
from ugpu import hcq
from ugpu.hcq.cpu.device import CpuDevice
from ugpu.hcq.cpu.object import load_object
from ugpu.hcq.cpu.queue import ARENA_SIZE, SLOTS
from ugpu.hcq.errors import BadCodeObject, BadPacket, DeviceHang, NotSupported
from ugpu.hcq.state import life
from ugpu.hcq.state.clock import Clock
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.state.target import TargetSpec
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.command_buffer import Reference, Symbol
from ugpu.hcq.work.prepared import prepare
from ugpu.hcq.work.queue import QueueKind

# sine(out, x, u32 count): calls the mathematics library, and memset through a large local array
CALLS = """
target triple = "{triple}"
@sine.ugpu = constant {{ i32, i32 }} {{ i32 1, i32 20 }}
@bias = constant [2 x double] [double 0.0, double 1.0]
declare double @sin(double)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define void @sine(ptr %kernarg, ptr %launch) {{
entry:
  %local = alloca [512 x i8]
  call void @llvm.memset.p0.i64(ptr %local, i8 1, i64 512, i1 0)
  %one = load volatile i8, ptr %local
  %index = zext i8 %one to i64
  %bias.at = getelementptr double, ptr @bias, i64 %index
  %bias = load double, ptr %bias.at
  %out = load ptr, ptr %kernarg
  %x.at = getelementptr i8, ptr %kernarg, i64 8
  %x = load ptr, ptr %x.at
  %count.at = getelementptr i8, ptr %kernarg, i64 16
  %count = load i32, ptr %count.at
  %limit = zext i32 %count to i64
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr double, ptr %x, i64 %i
  %value = load double, ptr %from
  %sine = call double @sin(double %value)
  %sum = fadd double %sine, %bias
  %to = getelementptr double, ptr %out, i64 %i
  store double %sum, ptr %to
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %limit
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
# count(cells, u64 flag): adds one to cell [group] for each of its groups, atomically
COUNT = """
target triple = "{triple}"
@count.ugpu = constant {{ i32, i32 }} {{ i32 1, i32 8 }}
define void @count(ptr %kernarg, ptr %launch) {{
entry:
  %cells = load ptr, ptr %kernarg
  %first = load i64, ptr %launch
  %last.at = getelementptr i8, ptr %launch, i64 8
  %last = load i64, ptr %last.at
  br label %loop
loop:
  %i = phi i64 [ %first, %entry ], [ %next, %spun ]
  %cell = getelementptr i32, ptr %cells, i64 %i
  %old = atomicrmw add ptr %cell, i32 1 monotonic
  br label %spin
spin:
  %j = phi i64 [ 0, %loop ], [ %j.next, %spin ]
  %value = load volatile i32, ptr %cell
  %j.next = add i64 %j, 1
  %again = icmp ult i64 %j.next, 200
  br i1 %again, label %spin, label %spun
spun:
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %last
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


@pytest.fixture(scope="module")
def cpu() -> Iterator[CpuDevice]:
    with hcq.open("cpu", threads=3) as device:
        assert isinstance(device, CpuDevice)
        yield device


def build(template: str, target: TargetSpec) -> bytes:
    return compile_ir(template.format(triple=target.triple), target.triple, target.cpu)


def test_kernels_call_the_mathematics_library(cpu: CpuDevice) -> None:
    x = np.linspace(-3, 3, 100)
    with cpu.load(build(CALLS, cpu.target)) as program, cpu.alloc(800) as a, cpu.alloc(800) as b:
        a.copy_from(x)
        with cpu.queue() as queue:
            queue.launch(program["sine"], grid=(1,), block=(1,), args=(b, a, np.uint32(100)))
        assert np.allclose(b.numpy(np.float64), np.sin(x) + 1)


def test_a_function_that_is_nowhere_is_named(cpu: CpuDevice) -> None:
    image = build(CALLS.replace("@sin(", "@no_such_function("), cpu.target)
    with pytest.raises(BadCodeObject, match="no_such_function"):
        cpu.load(image)


def test_objects_without_kernels_or_with_variables_are_refused(cpu: CpuDevice) -> None:
    plain = 'target triple = "{triple}"\ndefine void @f() {{ ret void }}\n'
    with pytest.raises(BadCodeObject, match="no kernels"):
        cpu.load(build(plain, cpu.target))
    variable = CALLS + "@state = global i32 5\n"
    with pytest.raises(BadCodeObject, match="writable data"):
        cpu.load(build(variable, cpu.target))
    future = CALLS.replace("i32 1, i32 20", "i32 3, i32 20")
    with pytest.raises(BadCodeObject, match=r"\.ugpu symbol"):
        cpu.load(build(future, cpu.target))


def test_every_group_runs_exactly_once_on_all_threads(cpu: CpuDevice) -> None:
    groups = 20_011
    with cpu.load(build(COUNT, cpu.target)) as program, cpu.alloc(4 * groups) as cells:
        for turn in range(1, 6):
            if turn == 1:
                cells.fill(0)
            with cpu.queue() as queue:
                queue.launch(program["count"], grid=(groups,), block=(1,), args=(cells,))
            assert (cells.numpy(np.uint32) == turn).all()


@pytest.mark.parametrize("threads", [2, 3])
def test_workers_that_step_aside_may_still_use_every_processor(threads: int) -> None:
    allowed = os.sched_getaffinity(0)
    with hcq.open("cpu", threads=threads) as device:
        assert isinstance(device, CpuDevice)
        with device.load(build(COUNT, device.target)) as program, device.alloc(1 << 16) as cells:
            for turn in range(20):
                if turn % 3 == 0:
                    device.driver.prefetch_wake()
                with device.queue() as queue:
                    queue.launch(program["count"], grid=(1 << 14,), block=(1,), args=(cells,))
                device.synchronize()
        numbers = [thread.native_id for thread in device.driver._pool.threads]
        # Who has been sent to another processor takes them back when it gets there.
        Clock().wait_until(
            lambda: all(os.sched_getaffinity(number or 0) == allowed for number in numbers),
            unit="the workers", waiting_for="their processors", limit_s=30,
        )  # fmt: skip


def test_what_is_repeated_survives_full_slots_and_a_reset(cpu: CpuDevice) -> None:
    count = SLOTS + 40
    with cpu.load(build(COUNT, cpu.target)) as program, cpu.alloc(4 * count) as cells:
        cells.fill(0)
        queue = cpu.queue().launch(program["count"], grid=(1,), block=(1,), args=(cells,))
        (launch,) = queue.commands
        assert isinstance(launch, Launch)
        opened = replace(launch, references=(Reference(0, 8, Symbol("parameter", slot=0)),))
        prepared = prepare(queue.hardware, [opened])
        again = queue.hardware.repetition(prepared, [0], [[0]])
        for turn in (1, 2):
            for number in range(count):
                again.submit(int(cells.address) + 4 * number)
            cpu.synchronize()
            assert (cells.numpy(np.uint32) == turn).all()
            cpu.reset()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_launches_right_after_each_other_share_no_group(threads: int) -> None:
    """Threads still looking for work, threads asleep, kernels known to be quick and not."""
    counts = [1, 2, 3, 500, 2, 64, 5000, 1, 700, 3] * 20
    with hcq.open("cpu", threads=threads) as device:
        most = max(counts)
        with device.load(build(COUNT, device.target)) as program, device.alloc(4 * most) as cells:
            cells.fill(0)
            with device.queue() as queue:
                for count in counts:
                    queue.launch(program["count"], grid=(count,), block=(1,), args=(cells,))
                    queue.barrier()
            expected = np.zeros(most, np.uint32)
            for count in counts:
                expected[:count] += 1
            assert (cells.numpy(np.uint32) == expected).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_submissions_that_announce_a_shared_launch(threads: int) -> None:
    """From the second on the pool is woken by the push itself; the queue's thread comes later."""
    with (
        hcq.open("cpu", threads=threads) as device,
        device.load(build(COUNT, device.target)) as program,
        device.alloc(4 * 4096) as cells,
    ):
        cells.fill(0)
        for turn in range(1, 31):
            with device.queue() as queue:
                queue.launch(program["count"], grid=(4096,), block=(1,), args=(cells,))
            device.synchronize()
            assert (cells.numpy(np.uint32) == turn).all()


@pytest.mark.parametrize("width", [4, 8])
def test_prepared_commands_take_numbers_of_any_width(cpu: CpuDevice, width: int) -> None:
    with cpu.load(build(COUNT, cpu.target)) as program, cpu.alloc(64) as cells:
        cells.fill(0)
        queue = cpu.queue().launch(program["count"], grid=(7,), block=(1,), args=(cells,))
        (launch,) = queue.commands
        assert isinstance(launch, Launch)
        references = [Reference(0, 8, Symbol("parameter", addend=8, slot=0))]
        if width == 4:  # two numbers in place of one
            whole = int(cells.address) + 8
            references = [Reference(0, 4, Symbol("parameter", slot=0))]
            references += [Reference(4, 4, Symbol("parameter", addend=-7, slot=1))]
            given = [whole & 0xFFFF_FFFF, (whole >> 32) + 7]
        else:
            given = [int(cells.address)]
        made = replace(launch, references=tuple(references))
        prepared = prepare(queue.hardware, [made])
        for _ in range(3):
            cpu.driver.core.submit_prepared(queue.hardware, prepared, given)
        cpu.synchronize()
        assert list(cells.numpy(np.uint32)[:10]) == [0, 0, *[3] * 7, 0]


@given(st.data())
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_corrupted_objects_are_loaded_or_refused(cpu: CpuDevice, data: st.DataObject) -> None:
    """Nothing is run: what machine code does is its own business, that it loads is ours."""
    image = bytearray(build(CALLS, cpu.target))
    for _ in range(data.draw(st.integers(1, 5))):
        image[data.draw(st.integers(0, len(image) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del image[data.draw(st.integers(0, len(image))) :]
    try:
        memory, kernels = load_object(bytes(image))
    except (BadCodeObject, NotSupported):
        return
    for kernel in kernels.values():
        assert memory.holds(kernel.address)
    memory.close()


def test_words_that_are_no_command_stop_the_device(cpu: CpuDevice) -> None:
    with hcq.open("cpu", threads=1) as device:
        buffer = device.alloc(64)
        with device.capture() as graph, device.queue() as queue:
            queue.fill(buffer, 1)
        (image,) = graph._images
        image.resident.words[0] = 0x77
        graph.replay()
        with pytest.raises(BadPacket, match="0x77"):
            graph.wait(limit_s=60)  # ends at once: those who wait are woken
        with pytest.raises(BadPacket):
            device.alloc(64)
        device.reset()
        buffer.fill(3)
        assert (buffer.numpy(np.uint32) == 3).all()


def test_images_larger_than_the_transient_memory(cpu: CpuDevice) -> None:
    """More words in flight than the arena holds, and one image larger than all of it."""
    gate_memory = cpu.alloc(16, placement=Placement.HOST)
    gate = hcq.Timeline(cpu.driver.core, gate_memory, "gate")
    with cpu.alloc(64) as buffer:
        queue = cpu.queue().wait(gate, 1)
        queue.submit()
        number = 0
        for size in [10, 1000] * 60 + [ARENA_SIZE // 20]:
            for _ in range(size):
                number += 1
                queue.fill(buffer, number)
            queue.submit()
        cpu.queue(QueueKind.COPY).signal(gate, 1).submit()
        assert (buffer.numpy(np.uint32) == number).all()
    gate_memory.close()


@pytest.mark.parametrize("count", [SLOTS - 1, SLOTS, SLOTS + 1, 3 * SLOTS])
def test_more_prepared_submissions_in_flight_than_slots(cpu: CpuDevice, count: int) -> None:
    gate_memory = cpu.alloc(16, placement=Placement.HOST)
    gate = hcq.Timeline(cpu.driver.core, gate_memory, "gate")
    with cpu.load(build(COUNT, cpu.target)) as program, cpu.alloc(8 * count) as cells:
        cells.fill(0)
        queue = cpu.queue().launch(program["count"], grid=(1,), block=(1,), args=(cells,))
        (launch,) = queue.commands
        assert isinstance(launch, Launch)
        given = (Reference(0, 8, Symbol("parameter", slot=0)),)
        prepared = prepare(queue.hardware, [replace(launch, references=given)])
        cpu.queue().wait(gate, 1).submit()
        for turn in (0, 1):
            for number in range(count):
                place = int(cells.address) + 4 * number
                cpu.driver.core.submit_prepared(queue.hardware, prepared, [place])
            if turn == 0:
                cpu.queue(QueueKind.COPY).signal(gate, 1).submit()
        assert (cells.numpy(np.uint32)[:count] == 2).all()
    gate_memory.close()


def test_images_larger_than_a_slot(cpu: CpuDevice) -> None:
    with cpu.load(build(COUNT, cpu.target)) as program, cpu.alloc(64) as cells:
        cells.fill(0)
        queue = cpu.queue()
        for _ in range(200):
            queue.launch(program["count"], grid=(3,), block=(1,), args=(cells,)).barrier()
        prepared = prepare(queue.hardware, queue.commands)
        for _ in range(2):
            cpu.driver.core.submit_prepared(queue.hardware, prepared, [])
        assert list(cells.numpy(np.uint32)[:4]) == [400, 400, 400, 0]


@pytest.mark.parametrize("threads", [1, 2])
def test_work_that_is_expected_comes_or_does_not(threads: int) -> None:
    with hcq.open("cpu", threads=threads) as device, device.alloc(64) as buffer:
        for number in range(50):
            device.driver.prefetch_wake()
            if number % 3:
                buffer.fill(number)
            if number % 7 == 0:
                device.reset()
        buffer.fill(50)
        assert (buffer.numpy(np.uint32) == 50).all()
        device.driver.prefetch_wake()
    device.driver.prefetch_wake()  # closed


def test_a_hang_names_its_kernel_and_keeps_memory(cpu: CpuDevice) -> None:
    device = hcq.open("cpu", threads=2)
    assert isinstance(device, CpuDevice)
    program = device.load(contract_object(device.target))
    flag = device.alloc(4, placement=Placement.HOST)
    view = flag.view
    assert view is not None
    view[:] = bytes(4)
    hung = device.driver._compute.server.thread
    with device.queue() as queue:
        queue.launch(program["spin"], grid=(1,), block=(1,), args=(flag,))
    Clock().wait_until(
        device.driver._compute.server.in_kernel,
        unit="cpu", waiting_for="start of the kernel", limit_s=60,
    )  # fmt: skip
    with pytest.raises(DeviceHang) as caught:
        device.synchronize(limit_s=0.05)
    assert caught.value.facts["kernel"] == "spin"
    assert caught.value.facts["pending_submissions"] == 1
    device.reset()
    flag.close()  # the old kernel still reads it: the memory stays
    program.close()
    with device.alloc(64) as buffer:
        buffer.fill(4)
        assert buffer.numpy()[0] == 4
    assert hung.is_alive()
    view[:] = struct.pack("<I", 1)  # now the old kernel ends, and its thread with it
    hung.join(60)
    assert not hung.is_alive()
    device.close()


def test_threads_end_with_the_device() -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        with hcq.open("cpu", threads=4) as device, device.alloc(64) as buffer:
            buffer.fill(1)
    assert set(threading.enumerate()) <= before


def test_threads_that_end_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy host: none has ended within the limit of those that are inside a kernel."""
    monkeypatch.setattr("ugpu.hcq.cpu.processor.JOIN_LIMIT_S", 0.0)
    for _ in range(20):
        before = set(threading.enumerate())
        with hcq.open("cpu", threads=4) as device, device.alloc(64) as buffer:
            buffer.fill(1)
        assert set(threading.enumerate()) <= before


def test_stages_are_told() -> None:
    told: list[tuple[str, float]] = []
    with hcq.open("cpu", on_stage=lambda stage, seconds: told.append((stage, seconds))):
        pass
    assert [stage for stage, _ in told] == ["command processor", "queues and threads"]
    assert all(seconds >= 0 for _, seconds in told)


def test_a_kernel_left_behind_outlives_its_device() -> None:
    """Its code, arguments and structures stay while it runs, whatever happens to the device."""
    before = set(threading.enumerate())
    cpu = hcq.open("cpu")
    program = cpu.load(contract_object(cpu.target))
    flag = cpu.alloc(64, placement=Placement.HOST)
    flag.fill(0)
    with cpu.queue() as queue:
        queue.launch(program["spin"], grid=(1,), block=(1,), args=(flag,))
    with pytest.raises(DeviceHang):
        cpu.synchronize(0.05)
    address = int(flag.address)
    cpu.reset()
    cpu.close()
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert threads and life.left_behind() == len(threads)
    del cpu, program, flag, queue
    gc.collect()
    ctypes.memset(address, 1, 64)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert life.left_behind() == 0
