"""A card that gets too hot: its work fails by name, and goes on once it is cool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip, opened
from ugpu.am.device.device import AmDevice
from ugpu.am.failure.states import states
from ugpu.hcq.errors import DeviceLost, OverTemperature
from ugpu.virtual.amd.chip import Chip

LIMIT = 118
Pair = tuple[Chip, AmDevice]


@pytest.fixture
def pair() -> Iterator[Pair]:
    chip = build_chip()
    try:
        with opened(chip) as device:
            yield chip, device
    finally:
        chip.close()


def fill(device: AmDevice, value: int) -> None:
    with device.alloc(64) as buffer:
        buffer.fill(value)
        assert (buffer.numpy(np.uint32) == value).all()


def thermal_state(device: AmDevice) -> Any:
    (found,) = [state for state in states(device.chip) if state.unit == "THM"]
    return found


def test_the_limit_is_the_board_s(pair: Pair) -> None:
    _, device = pair
    assert device.driver.units.thermal.limit == LIMIT
    state = thermal_state(device)
    assert state.ok and state.name == "cool enough" and str(LIMIT) in state.meaning


def test_a_card_that_is_too_hot_says_so_and_works_again_when_it_is_cool(pair: Pair) -> None:
    chip, device = pair
    fill(device, 1)
    chip.thermal.heat(LIMIT + 3)
    with pytest.raises(OverTemperature) as caught:
        device.synchronize()
    assert caught.value.facts["celsius"] == LIMIT + 3
    assert caught.value.facts["limit_celsius"] == LIMIT
    assert "fan" in str(caught.value.facts["remedy"])
    assert thermal_state(device).name == "too hot"
    with pytest.raises(OverTemperature):  # it is not cool yet
        device.reset()
    assert isinstance(device.failure, OverTemperature)
    chip.thermal.cool()
    device.reset()
    fill(device, 2)
    assert chip.violations == []


def test_a_moment_of_heat_stops_nothing(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    chip, device = pair
    chip.thermal.heat(LIMIT + 3)
    chip.thermal.heat(LIMIT - 10)
    with caplog.at_level("WARNING"):
        fill(device, 3)
        device.synchronize()
    assert "briefly" in caplog.text
    assert device.failure is None


def test_a_card_that_is_hot_when_it_is_opened_fails_its_first_work() -> None:
    chip = build_chip()
    try:
        chip.thermal.heat(LIMIT + 1)
        with opened(chip) as device, pytest.raises(OverTemperature):
            device.synchronize()
    finally:
        chip.close()


def test_the_critical_temperature_is_told_before_the_power_goes(pair: Pair) -> None:
    chip, device = pair
    chip.thermal.critical()
    with pytest.raises(OverTemperature, match="critical") as caught:
        device.synchronize()
    assert "power" in str(caught.value.facts["remedy"])
    chip.clock.wait_until(lambda: chip.lost, unit="board", waiting_for="its end", limit_s=60)
    with pytest.raises(DeviceLost):
        device.reset()


def test_a_closed_driver_has_nothing_told() -> None:
    chip = build_chip()
    try:
        with opened(chip):
            pass
        chip.thermal.heat(LIMIT + 1)
        assert chip.ih.lost == 0
        chip.thermal.cool()
        with opened(chip) as device:  # warm: switched on again
            assert device.driver.warm
            chip.thermal.heat(LIMIT + 1)
            with pytest.raises(OverTemperature):
                device.synchronize()
    finally:
        chip.close()


@pytest.mark.parametrize("stated", [0, 20, 300])
def test_a_board_without_a_sensible_limit_is_not_watched(
    stated: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chip = build_chip()
    try:
        monkeypatch.setattr("ugpu.virtual.amd.firmware.smu.combo_table", _stating(stated))
        with caplog.at_level("WARNING"), opened(chip) as device:
            assert device.driver.units.thermal.limit == 0
            chip.thermal.heat(LIMIT + 1)
            fill(device, 4)
        assert f"found {stated}" in caplog.text
    finally:
        chip.close()


def _stating(celsius: int) -> Any:
    from ugpu.virtual.amd.firmware.powerplay import combo_table

    def made(facts: Any) -> bytes:
        whole = combo_table(facts)
        return whole[:29] + celsius.to_bytes(2, "little") + whole[31:]

    return made
