"""Transfers of the open firmware's protocol, byte for byte. Expected bytes are written by hand from
the firmware's source (handmade/src/main.c)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.support.usb.usb_script import (
    IDENTITY,
    BulkIn,
    BulkOut,
    Clear,
    In,
    Out,
    ScriptedUsb,
    Step,
)
from ugpu.hcq.errors import (
    BadArgument,
    DeviceLost,
    EndpointStalled,
    TransferTimeout,
    TransportError,
)
from ugpu.usbgpu.bridge.asm24 import CustomBridge
from ugpu.usbgpu.bridge.interface import Completion, Status, Tlp
from ugpu.usbgpu.link.usb import Speed

BAR = 0x8_1234_5670
PLACE = bytes.fromhex("70563412 08000000")
GOOD, UNSUPPORTED = bytes.fromhex("0004 01 00"), bytes.fromhex("2004 00 00")
ERROR, SILENT = bytes.fromhex("00000000 000000 01"), bytes.fromhex("00000000 000000 ff")


def nothing() -> None:
    """The card needs no word that a receive has begun."""


@contextmanager
def bridge(*steps: Step, speed: Speed = Speed.SUPER) -> Iterator[CustomBridge]:
    usb = ScriptedUsb([*steps], replace(IDENTITY, speed=speed))
    pauses: list[float] = []
    made = CustomBridge(usb, sleep=pauses.append)
    yield made
    usb.finish()
    assert made.transfers == len([step for step in steps if not isinstance(step, Clear)])
    assert all(pause == 1e-3 for pause in pauses)


def test_registers_of_the_bridge_are_read_in_pieces() -> None:
    first, rest = bytes(range(255)), bytes(45)
    with bridge(In(0xE4, 0xF000, 0, 255, first), In(0xE4, 0xF0FF, 0, 45, rest)) as one:
        assert one.read_xdata(0xF000, 300) == first + rest
    with bridge(In(0xE4, 0xB450, 0x100, 1, b"\x78")) as one:
        assert one.read_xdata(0xB450, 1, bank=1) == b"\x78"


def test_usb_2_reads_in_smaller_pieces() -> None:
    steps = [In(0xE4, 0x100, 0, 64, bytes(64)), In(0xE4, 0x140, 0, 36, bytes(36))]
    with bridge(*steps, speed=Speed.HIGH) as one:
        assert one.read_xdata(0x100, 100) == bytes(100)


def test_registers_of_the_bridge_are_written_byte_by_byte() -> None:
    with bridge(Out(0xE5, 0xA800, 0x0011), Out(0xE5, 0xA801, 0x0022)) as one:
        one.write_xdata(0xA800, b"\x11\x22")
    with bridge(Out(0xE5, 0xC659, 0x0180)) as one:
        one.write_xdata(0xC659, b"\x80", bank=1)


def test_power() -> None:
    with bridge(Out(0xF3, 1, 0), Out(0xF3, 0, 0)) as one:
        one.power(True)
        one.power(False)


def test_a_read_is_a_request_and_its_answer() -> None:
    steps = [
        Out(0xF0, 0x0F20, 0, PLACE + bytes(4)),
        In(0xF0, 0, 0, 8, bytes.fromhex("78563412") + GOOD),
    ]
    with bridge(*steps) as one:
        assert one.request(Tlp.MEMORY_READ, BAR) == Completion(Status.OK, 0x12345678)


def test_a_memory_write_is_posted() -> None:
    with bridge(Out(0xF0, 0x0F60, 0, PLACE + bytes.fromhex("04030201"))) as one:
        assert one.request(Tlp.MEMORY_WRITE, BAR, 0x01020304).status is Status.OK
    with bridge(Out(0xF0, 0x0F60, 0, PLACE + bytes.fromhex("04030201"))) as one:
        one.write_memory(BAR, bytes.fromhex("04030201"))


def test_configuration_writes_say_which_bytes_and_are_completed() -> None:
    place = bytes.fromhex("10000004 00000000")
    steps = [Out(0xF0, 0x0C45, 0, place + bytes.fromhex("0000cdab")), In(0xF0, 0, 0, 8, bytes(8))]
    with bridge(*steps) as one:
        done = one.request(Tlp.CONFIG_WRITE_1, 0x0400_0010, 0xABCD_0000, 0b1100)
        assert done.status is Status.OK


def test_an_unsupported_request_is_not_sent_again() -> None:
    send = Out(0xF0, 0x0F05, 0, bytes.fromhex("00000005 00000000") + bytes(4))
    with bridge(send, In(0xF0, 0, 0, 8, bytes(4) + UNSUPPORTED)) as one:
        assert one.request(Tlp.CONFIG_READ_1, 0x0500_0000) == Completion(Status.UNSUPPORTED)


def test_a_request_that_failed_on_its_way_is_sent_again() -> None:
    send = Out(0xF0, 0x0F20, 0, PLACE + bytes(4))
    answers = [ERROR, ERROR, bytes.fromhex("2a000000") + GOOD]
    steps: list[Step] = [s for a in answers for s in (send, In(0xF0, 0, 0, 8, a))]
    with bridge(*steps) as one:
        assert one.request(Tlp.MEMORY_READ, BAR).value == 42
    steps = [s for _ in range(11) for s in (send, In(0xF0, 0, 0, 8, ERROR))]
    with bridge(*steps) as one:
        assert one.request(Tlp.MEMORY_READ, BAR).status is Status.UNSUPPORTED


def test_a_request_without_completion_ends() -> None:
    with bridge(Out(0xF0, 0x0F20, 0, PLACE + bytes(4)), In(0xF0, 0, 0, 8, SILENT)) as one:
        assert one.request(Tlp.MEMORY_READ, BAR).status is Status.TIMEOUT


def test_reserved_completion_status() -> None:
    answer = bytes(4) + bytes.fromhex("6004 00 00")
    with (
        bridge(Out(0xF0, 0x0F20, 0, PLACE + bytes(4)), In(0xF0, 0, 0, 8, answer)) as one,
        pytest.raises(TransportError),
    ):
        one.request(Tlp.MEMORY_READ, BAR)


def test_blocks_are_streamed() -> None:
    data = bytes(range(48))
    count = bytes.fromhex("0c000000")
    with bridge(Out(0xF0, 0x0F60, 1, PLACE + count), BulkOut(0x02, data)) as one:
        one.write_memory(BAR, data)
    steps = [
        Out(0xF0, 0x0F20, 2, PLACE + count),
        BulkIn(0x81, 1024, data),
        In(0xF0, 0, 0, 8, data[-4:] + GOOD),
    ]
    with bridge(*steps) as one:
        assert one.read_block(Tlp.MEMORY_READ, BAR, 48) == data
    with bridge() as one:
        one.write_memory(BAR, b"")
        assert one.read_block(Tlp.MEMORY_READ, BAR, 0) == b""


def test_configuration_space_is_streamed_and_the_last_completion_counts() -> None:
    arm = Out(0xF0, 0x0F05, 2, bytes.fromhex("10000004 00000000 02000000"))
    data = bytes(range(8))
    for answer, found in ((data[4:] + GOOD, data), (bytes(4) + UNSUPPORTED, None), (SILENT, None)):
        with bridge(arm, BulkIn(0x81, 1024, data), In(0xF0, 0, 0, 8, answer)) as one:
            assert one.read_block(Tlp.CONFIG_READ_1, 0x0400_0010, 8) == found


def test_the_last_dword_of_a_block_that_failed_on_its_way_is_read_again() -> None:
    last = Out(0xF0, 0x0F20, 0, bytes.fromhex("74563412 08000000") + bytes(4))
    steps = [
        Out(0xF0, 0x0F20, 2, PLACE + bytes.fromhex("02000000")),
        BulkIn(0x81, 1024, bytes(range(8))),
        In(0xF0, 0, 0, 8, ERROR),
        last,
        In(0xF0, 0, 0, 8, b"abcd" + GOOD),
    ]
    with bridge(*steps) as one:
        assert one.read_block(Tlp.MEMORY_READ, BAR, 8) == b"\x00\x01\x02\x03abcd"


def test_a_posted_write_is_one_transfer() -> None:
    place = bytes.fromhex("18000004 00000000")
    with bridge(Out(0xF0, 0x0F45, 0, place + bytes.fromhex("000105ff"))) as one:
        one.post(Tlp.CONFIG_WRITE_1, 0x0400_0018, 0xFF05_0100)


def test_long_blocks_are_cut_into_mebibytes() -> None:
    data = bytes(1 << 20)
    steps = [
        Out(0xF0, 0x0F60, 1, PLACE + bytes.fromhex("00000400")),
        BulkOut(0x02, data),
        Out(0xF0, 0x0F60, 1, bytes.fromhex("70564412 08000000 02000000")),
        BulkOut(0x02, b"12345678"),
    ]
    with bridge(*steps) as one:
        one.write_memory(BAR, data + b"12345678")


def test_memory_below_is_accessed_in_whole_dwords() -> None:
    with bridge() as one:
        for address, size in ((2, 4), (0, 6), (-4, 4), ((1 << 64) - 4, 8)):
            with pytest.raises(BadArgument):
                one.read_block(Tlp.MEMORY_READ, address, size)
            with pytest.raises(BadArgument):
                one.write_memory(address, bytes(size))


def test_sram_goes_in_whole_sectors_from_a_slot_on() -> None:
    steps = [Out(0xF2, 0x0002, 0x0103), BulkOut(0x02, bytes(range(200)) * 3 + bytes(424))]
    with bridge(*steps) as one:
        one.write_sram(3 * 16384, 600, [bytes(range(200)) * 3])
    with bridge(Out(0xF2, 0x8003, 0x0103), BulkIn(0x81, 2048, bytes(1536))) as one:
        assert _read(one, 3 * 16384, [1100]) == [(0, bytes(1100))]
    with bridge(Out(0xF2, 0x0021, 0x0200), BulkOut(0x02, bytes(16896))) as one:
        one.write_sram(0, 16896, [bytes(16896)])
    with bridge() as one:
        for offset, size in ((512, 4), (-16384, 4), (31 * 16384, 16385), (0, 524289)):
            with pytest.raises(BadArgument):
                one.write_sram(offset, size, [bytes(size)])
            with pytest.raises(BadArgument):
                _read(one, offset, [size])


def _read(one: CustomBridge, offset: int, sizes: list[int]) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    one.read_sram(offset, sizes, nothing, lambda place, data: found.append((place, data)))
    return found


def test_one_request_arms_the_pieces_of_a_transfer() -> None:
    first, second = b"a" * 2048, b"b" * 700
    steps = [Out(0xF2, 0x0006, 0x0101), BulkOut(0x02, first), BulkOut(0x02, second + bytes(324))]
    with bridge(*steps) as one:
        one.write_sram(16384, 2748, iter([first, second]))
    steps = [
        Out(0xF2, 0x8006, 0x0101),
        BulkIn(0x81, 2048, first),
        BulkIn(0x81, 1024, second + bytes(324)),
    ]
    with bridge(*steps) as one:
        assert _read(one, 16384, [2048, 700]) == [(0, first), (1, second)]


def test_pieces_are_whole_packets_and_as_many_as_announced() -> None:
    for sizes in ([512, 1024], [1024, 0], [0, 1024]):
        with bridge() as one, pytest.raises(BadArgument):
            _read(one, 0, sizes)
    with bridge(Out(0xF2, 0x0004, 0x0100), Clear(0x02)) as one, pytest.raises(BadArgument):
        one.write_sram(0, 2048, [bytes(512), bytes(1536)])
    steps = [Out(0xF2, 0x0004, 0x0100), BulkOut(0x02, bytes(1024)), Clear(0x02)]
    with bridge(*steps) as one, pytest.raises(BadArgument):
        one.write_sram(0, 2048, [bytes(1024)])


def test_a_transfer_that_failed_is_cleared_away() -> None:
    stall = EndpointStalled("stalled", endpoint=2)
    steps = [
        Out(0xF0, 0x0F60, 1, PLACE + bytes.fromhex("02000000")),
        BulkOut(0x02, bytes(8), stall),
        Clear(0x02),
    ]
    with bridge(*steps) as one, pytest.raises(EndpointStalled):
        one.write_memory(BAR, bytes(8))
    late = TransferTimeout("late", endpoint=0x81, length=512, limit_s=10.0)
    with (
        bridge(Out(0xF2, 0x8001, 0x0100), BulkIn(0x81, 1024, late), Clear(0x81)) as one,
        pytest.raises(TransferTimeout),
    ):
        _read(one, 0, [512])


def test_a_bridge_that_is_gone_is_not_cleared() -> None:
    gone = DeviceLost("unplugged")
    with (
        bridge(Out(0xF2, 0x8001, 0x0100), BulkIn(0x81, 1024, gone)) as one,
        pytest.raises(DeviceLost),
    ):
        _read(one, 0, [512])


def test_answers_that_are_too_short_are_errors() -> None:
    with bridge(In(0xE4, 0, 0, 4, b"abc")) as one, pytest.raises(TransportError):
        one.read_xdata(0, 4)
    steps = [Out(0xF2, 0x8001, 0x0100), BulkIn(0x81, 1024, bytes(511)), Clear(0x81)]
    with bridge(*steps) as one, pytest.raises(TransportError):
        _read(one, 0, [512])


def test_xdata_ends_at_64_kib() -> None:
    with bridge() as one:
        for address, size, bank in ((0xFFFF, 2, 0), (-1, 1, 0), (0, 1, 2)):
            with pytest.raises(BadArgument):
                one.read_xdata(address, size, bank)
            with pytest.raises(BadArgument):
                one.write_xdata(address, bytes(size), bank)
