"""Commands of ASMedia's patched firmware, byte for byte. Expected bytes are written by hand from
tinygrad's runtime/support/usb.py of 0.12 (CDBs, registers) and asm2464pd-firmware's registers.h."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.usb.usb_script import IDENTITY
from tests.support.usb.usb_streams import Answer, StreamUsb, sense
from ugpu.hcq.errors import BadArgument, LinkDegraded, NotSupported, TransferTimeout, TransportError
from ugpu.hcq.state.clock import Clock
from ugpu.usbgpu.bridge.ina231 import read_power
from ugpu.usbgpu.bridge.interface import Ability, Completion, Status, Tlp
from ugpu.usbgpu.bridge.stock import StockBridge
from ugpu.usbgpu.firmware.flash import Flash
from ugpu.usbgpu.link.usb import Speed

PRODUCT = "USB 3.2 PCIe TinyEnclosure"
SETUP = [
    "e52050054b", "e50450054e", "e5025005a8", "e5045005f8", "e5015007ec", "e5005007ed",
    "e5005007ee", "e5005007ef", "e50250c422", "e533500000",
]  # fmt: skip
BAR = 0x8_1234_5670
# Kind, enables, address: most significant byte first.
PLACE = ["e50f50b217", "e51250b218", "e53450b219", "e55650b21a", "e57050b21b"]
HIGH = ["e50050b21c", "e50050b21d", "e50050b21e", "e50850b21f"]
GO = ["e50750b296", "e50f50b254"]
LOOK = ["e40150b296", "e40c50b220"]


class Board:
    """Answers reads of the request engine. states: what B296 reads, one after the other."""

    def __init__(self, *states: int, value: int = 0, header: int = 4) -> None:
        self.states = list(states)
        self.value, self.header = value, header
        self.sram: list[bytes] = []
        self.usb = StreamUsb(self.answer, replace(IDENTITY, name=PRODUCT, release=0x100))
        self.now, self.pauses = 0.0, list[float]()
        self.bridge = StockBridge(self.usb, sleep=self.pauses.append, now=self.clock)
        self.usb.log.clear()

    def clock(self) -> float:
        self.now += 0.01
        return self.now

    def answer(self, tag: int, cdb: bytes, sent: bytes) -> Answer:
        data = b""
        if cdb[0] == 0x8A:
            self.sram.append(sent)
        if cdb[0] == 0xE4:
            data = bytes(range(cdb[1]))
        if cdb[:5] == bytes.fromhex("e40150b296"):
            data = bytes([self.states.pop(0)])
        if cdb[:5] == bytes.fromhex("e40c50b220"):
            data = self.value.to_bytes(4, "big") + bytes(6) + self.header.to_bytes(2, "big")
        return Answer(sense(tag), data)

    @property
    def commands(self) -> list[str]:
        """Since it was last asked: CDBs without the zeros at their end."""
        found = [str(entry[1])[:10] for entry in self.usb.log if entry[0] in range(1, 32)]
        self.usb.log.clear()
        return found


def test_it_prepares_the_firmware() -> None:
    usb = StreamUsb(identity=replace(IDENTITY, name=PRODUCT, release=0x100))
    bridge = StockBridge(usb)
    assert [str(entry[1]).rstrip("0") for entry in usb.log[2:]] == [
        one.rstrip("0") for one in SETUP
    ]
    assert bridge.firmware == f"{PRODUCT} (0100)" and bridge.abilities == {Ability.FILL}


def test_what_the_stock_firmware_lacks_is_refused_by_name() -> None:
    board = Board()
    with pytest.raises(
        NotSupported, match="the flash part needs the open firmware, the bridge runs"
    ):
        Flash(board.bridge, Clock()).open()
    with pytest.raises(NotSupported, match="the power sensor needs the open firmware"):
        read_power(board.bridge)
    assert board.commands == []


def test_a_usb_2_link_has_no_streams() -> None:
    usb = StreamUsb(identity=replace(IDENTITY, name=PRODUCT, speed=Speed.HIGH))
    with pytest.raises(LinkDegraded, match="USB 2"):
        StockBridge(usb)
    assert usb.log == []


def test_registers_of_the_bridge() -> None:
    board = Board()
    assert board.bridge.read_xdata(0xF000, 300) == bytes(range(255)) + bytes(range(45))
    assert board.commands == ["e4ff50f000", "e42d50f0ff"]
    board.bridge.read_xdata(0xB450, 1, bank=1)
    board.bridge.write_xdata(0xA800, b"\x11\x22")
    assert board.commands == ["e40151b450", "e51150a800", "e52250a801"]
    for wrong in ((0x1_0000, 1, 0), (0, 1, 2), (-1, 1, 0)):
        with pytest.raises(BadArgument):
            board.bridge.read_xdata(*wrong)


def test_a_read_is_commands_for_the_registers_that_changed() -> None:
    board = Board(2, 2, 2, value=0x12345678)
    assert board.bridge.request(Tlp.MEMORY_READ, BAR) == Completion(Status.OK, 0x12345678)
    assert board.commands == ["e52050b210", *PLACE, *HIGH, *GO, *LOOK]
    board.bridge.request(Tlp.MEMORY_READ, BAR + 4)
    assert board.commands == ["e57450b21b", *GO, *LOOK]
    board.bridge.request(Tlp.MEMORY_READ, BAR + 4)
    assert board.commands == [*GO, *LOOK]


def test_memory_writes_are_posted() -> None:
    board = Board()
    board.bridge.request(Tlp.MEMORY_WRITE, BAR, 0x01020304)
    data = ["e50150b220", "e50250b221", "e50350b222", "e50450b223"]
    assert board.commands == ["e56050b210", *PLACE, *HIGH, *data, *GO]
    board.bridge.write_memory(BAR + 4, bytes.fromhex("04030201 ff030201"))
    assert board.commands == ["e57450b21b", *GO, "e57850b21b", "e5ff50b223", *GO]


def test_a_completion_has_written_the_data_register() -> None:
    board = Board(2, value=0x01020304)
    board.bridge.request(Tlp.MEMORY_WRITE, BAR, 5)
    board.bridge.request(Tlp.MEMORY_READ, BAR)
    board.usb.log.clear()
    board.bridge.request(Tlp.MEMORY_WRITE, BAR, 0x01020305)
    assert board.commands == ["e56050b210", "e50550b223", *GO]


def test_a_completion_that_was_not_seen_may_write_the_data_register() -> None:
    data = ["e50050b220", "e50050b221", "e50050b222", "e50550b223"]
    lost, early = Board(*[0] * 100), Board(2, 0, 2)
    assert lost.bridge.request(Tlp.MEMORY_READ, BAR).status is Status.TIMEOUT
    early.bridge.read_block(Tlp.MEMORY_READ, BAR, 8)
    for board in (lost, early):
        board.usb.log.clear()
        board.bridge.request(Tlp.MEMORY_WRITE, BAR, 5)
        assert [one for one in board.commands if one in data] == data


def test_configuration_writes_say_which_bytes_and_are_completed() -> None:
    board = Board(2)
    done = board.bridge.request(Tlp.CONFIG_WRITE_1, 0x0400_0010, 0xABCD_0000, 0b1100)
    assert done.status is Status.OK
    found = board.commands
    assert found[:2] == ["e54550b210", "e50c50b217"] and found[-4:] == [*GO, *LOOK]
    assert "e5ab50b220" in found and "e5cd50b221" in found
    board.bridge.post(Tlp.CONFIG_WRITE_1, 0x0400_0010, 0xABCD_0000, 0b1100)
    assert board.commands[-2:] == GO


@pytest.mark.parametrize(
    ("header", "status"),
    [(0x2004, Status.UNSUPPORTED), (0x4004, Status.RETRY), (0x8004, Status.ABORT)],
)
def test_how_a_request_ended(header: int, status: Status) -> None:
    assert Board(2, header=header).bridge.request(Tlp.CONFIG_READ_1, 0x500_0000).status is status


def test_reserved_completion_status() -> None:
    with pytest.raises(TransportError, match="reserved"):
        Board(2, header=0x6004).bridge.request(Tlp.MEMORY_READ, BAR)


def test_a_request_that_failed_on_its_way_is_sent_again() -> None:
    board = Board(1, 1, 2, value=42)
    assert board.bridge.request(Tlp.MEMORY_READ, BAR).value == 42
    assert board.commands.count(GO[1]) == 3 and board.pauses == [1e-3] * 2
    board = Board(*[1] * 11)
    assert board.bridge.request(Tlp.MEMORY_READ, BAR).status is Status.UNSUPPORTED
    assert board.commands.count(GO[1]) == 11


def test_a_request_that_is_not_done_is_looked_at_again() -> None:
    board = Board(0, 4, 2, value=7)
    assert board.bridge.request(Tlp.MEMORY_READ, BAR).value == 7
    assert board.commands[-6:] == LOOK * 3
    board = Board(*[0] * 100)
    assert board.bridge.request(Tlp.MEMORY_READ, BAR).status is Status.TIMEOUT


def test_a_block_is_read_six_dwords_at_once() -> None:
    board = Board(*[2] * 8, value=0x01020304)
    assert board.bridge.read_block(Tlp.MEMORY_READ, BAR, 32) == bytes((4, 3, 2, 1)) * 8
    assert board.commands.count(GO[1]) == 8 and board.usb.log == []
    assert board.bridge.read_block(Tlp.MEMORY_READ, BAR, 0) == b""
    assert Board(2, 2, header=0x2004).bridge.read_block(Tlp.MEMORY_READ, BAR, 8) is None


def test_a_dword_of_a_block_that_is_late_or_failed_is_read_again_alone() -> None:
    # The second is late: it is read again, and with it what came behind.
    board = Board(2, 0, 2, 2, 2, value=9)
    assert board.bridge.read_block(Tlp.MEMORY_READ, BAR, 12) == bytes((9, 0, 0, 0)) * 3
    assert board.commands.count(GO[1]) == 5
    board = Board(1, 2, 1, 2, 2, value=9)
    assert board.bridge.read_block(Tlp.MEMORY_READ, BAR, 8) == bytes((9, 0, 0, 0)) * 2


FREE = ["e50050ce6e", "e50050ce6f"]
FREE_ALL = ["e50050ce40", "e50050ce41", "e50050ce42", "e50050ce43"]
ARM = ["e5ff500171", "e5ff500172", "e5ff500173"]


def test_sram_is_filled_from_its_start() -> None:
    board = Board()
    board.bridge.fill_sram(b"x" * 513)
    # What a process that was cut off may have left is freed first.
    assert board.commands == [*FREE, *FREE_ALL, "8a00000000", *ARM, *FREE]
    assert board.sram.pop() == b"x" * 513 + bytes(511)
    board.bridge.fill_sram(bytes(16 << 10))
    assert board.commands == ["8a00000000", *ARM, *FREE]
    assert len(board.sram.pop()) == 16 << 10
    board.bridge.fill_sram(bytes(range(256)) * 1024)
    assert board.commands == [*["8a00000000", *ARM, *FREE] * 4, *FREE_ALL]
    assert b"".join(board.sram) == bytes(range(256)) * 1024
    board.sram.clear()
    board.bridge.fill_sram(bytes(20 << 10))
    assert [len(part) for part in board.sram] == [64 << 10]
    board.bridge.fill_sram(b"")
    with pytest.raises(BadArgument):
        board.bridge.fill_sram(bytes((512 << 10) + 1))


def test_write_16_names_its_sectors() -> None:
    board = Board()
    seen: list[bytes] = []
    inner = board.usb.answer
    board.usb.answer = lambda tag, cdb, sent: (seen.append(cdb), inner(tag, cdb, sent))[1]
    board.bridge.fill_sram(bytes(1024))
    assert seen[6] == bytes.fromhex("8a00 0000000000000000 00000002 0000")


def test_a_fill_that_was_cut_off_begins_again_at_the_start() -> None:
    board = Board()
    board.bridge.fill_sram(b"x")
    inner = board.usb.answer
    count = 0

    def answer(tag: int, cdb: bytes, sent: bytes) -> Answer:
        nonlocal count
        count += cdb[0] == 0x8A
        return Answer(None) if count == 2 else inner(tag, cdb, sent)

    board.usb.answer = answer
    with pytest.raises(TransferTimeout):
        board.bridge.fill_sram(bytes(256 << 10))
    board.usb.answer = inner
    board.usb.log.clear()
    board.bridge.fill_sram(b"y")
    assert board.commands == [*FREE, *FREE_ALL, "8a00000000", *ARM, *FREE]


def test_a_write_16_that_reports_an_error_has_its_data() -> None:
    board = Board()
    inner = board.usb.answer
    bad = bytes((0x70, 0, 2, *bytes(9), 0x3A, *bytes(5)))
    board.usb.answer = lambda tag, cdb, sent: (
        Answer(sense(tag, 2, bad)) if cdb[0] == 0x8A else inner(tag, cdb, sent)
    )
    board.bridge.fill_sram(b"x")


def test_after_an_error_every_register_is_written_again() -> None:
    board = Board(2, 2)
    board.bridge.request(Tlp.MEMORY_READ, BAR)
    inner = board.usb.answer
    board.usb.answer = lambda tag, cdb, sent: Answer(None)
    with pytest.raises(TransferTimeout):
        board.bridge.request(Tlp.MEMORY_READ, BAR + 4)
    board.usb.answer = inner
    board.usb.log.clear()
    board.bridge.request(Tlp.MEMORY_READ, BAR)
    assert board.commands == ["e52050b210", *PLACE, *HIGH, *GO, *LOOK]


def test_what_the_firmware_cannot_do() -> None:
    bridge = Board().bridge
    refused: list[Callable[[], object]] = [
        lambda: bridge.power(True),
        lambda: bridge.stage(b"x"),
        lambda: bridge.read_sram(0, [4], lambda: None, lambda at, data: None),
        lambda: bridge.write_sram(0, 1, [b"x"]),
    ]
    for call in refused:
        with pytest.raises(NotSupported):
            call()


def test_requests_that_cannot_be_sent() -> None:
    bridge = Board().bridge
    for address in (2, -4, 1 << 64):
        with pytest.raises(BadArgument):
            bridge.request(Tlp.MEMORY_READ, address)
    with pytest.raises(BadArgument):
        bridge.write_memory(BAR, b"abc")
    with pytest.raises(BadArgument):
        bridge.read_block(Tlp.MEMORY_READ, BAR, 6)
