"""The custom firmware's vendor requests: lengths, addresses, answers, and what never answers."""

from __future__ import annotations

import pytest

from tests.support.usb.usb_box import L0, LTSSM, box
from ugpu.hcq.errors import BadArgument, EndpointStalled, TransferTimeout
from ugpu.usbgpu.link.usb import Kind, Speed, UsbDevice
from ugpu.virtual.usb.hardware import HardwareOptions


def test_identity() -> None:
    with box(serial="12345678") as rig:
        identity = rig.usb.identity
        assert (identity.vendor, identity.product) == (0xADD1, 0x0001)
        assert identity.name.startswith("custom")
        assert identity.serial == "12345678"


def test_xdata_is_read_and_written() -> None:
    with box() as rig:
        rig.request.poke(0x4000, 1, 2, 3)
        assert rig.request.xdata(0x4000, 4) == b"\x01\x02\x03\x00"
        assert rig.request.xdata(0x3FFF, 512)[1:4] == b"\x01\x02\x03"


def test_banks_are_apart() -> None:
    with box() as rig:
        rig.usb.control_out(0xE5, 0x4000, 0x0100 | 0x5A)
        assert rig.request.xdata(0x4000) == b"\x00"
        assert rig.usb.control_in(0xE4, 0x4000, 0x0100, 1) == b"\x5a"


@pytest.mark.parametrize(("speed", "longest"), [(Speed.SUPER_PLUS, 512), (Speed.HIGH, 64)])
def test_reads_of_xdata_longer_than_a_packet_end_in_a_timeout(speed: Speed, longest: int) -> None:
    with box(speed=speed) as rig:
        assert len(rig.request.xdata(0x4000, longest)) == longest
        with pytest.raises(TransferTimeout):
            rig.request.xdata(0x4000, longest + 1)
        assert len(rig.request.xdata(0x4000, 8)) == 8


def test_requests_that_nobody_knows() -> None:
    with box() as rig:
        rig.usb.control_out(0xAA, 0, 0)  # without data: acknowledged
        with pytest.raises(TransferTimeout):
            rig.usb.control_in(0xAA, 0, 0, 4)
        with pytest.raises(TransferTimeout):
            rig.usb.control_out(0xAA, 0, 0, b"1234")


@pytest.mark.parametrize(
    ("value", "index", "length"), [(0x10000, 0, 1), (-1, 0, 1), (0, 0x10000, 1), (0, 0, 0x10000)]
)
def test_what_does_not_fit_a_setup_packet(value: int, index: int, length: int) -> None:
    with box() as rig, pytest.raises(BadArgument):
        rig.usb.control_in(0xE4, value, index, length)


def test_the_slot_is_dark_until_it_is_powered() -> None:
    with box() as rig:
        assert rig.request.xdata(LTSSM) != bytes([L0])
        before = rig.enclosure.clock.now()
        rig.request.power(True)
        # Three good looks 100 ms apart, after the link trained.
        assert 0.3 <= rig.enclosure.clock.now() - before < 1
        assert rig.request.xdata(LTSSM) == bytes([L0])
        rig.request.power(False)
        assert rig.request.xdata(LTSSM) != bytes([L0])


def test_power_on_outlasts_a_short_limit() -> None:
    with box(hardware=HardwareOptions(train_s=0.9)) as rig:
        with pytest.raises(TransferTimeout):
            rig.usb.control_out(0xF3, 1, 0, limit_s=1.0)
        assert rig.request.xdata(LTSSM) == bytes([L0])  # it went on by itself


def descriptor(usb: UsbDevice, value: int, size: int) -> bytes:
    return usb.control_in(6, value, 0, size, kind=Kind.STANDARD)


def test_descriptors_tell_the_speed() -> None:
    for speed, release, packet in ((Speed.SUPER, 0x0320, 1024), (Speed.HIGH, 0x0200, 512)):
        with box(speed=speed) as rig:
            device = descriptor(rig.usb, 0x0100, 18)
            assert int.from_bytes(device[2:4], "little") == release
            whole = descriptor(rig.usb, 0x0200, 255)
            assert len(whole) == int.from_bytes(whole[2:4], "little")
            endpoints = [at for at in range(len(whole) - 6) if whole[at : at + 2] == b"\x07\x05"]
            assert {int.from_bytes(whole[at + 4 : at + 6], "little") for at in endpoints} == {
                packet
            }
            assert rig.usb.packet_size(0x81) == packet
            assert descriptor(rig.usb, 0x0302, 255)[2:].decode("utf-16-le").startswith("custom")


def test_a_halted_endpoint_stalls_until_it_is_cleared() -> None:
    with box() as rig:
        rig.usb.halt(0x02)
        rig.request.arm(512)
        with pytest.raises(EndpointStalled):
            rig.usb.submit_out(0x02, bytes(512)).wait(1)
        rig.usb.clear_halt(0x02)
        rig.usb.submit_out(0x02, b"\x77" * 512).wait(1)
        assert rig.enclosure.hardware.memory.shared[:2] == b"\x77\x77"


def test_vendor_requests_of_the_stock_firmware_stall() -> None:
    with box(firmware="uas") as rig, pytest.raises(EndpointStalled):
        rig.request.xdata(LTSSM)
