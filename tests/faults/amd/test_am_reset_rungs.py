"""Every rung of the reset ladder by itself: afterwards all queues run, and programs are there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, shared_facts, start_forever
from tests.support.waiting import until
from ugpu.am.device.device import AmDevice
from ugpu.am.failure import reset
from ugpu.am.units.smu.smu import BUSY
from ugpu.hcq.errors import DeviceHang, FirmwareRejected, FirmwareSilent
from ugpu.hcq.state.ladder import Level, climb
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.amd.options import ChipOptions

RUNGS = [
    "take queues off", "kill waves", "soft reset", "warm start", "mode1 reset",
    "mode1 reset by the debug mailbox", "mode1 reset by the PSP", "bus reset", "power cycle",
]  # fmt: skip


def climb_one(device: AmDevice, name: str) -> reset.AmRungs:
    """Take one rung by its name."""
    rungs = reset.AmRungs(device.driver)
    (rung,) = [one for one in rungs.all() if one.name == name]
    climb(rung, device.driver.clock)
    device.driver.unfinished = None
    return rungs


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip(ChipOptions(psp_mode1=True))
    yield made
    made.close()


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("rung", RUNGS)
def test_rung(chip: Any, rung: str, warm: bool) -> None:
    if warm:
        with opened(chip):
            pass
    with opened(chip) as device, device.load(faulty_object()) as program:
        assert device.warm is warm
        out = device.alloc(64)
        check_runs(device, program, out, 1)
        climb_one(device, rung)
        check_runs(device, program, out, 2)
        for index in range(2):
            with device.queue(QueueKind.COPY, index) as queue:
                queue.fill(out, index + 7)
            device.synchronize()
            assert out.numpy(np.uint32)[5] == index + 7
    assert chip.violations == []
    assert [note for note in chip.notes if "RESET" in note] == []


def test_a_stuck_smu_is_reset_by_its_debug_mailbox(chip: Any) -> None:
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        device.driver.core.failure = FirmwareSilent("provoked by the test")
        mode1 = chip.mode1_reset

        def cured() -> None:
            chip.faults.smu_silent = False
            mode1()

        chip.mode1_reset = cured
        chip.faults.smu_silent = True
        device.reset()
        report = [(step.name, step.worked) for step in device.reset_report]
        assert report == [("mode1 reset", False), ("mode1 reset by the debug mailbox", True)]
        check_runs(device, program, out, 5)
        # It listens again: what fails next is reset by the mildest rung.
        assert not device.driver.units.smu.stuck
        start_forever(chip, device, program, out)
        with pytest.raises(DeviceHang):
            device.synchronize(limit_s=0.05)
        device.reset()
        assert [step.name for step in device.reset_report] == ["kill waves"]
        check_runs(device, program, out, 6)


def test_an_smu_that_was_stuck_counts_as_listening_after_a_reset(chip: Any) -> None:
    with opened(chip) as device, device.load(faulty_object()) as program:
        out, smu = device.alloc(64), device.driver.units.smu
        whole, smu.limit_s = smu.limit_s, 0.01
        mode1 = chip.mode1_reset

        def cured() -> None:
            chip.faults.smu_silent = False
            mode1()

        chip.mode1_reset = cured
        chip.faults.smu_silent = True
        with pytest.raises(FirmwareSilent):
            smu.send("GetSmuVersion")
        assert smu.stuck
        smu.limit_s = whole
        assert device.reset().diagnosis.reason == "the SMU has not answered a message"
        assert not smu.stuck
        assert device.reset().diagnosis.first == Level.QUEUE
        check_runs(device, program, out, 5)


def test_a_fault_that_was_not_taken_does_not_hide_the_next(chip: Any) -> None:
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        hubs = list(device.driver.units.gmc)

        def latched() -> bool:
            return any(hub.vm("L2_PROTECTION_FAULT_STATUS").read() for hub in hubs)

        with device.queue() as queue:
            arguments = (out, np.uint64(0x1234_5678_9000))
            queue.launch(program["read_at"], grid=(1,), block=(64,), args=arguments)
        until(latched, "the fault")
        # A fault stops no kernel; work that the rung ended would be reported as lost.
        until(lambda: queue.timeline.value >= queue.timeline.last, "the kernel to end")
        climb_one(device, "kill waves")
        assert not latched()
        check_runs(device, program, out, 1)


def test_the_mildest_rung_that_works_is_taken(chip: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ugpu.hcq.state.ladder")
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        start_forever(chip, device, program, out)
        with pytest.raises(DeviceHang):
            device.synchronize(limit_s=0.05)
        device.reset()
        report = [(step.name, step.worked) for step in device.reset_report]
        assert report == [("kill waves", True)]
        assert not device.vram_lost
        (told,) = caplog.records
        assert told.levelno == logging.WARNING, "once, and not for each rung"
        assert "kill waves worked" in told.getMessage()
        check_runs(device, program, out, 3)


def test_a_deaf_smu_needs_the_slot(chip: Any) -> None:
    """Where the SMU and the PSP ignore mode1 the chip is reset from its slot."""
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        device.driver.core.failure = FirmwareSilent("provoked by the test")
        chip.faults.mode1_ignored = True
        device.reset()
        report = [(step.name, step.worked) for step in device.reset_report]
        assert report == [
            ("mode1 reset", False),
            ("mode1 reset by the debug mailbox", False),
            ("mode1 reset by the PSP", False),
            ("bus reset", True),
        ]
        assert device.vram_lost
        check_runs(device, program, out, 4)


def test_a_ladder_without_an_end_is_told_once(
    chip: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_facts(monkeypatch, ifwi_limit_s=0.2)
    caplog.set_level(logging.INFO, "ugpu.hcq.state.ladder")
    untold = pytest.raises(FirmwareSilent, match="provoked by the test")  # at the block's end
    with untold, opened(chip) as device:
        device.driver.core.failure = FirmwareSilent("provoked by the test")
        chip.faults.mode1_ignored = True
        chip.faults.ifwi_never = True
        with pytest.raises(FirmwareSilent, match="board's boot firmware"):
            device.reset()
        (told,) = caplog.records
        assert told.levelno == logging.ERROR
        assert "mode1 reset failed" in told.getMessage()
        assert "bus reset failed" in told.getMessage()
        chip.faults.ifwi_never = False


def test_a_busy_smu_is_asked_again_and_then_given_up(
    chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(chip) as device:
        smu = device.driver.units.smu
        number = smu.message_number("GetSmuVersion")
        asked: list[int] = []
        post = smu.post

        def count(message: int, argument: int) -> None:
            asked.append(message)
            if len(asked) == 3:
                del chip.faults.smu_responses[number]
            post(message, argument)

        chip.faults.smu_responses[number] = BUSY
        monkeypatch.setattr(smu, "post", count)
        assert smu.send("GetSmuVersion") == smu.version
        assert asked == [number] * 3
        chip.faults.smu_responses[number] = BUSY
        smu.limit_s = 0.01
        with pytest.raises(FirmwareRejected, match="busy"):
            smu.send("GetSmuVersion")
        del chip.faults.smu_responses[number]
