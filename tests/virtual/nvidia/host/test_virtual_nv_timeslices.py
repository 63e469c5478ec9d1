"""Time slices: grids that are put aside while other groups of channels have the engine."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from tests.support.kernels import contract_object
from tests.support.nvidia.nv_machine import hanging, opened, powered, preemptible, work
from tests.support.nvidia.rm_program import RmProgram
from tests.support.nvidia.sm.sm_run import Bench, body
from tests.support.waiting import until
from ugpu import hcq
from ugpu.hcq.errors import DeviceHang
from ugpu.hcq.find import registry
from ugpu.hcq.state.config import Config, config
from ugpu.hcq.state.memory import Placement
from ugpu.nv.device.device import NvDevice
from ugpu.virtual.nvidia.host.group import DEFAULT_TIMESLICE_US, TimeSliceGroup
from ugpu.virtual.nvidia.host.runlist import Runlist
from ugpu.virtual.nvidia.sm_contract import Attention, SmEnding, SmOutcome

CHIPS = ("tu102", "ga102", "ad102", "gh100", "gb202")

COUNTING = body(
    1,
    """
    mov.u32 %r1, 0;
    LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 20000; @%p1 bra LOOP;
    mul.wide.u32 %rd2, %t, 4; add.s64 %rd1, %rd0, %rd2; st.global.u32 [%rd1], %r1;
    """,
)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_hanging_kernel_leaves_other_channels_their_results(chip: str) -> None:
    with (
        powered(chip) as machine,
        preemptible(opened(machine)) as device,
        preemptible(opened(machine)) as other,
    ):
        work(device)
        with hanging(device):
            for _ in range(3):
                work(other)
            assert machine.gpu.runlists[0].switches > 0
            assert device.failure is None
            with pytest.raises(DeviceHang, match=r"within 0\.2 s") as caught:
                device.synchronize(limit_s=0.2)
            assert caught.value.facts["kernel"] == "spin"
            assert caught.value.facts["queue"] == "compute"
            assert "spin" in str(caught.value)
            work(other)
            device.reset()  # the channel is made anew; its buffers and the other's stay
            work(device)
            work(other)
        assert machine.violations == []
        assert machine.log == []  # nothing of this is an error of the GPU


def test_a_hang_is_bounded_where_its_waiter_names_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's own limit: 30 s, or UGPU_WAIT_LIMIT, or what the program sets."""
    limits = iter((replace(config(), wait_limit_s=0.3), config()))
    monkeypatch.setattr(registry, "config", lambda: next(limits))
    with powered() as machine, hcq.open("virtual:gh100", chip=machine) as device:
        assert isinstance(device, NvDevice)
        assert device.limit_s == 0.3
        with hanging(device):
            with pytest.raises(DeviceHang, match=r"within 0\.3 s") as caught:
                device.synchronize()
            assert caught.value.facts["kernel"] == "spin"
            device.reset()
    assert 1 <= Config().wait_limit_s <= 60


def test_work_that_was_put_aside_goes_on() -> None:
    with (
        powered() as machine,
        preemptible(opened(machine)) as device,
        preemptible(opened(machine)) as other,
    ):
        with hanging(device) as flag:
            work(other)
            assert machine.gpu.runlists[0].switches > 0
            assert not device.idle
            assert flag.view is not None
            flag.view[:4] = b"\1\0\0\0"
            device.synchronize(limit_s=60)
        work(device)


def test_two_hanging_kernels_and_one_that_works() -> None:
    with (
        powered() as machine,
        preemptible(opened(machine)) as first, preemptible(opened(machine)) as second,
        hanging(first), hanging(second), preemptible(opened(machine)) as third,
    ):  # fmt: skip
        work(third)
        for device in (first, second):
            with pytest.raises(DeviceHang):
                device.synchronize(limit_s=0.1)
            device.reset()
            work(device)
        work(third)


class LeapingClock:
    """Each look at it is later than any slice lasts: as where a thread wakes up late."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 100 * DEFAULT_TIMESLICE_US * 1e-6
        return self.now


def test_a_slice_that_passed_before_its_thread_woke_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts when the thread is there, and its end is asked for then: nobody keeps the engine
    because it was asked to stand aside while it slept."""
    clock = LeapingClock()
    monkeypatch.setattr("ugpu.virtual.nvidia.host.runlist.time", clock)
    monkeypatch.setattr("ugpu.virtual.nvidia.host.group.time", clock)
    with (
        powered() as machine,
        preemptible(opened(machine)) as first,
        preemptible(opened(machine)) as second,
    ):
        with hanging(first) as one, hanging(second) as two:
            with preemptible(opened(machine)) as third:
                work(third)
            for flag in (one, two):
                assert flag.view is not None
                flag.view[:4] = b"\1\0\0\0"
            for device in (first, second):
                device.synchronize(limit_s=60)
        assert machine.gpu.runlists[0].switches > 0


