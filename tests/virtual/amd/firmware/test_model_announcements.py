"""Announcements of the virtual SMU, driven by hand as Linux drives them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.support.amd.navi31_bench import MP, Bench, bench

# mp_13_0_0_offset.h: MP1_SMN_IH_SW_INT (ID 7:0, VALID 8) and its control (INT_MASK 0, INT_ACK 8).
SW_INT, SW_INT_CTRL = MP + 0x2C2, MP + 0x2C3
MASK, ACK = 1, 1 << 8
MP1, TO_DRIVER = 0x1F, 0xFE
Told = list[tuple[int, int, int]]  # client, source, event
TABLE = 0x40_0000
METRICS, THROTTLING_AT = 5, 154  # TABLE_SMU_METRICS; ThrottlingPercentage in SmuMetrics_t


@pytest.fixture
def card() -> Iterator[Bench]:
    with bench() as made:
        made.boot()
        yield made


@pytest.fixture
def told(card: Bench, monkeypatch: pytest.MonkeyPatch) -> Told:
    found: Told = []

    def record(client: int, source: int, *, data: tuple[int, ...] = (0,)) -> None:
        found.append((client, source, data[0]))

    monkeypatch.setattr(card.chip.ih, "raise_interrupt", record)
    return found


def listen(card: Bench) -> None:
    card.write(SW_INT, card.read(SW_INT) & ~0x1FF | TO_DRIVER)
    card.write(SW_INT_CTRL, card.read(SW_INT_CTRL) & ~MASK)


def acknowledge(card: Bench) -> None:
    card.write(SW_INT_CTRL, card.read(SW_INT_CTRL) | ACK)


def test_nothing_is_announced_before_a_driver_listens_and_after_it_left(
    card: Bench, told: Told
) -> None:
    card.chip.announcements.stall_fan()
    listen(card)
    card.write(SW_INT_CTRL, card.read(SW_INT_CTRL) | MASK)
    card.chip.announcements.turn_fan()
    assert told == []


def test_each_event_has_its_number_and_waits_for_the_acknowledgement(
    card: Bench, told: Told
) -> None:
    listen(card)
    card.chip.announcements.throttle("TEMP_HOTSPOT")
    card.chip.announcements.stall_fan()
    card.chip.announcements.turn_fan()
    assert told == [(MP1, TO_DRIVER, 7)]
    acknowledge(card)
    acknowledge(card)
    assert told == [(MP1, TO_DRIVER, 7), (MP1, TO_DRIVER, 8), (MP1, TO_DRIVER, 9)]
    acknowledge(card)
    assert len(told) == 3 and card.chip.violations == []


def test_a_change_of_the_power_source_is_announced_once_for_each_request(
    card: Bench, told: Told
) -> None:
    listen(card)
    card.chip.announcements.supply(battery=True)
    acknowledge(card)
    card.chip.announcements.supply(battery=False)
    assert told == [(MP1, TO_DRIVER, 4)]
    assert card.message(0x34)[0] == 1  # ReenableAcDcInterrupt
    card.chip.announcements.supply(battery=False)
    assert told[1:] == [(MP1, TO_DRIVER, 3)]


def test_a_reset_masks_it(card: Bench, told: Told) -> None:
    listen(card)
    card.chip.bus_reset()
    card.chip.announcements.stall_fan()
    assert told == []
    assert card.chip.space.peek(SW_INT_CTRL) & MASK


def test_the_reason_stands_in_the_metrics(card: Bench) -> None:
    card.message(0xE, 0x80)
    card.message(0xF, TABLE)
    card.chip.announcements.throttle("PPT0")
    card.message(0x12, METRICS)
    raw = bytes(card.chip.vram.read(TABLE, 244))
    assert 40 in struct.unpack_from("<22B", raw, THROTTLING_AT)
    card.chip.announcements.relax()
    card.message(0x12, METRICS)
    raw = bytes(card.chip.vram.read(TABLE, 244))
    assert not any(struct.unpack_from("<22B", raw, THROTTLING_AT))
