"""The rung mode2 of a chip that has it (Navi32): memory stays, the rest of the ladder follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened, start_forever
from ugpu.am.chips.navi32.facts import FACTS as NAVI32
from ugpu.am.device.device import AmDevice
from ugpu.am.units.psp import commands as psp_commands
from ugpu.am.units.psp.psp import Psp
from ugpu.am.units.smu.smu import Smu
from ugpu.hcq.errors import ChipError, DeviceHang, FirmwareRejected, FirmwareSilent, NotSupported
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.graph import Capture
from ugpu.hcq.work.program import Program
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.amd.options import ChipOptions

WORDS = np.arange(4096, dtype=np.uint32)
OLD = replace(NAVI32, board=replace(NAVI32.board, smu_version=0x00501F00))


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip(ChipOptions(vram=256 << 20, noise=0), NAVI32)
    yield made
    made.close()


def code() -> bytes:
    return faulty_object(NAVI32.isa)


def witnesses(device: AmDevice) -> list[Buffer]:
    made = [device.alloc(WORDS.nbytes, placement=placement) for placement in Placement]
    for number, buffer in enumerate(made):
        buffer.copy_from(WORDS + number)
    return made


def check_kept(buffers: list[Buffer]) -> None:
    for number, buffer in enumerate(buffers):
        assert (buffer.numpy(np.uint32) == WORDS + number).all(), buffer


def names(device: AmDevice) -> list[tuple[str, bool]]:
    return [(step.name, step.worked) for step in device.reset_report]


def capture(device: AmDevice, program: Program, out: Buffer) -> Capture:
    with device.capture() as graph, device.queue() as queue:
        queue.launch(program["good"], grid=(1,), block=(32,), args=(out, np.uint32(77)))
    return graph


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_memory_programs_and_graphs_survive(chip: Any, warm: bool) -> None:
    if warm:
        with opened(chip):
            pass
    with opened(chip) as device, device.load(code()) as program:
        assert device.warm is warm
        out, kept = device.alloc(64), witnesses(device)
        graph = capture(device, program, out)
        features = chip.smu.features
        for value in (5, 6):
            recovery = device.reset("mode2")
            assert recovery.level is Level.MODE2 and recovery.lost == ()
            assert not device.vram_lost
            proof = recovery.attempts[-1].proof
            assert proof["kernel"] == "right on compute 0.0"
            assert proof["copy"] == "right on SDMA0, SDMA1"
            assert proof["discovery"] == "valid"
            assert recovery.restarted == tuple(device.driver.all_queues())
            check_runs(device, program, out, value)
            graph.replay()
            device.synchronize()
            assert out.numpy(np.uint32)[0] == 77
            check_kept(kept)
        for index in range(2):
            with device.queue(QueueKind.COPY, index) as queue:
                queue.fill(out, index + 7)
            device.synchronize()
            assert out.numpy(np.uint32)[5] == index + 7
        assert chip.smu.features == features
        assert [note for note in chip.notes if "RESET" in note] == []
    assert chip.violations == []
    with opened(chip) as again:  # it was left clean
        assert again.warm


def test_a_kernel_that_no_milder_rung_ends(chip: Any) -> None:
    """Queues that do not leave the hardware and a soft reset that fails: mode2 keeps memory."""
    with opened(chip) as device, device.load(code()) as program:
        out, kept = device.alloc(64), witnesses(device)
        start_forever(chip, device, program, out)
        with pytest.raises(DeviceHang):
            device.synchronize(limit_s=0.05)
        chip.faults.mec_crashed = True
        chip.gfx.rlc.booted = False  # the graphics core's firmware is gone
        recovery = device.reset()
        assert recovery.diagnosis.first is Level.MODE2
        assert "RLC: autoload not complete" in recovery.diagnosis.reason
        assert names(device) == [("mode2 reset", True)]
        assert recovery.lost == ()
        check_kept(kept)
        check_runs(device, program, out, 3)


def test_an_ignored_request_goes_on_to_mode1(chip: Any) -> None:
    with opened(chip) as device, device.load(code()) as program:
        out, kept = device.alloc(64), witnesses(device)
        chip.gfx.rlc.booted = False
        chip.faults.mode2_ignored = True
        recovery = device.reset()
        assert [name for name, _ in names(device)] == ["mode2 reset", "mode1 reset"]
        assert {buffer.placement for buffer in recovery.lost} == {Placement.DEVICE}
        assert set(recovery.lost) == {out, *(b for b in kept if b.placement is Placement.DEVICE)}
        check_runs(device, program, out, 3)


def test_an_ignored_request_is_said(chip: Any) -> None:
    with opened(chip) as device:
        chip.faults.mode2_ignored = True
        with pytest.raises(FirmwareSilent, match="does not perform the mode2 reset"):
            device.reset("mode2")
        chip.faults.mode2_ignored = False
        assert device.reset().level is Level.MODE2, "the rung that was cut off is the first"


@pytest.mark.parametrize(
    ("plant", "cure", "error"),
    [
        ({"psp_reject": {"IMU_I"}}, {"psp_reject": set()}, FirmwareRejected),
        ({"psp_silent": True}, {"psp_silent": False}, FirmwareSilent),
        ({"autoload_never": True}, {"autoload_never": False}, FirmwareSilent),
        ({"tlb_no_ack": {"gc"}}, {"tlb_no_ack": set()}, ChipError),
    ],
    ids=["IMU refused", "PSP silent", "RLC silent", "GFXHUB silent"],
)
def test_a_failure_in_the_middle_is_named_and_the_next_reset_keeps_memory(
    chip: Any, plant: dict[str, Any], cure: dict[str, Any], error: type[Exception]
) -> None:
    with opened(chip) as device, device.load(code()) as program:
        out, kept = device.alloc(64), witnesses(device)
        device.driver.units.psp.limit_s = 0.05
        for name, value in plant.items():
            setattr(chip.faults, name, value)
        with pytest.raises(error) as raised:
            device.reset("mode2")
        assert raised.value.facts["rung"] == "mode2 reset"
        for name, value in cure.items():
            setattr(chip.faults, name, value)
        recovery = device.reset()
        assert recovery.level is Level.MODE2 and recovery.lost == ()
        check_kept(kept)
        check_runs(device, program, out, 4)
    assert chip.violations == []


def test_a_psp_that_takes_no_ring_needs_mode1(chip: Any) -> None:
    with opened(chip) as device, device.load(code()) as program:
        out = device.alloc(64)
        device.driver.units.psp.limit_s = 0.05
        chip.faults.ring_never = True
        with pytest.raises(FirmwareSilent, match="PSP does not respond"):
            device.reset("mode2")
        chip.faults.ring_never = False
        recovery = device.reset()
        assert "PSP: ring busy" in recovery.diagnosis.reason
        assert recovery.level is Level.MODE1 and recovery.lost == (out,)
        check_runs(device, program, out, 4)
    assert chip.violations == []


def test_a_mode1_reset_that_was_cut_off_and_a_close(
    chip: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What does not run is neither stopped nor reset."""

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched, pytest.raises(Died), opened(chip) as device:
        patched.setattr(Psp, "load_component", die)
        device.reset("mode1")
    assert "while shutting down" not in caplog.text
    with opened(chip) as device, device.load(code()) as program:
        check_runs(device, program, device.alloc(64), 2)
    assert chip.violations == []