def test_no_thread_outlives_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not one whose group of channels was freed, and which ends only once it is joined."""
    serve = Runlist._serve

    def slowly(runlist: Runlist, group: TimeSliceGroup) -> None:
        serve(runlist, group)
        joined.wait(60)

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        joined.set()
        wait_for(thread, timeout)

    joined, wait_for = threading.Event(), threading.Thread.join
    monkeypatch.setattr(Runlist, "_serve", slowly)
    monkeypatch.setattr(threading.Thread, "join", join)
    before = set(threading.enumerate())
    with powered() as machine:
        with preemptible(opened(machine)) as device:
            work(device)
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert any(name.startswith("virtual-gpu") for name in names)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith(("virtual-gpu", "multiprocessor"))}


def test_the_same_kernel_in_two_programs_keeps_its_own_arguments() -> None:
    """Both run `spin`: parameters and variables are each program's own."""
    with (
        powered() as machine,
        preemptible(opened(machine)) as first, preemptible(opened(machine)) as second,
        hanging(first) as one, hanging(second) as two,
    ):  # fmt: skip
        assert one.view is not None and two.view is not None
        two.view[:4] = b"\1\0\0\0"
        second.synchronize(limit_s=60)
        assert not first.idle
        one.view[:4] = b"\1\0\0\0"
        first.synchronize(limit_s=60)


def test_a_group_alone_is_never_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LeapingClock()
    monkeypatch.setattr("ugpu.virtual.nvidia.host.runlist.time", clock)
    monkeypatch.setattr("ugpu.virtual.nvidia.host.group.time", clock)
    with powered() as machine, preemptible(opened(machine)) as device, hanging(device) as flag:
        runlist = machine.gpu.runlists[0]
        until(lambda: runlist.running, "the kernel to run")
        for _ in range(20):
            runlist.kick()
            assert runlist.load.share() > 0  # its slice was over long ago
        assert flag.view is not None
        flag.view[:4] = b"\1\0\0\0"
        device.synchronize(limit_s=60)
        assert runlist.switches == 0


def test_closing_a_program_ends_its_work_that_stands_aside() -> None:
    with powered() as machine, preemptible(opened(machine)) as other:
        device = preemptible(opened(machine))
        flag = device.alloc(64, placement=Placement.HOST)
        flag.fill(0)
        program = device.load(contract_object(device.target))
        with device.queue() as queue:
            queue.launch(program["spin"], grid=(4,), block=(64,), args=(flag,))
        work(other)
        device.limit_s = 0.1
        device.close()
        work(other)


def test_slices_are_set_and_read() -> None:
    with RmProgram() as program:
        program.bring_up()
        asked = program.control(program.group, "NVA06C_CTRL_CMD_GET_TIMESLICE")
        assert asked.timesliceUs == 1024
        program.control(program.group, "NVA06C_CTRL_CMD_SET_TIMESLICE", timesliceUs=5000)
        asked = program.control(program.group, "NVA06C_CTRL_CMD_GET_TIMESLICE")
        assert asked.timesliceUs == 5000


class Slices(Attention):
    """Puts a grid aside again and again; every thread of it comes by."""

    def __init__(self) -> None:
        super().__init__()
        self.came: set[int] = set()
        self.go = threading.Event()

    def wait_aside(self) -> None:
        self.came.add(threading.get_ident())
        self.go.wait(60)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_grid_stands_aside_and_another_runs_meanwhile(workers: int) -> None:
    slow, bench = Slices(), Bench(workers=workers)
    slow.aside = True
    address, found = bench.array(np.zeros(32, np.uint32))
    launch = bench.description(COUNTING, address, grid=(8,))
    outcomes: list[SmOutcome] = []
    other = Bench(workers=workers)
    other.units = bench.units
    thread = threading.Thread(
        target=lambda: outcomes.append(bench.units.run(launch, bench.memory, slow))
    )
    thread.start()
    until(lambda: slow.came, "the grid to stand aside")
    theirs, numbers = other.array(np.zeros(32, np.uint32))
    other.good(COUNTING, theirs, grid=(8,))
    assert (numbers == 20000).all()
    assert (found == 0).all()
    slow.aside = False
    slow.go.set()
    thread.join(60)
    assert outcomes[0].ending is SmEnding.DONE
    assert (found == 20000).all()


def test_a_grid_that_stands_aside_can_be_ended() -> None:
    attention, bench = Slices(), Bench(workers=2)
    attention.aside = True
    attention.set()
    address, _ = bench.array(np.zeros(32, np.uint32))
    found = bench.units.run(bench.description(COUNTING, address), bench.memory, attention)
    assert found.ending is SmEnding.ABORTED
    assert not attention.came  # to end comes before standing aside


def test_idle_groups_do_not_wake_each_other() -> None:
    """Once their work is over, the threads of two holders' groups sleep, all at once."""
    with powered() as machine, opened(machine) as device, opened(machine) as other:
        work(device)
        work(other)
        runlist = machine.gpu.runlists[0]
        threads = [thread for thread in runlist._threads if thread.is_alive()]
        assert len(threads) == 2
        # The threads that sleep, without those that were notified (CPython's Condition).
        asleep = vars(runlist._wake)["_waiters"]
        until(lambda: len(asleep) == len(threads), "all threads to sleep")
