"""The stock firmware with tinygrad's patch: commands, streams, the request engine's registers."""

from __future__ import annotations

import struct

import pytest

from hcq.errors import BadArgument, EndpointStalled, NotSupported, TransferTimeout
from tests.support.usb_box import Box, box
from usbgpu.usb import Speed

DATA_IN, DATA_OUT, STATUS, COMMAND = 0x81, 0x02, 0x83, 0x04


def prepare(rig: Box) -> None:
    rig.usb.set_alternate(1)
    assert rig.usb.allocate_streams(31, (DATA_IN, DATA_OUT, STATUS)) == 31


def command(rig: Box, tag: int, cdb: bytes) -> None:
    unit = struct.pack(">BBH12x16s", 1, 0, tag, cdb)
    rig.usb.submit_out(COMMAND, unit).wait(1)


def status(rig: Box, tag: int) -> int:
    found = rig.usb.submit_in(STATUS, 1024, tag).wait(1)
    assert found[0] == 3 and int.from_bytes(found[2:4], "big") == tag
    return found[6]


def read(rig: Box, address: int, size: int, tag: int = 1) -> bytes:
    place = (address | 0x50_0000).to_bytes(3, "big")
    command(rig, tag, bytes((0xE4, size)) + place)
    found = rig.usb.submit_in(DATA_IN, 1024, tag).wait(1)
    assert status(rig, tag) == 0
    return found


def write(rig: Box, address: int, data: bytes, tag: int = 1) -> None:
    for at, byte in enumerate(data):
        place = (address + at | 0x50_0000).to_bytes(3, "big")
        command(rig, tag, bytes((0xE5, byte)) + place)
        assert status(rig, tag) == 0


def test_xdata_by_commands() -> None:
    with box(firmware="uas") as rig:
        prepare(rig)
        write(rig, 0x4000, b"\x01\x02")
        assert read(rig, 0x4000, 255)[:3] == b"\x01\x02\x00"
        assert read(rig, 0xB450, 1) == b"\x78"  # the slot is powered by itself


def test_commands_of_many_tags_end_each_on_its_stream() -> None:
    with box(firmware="uas") as rig:
        prepare(rig)
        write(rig, 0x4000, bytes(range(31)))
        inward = {tag: rig.usb.submit_in(DATA_IN, 1024, tag) for tag in range(1, 32)}
        for tag in range(1, 32):
            command(rig, tag, bytes((0xE4, 1)) + (0x50_4000 + tag - 1).to_bytes(3, "big"))
        for tag in reversed(range(1, 32)):
            assert inward[tag].wait(1) == bytes([tag - 1])
            assert status(rig, tag) == 0


def test_sram_by_write_16() -> None:
    with box(firmware="uas") as rig:
        prepare(rig)
        data = bytes(at * 3 & 0xFF for at in range(64 << 10))
        command(rig, 7, struct.pack(">BBQIBB", 0x8A, 0, 2, 128, 0, 0))
        with pytest.raises(TransferTimeout):
            rig.usb.submit_in(STATUS, 1024, 7).wait(0.01)  # the data comes first
        rig.usb.submit_out(DATA_OUT, data, 7).wait(1)
        assert status(rig, 7) == 0
        assert bytes(rig.enclosure.hardware.memory.shared[1024 : 1024 + len(data)]) == data


def test_a_request_by_registers() -> None:
    with box(firmware="uas") as rig:
        prepare(rig)
        write(rig, 0xB218, bytes(8))
        write(rig, 0xB217, b"\x0f")
        write(rig, 0xB210, b"\x04")
        write(rig, 0xB254, b"\x0f")
        write(rig, 0xB296, b"\x04")
        assert read(rig, 0xB296, 1) == b"\x02"
        assert read(rig, 0xB22A, 2) == b"\x00\x04"
        assert read(rig, 0xB284, 1)[0] & 1
        assert read(rig, 0xB220, 4) == bytes.fromhex("24631b21")  # big endian


def test_what_is_refused() -> None:
    with box(firmware="uas", flawless=False) as rig:
        with pytest.raises(NotSupported):
            rig.usb.allocate_streams(31, (DATA_IN,))  # setting 0 has none
        prepare(rig)
        for cdb in (
            b"\xe4\x01\x00\x00\x00",
            struct.pack(">BBQI", 0x8A, 0, 0, 129),
            struct.pack(">BBQI", 0x8A, 0, 1000, 128),
            b"\x12\x00",
        ):
            command(rig, 1, cdb)
            assert status(rig, 1) == 2
        with pytest.raises(BadArgument):
            rig.usb.submit_in(STATUS, 1024, 32)
        with pytest.raises(BadArgument):
            rig.usb.submit_in(STATUS, 1024)
        with pytest.raises(EndpointStalled):
            rig.usb.submit_out(COMMAND, b"\x01" * 31).wait(1)
        with pytest.raises(EndpointStalled):
            command(rig, 1, b"\xe4\x01\x50\x40\x00")
        rig.usb.clear_halt(COMMAND)
        assert read(rig, 0x4000, 1) == b"\x00"


def test_high_speed_has_no_streams() -> None:
    with box(firmware="uas", speed=Speed.HIGH) as rig:
        assert set(rig.usb.endpoints()) == {DATA_IN, DATA_OUT}
        with pytest.raises(BadArgument):
            rig.usb.set_alternate(1)
