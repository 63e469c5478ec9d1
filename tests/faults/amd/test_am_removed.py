"""The card is pulled out in each phase of its life: DeviceLost for everybody who waits, nothing is
left, and what else is open works on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.amd.am_faulty import faulty_object
from tests.support.amd.am_navi31 import build_chip, opened, plug_in, start_forever
from tests.support.pci.descriptors import leaked, settled
from ugpu import hcq
from ugpu.am.device.device import AmDevice
from ugpu.am.device.driver import PRESENCE_INTERVAL_S
from ugpu.hcq.bare.holder import LONGEST_SLEEP_S
from ugpu.hcq.errors import ChipError, DeviceLost, UgpuError
from ugpu.hcq.work.queue import QueueKind
from ugpu.virtual.amd.options import ChipOptions

WAITERS = 3
PROMISE_S = 0.1  # from the pull to the last waiter's error


@pytest.fixture
def chip() -> Iterator[Any]:
    made = build_chip()
    yield made
    made.close()


def boot_stages() -> list[str]:
    stages: list[str] = []
    chip = build_chip()
    with opened(chip, on_stage=lambda name, _: stages.append(name)):
        pass
    chip.close()
    return stages


def test_while_it_boots() -> None:
    """After each stage but the last, with which it is up."""
    stages = boot_stages()
    assert len(stages) > 10
    files = settled()
    for wanted in stages[:-1]:
        chip = build_chip()

        def pull(name: str, _: float, chip: Any = chip, wanted: str = wanted) -> None:
            if name == wanted:
                chip.unplug()

        with pytest.raises(DeviceLost):
            plug_in(chip, on_stage=pull)
        chip.close()
    assert not leaked(files)


def launch(chip: Any, device: AmDevice) -> None:
    with device.load(faulty_object()) as program:
        start_forever(chip, device, program, device.alloc(64))
        chip.unplug()
        device.synchronize()


def copy(chip: Any, device: AmDevice) -> None:
    source, target = device.alloc(1 << 20), device.alloc(1 << 20)
    device.queue(QueueKind.COPY).copy(target, source).submit()
    chip.unplug()
    target.copy_from(np.zeros(1 << 20, np.uint8))


def reset(chip: Any, device: AmDevice) -> None:
    chip.unplug()
    device.reset()


def idle(chip: Any, device: AmDevice) -> None:
    chip.unplug()
    device.alloc(4096).copy_from(np.zeros(4096, np.uint8))


@pytest.mark.parametrize("phase", [idle, launch, copy, reset])
def test_in_use(chip: Any, phase: Callable[[Any, AmDevice], None]) -> None:
    with hcq.open("cpu") as other:
        files = settled()
        device = plug_in(chip)
        with pytest.raises(DeviceLost):
            phase(chip, device)
        device.close()
        device.close()
        assert not leaked(files)
        with other.alloc(64) as buffer:
            buffer.copy_from(np.arange(16, dtype=np.uint32))
            assert buffer.numpy(np.uint32)[15] == 15


def test_everybody_who_waits_is_told(chip: Any) -> None:
    told: list[UgpuError] = []
    with opened(chip) as device, device.load(faulty_object()) as program:
        start_forever(chip, device, program, device.alloc(64))

        def wait() -> None:
            try:
                device.synchronize(limit_s=600)
            except UgpuError as error:
                told.append(error)

        threads = [threading.Thread(target=wait) for _ in range(WAITERS)]
        for thread in threads:
            thread.start()
        chip.unplug()
        for thread in threads:
            thread.join()
    assert [type(error) for error in told] == [DeviceLost] * WAITERS


def test_nobody_sleeps_longer_than_is_promised(chip: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that was pulled out sends no interrupt to wake those who wait for one."""
    asked: list[float] = []
    with opened(chip) as device:
        interrupts = device.transport.interrupts
        assert interrupts is not None
        monkeypatch.setattr(interrupts, "wait", lambda limit_s, vector=0: asked.append(limit_s))
        device.driver.pause(30.0)
        device.driver.pause(0.01)
        monkeypatch.undo()
    assert asked == [LONGEST_SLEEP_S, 0.01]
    assert LONGEST_SLEEP_S + PRESENCE_INTERVAL_S < PROMISE_S


def test_a_card_that_its_transport_gives_up_is_lost_although_it_answers(
    chip: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system asked for it back, or the host was suspended: registers tell nothing of it."""
    with opened(chip) as device, device.load(faulty_object()) as program:
        start_forever(chip, device, program, device.alloc(64))
        with monkeypatch.context() as patch:
            patch.setattr(device.transport, "present", lambda: False)
            with pytest.raises(DeviceLost, match="no longer answers"):
                device.synchronize(limit_s=600)


def test_a_reset_by_another_program_is_noticed_long_before_a_limit(chip: Any) -> None:
    """No interrupt reports it: the secure OS's sign of life is gone."""
    with opened(chip) as device, device.load(faulty_object()) as program:
        out = device.alloc(64)
        start_forever(chip, device, program, out)
        with chip.lock:
            saved = chip.config.snapshot()
            chip.bus_reset()
            chip.config.restore(saved)
        with pytest.raises(ChipError, match="reset by another program") as caught:
            device.synchronize(limit_s=600)
        assert caught.value.facts["unit"] == "PSP"
        device.reset()
        assert device.vram_lost


def test_addresses_that_another_program_cleared_are_written_back() -> None:
    """A pulse of the port's reset bit clears the BARs and shrinks the one of device memory."""
    card = build_chip(ChipOptions(vram=1 << 30))
    try:
        with opened(card) as device:
            before = card.config.snapshot()
            with card.lock:
                card.bus_reset()
            with pytest.raises(DeviceLost, match="its BARs have no addresses") as caught:
                device.synchronize()
                device.alloc(4096).copy_from(bytes(4096))
                device.synchronize()
            assert "device.reset()" in str(caught.value.facts["remedy"])
            diagnosis, _ = device.driver.recovery_plan()
            assert "no addresses" in diagnosis.reason
            device.reset()
            assert device.vram_lost
            bars, sizes = slice(0x10, 0x28), slice(0x200, 0x20C)
            assert card.config.snapshot()[bars] == before[bars]
            assert card.config.snapshot()[sizes] == before[sizes]
            with device.alloc(4096) as buffer:
                buffer.copy_from(bytes(range(256)) * 16)
                assert bytes(buffer.numpy(np.uint8)) == bytes(range(256)) * 16
        assert [text for text in card.violations if "DMA" not in text] == []
    finally:
        card.close()
