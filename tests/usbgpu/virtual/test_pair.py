"""The driver on a virtual card behind the virtual bridge: boot, copies, kernels, pulls."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.usbgpu.virtual.pulls import (
    AFTER,
    NAME,
    WHOLE,
    Pull,
    check,
    drawn,
    enclosed,
    main,
    opened,
    warnings,
    work,
)
from usbgpu.asm24 import CustomBridge
from usbgpu.transport import UsbTransport
from usbgpu.usb import Speed
from usbgpu.virtual.attach import plug_in

PULLS = 8  # tests.usbgpu.virtual.pulls makes more


@pytest.mark.parametrize("speed", [Speed.SUPER_PLUS, Speed.HIGH])
def test_it_boots_and_computes(speed: Speed) -> None:
    with enclosed(speed=speed) as box, opened(box) as device:
        work(device)


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(transfer=st.integers(0, WHOLE), after=st.sampled_from(AFTER))
def test_a_pull_is_named_and_the_next_plug_works(transfer: int, after: int) -> None:
    check(Pull(transfer, after, keeps_power=False))


def test_a_pull_while_the_device_is_closed_is_logged() -> None:
    with enclosed() as box, opened(box) as device:
        box.pull_at(0)
        with warnings() as logged:
            device.close()
        assert not box.plugged
        assert any("unplugged" in text for text in logged)


def test_a_pull_while_the_transport_is_closed_is_logged() -> None:
    """The driver has stopped the card; its bus mastering is switched off last."""
    with enclosed() as box:
        usb, clock = plug_in(None, box)
        transport = UsbTransport(CustomBridge(usb), NAME, clock=clock)
        box.pull_at(0)
        with warnings() as logged:
            transport.close()
        assert not box.plugged
        assert any("unplugged" in text for text in logged)


@pytest.mark.slow
def test_many_pulls() -> None:
    """As above, at places that differ from run to run no more than the boot's polls do."""
    chance = random.Random(12)
    for _ in range(PULLS):
        check(drawn(chance))


@pytest.mark.slow
def test_the_program_that_pulls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["6"]) == 0
    assert capsys.readouterr().out.startswith("6 pulls, 0 went wrong, 0 descriptors and 0 threads")
