"""GFXOFF of the virtual SMU, driven by hand: when the graphics core goes off, and what it objects
to."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.amd.navi31_bench import FRAME_BUFFER, GC, Bench, bench
from ugpu.virtual.amd.engines.install import install
from ugpu.virtual.amd.options import FaultPlan

ENABLE_ALL, DISABLE_ALL, ALLOW, DISALLOW = 6, 7, 0x28, 0x29  # smu_v13_0_0_ppsmc.h
SDMA_STATUS = GC + 0x25  # SDMA0_STATUS_REG, gc_11_0_0_offset.h, segment 0
ONES = 0xFFFF_FFFF
TABLE = 0x40_0000
GFX_CLOCK = 4 * 0  # CurrClock[PPCLK_GFXCLK] of SmuMetrics_t, smu13_driver_if_v13_0_0.h


@pytest.fixture
def card() -> Iterator[Bench]:
    with bench() as made:
        install(made.chip)
        made.boot()
        made.pass_time()
        assert made.message(ENABLE_ALL)[0] == 1
        yield made


def rest(card: Bench) -> None:
    assert card.message(ALLOW)[0] == 1
    card.pass_time()


def gfx_clock(card: Bench) -> int:
    """The clock of the graphics core in the SMU's table, in MHz."""
    card.message(0xE, (FRAME_BUFFER + TABLE) >> 32)
    card.message(0xF, (FRAME_BUFFER + TABLE) & ONES)
    assert card.message(0x12, 5)[0] == 1
    value: int = struct.unpack("<I", card.vram.read(TABLE + GFX_CLOCK, 4))[0]
    return value


def test_registers_of_an_allowed_core_have_no_power(card: Bench) -> None:
    aperture = card.hub("gc", "APERTURE_LOW")
    card.write(aperture, 7)
    rest(card)
    assert card.read(aperture) == ONES
    assert card.read(SDMA_STATUS) == ONES  # the copy engines are in the same domain
    card.write(aperture, 9)
    first, _, third = card.chip.violations
    assert "GCMC_VM_SYSTEM_APERTURE_LOW_ADDR read while gc has no power" in first
    assert "GCMC_VM_SYSTEM_APERTURE_LOW_ADDR written with 0x9" in third
    assert card.message(DISALLOW)[0] == 1
    assert card.read(aperture) == 7  # kept, and the write was lost


def test_everything_else_goes_on(card: Bench) -> None:
    rest(card)
    card.vram.write32(0x50_0000, 0x600D600D)
    card.flush_hdp()
    assert card.vram.read32(0x50_0000) == 0x600D600D
    assert card.read(card.hub("mmhub", "APERTURE_LOW")) != ONES
    assert card.read(card.psp(81)) != 0
    assert card.message(1, 41) == (1, 42)
    assert card.chip.violations == []


def test_the_clock_of_a_core_without_power_is_0(card: Bench) -> None:
    assert gfx_clock(card) == 500
    rest(card)
    assert gfx_clock(card) == 0
    assert card.message(DISALLOW)[0] == 1
    assert gfx_clock(card) == 500
    assert card.chip.violations == []


def test_the_feature_has_to_be_enabled(card: Bench) -> None:
    assert card.message(DISABLE_ALL)[0] == 1
    rest(card)
    assert card.read(card.hub("gc", "APERTURE_LOW")) != ONES
    assert not card.chip.smu.graphics.entries and card.chip.violations == []


def test_a_core_at_work_stays_on(card: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = True
    monkeypatch.setattr(card.chip.gfx, "busy", lambda: busy)
    rest(card)
    assert not card.chip.smu.graphics.off
    busy = False
    card.pass_time()
    assert card.chip.smu.graphics.off


def test_disallowed_before_it_went_off(card: Bench) -> None:
    with card.chip.lock:  # a message by hand takes longer than the core needs to go off
        card.chip.smu.graphics.allow()
        card.chip.smu.graphics.disallow()
    card.pass_time()
    assert not card.chip.smu.graphics.off and not card.chip.smu.graphics.entries


def test_a_reset_gives_power_and_forgets_what_was_allowed(card: Bench) -> None:
    rest(card)
    card.chip.mode1_reset()
    card.pass_time()
    assert not card.chip.smu.graphics.off
    assert card.chip.violations == []


def test_a_core_that_does_not_come_back() -> None:
    with bench(faults=FaultPlan(gfxoff_stuck=True)) as card:
        install(card.chip)
        card.boot()
        card.pass_time()
        card.message(ENABLE_ALL)
        rest(card)
        assert card.message(DISALLOW)[0] == 1
        assert card.read(card.hub("gc", "APERTURE_LOW")) == ONES
