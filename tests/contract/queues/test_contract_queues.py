"""Launches, order, waits and time on every device."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from tests.support.kernels import contract_object
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, Closed
from ugpu.hcq.work.command import Launch
from ugpu.hcq.work.command_buffer import Reference, Symbol
from ugpu.hcq.work.prepared import Placed, prepare
from ugpu.hcq.work.program import Kernel, Parameter, Program
from ugpu.hcq.work.queue import QueueKind

COUNT = 1000
GRID = (-(-COUNT // 64),)
BLOCK = (64,)
count = np.uint32(COUNT)


def test_a_kernel_of_a_closed_program_is_refused(device: Device) -> None:
    program = device.load(contract_object(device.target))
    kernel = program["wide"]
    program.close()
    program.close()
    with device.alloc(64) as out, device.queue() as queue, pytest.raises(Closed, match="wide"):
        args = (out, np.uint64(1), np.uint8(2))
        queue.launch(kernel, grid=(1,), block=(64,), args=args)


def test_a_launch_with_arguments(device: Device, program: Program) -> None:
    x = np.arange(COUNT, dtype=np.uint32)
    with device.alloc(4 * COUNT) as source, device.alloc(4 * COUNT + 64) as result:
        source.copy_from(x)
        result.fill(7)
        with device.queue() as queue:
            queue.launch(
                program["scale"], grid=GRID, block=BLOCK, args=(result, source, count, np.uint32(3))
            )
        assert (result.numpy(np.uint32)[:COUNT] == 3 * x).all()
        assert (result.numpy(np.uint32)[COUNT:] == 7).all(), "nothing beyond the count is touched"


def test_many_groups(device: Device, program: Program) -> None:
    size = 1 << 18
    x = np.arange(size, dtype=np.uint32)
    with device.alloc(4 * size) as source, device.alloc(4 * size) as result:
        source.copy_from(x)
        with device.queue() as queue:
            queue.launch(
                program["scale"],
                grid=(size // 64,),
                block=BLOCK,
                args=(result, source, np.uint32(size), np.uint32(5)),
            )
        assert (result.numpy(np.uint32) == 5 * x).all()


def test_no_groups_is_no_work(device: Device, program: Program) -> None:
    with device.alloc(64) as buffer:
        buffer.fill(9)
        with device.queue() as queue:
            queue.launch(
                program["wide"], grid=(0,), block=(1,), args=(buffer, np.uint64(1), np.uint8(1))
            )
        device.synchronize()
        assert (buffer.numpy(np.uint32) == 9).all()


def test_scalars_of_all_widths_are_laid_out_naturally(device: Device, program: Program) -> None:
    with device.alloc(8) as result:
        with device.queue() as queue:
            queue.launch(
                program["wide"],
                grid=(1,),
                block=(64,),
                args=(result, np.uint64(0x1234_5678_9ABC_DE00), np.uint8(0xF0)),
            )
        assert result.numpy(np.uint64)[0] == 0x1234_5678_9ABC_DEF0


def test_kernels_of_one_submission_see_each_other(device: Device, program: Program) -> None:
    x = np.arange(COUNT, dtype=np.uint32)
    with device.alloc(4 * COUNT) as one, device.alloc(4 * COUNT) as two:
        one.copy_from(x)
        with device.queue() as queue:
            for source, result in [(one, two), (two, one)] * 5:
                args = (result, source, count, np.uint32(2))
                queue.launch(program["scale"], grid=GRID, block=BLOCK, args=args).barrier()
        assert (one.numpy(np.uint32) == x * 1024).all()


def test_submissions_execute_in_order(device: Device, program: Program) -> None:
    with device.alloc(4 * COUNT) as total, device.alloc(4 * COUNT) as one:
        total.fill(0)
        one.fill(1)
        values = []
        for _ in range(300):
            queue = device.queue()
            queue.launch(program["add"], grid=GRID, block=BLOCK, args=(total, total, one, count))
            values.append(queue.submit())
        assert values == list(range(values[0], values[0] + 300))
        assert (total.numpy(np.uint32) == 300).all()


def test_queues_wait_for_each_other(device: Device, program: Program) -> None:
    """copy -> compute -> copy, twenty times, each step waiting for the queue before it."""
    compute, copy = device.queue(), device.queue(QueueKind.COPY)
    with device.alloc(4 * COUNT) as a, device.alloc(4 * COUNT) as b, device.alloc(4 * COUNT) as one:
        a.fill(0)
        one.fill(1)
        for _ in range(20):
            compute.wait(copy.timeline)
            compute.launch(program["add"], grid=GRID, block=BLOCK, args=(b, a, one, count))
            compute.submit()
            copy.wait(compute.timeline).copy(a, b).submit()
        assert (a.numpy(np.uint32) == 20).all()


def test_a_queue_waits_for_a_value_that_comes_later(device: Device) -> None:
    """The waiting submission comes first; nothing runs until the other queue signals."""
    gate = device.timeline("gate")
    with device.alloc(64) as buffer:
        buffer.fill(1)
        value = gate.advance()
        waiting = device.queue().wait(gate, value).fill(buffer, 2)
        done = waiting.submit()
        assert waiting.timeline.value < done
        assert not device.idle
        device.queue(QueueKind.COPY).signal(gate, value).submit()
        waiting.timeline.wait(done)
        assert gate.value == value
        gate.close()
        assert gate.value == value, "it stays readable"
        assert (buffer.numpy(np.uint32) == 2).all()


def test_timestamps_rise(device: Device, program: Program) -> None:
    x = 1 << 16
    with device.alloc(64) as ticks, device.alloc(4 * x) as buffer:
        with device.queue() as queue:
            queue.timestamp(ticks, 0)
            args = (buffer, buffer, np.uint32(x), np.uint32(1))
            queue.launch(program["scale"], grid=(x // 64,), block=BLOCK, args=args)
            queue.timestamp(ticks, 8)
        with device.queue() as queue:
            queue.timestamp(ticks[16:24])
        first, second, third = ticks.numpy(np.uint64)[:3].tolist()
        assert 0 < first < second < third
        assert (third - first) / device.clock_hertz < 60, "seconds, by the device's own clock"


def test_recording_is_dropped_when_the_block_raises(device: Device) -> None:
    with device.alloc(64) as buffer:
        buffer.fill(1)
        with pytest.raises(ZeroDivisionError), device.queue() as queue:
            queue.fill(buffer, 2)
            raise ZeroDivisionError
        assert (buffer.numpy(np.uint32) == 1).all()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (lambda b: (b, b), "arguments"),
        (lambda b: (b, b, count, np.uint32(1), np.uint32(2)), "arguments"),
        (lambda b: (b, b, count, np.uint64(1)), "bytes"),
        (lambda b: (b, b, count, 3), "width"),
        (lambda b: (b, b, count, True), "width"),
        (lambda b: (b, b, count, None), "NoneType|got 32"),  # a null pointer, 8 bytes
    ],
)
def test_wrong_arguments(device: Device, program: Program, arguments, reason: str) -> None:
    with device.alloc(64) as buffer:
        queue = device.queue()
        with pytest.raises(BadArgument, match=reason):
            queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments(buffer))
        assert not queue.commands


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((), (1,)),
        ((1, 1, 1, 1), (1,)),
        ((-1,), (1,)),
        ((1.5,), (1,)),
        (4, (1,)),
        (("1",), (1,)),
        ((1 << 31,), (1,)),
        ((1,), (0,)),
        ((1,), (4096,)),
    ],
)
def test_wrong_shapes(device: Device, program: Program, grid: tuple, block: tuple) -> None:
    with device.alloc(64) as buffer, pytest.raises(BadArgument):
        device.queue().launch(program["spin"], grid=grid, block=block, args=(buffer,))


def test_wrong_queues_and_kernels(device: Device, program: Program) -> None:
    with pytest.raises(BadArgument, match="cannot launch kernels"):
        device.queue(QueueKind.COPY).launch(program["spin"], grid=(1,), block=(1,))
    with pytest.raises(BadArgument, match="no compute queue 99"):
        device.queue(index=99)
    with pytest.raises(BadArgument, match="scale"):
        program["nothing"]
    with device.alloc(64) as buffer, pytest.raises(BadArgument, match="captured graph"):
        device.queue().launch(
            program["wide"], grid=(1,), block=(64,), args=(buffer, Parameter(0, 8), np.uint8(0))
        ).submit()
    device.synchronize()


def test_threads_submit_in_parallel(device: Device, program: Program) -> None:
    """Four threads, each with its own buffers and its own chain of dependent launches."""
    failures: list[BaseException] = []

    def chain(factor: int) -> None:
        try:
            x = np.arange(COUNT, dtype=np.uint32)
            with device.alloc(4 * COUNT) as one, device.alloc(4 * COUNT) as two:
                one.copy_from(x)
                for source, result in [(one, two), (two, one)] * 10:
                    args = (result, source, count, np.uint32(factor))
                    with device.queue() as queue:
                        queue.launch(program["scale"], grid=GRID, block=BLOCK, args=args)
                expected = x * np.uint32(pow(factor, 20, 1 << 32))
                assert (one.numpy(np.uint32) == expected).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=chain, args=(factor,)) for factor in (3, 5, 7, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_programs_come_and_go(device: Device, program: Program) -> None:
    for _ in range(3):
        loaded = device.load(contract_object(device.target))
        assert sorted(loaded) == ["add", "scale", "spin", "wide"] and len(loaded) == 4
        assert isinstance(loaded["add"], Kernel)
        loaded.close()
        loaded.close()


def test_prepared_commands_carry_numbers(device: Device, program: Program) -> None:
    """A parameter may be a number, all 64 bits of it; each submission in flight keeps its own."""
    numbers = [0, 1 << 63, (1 << 64) - 1, 0x8000_0000, 7]
    with device.alloc(8 * len(numbers)) as out:
        queue = device.queue()
        queue.launch(
            program["wide"], grid=(1,), block=BLOCK, args=(out[:8], np.uint64(0), np.uint8(0))
        )
        (launch,) = queue.commands
        assert isinstance(launch, Launch)
        references = tuple(
            Reference(8 * slot, 8, Symbol("parameter", slot=slot)) for slot in range(2)
        )
        prepared = prepare(queue.hardware, [dataclasses.replace(launch, references=references)])
        places = [int(out.address) + 8 * place for place in range(len(numbers))]
        submit = device.driver.core.submit_prepared
        for each in zip(places, numbers, strict=True):
            submit(queue.hardware, prepared, each)
        assert out.numpy(np.uint64).tolist() == numbers
        out.fill(0)
        again = queue.hardware.repetition(prepared, [0, 0], [[0], [1]])
        for each in zip(places, numbers, strict=True):
            again.submit(*each)
        assert out.numpy(np.uint64).tolist() == numbers
        placed = Placed(queue.hardware, prepared)
        for number in numbers[1:3]:
            queue.timeline.wait(placed.submit((places[0], number)))
            assert out.numpy(np.uint64)[0] == number
        placed.close()


def test_prepared_commands_run_with_other_buffers(device: Device, program: Program) -> None:
    """Encoded once, submitted with an address for each parameter."""
    x = np.arange(COUNT, dtype=np.uint32)
    buffers = [device.alloc(4 * COUNT) for _ in range(4)]
    try:
        queue = device.queue()
        arguments = (buffers[0], buffers[1], count, np.uint32(3))
        queue.launch(program["scale"], grid=GRID, block=BLOCK, args=arguments)
        (launch,) = queue.commands
        assert isinstance(launch, Launch)
        references = tuple(
            reference._replace(symbol=Symbol("parameter", slot=slot))
            for slot, reference in enumerate(launch.references)
        )
        opened = dataclasses.replace(launch, references=references)
        prepared = prepare(queue.hardware, [opened])
        for result, source in ((buffers[0], buffers[1]), (buffers[2], buffers[3])):
            source.copy_from(x + 1)
            value = device.driver.core.submit_prepared(
                queue.hardware, prepared, [result.address, source.address]
            )
            queue.timeline.wait(value)
            assert (result.numpy(np.uint32) == 3 * (x + 1)).all()
        again = queue.hardware.repetition(prepared, [0, 0], [[0], [1]])
        for result, source in ((buffers[0], buffers[3]), (buffers[2], buffers[1])):
            source.copy_from(x + 2)
            queue.timeline.wait(again.submit(result.address, source.address))
            assert (result.numpy(np.uint32) == 3 * (x + 2)).all()
        with device.capture():
            with pytest.raises(BadArgument, match="record the commands"):
                device.driver.core.submit_prepared(queue.hardware, prepared, [0, 0])
            with pytest.raises(BadArgument, match="record the commands"):
                again.submit(0, 0)
    finally:
        for buffer in buffers:
            buffer.close()
