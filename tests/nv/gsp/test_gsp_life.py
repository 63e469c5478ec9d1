"""A card from one process to the next: left warm, left by a process that died, and several
holders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nv.gsp.test_gsp_work import opened, powered
from tests.support.kernels import contract_object
from tests.support.nvidia.gsp.gsp_killed import killing
from tests.support.nvidia.nv_machine import LIMIT_S, hanging, tenant, work
from ugpu import hcq
from ugpu.hcq.errors import (
    DeviceLost,
    FirmwareError,
    FirmwareInvalid,
    NotSupported,
    UgpuError,
)
from ugpu.hcq.state.ladder import Level
from ugpu.hcq.state.memory import Placement
from ugpu.hcq.transport.base import Interrupts
from ugpu.hcq.transport.pci import suspend
from ugpu.hcq.work.buffer import Buffer
from ugpu.hcq.work.program import Program
from ugpu.nv.device import driver as driver_module
from ugpu.nv.device.bare import BareDevice, BareDriver
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


def first_contexts(card: Card) -> int:
    """The calls of NV2080_CTRL_CMD_GPU_PROMOTE_CTX: one for the first context, one a channel."""
    return sum(text.startswith("control 0x2080012b ") for text in card.calls)


def test_a_cold_start_of_a_warm_card_unloads_its_firmware() -> None:
    with powered() as card:
        with left_warm(card) as device:
            work(device)
        promoted = first_contexts(card)
        with left_warm(card, force_cold=True) as device:
            assert "unloaded" in str(device.info()["start"])
            work(device)
        assert first_contexts(card) == 2 * promoted, "new firmware has no first context"
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


@pytest.mark.parametrize(("chip", "only"), [("ad102", "flr"), ("gb202", "bus"), ("tu102", "flr")])
def test_a_reset_of_the_card_boots_it_and_keeps_programs(chip: str, only: str) -> None:
    with powered(chip) as card, opened(card) as device:
        assert isinstance(device, NvDevice)
        with (
            device.load(contract_object(device.target)) as program,
            device.alloc(4096) as lost,
            device.alloc(4096, placement=Placement.HOST) as kept,
        ):
            kept.fill(7)
            recovery = device.reset(only)
            assert recovery.attempts[-1].worked
            assert kept.numpy(np.uint8)[0] == 7, "host memory stays"
            run_scale(device, program, lost)
        work(device)
        assert card.violations in ([], ["the GSP was reset while its firmware ran"])


def test_a_crash_of_the_firmware_is_recovered() -> None:
    with powered() as card, opened(card) as device:
        work(device)
        card.inject_card(CardFault.GSP_CRASHES)
        with pytest.raises(FirmwareError, match="crashed"):
            device.driver.rebuild(device.driver.copy_queue)
        recovery = device.reset()
        assert recovery.attempts[-1].worked and recovery.attempts[-1].level is Level.FLR
        work(device)


@pytest.mark.parametrize("chip", ["ad102", "gh100"])
def test_a_card_that_lost_its_power_is_booted_again(chip: str) -> None:
    """As after the host was suspended: the BARs have no addresses, and the firmware is gone."""
    with powered(chip) as card, opened(card) as device:
        work(device)
        card.power_cycle()
        with pytest.raises(UgpuError):
            work(device)
        recovery = device.reset()
        assert recovery.attempts[-1].worked
        work(device)


class Slept:
    """What a transport knows of a host that was suspended; see hcq.transport.pci.suspend."""

    happened = True

    def forget(self) -> bool:
        happened, self.happened = self.happened, False
        return happened


@pytest.mark.parametrize("powerless", [True, False], ids=["power lost", "power kept"])
@pytest.mark.parametrize("chip", ["ad102", "gb202"])
def test_after_a_suspend_of_the_host_a_reset_boots_the_card(
    chip: str, powerless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has restored configuration space; the transport alone knows what has happened."""
    with powered(chip) as card, opened(card) as device:
        assert isinstance(device, BareDevice)
        transport, present, slept = device.transport, device.transport.present, Slept()
        with device.alloc(4096, placement=Placement.HOST) as kept:
            kept.fill(7)
            work(device)
            monkeypatch.setattr(transport, "suspends", slept, raising=False)
            monkeypatch.setattr(transport, "present", lambda: not slept.happened and present())
            monkeypatch.setattr(transport, "absence", suspend.REASON)
            if powerless:
                saved = card.config.snapshot()
                card.power_cycle()
                card.config.restore(saved)
            with (
                pytest.raises(DeviceLost, match="content of its memory") as caught,
                hanging(device),
            ):
                device.synchronize()
            assert caught.value.facts["reason"] == suspend.REASON
            assert "device.reset()" in str(caught.value.facts["remedy"])
            recovery = device.reset()
            assert recovery.attempts[-1].worked
            work(device)
            assert kept.numpy(np.uint8)[0] == 7, "host memory stays"
        # The driver cannot know before it has rung for work. Firmware that kept its power tries to
        # reach memory until it is reset, with bus mastering off so that it does not.
        allowed = ("doorbell",) if powerless else ("doorbell", "mastering off", "read the queues")
        others = [text for text in card.violations if not any(word in text for word in allowed)]
        assert others == []


def test_a_reset_with_two_holders() -> None:
    with powered() as card, opened(card) as device, tenant(device, "second") as other:
        work(other)
        with pytest.raises(NotSupported):
            other.reset("flr")
        device.reset("flr")
        work(device)
        with pytest.raises(UgpuError):
            work(other)
        other.reset()
        work(other)


def run_scale(device: NvDevice, program: Program, memory: Buffer) -> None:
    """Run a kernel that was loaded before; the answer is checked."""
    values = np.arange(64, dtype=np.uint32)
    memory[:256].copy_from(values)
    with device.queue() as queue:
        arguments = (memory, memory, np.uint32(64), np.uint32(3))
        queue.launch(program["scale"], grid=(1,), block=(64,), args=arguments)
    device.synchronize()
    assert (memory[:256].numpy(np.uint32) == 3 * values).all()
