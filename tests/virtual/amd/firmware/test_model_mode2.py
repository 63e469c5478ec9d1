"""Mode2 of the virtual SMU, driven by hand: what it resets, what stays, what is loaded again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.amd.navi31_bench import Bench, bench
from ugpu.am.chips.navi31.facts import FACTS as NAVI31
from ugpu.virtual.amd.engines.install import install
from ugpu.virtual.amd.options import FaultPlan

MODE2, ENABLE_ALL, LOW = 0x4F, 6, 0xC  # smu_v13_0_0_ppsmc.h
GRAPHICS_DOMAIN = 4  # FEATURE_PWR_GFX of smu13_driver_if_v13_0_0.h
AUTOLOAD = 0x21
BOOTLOAD_STATUS = 0xA000 + 0x4E82  # RLC_RLCS_BOOTLOAD_STATUS, gc_11_0_0_offset.h, segment 1
IMU_I, IMU_D, RLC_G = 68, 69, 8
# The bench's sequences are Navi31's; mode2 alone is that of a chip which has it.
WITH_MODE2 = replace(NAVI31, mode2_since=0x004E7500)


@pytest.fixture
def card() -> Iterator[Bench]:
    with bench(WITH_MODE2) as made:
        install(made.chip)
        made.boot()
        made.pass_time()
        yield made


def booted(card: Bench) -> bool:
    return bool(card.read(BOOTLOAD_STATUS) & 0x8000_0000)


def test_graphics_goes_and_the_rest_stays(card: Bench) -> None:
    assert booted(card)
    card.vram.write32(0x50_0000, 0x600D600D)
    card.flush_hdp()
    card.write(card.hub("gc", "APERTURE_LOW"), 7)
    aperture = card.read(card.hub("mmhub", "APERTURE_LOW"))
    assert card.message(MODE2)[0] == 1
    assert not booted(card)
    assert card.read(card.hub("gc", "APERTURE_LOW")) == 0
    assert card.read(card.hub("mmhub", "APERTURE_LOW")) == aperture != 0
    assert card.vram.read32(0x50_0000) == 0x600D600D
    assert card.read(card.psp(81)) != 0
    assert card.message(1, 41) == (1, 42)  # the SMU goes on
    assert card.chip.violations == []


def test_registers_take_nothing_until_imu_is_loaded_and_the_rest_started(card: Bench) -> None:
    assert card.message(MODE2)[0] == 1
    card.write(card.hub("gc", "APERTURE_LOW"), 7)
    assert card.read(card.hub("gc", "APERTURE_LOW")) == 0
    assert len(card.chip.violations) == 1 and "before gc is up" in card.chip.violations[0]
    assert card.command(AUTOLOAD)[0] == 0  # it never finishes: IMU is missing
    card.pass_time()
    assert not booted(card)
    parts = card.parts()
    assert card.load_firmware(RLC_G, parts[RLC_G]) != 0  # that one is still in the TMR
    for number in (IMU_I, IMU_D):
        assert card.load_firmware(number, parts[number]) == 0
    assert card.command(AUTOLOAD)[0] == 0
    card.pass_time()
    assert booted(card)
    card.write(card.hub("gc", "APERTURE_LOW"), 7)
    assert card.read(card.hub("gc", "APERTURE_LOW")) == 7
    assert len(card.chip.violations) == 1


def test_features_of_the_graphics_core_are_switched_on_again(card: Bench) -> None:
    assert card.message(ENABLE_ALL)[0] == 1
    before = card.message(LOW)[1]
    assert card.message(MODE2)[0] == 1
    lost = before & ~card.message(LOW)[1]
    assert lost >> 1 & 1 and lost >> 19 & 1  # DPM_GFXCLK, GFXOFF
    assert not lost & 1  # FW_DATA_READ is not graphics'
    assert card.message(ENABLE_ALL, GRAPHICS_DOMAIN)[0] == 1
    assert card.message(LOW)[1] == before
    assert card.message(ENABLE_ALL, 5)[0] == 0xFF  # there are five domains


def test_a_planted_fault_has_it_answered_and_not_done() -> None:
    with bench(WITH_MODE2, faults=FaultPlan(mode2_ignored=True)) as card:
        install(card.chip)
        card.boot()
        card.pass_time()
        assert card.message(MODE2)[0] == 1
        assert booted(card)


@pytest.mark.parametrize("since", [0, 0x004E7501], ids=["no such message", "newer firmware"])
def test_chips_and_firmware_without_it_do_not_know_the_message(since: int) -> None:
    with bench(replace(NAVI31, mode2_since=since)) as card:
        card.boot()
        assert card.message(MODE2)[0] == 0xFE
