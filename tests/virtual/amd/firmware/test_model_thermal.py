"""The thermal controller, driven by hand as Linux drives it: limits, masks, interrupts, power."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.amd.navi31_bench import Bench, bench

Told = list[tuple[int, int]]  # client and source of interrupts
THM, SMUIO = 0x0F, 0x16
LIMIT = 118
TABLE = 0x40_0000


@pytest.fixture
def card() -> Iterator[Bench]:
    with bench() as made:
        made.boot()
        yield made


@pytest.fixture
def told(card: Bench, monkeypatch: pytest.MonkeyPatch) -> Told:
    """Client and source of all interrupts from now on."""
    found: Told = []
    monkeypatch.setattr(
        card.chip.ih, "raise_interrupt", lambda client, source: found.append((client, source))
    )
    return found


def control(card: Bench, **fields: int) -> int:
    space = card.chip.space
    return space.register("thm", "THM_THERMAL_INT_CTRL").insert(0, fields)


def switch_on(card: Bench, **changes: int) -> None:
    fields = {"DIG_THERM_INTH": LIMIT, "MAX_IH_CREDIT": 5, "THERM_IH_HW_ENA": 1} | changes
    space = card.chip.space
    card.write(space.index("thm", "THM_THERMAL_INT_CTRL"), control(card, **fields))
    card.write(space.index("thm", "THM_THERMAL_INT_ENA"), 0b111000)


def test_a_crossing_of_the_limit_is_told_once(card: Bench, told: Told) -> None:
    switch_on(card)
    assert told == []
    card.chip.thermal.heat(LIMIT)
    assert told == []
    card.chip.thermal.heat(LIMIT + 1)
    card.chip.thermal.heat(LIMIT + 5)
    assert told == [(THM, 0)]
    card.chip.thermal.cool()
    card.chip.thermal.heat(LIMIT + 1)
    assert told == [(THM, 0)] * 2
    assert card.chip.violations == []


@pytest.mark.parametrize("change", [{"THERM_INTH_MASK": 1}, {"THERM_IH_HW_ENA": 0}])
def test_masked_interrupts_are_not_told(card: Bench, told: Told, change: dict[str, int]) -> None:
    switch_on(card, **change)
    card.chip.thermal.heat(LIMIT + 1)
    assert told == []


def test_nothing_is_told_before_a_driver_asks_and_after_it_has_left(
    card: Bench, told: Told
) -> None:
    card.chip.thermal.heat(LIMIT + 1)
    card.chip.thermal.cool()
    switch_on(card)
    card.write(card.chip.space.index("thm", "THM_THERMAL_INT_ENA"), 0)
    card.chip.thermal.heat(LIMIT + 1)
    assert told == []


def test_who_switches_it_on_while_it_is_hot_is_told(card: Bench, told: Told) -> None:
    card.chip.thermal.heat(LIMIT + 1)
    switch_on(card)
    assert told == [(THM, 0)]


def test_other_enables_than_the_known_ones_are_objected_to(card: Bench) -> None:
    card.write(card.chip.space.index("thm", "THM_THERMAL_INT_ENA"), 0b000111)
    assert "expected 0 or the three bits" in card.chip.violations[-1]


def test_registers_and_sensors_show_the_temperature(card: Bench) -> None:
    card.chip.thermal.heat(97)
    status = card.chip.space.index("thm", "CG_MULT_THERMAL_STATUS")
    assert card.read(status) >> 9 & 0x1FF == 97


def test_the_board_states_its_limit(card: Bench) -> None:
    card.message(0xE, 0x80)  # SetDriverDramAddrHigh, Low
    card.message(0xF, TABLE)
    card.message(0x12, 1)
    assert struct.unpack_from("<H", bytes(card.chip.vram.read(TABLE, 64)), 29)[0] == LIMIT


def test_the_critical_fault_is_told_before_the_power_goes(card: Bench, told: Told) -> None:
    card.chip.thermal.critical()
    assert told == [(SMUIO, 83)]
    assert not card.chip.lost
    card.pass_time()
    assert card.chip.lost
