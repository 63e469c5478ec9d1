"""Preemption modes: when a running grid leaves the engine for other groups of channels, and what
comes to one that does not. Facts: ctrl2080gr.h, and an H100 with driver 580.159.04."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.nvidia.nv_machine import hanging, opened, powered, preemptible, work
from tests.support.nvidia.rm_program import RmProgram, StatusError
from tests.support.waiting import until
from ugpu.hcq.errors import DeviceHang
from ugpu.virtual.nvidia.faults import Fault, Xid
from ugpu.virtual.nvidia.host.group import Preemption
from ugpu.virtual.nvidia.options import SWITCH_LIMIT_S, MachineOptions
from ugpu.virtual.nvidia.status import Status

SEMAPHORE = 0x4000
SET_MODE = "NV2080_CTRL_CMD_GR_SET_CTXSW_PREEMPTION_MODE"
SHORT_S = 0.2
COMPUTE, GRAPHICS = 1, 2  # flags


def run(program: RmProgram, number: int) -> None:
    """Launch one grid, and a release behind it."""
    code = program.program("// not read", "kernel", 16)
    program.windows()
    program.launch(program.put_qmd(program.qmd(code)))
    program.release(program.work_address + SEMAPHORE, number)
    program.submit()


def set_mode(program: RmProgram, channel: int, mode: int, flags: int = COMPUTE) -> None:
    program.control(
        program.subdevice, SET_MODE, flags=flags, hChannel=channel, cilpPreemptMode=mode,
        gfxpPreemptMode=mode,
    )  # fmt: skip


def hang(program: RmProgram) -> None:
    """Launch a grid that never ends, and wait until it runs."""
    machine = program.machine
    machine.inject(Fault.HANG)
    run(program, 1)
    owner = machine.gpu.runlists[0]
    until(lambda: any(group.in_program for group in owner._groups), "the grid to run")


@contextmanager
def two(chip: str = "gh100", limit_s: float = SHORT_S) -> Iterator[tuple[RmProgram, RmProgram]]:
    with RmProgram(chip, switch_limit_s=limit_s) as first:
        first.bring_up()
        with RmProgram(chip, machine=first.machine) as second:
            second.bring_up()
            yield first, second


@pytest.mark.parametrize("chip", ["tu102", "ga102", "gh100", "gb202"])
def test_a_grid_that_is_not_preempted_is_stopped_once_another_group_waits(chip: str) -> None:
    with two(chip) as (first, second):
        hang(first)
        run(second, 7)
        assert first.wait_error() == (Xid.CONTEXT_SWITCH_TIMEOUT, 0xFFFF)
        second.wait(SEMAPHORE, 7)
        (report,) = first.machine.log
        assert report.xid == 109 and "CTX SWITCH TIMEOUT" in report.text
        assert report.channel == first.channel_number
        assert first.word(SEMAPHORE) == 0
        assert first.machine.gpu.runlists[0].switches == 0


@pytest.mark.parametrize("mode", [Preemption.CTA, Preemption.CILP])
@pytest.mark.parametrize("target", ["group", "channel"])
def test_a_grid_that_is_preempted_goes_on(mode: Preemption, target: str) -> None:
    with two() as (first, second):
        set_mode(first, getattr(first, target), mode)
        hang(first)
        for number in range(1, 200):  # for more slices than the limit has
            run(second, number)
            second.wait(SEMAPHORE, number)
        assert first.machine.log == []
        assert first.machine.gpu.runlists[0].switches > 0


def test_a_mode_holds_for_the_grid_that_runs() -> None:
    with two(limit_s=3600) as (first, second):
        hang(first)
        run(second, 7)
        until(lambda: first.machine.gpu.runlists[0]._groups[0].aside, "the slice to be over")
        assert second.word(SEMAPHORE) == 0
        set_mode(first, first.group, Preemption.CILP)
        second.wait(SEMAPHORE, 7)
        assert first.machine.log == []


def test_graphics_alone_does_not_change_what_compute_does() -> None:
    with two() as (first, second):
        set_mode(first, first.group, 1, GRAPHICS)
        hang(first)
        run(second, 7)
        assert first.wait_error()[0] == Xid.CONTEXT_SWITCH_TIMEOUT


def test_a_grid_that_ends_in_time_is_not_stopped() -> None:
    """Another group waits meanwhile: for the engine to be idle."""
    with two(limit_s=3600) as (first, second):
        sms: Any = first.machine.gpu.multiprocessors
        plain, released = sms.answer, []

        def slowly(*given: Any) -> Any:
            sms.answer = plain
            until(lambda: first.machine.gpu.runlists[0]._groups[0].aside, "another to wait")
            released.append(second.word(SEMAPHORE))
            return plain(*given)

        sms.answer = slowly
        run(first, 1)
        until(lambda: first.machine.gpu.runlists[0].running, "the grid to run")
        run(second, 7)
        first.wait(SEMAPHORE, 1)
        second.wait(SEMAPHORE, 7)
        assert released == [0]
        assert first.machine.log == []


def test_a_grid_that_nobody_waits_for_is_never_stopped() -> None:
    with two(limit_s=0.01) as (first, _):
        hang(first)
        group = first.machine.gpu.runlists[0]._groups[0]
        for _ in range(100):
            first.machine.gpu.kick()
            assert group.leaves_in_time(3600)
        assert group.running is not None and not group.running.attention.ending
        assert first.machine.log == []


def test_a_preemption_that_is_asked_for_times_out_too() -> None:
    with two() as (first, _):
        hang(first)
        first.control(first.group, "NVA06C_CTRL_CMD_PREEMPT", bWait=1)
        assert first.wait_error()[0] == Xid.CONTEXT_SWITCH_TIMEOUT


def test_the_limit_is_that_of_the_sources() -> None:
    """0x3fffff ticks of 1024 ns: "~ 4.3 seconds"."""
    assert MachineOptions().switch_limit_s == SWITCH_LIMIT_S == pytest.approx(4.295, abs=1e-3)


def test_what_the_control_takes() -> None:
    with RmProgram() as program:
        program.bring_up()
        copies, _ = program.alloc(
            program.device, 0xA06C, "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS",
            hVASpace=program.space, engineType=11,
        )  # fmt: skip
        group = program.group
        for channel, mode, flags, status in (
            (group, 3, COMPUTE, Status.INVALID_ARGUMENT),
            (group, 3, GRAPHICS, Status.INVALID_ARGUMENT),
            (group, 2, 0, Status.INVALID_ARGUMENT),
            (group, 2, 4, Status.INVALID_ARGUMENT),
            (0x4242, 2, COMPUTE, Status.INVALID_CHANNEL),
            (program.compute, 2, COMPUTE, Status.INVALID_CHANNEL),
            (copies, 2, COMPUTE, Status.NOT_SUPPORTED),
        ):
            with pytest.raises(StatusError) as error:
                set_mode(program, channel, mode, flags)
            assert error.value.status == status, (channel, mode, flags)
        set_mode(program, group, 2, COMPUTE | GRAPHICS)
        program.control(
            program.subdevice, SET_MODE, flags=COMPUTE, hChannel=group, gfxpPreemptMode=9
        )


@pytest.mark.parametrize("chip", ["tu102", "gh100"])
@pytest.mark.parametrize("preempted", [True, False])
def test_a_program_beside_one_whose_kernel_does_not_end(chip: str, preempted: bool) -> None:
    """Without preemption by instruction our driver names what happened. One that only copies
    disturbs nobody."""
    options = MachineOptions(switch_limit_s=SHORT_S)
    with powered(chip, options) as machine, opened(machine) as device, opened(machine) as other:
        if preempted:
            preemptible(device)
        with hanging(device) as flag:
            with opened(machine) as third, third.alloc(64) as filled:
                filled.fill(7)
                assert filled.numpy().any()
                assert not machine.gpu.runlists[0]._waiting, "its compute channel has no work yet"
            assert not machine.log
            for _ in range(10):
                work(other)
            assert bool(machine.log) is not preempted
            if preempted:
                assert flag.view is not None
                flag.view[:4] = b"\1\0\0\0"
                device.synchronize()
            else:
                with pytest.raises(DeviceHang) as caught:
                    device.synchronize()
                assert caught.value.facts["xid"] == 109
                device.reset()
            work(device)
        assert machine.violations == []
