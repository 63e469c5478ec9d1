"""What can be wrong with an enclosure: each has its own error, and nothing is left powered."""

from __future__ import annotations

import struct

import pytest

from tests.support.usb.usb_card import PlainCard
from ugpu import hcq
from ugpu.hcq.errors import (
    DeviceLost,
    DeviceNotFound,
    LinkDegraded,
    LinkDown,
    NotSupported,
    UgpuError,
)
from ugpu.hcq.state.clock import Clock
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.bridge.firmwares import check_firmware
from ugpu.usbgpu.bridge.transport import UsbTransport
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.attach import EnclosureClock
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions
from ugpu.virtual.usb.hardware import HardwareOptions

NAME = "virtual:navi31+usb"


def refused(box: Enclosure, error: type[UgpuError]) -> UgpuError:
    """Open the card behind the bridge; its slot is dark again afterwards, and the bridge free."""
    clock = EnclosureClock(box.clock, Clock())
    with pytest.raises(error) as caught:
        UsbTransport(CustomBridge(box.open(), sleep=clock.sleep), NAME, clock=clock)
    assert not box.hardware.fabric.powered
    box.open().close()
    box.close()
    assert box.objections == []
    return caught.value


def test_an_enclosure_without_a_card() -> None:
    error = refused(Enclosure(None), LinkDown)
    assert "no card answers in the slot" in str(error) and error.facts["supply_volts"] == 12.0
    assert "seat the card" in str(error.facts["remedy"])


def test_an_enclosure_whose_supply_is_off() -> None:
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
    try:
        options = EnclosureOptions(hardware=HardwareOptions(supply_volts=0.4))
        error = refused(Enclosure(card, options), LinkDown)
        assert "expected 12 V from the supply, found 0.4 V" in str(error)
        assert "switch the supply" in str(error.facts["remedy"])
    finally:
        card.close()


def test_an_enclosure_without_a_card_and_a_power_sensor() -> None:
    box = Enclosure(None)
    box.hardware.sensor.present = False
    error = refused(box, LinkDown)
    assert "no PCI Express link" in str(error) and "supply_volts" not in error.facts
    remedy = str(error.facts["remedy"])
    assert "switch the supply" in remedy and "seat the card" in remedy


def test_a_cable_that_is_pulled_while_the_supply_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Enclosure(None)
    clock = EnclosureClock(box.clock, Clock())
    bridge = CustomBridge(box.open(), sleep=clock.sleep)
    power = bridge.power

    def powered(on: bool) -> None:
        power(on)
        if on:
            box.pull_at(box.meter.transfers + 200)  # polls of the link come before

    monkeypatch.setattr(bridge, "power", powered)
    with pytest.raises((DeviceLost, LinkDown)):
        UsbTransport(bridge, NAME, clock=clock)
    box.close()


def test_a_link_of_one_lane() -> None:
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
    try:
        options = EnclosureOptions(hardware=HardwareOptions(lanes=1))
        assert refused(Enclosure(card, options), LinkDegraded).facts["width"] == 1
    finally:
        card.close()


def test_a_card_that_is_no_gpu() -> None:
    disk = PlainCard(vendor=0x144D, device=0xA808, class_code=0x010802)
    assert "144d:a808" in str(refused(Enclosure(disk), DeviceNotFound))


def test_a_gpu_that_no_driver_takes() -> None:
    card = PlainCard(vendor=0x8086, device=0x56A0, class_code=0x030000)
    box = Enclosure(card)
    with pytest.raises(DeviceNotFound, match="8086:56a0"):
        hcq.open(NAME, enclosure=box)
    assert not box.hardware.fabric.powered
    assert box.objections == []
    box.open().close()
    box.close()


def test_a_bridge_with_other_firmware_is_not_touched() -> None:
    box = Enclosure(None, EnclosureOptions(identity=(0xADD1, 1, 1, "ASMedia", "ASM2464PD NVMe")))
    with box.open() as usb, pytest.raises(NotSupported, match="ASM2464PD NVMe"):
        check_firmware(usb.identity)
    assert box.meter.transfers == 0
    box.close()


def test_two_enclosures_are_told_apart_by_their_ports() -> None:
    boxes = [Enclosure(None, EnclosureOptions(serial="1", port=port)) for port in ("1-1", "2-1")]
    assert len({(box.identity.serial, box.identity.port) for box in boxes}) == 2
    for box in boxes:
        box.close()


def test_a_plain_card_has_the_header_that_it_was_given() -> None:
    function = PlainCard(vendor=0x8086, device=0x56A0, class_code=0x030000).functions[0]
    assert struct.pack("<I", function.config_read(0, 4)) == bytes.fromhex("8680a056")
