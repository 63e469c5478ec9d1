"""A card from one process to the next: left warm, left by a process that died, and several
holders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nv.gsp.test_gsp_work import opened, powered
from tests.support.gsp_killed import killing
from tests.support.nv_machine import LIMIT_S, tenant, work
from ugpu import hcq
from ugpu.hcq.errors import FirmwareInvalid
from ugpu.hcq.transport.base import Interrupts
from ugpu.nv.device import driver as driver_module
from ugpu.nv.device.bare import BareDriver
from ugpu.nv.device.device import NvDevice
from ugpu.nv.gsp.rpc import note
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.faults import CardFault


def left_warm(card: Card, **options: object) -> NvDevice:
    name = f"virtual:{card.facts.name}+gsp"
    device = hcq.open(name, chip=card, leave="warm", **options)
    assert isinstance(device, NvDevice)
    device.limit_s = LIMIT_S
    return device


@pytest.mark.parametrize("chip", ["ad102", "tu102", "gh100"])
def test_firmware_goes_on_from_one_process_to_the_next(chip: str) -> None:
    with powered(chip) as card:
        with left_warm(card) as device:
            work(device)
            assert device.info()["start"] == "cold: as after power-on"
        server = card.server
        assert not card.config.bus_master, "nothing reaches memory of the process that left"
        for _ in range(3):
            with left_warm(card) as device:
                assert str(device.info()["start"]).startswith("warm")
                assert "init-done" not in dict(device.boot_stages)
                work(device)
        assert card.server is server, "it is the first one's firmware"
        with opened(card) as device:
            assert str(device.info()["start"]).startswith("warm")
            work(device)
        with opened(card) as device:
            assert device.info()["start"] == "cold: as after power-on"
        assert card.violations == []


def test_a_cold_start_of_a_warm_card_unloads_its_firmware() -> None:
    with powered() as card:
        with left_warm(card):
            pass
        with left_warm(card, force_cold=True) as device:
            assert "unloaded" in str(device.info()["start"])
            work(device)
        assert card.violations == []


@pytest.mark.slow
@pytest.mark.parametrize(("chip", "rounds"), [("ad102", 6), ("gb202", 4)])
def test_the_next_process_works_after_one_that_was_killed(chip: str, rounds: int) -> None:
    """At random messages of boot and work; see also lab/campaign/killed_nvidia.py."""
    with killing(chip, seed=3) as kills:
        ways = {kills.round() for _ in range(rounds)}
    assert any("function reset" in way for way in ways)


def test_two_holders_of_one_card() -> None:
    with powered() as card, opened(card) as device:
        work(device)
        with tenant(device, "second") as other:
            work(other)
            work(device)
            driver = other.driver
            assert isinstance(driver, BareDriver)
            assert driver.card.holders == [device.driver, driver]
        work(device)
        again = tenant(device, "third")
        device.close()
        with again:
            work(again)
        assert card.violations == []
        assert not card.wpr.up, "the last holder has unloaded the firmware"


@pytest.mark.parametrize("chip", ["ad102", "gh100"])
def test_work_and_reports_interrupt_a_wait(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_SPINS", 0)  # each wait sleeps
    came: list[bool] = []
    with powered(chip) as card, opened(card) as device:
        driver = device.driver
        assert isinstance(driver, BareDriver) and driver.card.interrupts is not None
        messages = driver.card.interrupts.messages
        monkeypatch.setattr(driver.card.interrupts, "messages", Noted(messages, came))
        for _ in range(8):
            work(device)
        assert any(came), "work ended a wait"
        card.inject_card(CardFault.MESSAGE_LOST)
        work(device)  # polled after all
        assert card.violations == []


class Noted:
    """Interrupts, with whether each wait ended by one."""

    vectors = 1

    def __init__(self, messages: Interrupts, came: list[bool]) -> None:
        self._messages, self._came = messages, came

    def enable(self, count: int) -> None:
        self._messages.enable(count)

    def wait(self, limit_s: float, vector: int = 0) -> bool:
        self._came.append(self._messages.wait(limit_s, vector))
        return self._came[-1]


@given(st.one_of(st.binary(max_size=200), st.text().map(str.encode)))
def test_what_is_not_a_note_is_refused(text: bytes) -> None:
    with pytest.raises(FirmwareInvalid):
        note.parse(text)
