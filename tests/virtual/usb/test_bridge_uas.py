"""The stock firmware with tinygrad's patch: commands, streams, the request engine's registers."""

from __future__ import annotations

import struct

import pytest

from tests.support.usb.usb_box import Box, box
from ugpu.hcq.errors import BadArgument, EndpointStalled, NotSupported, TransferTimeout
from ugpu.usbgpu.link.usb import Speed

DATA_IN, DATA_OUT, STATUS, COMMAND = 0x81, 0x02, 0x83, 0x04


SETUP = (
    (0x54B, b" "), (0x54E, b"\x04"), (0x5A8, b"\x02"), (0x5F8, b"\x04"), (0x7EC, b"\x01\0\0\0"),
    (0xC422, b"\x02"), (0, b"3"),
)  # fmt: skip


def prepare(rig: Box) -> None:
    rig.usb.set_alternate(1)
    assert rig.usb.allocate_streams(31, (DATA_IN, DATA_OUT, STATUS)) == 31
    for address, data in SETUP:
        write(rig, address, data)


def command(rig: Box, tag: int, cdb: bytes) -> None:
    unit = struct.pack(">BBH12x16s", 1, 0, tag, cdb)
    rig.usb.submit_out(COMMAND, unit).wait(1)


def status(rig: Box, tag: int) -> int:
    found = rig.usb.submit_in(STATUS, 1024, tag).wait(1)
    assert found[0] == 3 and int.from_bytes(found[2:4], "big") == tag
    return found[6]


def sense(rig: Box, tag: int) -> tuple[int, int, int, int]:
    """Status, and key, code and qualifier of the sense data."""
    found = rig.usb.submit_in(STATUS, 1024, tag).wait(1)
    assert found[:4] == bytes((3, 0, 0, tag)) and found[14:18] == bytes((0, 18, 0x70, 0))
    return found[6], found[18] & 15, found[28], found[29]


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


def fill(rig: Box, data: bytes, tag: int = 7) -> int:
    """WRITE(16) to block 0; its status. 0x171 is written after it."""
    command(rig, tag, struct.pack(">BBQIBB", 0x8A, 0, 0, len(data) // 512, 0, 0))
    rig.usb.submit_out(DATA_OUT, data, tag).wait(1)
    found = status(rig, tag)
    write(rig, 0x171, b"\xff\xff\xff")
    return found


def sram(rig: Box, start: int, size: int) -> bytes:
    return bytes(rig.enclosure.hardware.memory.shared[start : start + size])


def test_sram_by_write_16() -> None:
    with box(firmware="uas") as rig:
        prepare(rig)
        data = bytes(at * 3 & 0xFF for at in range(64 << 10))
        command(rig, 7, struct.pack(">BBQIBB", 0x8A, 0, 0, 128, 0, 0))
        with pytest.raises(TransferTimeout):
            rig.usb.submit_in(STATUS, 1024, 7).wait(0.01)  # the data comes first
        rig.usb.submit_out(DATA_OUT, data, 7).wait(1)
        assert status(rig, 7) == 0
        assert sram(rig, 0, len(data)) == data
        assert read(rig, 0xF000, 255) == data[:255]


def test_writes_go_to_free_slots_in_turn() -> None:
    """As tinygrad frees them: the first after each write, all after a long buffer."""
    with box(firmware="uas") as rig:
        prepare(rig)
        parts = [bytes([number]) * (64 << 10) for number in range(1, 9)]
        for part in parts:
            assert fill(rig, part) == 0
            write(rig, 0xCE6E, b"\0\0")
        assert sram(rig, 0, 512 << 10) == b"".join(parts)
        write(rig, 0xCE40, bytes(4))
        for number in (9, 10):  # in one slot: always the first
            assert fill(rig, bytes([number]) * 512) == 0
            write(rig, 0xCE6E, b"\0\0")
            assert sram(rig, 0, 1024) == bytes([number]) * 512 + b"\x01" * 512


def test_writes_that_were_not_freed_stop() -> None:
    with box(firmware="uas", flawless=False) as rig:
        prepare(rig)
        for number in range(8):
            assert fill(rig, bytes([number]) * (64 << 10)) == 0
        with pytest.raises(TransferTimeout):
            fill(rig, bytes(512))


def test_a_write_without_what_comes_before() -> None:
    with box(firmware="uas", flawless=False) as rig:
        rig.usb.set_alternate(1)
        rig.usb.allocate_streams(31, (DATA_IN, DATA_OUT, STATUS))
        command(rig, 1, struct.pack(">BBQIBB", 0x8A, 0, 0, 1, 0, 0))
        assert sense(rig, 1) == (2, 2, 0x3A, 0)  # not ready, medium not present
    with box(firmware="uas", flawless=False) as rig:
        prepare(rig)
        for _ in range(2):
            command(rig, 1, struct.pack(">BBQIBB", 0x8A, 0, 0, 1, 0, 0))
            rig.usb.submit_out(DATA_OUT, bytes(512), 1).wait(1)
            assert status(rig, 1) == 0
        assert any("0x171" in text for text in rig.enclosure.objections)


def test_the_firmware_writes_over_half_of_its_queue() -> None:
    with box(firmware="uas") as rig:
        prepare(rig)
        write(rig, 0xA7F0, b"\x5a" * 32)
        assert fill(rig, bytes(512)) == 0
        assert read(rig, 0xA800, 16) == b"\x5a" * 16 and read(rig, 0xA7F0, 16) != b"\x5a" * 16


def test_a_disk_that_is_not_there() -> None:
    """What a system asks of a disk first."""
    with box(firmware="uas") as rig:
        prepare(rig)
        command(rig, 1, bytes((0x12, 0, 0, 0, 36, 0)))
        found = rig.usb.submit_in(DATA_IN, 1024, 1).wait(1)
        assert status(rig, 1) == 0 and found[8:32] == b"tiny    TinyEnclosure   "
        command(rig, 2, bytes((0xA0, *bytes(5), 0, 0, 0, 64, 0, 0)))
        found = rig.usb.submit_in(DATA_IN, 1024, 2).wait(1)
        assert status(rig, 2) == 0 and found == bytes((0, 0, 0, 8)) + bytes(12)
        command(rig, 3, bytes(6))
        assert sense(rig, 3) == (2, 2, 0x3A, 0)
        command(rig, 4, bytes((0x28, *bytes(9))))
        assert sense(rig, 4) == (2, 5, 0x20, 0)
        unit = struct.pack(">BBH4x8s16s", 1, 0, 5, bytes((0, 1, *bytes(6))), bytes(16))
        rig.usb.submit_out(COMMAND, unit).wait(1)
        found = rig.usb.submit_in(STATUS, 1024, 5).wait(1)
        assert found == bytes((4, 0, 0, 5, 0, 0, 0, 9))  # incorrect logical unit


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
            struct.pack(">BBQI", 0x8A, 0, 2, 1),
            b"\x12\x01",
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
