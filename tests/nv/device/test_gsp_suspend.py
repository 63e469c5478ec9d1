"""Suspend of a card without a kernel driver: the firmware saves itself, the driver its memory; the
card may lose its power, and work goes on with the same objects, programs and content."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.nv.gsp.test_gsp_life import Slept
from tests.support.nvidia.nv_machine import LIMIT_S, work
from ugpu import hcq
from ugpu.hcq.errors import (
    BadArgument,
    ChipError,
    DriverRefused,
    FirmwareError,
    FirmwareRejected,
    NotSupported,
    UgpuError,
)
from ugpu.hcq.transport.pci import suspend
from ugpu.nv.device.bare import BareDevice
from ugpu.virtual.nvidia.gsp.card import Card
from ugpu.virtual.nvidia.gsp.faults import CardFault
from ugpu.virtual.nvidia.gsp.firmware.images import whole_set
from ugpu.virtual.nvidia.gsp.gpu import build_card
from ugpu.virtual.nvidia.gsp.options import CardOptions

CHIPS = ["ad102", "ga102", "tu102", "ga100", "gh100", "gb202"]


@contextlib.contextmanager
def powered(chip: str = "ad102") -> Iterator[Card]:
    card = build_card(chip, CardOptions(memory=1 << 30))
    try:
        yield card
    finally:
        card.close()


def opened(card: Card) -> BareDevice:
    device = hcq.open(f"virtual:{card.facts.name}+gsp", chip=card)
    assert isinstance(device, BareDevice)
    device.limit_s = LIMIT_S
    return device


def s2idle(card: Card) -> None:
    """The card keeps its power."""


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("chip", ["ga100", "ad102", "gh100"])
def test_a_card_that_was_left_warm_can_be_suspended(chip: str) -> None:
    """The driver then has not placed the firmware itself; GA100 has no FRTS region."""
    with powered(chip) as card:
        name = f"virtual:{chip}+gsp"
        hcq.open(name, chip=card, leave="warm").close()
        with hcq.open(name, chip=card) as device:
            assert isinstance(device, BareDevice) and device.warm
            device.suspend()
            card.power_cycle()
            device.resume()
            work(device)


@pytest.mark.parametrize(
    ("chip", "host"),
    [*((chip, Card.power_cycle) for chip in CHIPS), ("ad102", s2idle), ("gh100", s2idle)],
)
def test_work_goes_on_with_the_same_memory(chip: str, host: Callable[[Card], None]) -> None:
    values = np.arange(1 << 18, dtype=np.uint32)
    with powered(chip) as card, opened(card) as device, device.alloc(values.nbytes) as buffer:
        work(device)
        buffer.copy_from(values)
        for _ in range(2):
            clients = len(card.machine.clients)
            device.suspend()
            host(card)
            device.resume()
            assert len(card.machine.clients) == clients, "the firmware has kept its objects"
            assert (buffer.numpy(np.uint32) == values).all()
            work(device)
        assert card.violations == []


def test_a_suspended_device_refuses_work_until_it_resumes() -> None:
    with powered() as card, opened(card) as device:
        work(device)
        device.suspend()
        assert not card.config.bus_master and not card.wpr.up and not card.gsp.active
        with pytest.raises(ChipError, match="suspended") as caught:
            work(device)
        assert caught.value.facts["remedy"] == "device.resume()"
        with pytest.raises(ChipError, match="suspended"):
            device.reset()
        card.power_cycle()
        device.resume()
        with pytest.raises(BadArgument, match="not suspended"):
            device.resume()
        work(device)
        assert card.violations == []


def test_a_host_that_was_suspended_meanwhile_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport reports the function as absent, until it is taken up again."""
    with powered() as card, opened(card) as device, device.alloc(4096) as buffer:
        buffer.fill(0x33)
        device.suspend()
        transport, present, slept = device.transport, device.transport.present, Slept()
        monkeypatch.setattr(transport, "suspends", slept, raising=False)
        monkeypatch.setattr(transport, "present", lambda: not slept.happened and present())
        monkeypatch.setattr(transport, "absence", suspend.REASON)
        card.power_cycle()
        device.resume()
        assert (buffer.numpy(np.uint32) == 0x33).all()
        work(device)