@pytest.mark.parametrize("rung", ["queue", "block", "warm"])
def test_milder_rungs_are_refused_below_a_graphics_core_without_firmware(
    chip: Any, rung: str
) -> None:
    with opened(chip) as device:
        chip.faults.psp_reject = {"IMU_D"}
        with pytest.raises(FirmwareRejected):
            device.reset("mode2")
        chip.faults.psp_reject = set()
        with pytest.raises(NotSupported, match="a reset was cut off"):
            device.reset(rung)
        assert device.reset().level is Level.MODE2
    assert chip.violations == []


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (Smu, "tell"), (Psp, "create_ring"), (psp_commands, "load_firmware"),
        (psp_commands, "autoload"), (Smu, "enable_graphics"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__.split(".")[-1],
)  # fmt: skip
def test_a_process_that_dies_in_the_middle_leaves_a_card_that_opens(
    chip: Any, monkeypatch: pytest.MonkeyPatch, owner: object, step: str
) -> None:
    class Died(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Died

    device = opened(chip)
    with monkeypatch.context() as patched, pytest.raises(Died), device as open_device:
        patched.setattr(owner, step, die)
        open_device.reset("mode2")
    with opened(chip) as again, again.load(code()) as program:
        assert not again.warm
        check_runs(again, program, again.alloc(64), 8)
    assert chip.violations == []


def test_a_stuck_smu_is_not_asked(chip: Any) -> None:
    with opened(chip) as device:
        device.driver.units.smu.stuck = True
        with pytest.raises(NotSupported, match="does not take the request"):
            device.reset("mode2")
        device.driver.units.smu.stuck = False


def test_older_firmware_is_not_asked() -> None:
    chip = build_chip(ChipOptions(vram=256 << 20, noise=0), OLD)
    try:
        with opened(chip) as device:
            asked = len(chip.smu.messages)
            with pytest.raises(NotSupported, match=r"80\.32\.5 or newer, got 80\.31\.0"):
                device.reset("mode2")
            assert chip.smu.messages[asked:] == []
    finally:
        chip.close()


def test_chips_without_it_say_so() -> None:
    chip = build_chip(ChipOptions(vram=256 << 20, noise=0))
    try:
        no_mode2 = pytest.raises(NotSupported, match=r"SMU 13\.0\.0 has no mode2 reset")
        with opened(chip) as device, no_mode2:
            device.reset("mode2")
    finally:
        chip.close()
