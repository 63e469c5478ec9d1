"""USB Attached SCSI over a device that ends each transfer as the test says. Expected bytes are
written by hand from T10/2095-D."""

from __future__ import annotations

import pytest

from tests.support.usb.usb_streams import (
    COMMAND,
    DATA_IN,
    DATA_OUT,
    STATUS,
    Answer,
    StreamUsb,
    sense,
)
from ugpu.hcq.errors import (
    BadArgument,
    CommandFailed,
    DeviceLost,
    EndpointStalled,
    NotSupported,
    TransferOverrun,
    TransferTimeout,
    TransportError,
    UgpuError,
    WrongAnswer,
)
from ugpu.usbgpu.link.uas import Command, Pipes, Uas

PIPES = Pipes(setting=1, command=COMMAND, status=STATUS, data_in=DATA_IN, data_out=DATA_OUT)
READY = [("setting", 1), ("streams", 31, DATA_OUT, DATA_IN, STATUS)]
READ, WRITE, NEITHER = Command(b"\xe4", 4), Command(b"\x8a", send=b"data"), Command(b"\xe5")


def made(usb: StreamUsb, depth: int = 31) -> Uas:
    return Uas(usb, PIPES, depth)


def cdb(text: str) -> str:
    return text.ljust(32, "0")


def test_each_command_has_its_stream() -> None:
    usb = StreamUsb(lambda tag, cdb, sent: Answer(sense(tag), bytes((tag, 1, 2, 3))))
    uas = made(usb)
    assert uas.run([READ, NEITHER, READ], 1) == [b"\1\1\2\3", b"", b"\3\1\2\3"]
    assert usb.log == [*READY, (1, cdb("e4")), (2, cdb("e5")), (3, cdb("e4"))]
    assert uas.transfers == 8


def test_data_for_the_device() -> None:
    seen: list[bytes] = []

    def answer(tag: int, cdb: bytes, sent: bytes) -> Answer:
        seen.append(sent)
        return Answer(sense(tag))

    assert made(StreamUsb(answer)).run([WRITE], 1) == [b""] and seen == [b"data"]


def test_there_are_never_more_commands_than_streams() -> None:
    usb = StreamUsb(most=2)
    uas = made(usb)
    assert uas.depth == 2 and uas.run([NEITHER] * 5, 1) == [b""] * 5
    assert [tag for tag, _ in usb.log[2:]] == [1, 2, 1, 2, 1]


def test_a_host_without_streams() -> None:
    with pytest.raises(NotSupported):
        made(StreamUsb(most=0))


def test_commands_that_are_none() -> None:
    for wrong in ({"cdb": b""}, {"cdb": bytes(17)}, {"cdb": b"\1", "receive": 1, "send": b"x"}):
        with pytest.raises(BadArgument):
            Command(**wrong)