def test_a_buffer_may_be_closed_while_suspended() -> None:
    with powered() as card, opened(card) as device, device.alloc(1 << 16) as other:
        other.fill(0x5A)
        gone = device.alloc(1 << 16)
        device.suspend()
        gone.close()
        card.power_cycle()
        device.resume()
        assert (other.numpy(np.uint32) == 0x5A).all()
        with device.alloc(1 << 20) as new:
            new.fill(0x77)
            assert (new.numpy(np.uint32) == 0x77).all()
        assert (other.numpy(np.uint32) == 0x5A).all()
        work(device)


@pytest.mark.parametrize("chip", ["ad102", "gh100"])
def test_a_device_that_is_closed_while_suspended_leaves_a_card_that_boots(chip: str) -> None:
    with powered(chip) as card:
        with opened(card) as device:
            work(device)
            device.suspend()
            device.close()
        with opened(card) as device:
            work(device)
        assert card.machine.clients == {} and card.violations == []


def test_older_firmware_is_refused_before_anything_changes(tmp_path: Path) -> None:
    for name, image in whole_set("ad102").items():
        if "535.113.01" in name or "acr" in name:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(image)
    with (
        powered() as card,
        hcq.open("virtual:ad102+gsp", chip=card, firmware=tmp_path) as device,
    ):
        assert isinstance(device, BareDevice) and device.info()["firmware"] == "535.113.01"
        calls = len(card.calls)
        with pytest.raises(NotSupported, match="570"):
            device.suspend()
        assert len(card.calls) == calls
        work(device)


def test_a_shared_card_is_refused_before_anything_changes() -> None:
    with powered() as card, hcq.open("virtual:ad102+gsp", chip=card) as device:
        assert isinstance(device, BareDevice)
        tenant = device._driver.open_tenant("tenant")
        with pytest.raises(NotSupported, match="while others hold its card"):
            device.suspend()
        tenant.shutdown()
        work(device)


# A fault at each step, what is raised, and whether the device then needs a reset.
LATE = [
    (CardFault.FBSR_FAILS, DriverRefused, "suspend", False),
    (CardFault.UNLOADER_FAILS, FirmwareRejected, "suspend", True),
    (CardFault.SLEEP_DAMAGED, FirmwareRejected, "resume", True),
    (CardFault.BOOTER_FAILS, FirmwareRejected, "resume", True),
    (CardFault.INIT_CRASHES, FirmwareError, "resume", True),
]


@pytest.mark.parametrize(("fault", "kind", "at", "harmed"), LATE, ids=lambda each: str(each))
@pytest.mark.parametrize("then", ["reset"])
def test_a_step_that_fails_leaves_a_card_that_boots(
    fault: CardFault, kind: type[UgpuError], at: str, harmed: bool, then: str
) -> None:
    with powered() as card:
        with opened(card) as device:
            work(device)
            if at == "resume":
                device.suspend()
                card.power_cycle()
            card.inject_card(fault)
            with pytest.raises(kind):
                device.suspend() if at == "suspend" else device.resume()
            if harmed:
                assert device.failure is not None
            if then == "reset" and harmed:
                device.reset()
            if then == "reset":
                work(device)
                device.suspend()
                card.power_cycle()
                device.resume()
                work(device)
        with opened(card) as device:
            work(device)


def test_any_exception_at_any_access_leaves_a_card_that_boots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Ctrl-C at steps of a suspend and a resume, spread over all register writes."""
    counted = _writes(monkeypatch, None)
    for at in range(1, counted, max(1, counted // 6)):
        _writes(monkeypatch, at)


def _writes(monkeypatch: pytest.MonkeyPatch, stop: int | None) -> int:
    """Suspend and resume; raise at a write. Return how many there were."""
    count = 0
    with powered() as card:
        with opened(card) as device:
            work(device)
            write, armed = card.write32, True

            def interrupted(offset: int, value: int) -> None:
                nonlocal count
                count += armed
                if armed and count == stop:
                    raise KeyboardInterrupt
                write(offset, value)

            monkeypatch.setattr(card, "write32", interrupted)
            try:
                device.suspend()
                card.power_cycle()
                device.resume()
            except KeyboardInterrupt:
                armed = False
                if device.failure is not None and "resume()" in str(device.failure.facts):
                    device.resume()
                elif device.failure is not None:
                    device.reset()
            armed = False
            work(device)
        with opened(card) as device:
            work(device)
    return count
