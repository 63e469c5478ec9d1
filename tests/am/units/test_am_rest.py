"""Rest of AMD cards: GFXOFF while a card is idle, and what wakes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_tenants import card, driver_of, opened, shared, tenant, work
from tests.support.died import died
from tests.support.kernels import contract_object
from tests.support.waiting import until
from ugpu.am import chips
from ugpu.am.boot.boot import IN_USE, TAG
from ugpu.am.device.device import AmDevice, open_device
from ugpu.am.failure.states import states
from ugpu.am.offline import chip as window
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import DeviceHang, FirmwareError, FirmwareSilent
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.amd.gpu import attach

ALLOW, DISALLOW = 0x28, 0x29  # smu_v13_0_0_ppsmc.h


@pytest.fixture(params=chips.virtual_names())
def every_chip(request: pytest.FixtureRequest) -> Iterator[Any]:
    with card(request.param) as made:
        yield made
        untouched(made)


@pytest.fixture
def chip() -> Iterator[Any]:
    with card("navi31") as made:
        yield made


def untouched(chip: Any) -> None:
    """No register and no doorbell of the core was reached while it had no power."""
    assert chip.violations == []
    assert [note for note in chip.notes if "GFXOFF" in note] == []


def off(chip: Any) -> None:
    """Wait until the core has no power."""
    until(lambda: chip.smu.graphics.off, "the graphics core to go off")


def sensor(device: Device, name: str, label: str = "") -> float:
    found = next(each for each in device.sensors() if (each.name, each.label) == (name, label))
    return found.read()


def test_work_wakes_a_card_at_rest(every_chip: Any) -> None:
    with opened(every_chip) as device:
        assert device.can_rest and not device.resting
        work(device)
        for factor in (3, 5):
            assert device.rest() and device.resting
            off(every_chip)
            work(device, factor)
            assert not device.resting and not every_chip.smu.graphics.off
        assert every_chip.smu.graphics.entries == 2


def test_sensors_show_a_card_at_rest_and_leave_it_there(every_chip: Any) -> None:
    with opened(every_chip) as device:
        assert sensor(device, "resting", "gfx") == 0
        assert sensor(device, "clock_hertz", "gfx") > 0
        device.rest()
        off(every_chip)
        until(lambda: sensor(device, "clock_hertz", "gfx") == 0, "the table to show the clock")
        for each in device.sensors():
            each.read()
        assert sensor(device, "resting", "gfx") == 1
        assert device.idle and driver_of(device).poll() is None and device.info()["chip"]
        assert device.resting and every_chip.smu.graphics.off
        device.wake()
        device.wake()
        assert not device.resting and not every_chip.smu.graphics.off


REQUESTS: dict[str, Callable[[Any, Any], object]] = {
    "a copy": lambda device, buffer: buffer.copy_from(np.zeros(64, np.uint8)),
    "a fill": lambda device, buffer: buffer.fill(1),
    "a buffer that is freed": lambda device, buffer: buffer.close(),
    "a tenant": lambda device, buffer: tenant(device, "late").close(),
    "a program": lambda device, buffer: device.load(contract_object(device.target)).close(),
    "cleaning": lambda device, buffer: device.driver.clean(),
    "a TLB flush": lambda device, buffer: device.driver.flush_tlb(),
    "a register": lambda device, buffer: device.chip.gc.GRBM_STATUS.read(),
    "a register of SDMA": lambda device, buffer: device.chip.gc.SDMA0_STATUS_REG.read(),
    "a dump": lambda device, buffer: device.driver.evidence(DeviceHang("planned")),
    "a diagnosis": lambda device, buffer: device.driver.diagnose(
        device.queue().timeline, 1
    ),
    "a plan of resets": lambda device, buffer: device.driver.recovery_plan(),
    "a reset": lambda device, buffer: device.reset(),
    "a warm start": lambda device, buffer: device.reset("warm"),
    "a mode1 reset": lambda device, buffer: device.reset("mode1"),
}  # fmt: skip


@pytest.mark.parametrize("request_name", REQUESTS)
def test_what_needs_the_core_wakes_it(chip: Any, request_name: str) -> None:
    with opened(chip) as device:
        buffer = device.alloc(1 << 20)
        buffer.fill(0)
        device.rest()
        off(chip)
        REQUESTS[request_name](device, buffer)
        work(device)
    untouched(chip)


def test_a_card_at_rest_closes_and_is_found_warm(chip: Any) -> None:
    for start in ("cold", "warm", "warm"):
        with opened(chip) as device:
            assert device.info()["start"] == start
            work(device)
            assert device.rest()
            off(chip)
    untouched(chip)


def test_a_queue_with_work_keeps_the_card_awake(chip: Any) -> None:
    with opened(chip) as device:
        gate = device.timeline()
        with device.queue(QueueKind.COPY) as queue:
            queue.wait(gate, 1)
        assert not driver_of(device).begin_rest()
        gate.reach(1)
        assert device.rest()
    untouched(chip)


def test_all_holders_have_to_be_idle(chip: Any) -> None:
    with shared(chip) as (device, (one, other)):
        gate = other.timeline()
        with other.queue() as queue:
            queue.wait(gate, 1)
        assert not device.rest() and not one.rest()
        gate.reach(1)
        other.synchronize()
        assert one.rest() and device.resting and other.resting
        off(chip)
        work(other)
        assert not device.resting
    untouched(chip)


def test_a_graph_wakes_the_card(chip: Any) -> None:
    with opened(chip) as device, device.load(contract_object(device.target)) as program:
        out = device.alloc(64, placement=Placement.HOST)
        with device.capture() as graph, device.queue() as queue:
            queue.launch(program["scale"], grid=(1,), block=(1,),
                         args=(out, out, np.uint32(1), np.uint32(3)))  # fmt: skip
        for _ in range(3):
            graph.replay()
            device.synchronize()
            assert device.rest()
            off(chip)
    untouched(chip)


def test_a_driver_that_forgets_to_wake_is_found_out(chip: Any) -> None:
    """The model objects where the guard is taken away: the tests above prove something."""
    with opened(chip) as device:
        device.rest()
        off(chip)
        rouse, device.chip.bus.rouse = device.chip.bus.rouse, None
        assert int(device.chip.gc.GRBM_STATUS.read()) == 0xFFFF_FFFF
        device.chip.bus.rouse = rouse
    assert any("GRBM_STATUS read while gc has no power" in text for text in chip.violations)


# ---- when it goes wrong ----------------------------------------------------------------------


def test_a_core_that_does_not_come_back_is_a_failure_that_a_reset_ends(chip: Any) -> None:
    with opened(chip) as device:
        work(device)
        device.rest()
        off(chip)
        chip.faults.gfxoff_stuck = True
        with pytest.raises(FirmwareSilent, match="has answered DisallowGfxOff"):
            device.wake()
        chip.violations.clear()  # of the wait for its registers
        with pytest.raises(FirmwareSilent, match="has answered DisallowGfxOff"):
            device.synchronize()
        chip.faults.gfxoff_stuck = False
        assert device.reset().level.label == "mode1"
        work(device)
    untouched(chip)


def test_an_smu_that_is_silent_is_a_failure_that_a_reset_ends(chip: Any) -> None:
    with opened(chip) as device:
        device.rest()
        off(chip)
        driver_of(device).units.smu.limit_s = 0.05
        chip.faults.smu_silent = True
        with pytest.raises(FirmwareSilent, match="DisallowGfxOff"):
            work(device)
        chip.faults.smu_silent = False  # the reset that follows starts its firmware again
        assert device.reset().level.label == "mode1"
        work(device)
    untouched(chip)


def test_firmware_that_refuses_is_asked_once(chip: Any) -> None:
    with opened(chip) as device:
        chip.faults.smu_responses = {ALLOW: 0xFE}
        assert not device.rest() and not device.resting and not device.can_rest
        assert not device.rest()
        assert [message for message, _ in chip.smu.messages].count(ALLOW) == 1
        assert int(device.chip.gc.SCRATCH_REG6.read()) == IN_USE
        work(device)
    untouched(chip)


def test_a_silent_smu_when_a_card_should_rest(chip: Any) -> None:
    with opened(chip) as device:
        driver_of(device).units.smu.limit_s = 0.05
        chip.faults.smu_silent = True
        with pytest.raises(FirmwareSilent, match="AllowGfxOff"):
            device.rest()
        with pytest.raises(FirmwareError):
            device.synchronize()
        chip.faults.smu_silent = False
        device.reset()
        work(device)
    untouched(chip)


class Interrupted(BaseException):
    """As a Ctrl-C, at a chosen access."""


class Cut:
    """A window of registers whose accesses are interrupted after `left` of them."""

    def __init__(self, window: Any, left: int) -> None:
        self.window = window
        self.size = window.size
        self.left = left

    def __getattr__(self, name: str) -> object:
        if name.endswith("32"):
            self.left -= 1
            if self.left < 0:
                raise Interrupted(name)
        return getattr(self.window, name)


@pytest.mark.parametrize("call", ["rest", "wake", "work"])
def test_an_exception_at_any_access_leaves_it_at_rest_or_awake(chip: Any, call: str) -> None:
    with opened(chip) as device:
        work(device)
        bus = device.chip.bus
        for step in range(200):
            device.rest()
            off(chip) if call != "rest" else device.wake()
            window, bus.window = bus.window, Cut(bus.window, step)
            try:
                with pytest.raises(Interrupted):
                    {"rest": device.rest, "wake": device.wake,
                     "work": driver_of(device).flush_tlb}[call]()  # fmt: skip
                done = False
            except pytest.fail.Exception:
                done = True
            finally:
                bus.window = window
            if step % 2:
                assert device.rest()
                off(chip)
            work(device)
            assert not device.resting and not chip.smu.graphics._allowed
            if done:
                break
        assert step > 3 and done
    untouched(chip)


def test_threads_that_wake_it_at_once(chip: Any) -> None:
    with opened(chip) as device:
        buffers = [device.alloc(4096) for _ in range(4)]
        for round_ in range(5):
            device.rest()
            off(chip)
            threads = [threading.Thread(target=buffer.fill, args=(round_,)) for buffer in buffers]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            for buffer in buffers:
                assert (buffer.numpy(np.uint32) == round_).all()
    untouched(chip)


# ---- a process that dies ---------------------------------------------------------------------


def killed(device: AmDevice) -> None:
    """Let go of a card as a process does that dies: nothing is told to the chip."""
    died(device)
    driver_of(device).transport.close()


def test_a_process_that_dies_with_a_card_at_rest_leaves_it_warm(every_chip: Any) -> None:
    name = every_chip.facts.name
    first = open_device(f"virtual:{name}", attach(name, every_chip))
    work(first)
    first.rest()
    off(every_chip)
    killed(first)
    with opened(every_chip) as device:
        assert device.info()["start"] == "warm"
        assert not every_chip.smu.graphics.off
        work(device)
        assert int(device.chip.gc.SCRATCH_REG6.read()) == IN_USE


def left_at_rest(chip: Any) -> None:
    """A process has died while the card rested."""
    first = open_device("virtual:navi31", attach("navi31", chip))
    first.rest()
    off(chip)
    killed(first)


def test_registers_of_a_card_left_at_rest_are_read_with_power(chip: Any) -> None:
    left_at_rest(chip)
    for _ in range(2):
        with window.open_window(attach("navi31", chip)) as seen:
            assert int(seen.gc.SCRATCH_REG7.read()) == TAG
            assert all(state.ok is not False for state in states(seen))
    with opened(chip) as device:
        assert device.info()["start"] == "warm"
        work(device)
    untouched(chip)


def test_a_card_left_at_rest_whose_smu_is_silent_is_reset(chip: Any) -> None:
    left_at_rest(chip)
    chip.faults.smu_silent = True
    mode1 = chip.mode1_reset

    def cured() -> None:
        chip.faults.smu_silent = False
        mode1()

    chip.mode1_reset = cured
    with window.open_window(attach("navi31", chip)) as seen:
        assert int(seen.gc.GRBM_STATUS.read()) == 0xFFFF_FFFF
        assert int(seen.mp0.MP0_SMN_C2PMSG_81.read()) not in (0, 0xFFFF_FFFF)
    with opened(chip) as device:
        assert device.info()["start"] == "cold"
        work(device)
    untouched(chip)


def test_a_card_left_at_rest_is_booted_on_request(chip: Any) -> None:
    left_at_rest(chip)
    with opened(chip, force_cold=True) as device:
        assert device.info()["start"] == "cold"
        work(device)
    untouched(chip)
