"""The power limit of a card: read, set, refused, restored; the virtual card stays within it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_navi31 import build_chip, opened, plug_in
from tests.support.died import died
from ugpu import hcq
from ugpu.am import chips
from ugpu.am.regs import structs
from ugpu.hcq.device.device import Device
from ugpu.hcq.errors import BadArgument, FirmwareRejected, NotSupported
from ugpu.virtual.amd.chip import Chip
from ugpu.virtual.amd.firmware.powerplay import combo_table

SET, GET = 0x32, 0x33  # PPSMC_MSG_SetPptLimit, PPSMC_MSG_GetPptLimit
USUAL, LEAST, LOW = 339, 305, 310  # of the virtual Navi31, by hand: 10 % below 339 W


@pytest.fixture
def chip() -> Iterator[Chip]:
    made = build_chip()
    yield made
    made.close()


def sensor(device: Device, name: str, label: str) -> float:
    (sensor,) = [each for each in device.sensors() if (each.name, each.label) == (name, label)]
    return sensor.read()


def sent(chip: Chip, message: int = SET) -> list[int]:
    return [argument for number, argument in chip.smu.messages if number == message]


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("navi31", 305, 339), ("navi32", 236, 263), ("navi33", 148, 165), ("navi44", 112, 160),
     ("navi48", 212, 304)],
)  # fmt: skip
def test_each_chip_has_its_boards_range(name: str, least: int, most: int) -> None:
    made = build_chip(facts=chips.facts_of(name))
    try:
        with opened(made) as device:
            assert device.driver.power_limit() == (most, least, most, most)
            device.power_limit_w = least
            assert device.power_limit_w == least
            assert sensor(device, "power_limit_watts", "socket") == least
            for watts in (least - 1, most + 1):
                with pytest.raises(BadArgument, match=f"{least} to {most} W"):
                    device.power_limit_w = watts
        assert sent(made) == [least, most]
        assert made.violations == []
    finally:
        made.close()


def test_the_place_of_the_floor_is_that_of_the_headers() -> None:
    interface = chips.facts_of("navi48").smu
    layout = structs(interface.tables).PPTable_t
    place = interface.pptable_place + layout.offset_of("SkuTable.OverDriveLimitsBasicMin.Ppt")
    assert interface.power_floor_place == place


@pytest.mark.parametrize("watts", [0, -5, float("nan"), float("inf"), True, "100"])
def test_what_is_no_number_of_watts_is_refused(chip: Chip, watts: Any) -> None:
    with opened(chip) as device:
        with pytest.raises(BadArgument, match="positive number of watts"):
            device.power_limit_w = watts
        assert not sent(chip)


def test_a_card_that_sets_no_limit_gets_no_message(chip: Chip) -> None:
    with opened(chip):
        pass
    assert not sent(chip) and not sent(chip, GET)


@pytest.mark.parametrize("limit", [LEAST, USUAL])
def test_power_under_load_stays_below_the_limit(
    chip: Chip, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chip.smu.metrics.load, "share", lambda: 1.0)
    ticks = itertools.count()
    with opened(chip) as device:
        device.driver.metrics.clock = lambda: float(next(ticks))  # each reading is new
        device.power_limit_w = limit
        seen = []
        for _ in range(20):
            seen.append((
                sensor(device, "power_watts", "socket"),
                sensor(device, "clock_hertz", "gfx"),
                sensor(device, "clock_throttled", "ppt0"),
            ))  # fmt: skip
    assert all(250 < watts <= limit for watts, _, _ in seen)
    throttled = {flag for _, _, flag in seen}
    assert throttled == ({1.0} if limit == LEAST else {0.0})
    assert all((clock < 2526e6) is (limit == LEAST) for _, clock, _ in seen)


def test_the_smu_refuses_and_nothing_changes(chip: Chip) -> None:
    with opened(chip) as device:
        chip.faults.smu_responses[SET] = 0xFF
        with pytest.raises(FirmwareRejected, match=f"refuses a power limit of {LOW} W"):
            device.power_limit_w = LOW
        assert device.power_limit_w == USUAL
        assert device.failure is None
    with opened(chip) as device:
        assert device.warm
    assert sent(chip) == [LOW]  # nothing was to restore


def test_a_limit_that_cannot_be_restored_resets_the_card(chip: Chip) -> None:
    with opened(chip) as device:
        device.power_limit_w = LOW
        chip.faults.smu_responses[SET] = 0xFF
    chip.faults.smu_responses.clear()
    with opened(chip) as device:
        assert not device.warm
        assert device.power_limit_w == USUAL


def test_a_reset_keeps_the_limit_and_the_end_restores_it(chip: Chip) -> None:
    with opened(chip) as device:
        device.power_limit_w = LOW
        device.reset("mode1")
        assert chip.smu.metrics.power_limit == device.power_limit_w == LOW
    with opened(chip) as device:
        assert device.warm
        assert device.power_limit_w == USUAL


def test_a_kept_limit_stays_until_another_is_kept(chip: Chip) -> None:
    for kept in (LOW, USUAL):
        with opened(chip) as device:
            device.driver.set_power_limit(kept, keep=True)
        with opened(chip) as device:
            assert device.warm and device.power_limit_w == kept
            device.power_limit_w = LEAST
        with opened(chip) as device:
            assert device.power_limit_w == kept


def test_tenants_read_the_limit_and_cannot_set_it(chip: Chip) -> None:
    with opened(chip) as device:
        tenant = Device(device.driver.open_tenant("tenant"))
        with tenant:
            assert tenant.power_limit_w == USUAL
            with pytest.raises(NotSupported, match="opened the card first"):
                tenant.power_limit_w = LOW


@pytest.mark.parametrize(("at_rest", "refused"), [(False, False), (True, False), (True, True)])
def test_the_limit_of_a_process_that_died_is_gone(chip: Chip, at_rest: bool, refused: bool) -> None:
    device = plug_in(chip)
    device.power_limit_w = LOW
    if at_rest:
        assert device.rest()
    died(device)
    device.driver.transport.close()
    if refused:  # by the SMU, until the reset that follows
        chip.faults.smu_responses[SET] = 0xFF
    with opened(chip) as heir:
        assert heir.warm is at_rest
        assert heir.power_limit_w == USUAL
        with heir.alloc(64) as buffer:
            buffer.fill(1)
            assert (buffer.numpy(np.uint32) == 1).all()


def test_a_table_without_limits_is_an_error(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bytearray(combo_table(chip.facts))
    whole[832 + 16 : 832 + 18] = bytes(2)  # SocketPowerLimitAc[0], by hand
    monkeypatch.setattr("ugpu.virtual.amd.firmware.smu.combo_table", lambda _: bytes(whole))
    with opened(chip) as device, pytest.raises(hcq.errors.ChipError, match="found 0 W"):
        device.power_limit_w = LOW


@pytest.mark.parametrize("name", ["cpu", "virtual:a630", "virtual:ga102+gsp"])
def test_devices_without_a_limit_say_so(name: str) -> None:
    with hcq.open(name) as device:
        with pytest.raises(NotSupported, match="reports no power limit"):
            _ = device.power_limit_w
        with pytest.raises(NotSupported, match="cannot be set"):
            device.power_limit_w = 100


def test_the_stock_nvidia_driver_keeps_its_limit() -> None:
    with hcq.open("virtual:gh100") as device:
        assert device.power_limit_w == 700
        with pytest.raises(NotSupported, match="nvidia-smi --power-limit"):
            device.power_limit_w = 400
        assert device.power_limit_w == 700
