"""What the SMU announces by itself: counted, named, logged; a fan lowers the limit of the heat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip, opened
from ugpu.am.device.device import AmDevice
from ugpu.hcq.errors import OverTemperature
from ugpu.hcq.state import trace
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.firmware.powerplay import combo_table

LIMIT, LOWERED = 118, 106  # of the virtual board: 12 degrees less while a fan does not turn
Pair = tuple[Chip, AmDevice]


@pytest.fixture
def pair() -> Iterator[Pair]:
    chip = build_chip()
    try:
        with opened(chip) as device:
            yield chip, device
    finally:
        chip.close()


def sensor(device: AmDevice, name: str) -> float:
    (found,) = [one for one in device.sensors() if one.name == name]
    return found.read()


def work(device: AmDevice, value: int) -> None:
    with device.alloc(64) as buffer:
        buffer.fill(value)
        assert (buffer.numpy(np.uint32) == value).all()


def test_throttling_is_counted_named_and_told_once(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    chip, device = pair
    heard: list[Any] = []
    with trace.subscribe(heard.append), caplog.at_level("WARNING"):
        for _ in range(3):
            chip.announcements.throttle("TEMP_HOTSPOT")
            work(device, 1)
            device.synchronize()
    assert sensor(device, "throttle_events") == 3
    lines = [record.getMessage() for record in caplog.records if "lowers clocks" in record.msg]
    assert lines == ["virtual:navi31: the SMU lowers clocks: temp hotspot"]
    told = [one.arguments["announces"] for one in heard if one.name == "smu"]
    assert told == ["throttling"] * 3
    assert device.failure is None and chip.violations == []


def test_a_fan_that_does_not_turn_lowers_the_limit_until_it_turns_again(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    chip, device = pair
    thermal = device.driver.units.thermal
    chip.thermal.heat(LOWERED + 2)
    work(device, 1)
    device.synchronize()
    assert device.failure is None
    chip.thermal.cool()
    with caplog.at_level("WARNING"):
        chip.announcements.stall_fan()
        device.synchronize()
    assert "a fan does not turn as it should: the limit is now 106 degrees" in caplog.text
    assert thermal.limit == LOWERED and thermal.stated == LIMIT
    assert sensor(device, "fan_abnormal") == 1
    chip.thermal.heat(LOWERED + 2)
    with pytest.raises(OverTemperature, match="106 expected, as a fan does not") as hot:
        device.synchronize()
    assert hot.value.facts["limit_celsius"] == LOWERED
    chip.thermal.cool()
    device.reset()
    chip.announcements.turn_fan()
    device.synchronize()
    assert thermal.limit == LIMIT and sensor(device, "fan_abnormal") == 0
    chip.thermal.heat(LOWERED + 2)
    work(device, 2)
    device.synchronize()
    assert chip.violations == []


def test_the_limit_is_lowered_while_it_is_hot_already(pair: Pair) -> None:
    chip, device = pair
    chip.thermal.heat(LOWERED + 2)
    chip.announcements.stall_fan()
    with pytest.raises(OverTemperature):
        for _ in range(3):  # the announcement, then the interrupt that the new limit causes
            device.synchronize()
            work(device, 3)
    chip.thermal.cool()
    device.reset()


@pytest.mark.parametrize("offset", [-100, 200])
def test_an_offset_that_makes_no_sense_is_ignored(
    offset: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def made(facts: Any) -> bytes:
        whole = bytearray(combo_table(facts))
        at = 832 + 1412  # PPTable_t, and FanAbnormalTempLimitOffset in it, by hand
        assert int.from_bytes(whole[at : at + 2], "little", signed=True) == LOWERED - LIMIT
        whole[at : at + 2] = offset.to_bytes(2, "little", signed=True)
        return bytes(whole)

    monkeypatch.setattr("ugpu.virtual.amd.firmware.smu.combo_table", made)
    chip = build_chip()
    try:
        with opened(chip) as device, caplog.at_level("WARNING"):
            chip.announcements.stall_fan()
            device.synchronize()
            assert device.driver.units.thermal.limit == LIMIT
            assert "ignored" in caplog.text
    finally:
        chip.close()


def test_the_power_source_is_told_each_time(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    chip, device = pair
    told = device.driver.units.thermal.announcements
    with caplog.at_level("WARNING"):
        for battery in (True, False, True):
            chip.announcements.supply(battery=battery)
            device.synchronize()
            assert told.on_battery is battery
    assert caplog.text.count("runs on a battery") == 2


def test_an_event_of_newer_firmware_is_acknowledged_and_told(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    chip, device = pair
    with caplog.at_level("INFO"):
        chip.announcements._announce(0x2A)
        chip.announcements.stall_fan()
        device.synchronize()
        device.synchronize()
    assert "event 42, which has no known meaning" in caplog.text
    assert sensor(device, "fan_abnormal") == 1


@pytest.mark.parametrize("rung", ["warm", "mode1"])
def test_it_listens_again_after_a_reset(pair: Pair, rung: str) -> None:
    chip, device = pair
    device.reset(rung)
    chip.announcements.throttle("PPT0")
    device.synchronize()
    assert sensor(device, "throttle_events") == 1


def test_what_comes_during_a_reset_is_not_lost(pair: Pair) -> None:
    """It is announced once, and nothing else before it is acknowledged."""
    chip, device = pair
    chip.announcements.stall_fan()
    device.reset("queue")
    device.synchronize()
    assert sensor(device, "fan_abnormal") == 1
    chip.announcements.turn_fan()
    device.synchronize()
    assert sensor(device, "fan_abnormal") == 0


def test_heat_during_a_reset_is_not_lost(pair: Pair) -> None:
    chip, device = pair
    chip.thermal.heat(LIMIT + 3)
    device.driver.recover()  # a reset for another reason, before anything looked
    with pytest.raises(OverTemperature):
        device.synchronize()
    chip.thermal.cool()
    device.reset()
    device.synchronize()


def test_a_closed_driver_is_told_nothing() -> None:
    chip = build_chip()
    try:
        with opened(chip):
            pass
        chip.announcements.stall_fan()
        assert chip.ih.lost == 0
        with opened(chip) as device:
            assert device.driver.warm
            chip.announcements.stall_fan()
            device.synchronize()
            assert sensor(device, "fan_abnormal") == 1
    finally:
        chip.close()