FIXED = bytes((0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 1, 0, 0, 0, 0))
DESCRIPTOR = bytes((0x72, 0x2, 0x3A, 2, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("status", "data", "text", "facts"),
    [
        (2, FIXED, "check condition, illegal request (0x20/0x01)", (5, 0x20, 1)),
        (2, DESCRIPTOR, "check condition, not ready (0x3a/0x02)", (2, 0x3A, 2)),
        (2, b"\xf0" + FIXED[1:], "check condition, illegal request (0x20/0x01)", (5, 0x20, 1)),
        (2, FIXED[:4], "check condition, illegal request (0x00/0x00)", (5, 0, 0)),
        (2, b"", "check condition", None),
        (8, b"", "busy", None),
        (0x28, b"\xff\xff", "task set full", None),
        (0x77, b"", "status 0x77", None),
    ],
)
def test_a_status_with_its_sense_data(
    status: int, data: bytes, text: str, facts: tuple[int, int, int] | None
) -> None:
    bad = {2}
    usb = StreamUsb(
        lambda tag, cdb, sent: Answer(sense(tag, status, data) if tag in bad else sense(tag))
    )
    uas = made(usb)
    with pytest.raises(CommandFailed) as caught:
        uas.run([NEITHER, NEITHER, NEITHER], 1)
    assert caught.value.message == f"command 0xe5: {text}"
    found = caught.value.facts
    assert found["status"] == status and found["opcode"] == 0xE5
    if facts is not None:
        assert (found["key"], found["code"], found["qualifier"]) == facts
    assert len(usb.log) == len(READY) + 3, "the others have ended too"
    bad.clear()
    uas.run([NEITHER], 1)
    assert ("reset",) not in usb.log, "a command that failed leaves nothing behind"


def test_a_command_that_failed_sends_no_data() -> None:
    usb = StreamUsb(lambda tag, cdb, sent: Answer(sense(tag, 2, FIXED), None))
    uas = made(usb)
    for command in (READ, WRITE):
        with pytest.raises(CommandFailed):
            uas.run([command], 1)
    assert all(one.end is not None for one in usb.open)


def test_a_command_whose_status_does_not_matter() -> None:
    usb = StreamUsb(lambda tag, cdb, sent: Answer(sense(tag, 2, FIXED)))
    assert made(usb).run([Command(b"\x8a", send=b"data", any_status=True)], 1) == [b""]
    usb.answer = lambda tag, cdb, sent: Answer(bytes((4, 0, 0, tag, 0, 0, 0, 2)))
    with pytest.raises(CommandFailed):
        made(usb).run([Command(b"\x8a", send=b"data", any_status=True)], 1)


@pytest.mark.parametrize(
    ("code", "text"),
    [(2, "invalid information unit"), (9, "incorrect logical unit"), (0x0A, "overlapped tag"),
     (0x55, "response code 0x55")],
)  # fmt: skip
def test_a_response_in_place_of_a_status(code: int, text: str) -> None:
    usb = StreamUsb(lambda tag, cdb, sent: Answer(bytes((4, 0, 0, tag, 0, 0, 0, code))))
    uas = made(usb)
    with pytest.raises(CommandFailed, match=text) as caught:
        uas.run([NEITHER], 1)
    assert caught.value.facts["response"] == code
    usb.answer = lambda tag, cdb, sent: Answer(sense(tag))
    uas.run([NEITHER], 1)
    assert ("reset",) in usb.log, "who knows which command it was of"


WRONG = {
    "another tag": Answer(sense(7)),
    "another unit": Answer(bytes((6, 0, 0, 1)) + bytes(12)),
    "a zero-length status": Answer(b""),
    "a short status": Answer(sense(1)[:15]),
    "a short response": Answer(bytes((4, 0, 0, 1, 0, 0, 0))),
    "another tag's response": Answer(bytes((4, 0, 0, 7, 0, 0, 0, 2))),
}
ENDED: dict[str, tuple[Answer, type[UgpuError]]] = {
    **{name: (answer, WrongAnswer) for name, answer in WRONG.items()},
    "status never comes": (Answer(None), TransferTimeout),
    "data never comes": (Answer(sense(1), None), TransferTimeout),
    "data is short": (Answer(sense(1), b"abc"), TransportError),
    "data has no bytes": (Answer(sense(1), b""), TransportError),
    "data babbles": (Answer(sense(1), TransferOverrun("babble")), TransferOverrun),
    "status babbles": (Answer(TransferOverrun("babble")), TransferOverrun),
    "command pipe halts": (Answer(None, None, EndpointStalled("halted")), EndpointStalled),
    "status pipe halts": (Answer(EndpointStalled("halted"), None), EndpointStalled),
    "data pipe halts, no status": (Answer(None, EndpointStalled("halted")), EndpointStalled),
    "data pipe halts": (Answer(sense(1), EndpointStalled("halted")), EndpointStalled),
}


@pytest.mark.parametrize("name", ENDED)
def test_after_what_went_wrong_the_port_is_reset(name: str) -> None:
    answer, error = ENDED[name]
    usb = StreamUsb(lambda tag, cdb, sent: answer)
    uas = made(usb)
    with pytest.raises(error):
        uas.run([READ], 1)
    assert all(one.end is not None or one.cancelled for one in usb.open), "nothing is under way"
    usb.answer = lambda tag, cdb, sent: Answer(sense(tag), b"done")
    before = len(usb.log)
    assert uas.run([READ], 1) == [b"done"]
    assert usb.log[before:] == [("reset",), *READY, (1, cdb("e4"))]
    assert uas.run([READ], 1) == [b"done"] and usb.log.count(("reset",)) == 1


def test_a_reset_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    usb = StreamUsb(lambda tag, cdb, sent: Answer(None))
    uas = made(usb)
    with pytest.raises(TransferTimeout):
        uas.run([NEITHER], 1)
    usb.answer = lambda tag, cdb, sent: Answer(sense(tag))
    with monkeypatch.context() as patch:
        patch.setattr(usb, "reset", lambda: (_ for _ in ()).throw(TransferTimeout("reset")))
        with pytest.raises(TransferTimeout):
            uas.run([NEITHER], 1)
    assert uas.run([NEITHER], 1) == [b""] and usb.log.count(("reset",)) == 1


@pytest.mark.parametrize("place", range(1, 8))
def test_an_exception_at_any_point(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two transfers of two commands that receive data: three each, and three waits."""
    usb = StreamUsb(lambda tag, cdb, sent: Answer(sense(tag), b"data"))
    uas, count = made(usb), 0

    def counted(real: object) -> object:
        def call(*arguments: object) -> object:
            nonlocal count
            count += 1
            if count == place:
                raise KeyboardInterrupt
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(usb, "submit_in", counted(usb.submit_in))
        patch.setattr(usb, "submit_out", counted(usb.submit_out))
        if place < 7:
            with pytest.raises(KeyboardInterrupt):
                uas.run([READ, READ], 1)
        else:
            assert uas.run([READ, READ], 1) == [b"data"] * 2
    assert uas.run([READ], 1) == [b"data"]
    assert (("reset",) in usb.log) == (place < 7)


@pytest.mark.parametrize("phase", ["order", "status", "data"])
def test_a_device_that_leaves(phase: str) -> None:
    lost = DeviceLost("unplugged")
    answers = {
        "order": Answer(lost, lost, lost), "status": Answer(lost, lost),
        "data": Answer(sense(1), lost),
    }  # fmt: skip
    usb = StreamUsb(lambda tag, cdb, sent: answers[phase])
    with pytest.raises(DeviceLost):
        made(usb).run([READ], 1)
