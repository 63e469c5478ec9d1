"""Resets that an exception cuts off at any line: the device has failed or works, the next reset
brings it back, and a buffer keeps its content or is named as lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened
from tests.support.interrupts import Interrupted, Interrupter
from ugpu.am.chips.navi32.facts import FACTS as NAVI32
from ugpu.am.device.device import AmDevice
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.virtual.amd.options import ChipOptions

PATTERN = np.arange(1024, dtype=np.uint32)


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip(ChipOptions(vram=256 << 20, noise=0))
    yield made
    made.close()


def cut_off(device: AmDevice, rung: str, line: int) -> tuple[str, int] | None:
    """Reset a device, but for an exception at the n-th line; where that was."""
    interrupter, before = Interrupter(line), sys.gettrace()
    sys.settrace(interrupter)
    try:
        device.reset(rung)
    except Interrupted:
        assert interrupter.place is not None
    finally:
        sys.settrace(before)
    return interrupter.place


def check(device: AmDevice, program: Program, kept: Buffer, out: Buffer, place: object) -> None:
    """The device comes back, and says what it has lost."""
    failed, told = device.failure is not None, device.recovery
    recovery = device.reset()
    check_runs(device, program, out, 5)
    whole = bool((kept.numpy(np.uint32) == PATTERN).all())
    if told is not None and not failed:  # it had come to its end
        whole = whole or kept in told.lost
    assert whole or kept in recovery.lost, f"cut off at {place}, failed: {failed}, {recovery}"
    for queue in device.driver.all_queues():
        assert queue.timeline.value == queue.timeline.last, place
    kept.copy_from(PATTERN)


def run_through(chip: Any, rung: str, first: int, stride: int) -> int:
    """Cut a reset off at each `stride`-th line; how many times."""
    count, line = 0, first
    code = faulty_object(chip.facts.isa)
    with opened(chip) as device, device.load(code) as program:
        out, kept = device.alloc(64), device.alloc(PATTERN.nbytes)
        kept.copy_from(PATTERN)
        while (place := cut_off(device, rung, line)) is not None:
            check(device, program, kept, out, place)
            count, line = count + 1, line + stride
        check(device, program, kept, out, None)
    assert chip.violations == []
    return count


@pytest.mark.parametrize(
    ("rung", "stride", "least"),
    [("queue", 29, 6), ("block", 67, 5), ("warm", 97, 5), ("mode1", 151, 5)],
)
def test_a_reset_that_is_cut_off(chip: Any, rung: str, stride: int, least: int) -> None:
    assert run_through(chip, rung, stride // 2, stride) >= least


@pytest.mark.parametrize(
    ("first", "stride"), [(17, 29), pytest.param(0, 7, marks=pytest.mark.slow)]
)
def test_a_mode2_reset_that_is_cut_off_loses_no_memory(first: int, stride: int) -> None:
    chip = build_chip(ChipOptions(vram=256 << 20, noise=0), NAVI32)
    try:
        assert run_through(chip, "mode2", first, stride) >= 6
    finally:
        chip.close()


@pytest.mark.parametrize(
    "step",
    ["psp.Psp.setup_tmr", "psp.Psp.run", "commands.load_firmware", "commands.autoload"],
)
def test_a_boot_again_that_is_cut_off_before_the_graphics_core_is_up(
    chip: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def cut(*_: object, **__: object) -> None:
        raise Interrupted

    with opened(chip) as device, device.load(faulty_object()) as program:
        out, kept = device.alloc(64), device.alloc(PATTERN.nbytes)
        kept.copy_from(PATTERN)
        with monkeypatch.context() as patched:
            patched.setattr(f"ugpu.am.units.psp.{step}", cut)
            with pytest.raises(Interrupted):
                device.reset("mode1")
        check(device, program, kept, out, step)
    assert chip.violations == []


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["queue", "block", "warm"])
def test_a_reset_that_is_cut_off_anywhere(chip: Any, rung: str) -> None:
    assert run_through(chip, rung, 0, 7) > 20
