"""A card's model in an enclosure, by name: what can be plugged in, and what cannot."""

from __future__ import annotations

import pytest

from ugpu import hcq
from ugpu.hcq.errors import BadArgument, DeviceBusy, DeviceNotFound
from ugpu.virtual.amd.gpu import endpoint
from ugpu.virtual.amd.options import ChipOptions
from ugpu.virtual.usb.attach import plug_in
from ugpu.virtual.usb.enclosure import Enclosure, EnclosureOptions


@pytest.mark.parametrize("name", ["navi31+thunderbolt", "gh100+usb", "nothing+usb", "navi31+"])
def test_what_no_enclosure_takes(name: str) -> None:
    with pytest.raises(DeviceNotFound, match=r"virtual:navi31\+usb"):
        hcq.open(f"virtual:{name}")


def test_the_name_says_which_firmware_runs() -> None:
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
    box = Enclosure(card, EnclosureOptions(firmware="uas"))
    with pytest.raises(BadArgument, match="'custom', got 'uas'"):
        hcq.open("virtual:navi31+usb", enclosure=box)
    with pytest.raises(BadArgument, match="'uas', got 'custom'"):
        hcq.open("virtual:navi31+usb-stock", enclosure=EnclosureOptions())
    with pytest.raises(BadArgument):
        hcq.open("virtual:navi31+usb", enclosure=3)
    assert box.meter.transfers == 0
    box.close()
    card.close()


def test_a_card_is_in_one_place_at_a_time() -> None:
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
    try:
        with pytest.raises(DeviceBusy):
            endpoint("navi31", card.chip)
        usb, _ = plug_in(card)
        usb.close()
        usb.close()
        card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
        box = Enclosure(card, EnclosureOptions(port="3-2"))
        usb, _ = plug_in(None, box)
        assert usb.identity.port == "3-2"
        with pytest.raises(DeviceBusy):
            plug_in(None, box)
        usb.close()
        plug_in(None, box)[0].close()
        with pytest.raises(BadArgument):
            plug_in(card, box)
        with pytest.raises(BadArgument):
            plug_in(None, EnclosureOptions())
        with pytest.raises(BadArgument):
            hcq.open("virtual:navi31+usb", enclosure=box, vram=1 << 30)
        box.close()
    finally:
        card.close()


def test_time_in_front_of_an_enclosure_passes_without_being_slept() -> None:
    card = endpoint("navi31", options=ChipOptions(vram=256 << 20))
    usb, clock = plug_in(card)
    with usb:
        before = clock.now()
        usb.control_out(0xF3, 1, 0, limit_s=10)
        clock.sleep(1000)
        assert clock.now() - before > 1000.3
