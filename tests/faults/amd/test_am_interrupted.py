"""Exceptions at every line of what changes page tables: the device works on and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, check_runs, opened
from tests.support.interrupts import interrupted
from ugpu.am.device.device import AmDevice
from ugpu.hcq.state.memory import Placement
from ugpu.virtual.amd.options import ChipOptions

LARGE = (2 << 20) + 4096


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip(ChipOptions(vram=512 << 20, noise=0))
    yield made
    made.close()


def check_memory(device: AmDevice, value: int) -> None:
    with device.alloc(LARGE) as buffer:
        buffer.fill(value)
        assert (buffer[:64].numpy(np.uint32) == value).all()
        assert (buffer[-64:].numpy(np.uint32) == value).all()


@pytest.mark.parametrize("placement", list(Placement))
def test_interrupted_allocations(chip: Any, placement: Placement) -> None:
    with opened(chip) as device:
        check_memory(device, 1)
        used, kept = device.driver.memory.used, []

        def allocate() -> None:
            kept.append(device.alloc(LARGE, placement=placement))

        for number, _ in enumerate(interrupted(allocate, each=True)):
            if number % 16 == 0:
                check_memory(device, number)
        assert number > 100 and len(kept) == 1
        check_memory(device, 2)
        kept[0].close()
        assert device.driver.memory.used == used
    assert chip.violations == []


def test_interrupted_loads(chip: Any) -> None:
    image = faulty_object()
    with opened(chip) as device:
        out = device.alloc(64)
        with device.load(image) as program:
            check_runs(device, program, out, 1)
        used, kept = device.driver.memory.used, []
        lines = interrupted(lambda: kept.append(device.load(image)), each=True)
        for number, _ in enumerate(lines):
            if number % 64 == 0:
                with device.load(image) as program:
                    check_runs(device, program, out, number)
        assert number > 300 and len(kept) == 1
        check_runs(device, kept[0], out, 3)
        kept[0].close()
        assert device.driver.memory.used == used
    assert chip.violations == []


def test_a_semaphore_that_a_dead_process_holds(chip: Any) -> None:
    chip.mm.set("MMVM_INVALIDATE_ENG17_SEM", 1)
    chip.mm._semaphores.add(17)
    with opened(chip) as device:
        check_memory(device, 5)
        chip.mm._semaphores.add(17)
        device.driver.units.gmc.mmhubs[0]._held = True
        check_memory(device, 6)
    assert chip.violations == []


def test_an_interrupted_flush_gives_the_semaphore_back(chip: Any) -> None:
    with opened(chip) as device:
        lines = []
        for line in interrupted(device.driver.flush_tlb, each=True):
            device.driver.flush_tlb()
            assert 17 not in chip.mm._semaphores, line
            lines.append(line)
        assert len(lines) > 10
        check_memory(device, 7)
    assert chip.violations == []
