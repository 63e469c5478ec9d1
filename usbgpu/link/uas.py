"""USB Attached SCSI with bulk streams: many commands at once, each on a stream of its own.

Sources: T10/2095-D revision 4 (information units, response codes, sequences with streams), SAM-5
(status codes), SPC-4 (sense data). The tag of a command is the number of its stream, from 1 on.
Integers are big-endian.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ugpu.hcq.errors import (
    BadArgument,
    CommandFailed,
    NotSupported,
    TransferTimeout,
    TransportError,
    WrongAnswer,
)
from ugpu.usbgpu.link.usb import Pending, UsbDevice

log = logging.getLogger(__name__)

_COMMAND = struct.Struct(">BxH4x8s16s")  # kind, tag; simple task, unit 0; CDB
_COMMAND_KIND, _SENSE_KIND, _RESPONSE_KIND = 0x01, 0x03, 0x04
_LONGEST_CDB = 16
_AT_ONCE_S = 1e-3  # for a transfer that has ended
_SENSE_HEAD, _RESPONSE_SIZE = 16, 8  # bytes
_STATUS_AT, _SENSE_LENGTH_AT, _CODE_AT = 6, 14, 7
_GOOD = 0
_FIXED, _DESCRIPTOR = (0x70, 0x71), (0x72, 0x73)  # response codes of sense data
_STATUSES = {
    0x02: "check condition", 0x04: "condition met", 0x08: "busy", 0x18: "reservation conflict",
    0x28: "task set full", 0x30: "ACA active", 0x40: "task aborted",
}  # fmt: skip
_KEYS = (
    "no sense", "recovered error", "not ready", "medium error", "hardware error", "illegal request",
    "unit attention", "data protect", "blank check", "vendor specific", "copy aborted",
    "aborted command", "reserved", "volume overflow", "miscompare", "completed",
)  # fmt: skip
_RESPONSES = {
    0x00: "task management complete", 0x02: "invalid information unit",
    0x04: "task management not supported", 0x05: "task management failed",
    0x08: "task management succeeded", 0x09: "incorrect logical unit",
    0x0A: "overlapped tag",
}  # fmt: skip


@dataclass(frozen=True)
class Pipes:
    """The endpoints of the alternate setting for UAS."""

    setting: int
    command: int
    status: int
    data_in: int
    data_out: int


@dataclass(frozen=True)
class Command:
    """One command, with data in at most one direction.

    receive: bytes that the device must send. send: data for the device. any_status: the command
    counts as done whatever its SCSI status is.
    """

    cdb: bytes
    receive: int = 0
    send: bytes | bytearray | memoryview = b""
    any_status: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(self.cdb) <= _LONGEST_CDB or (self.receive and len(self.send)):
            raise BadArgument(
                f"a command has 1 to {_LONGEST_CDB} bytes and data in one direction",
                cdb=self.cdb, receive=self.receive, send=len(self.send),
            )  # fmt: skip


class Uas:
    """Commands to the only logical unit of a device whose interface we own. One thread at a time.

    After a transfer that failed, was interrupted or got a wrong answer, the state of the device's
    commands is unknown. The port is then reset before the next command, as Linux does
    (drivers/usb/storage/uas.c, uas_eh_device_reset_handler).
    """

    def __init__(self, usb: UsbDevice, pipes: Pipes, depth: int) -> None:
        """Set up the streams. depth: most commands at once; the host may have fewer streams.
        NotSupported where host or device have none."""
        self._usb = usb
        self._pipes = pipes
        self._most = depth
        self._unsure = False  # whether the state of earlier commands in the device is unknown
        self.transfers = 0
        self.depth = 0
        self._prepare()

    def _prepare(self) -> None:
        pipes = self._pipes
        self._usb.set_alternate(pipes.setting)
        with_streams = (pipes.data_out, pipes.data_in, pipes.status)
        self.depth = self._usb.allocate_streams(self._most, with_streams)
        if self.depth < 1:
            raise NotSupported("expected at least one bulk stream, got none")

    def run(self, commands: Sequence[Command], limit_s: float) -> list[bytes]:
        """Run commands, which begin in order; return the data that each sent.

        limit_s: for each transfer. Raises CommandFailed for the first command that failed, after
        all commands started with it have ended.
        """
        answers: list[bytes] = []
        for start in range(0, len(commands), self.depth):
            if self._unsure:
                self._recover()
            answers += self._run(commands[start : start + self.depth], limit_s)
        return answers

    def _recover(self) -> None:
        log.debug("resetting the USB port after a failed transfer")
        self._usb.reset()
        self._prepare()
        self._unsure = False

    def _run(self, commands: Sequence[Command], limit_s: float) -> list[bytes]:
        self._unsure = True
        tasks: list[_Task] = []
        answers, failure = [], None
        try:
            for stream, command in enumerate(commands, 1):
                task = _Task(stream, command)
                tasks.append(task)
                self._begin(task)
            for task in tasks:
                try:
                    answers.append(task.end(limit_s))
                except CommandFailed as error:
                    task.cancel()  # data that no longer moves
                    failure = failure or error
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        self._unsure = failure is not None and failure.facts.get("response") is not None
        if failure is not None:
            raise failure
        return answers

    def _begin(self, task: _Task) -> None:
        """ORDER: wait for status and data before the device may begin to send them."""
        usb, pipes, stream, command = self._usb, self._pipes, task.stream, task.command
        self.transfers += 2
        task.status = usb.submit_in(pipes.status, usb.packet_size(pipes.status), stream)
        if command.receive:
            packet = usb.packet_size(pipes.data_in)
            self.transfers += 1
            room = -(-command.receive // packet) * packet
            task.data = usb.submit_in(pipes.data_in, room, stream)
        elif len(command.send):
            self.transfers += 1
            task.data = usb.submit_out(pipes.data_out, command.send, stream)
        unit = _COMMAND.pack(_COMMAND_KIND, stream, bytes(8), command.cdb)
        task.order = usb.submit_out(pipes.command, unit)


class _Task:
    """A command in flight, and its transfers."""

    order: Pending | None = None
    status: Pending | None = None
    data: Pending | None = None

    def __init__(self, stream: int, command: Command) -> None:
        self.stream = stream
        self.command = command

    def end(self, limit_s: float) -> bytes:
        """Wait for the command's end; return the data that it sent."""
        assert self.order is not None and self.status is not None
        self.order.wait(limit_s)
        try:
            self._check(self._status(limit_s, self.status))
        except CommandFailed as error:
            if not self.command.any_status or error.facts.get("status") is None:
                raise
            log.debug("%s", error)
        if self.data is None:
            return b""
        content = self.data.wait(limit_s)
        if len(content) != self.command.receive:
            raise TransportError(
                f"command {self.command.cdb[0]:#04x}: expected {self.command.receive} bytes, "
                f"got {len(content)}",
                opcode=self.command.cdb[0], length=len(content),
            )  # fmt: skip
        return content

    def _status(self, limit_s: float, status: Pending) -> bytes:
        """Return the status unit. Where none arrives, a failed data transfer gives the better
        error."""
        try:
            return status.wait(limit_s)
        except TransferTimeout:
            if self.data is not None:
                with contextlib.suppress(TransferTimeout):
                    self.data.wait(_AT_ONCE_S)
            raise

    def _check(self, unit: bytes) -> None:
        """Raise for a status unit that is not this command's, or reports an error."""
        opcode, size = self.command.cdb[0], len(unit)
        kind = unit[0] if unit else None
        tag = int.from_bytes(unit[2:4], "big")
        if kind == _RESPONSE_KIND and size >= _RESPONSE_SIZE and tag == self.stream:
            code = unit[_CODE_AT]
            raise CommandFailed(
                f"command {opcode:#04x}: {_RESPONSES.get(code, f'response code {code:#04x}')}",
                opcode=opcode, response=code,
            )  # fmt: skip
        if kind not in (_SENSE_KIND, _RESPONSE_KIND):
            raise _wrong(opcode, "a sense or response unit", f"unit {kind}" if unit else "nothing")
        least = _SENSE_HEAD if kind == _SENSE_KIND else _RESPONSE_SIZE
        if size < least:
            raise _wrong(opcode, f"a status of {least} bytes", f"{size} bytes")
        if tag != self.stream:
            raise _wrong(opcode, f"the status of tag {self.stream}", f"tag {tag}")
        if unit[_STATUS_AT] != _GOOD:
            length = int.from_bytes(unit[_SENSE_LENGTH_AT:_SENSE_HEAD], "big")
            sense = unit[_SENSE_HEAD : _SENSE_HEAD + length]
            raise _failed(opcode, unit[_STATUS_AT], sense)

    def cancel(self) -> None:
        """Cancel those of its transfers that were started."""
        for pending in (self.order, self.data, self.status):
            if pending is not None:
                pending.cancel()


def _wrong(opcode: int, expected: str, found: str) -> WrongAnswer:
    return WrongAnswer(
        f"command {opcode:#04x}: expected {expected}, got {found}",
        opcode=opcode, expected=expected, found=found,
    )  # fmt: skip


def _failed(opcode: int, status: int, sense: bytes) -> CommandFailed:
    """Return the error for a status, with the contents of its sense data (SPC-4, 4.5)."""
    facts: dict[str, object] = {"opcode": opcode, "status": status}
    text = f"command {opcode:#04x}: {_STATUSES.get(status, f'status {status:#04x}')}"
    form = sense[0] & 0x7F if sense else 0
    places = (2, 12, 13) if form in _FIXED else (1, 2, 3) if form in _DESCRIPTOR else ()
    if places and len(sense) > places[0]:
        key = sense[places[0]] & 0xF
        code, qualifier = (sense[at] if at < len(sense) else 0 for at in places[1:])
        facts |= {"key": key, "code": code, "qualifier": qualifier}
        text += f", {_KEYS[key]} ({code:#04x}/{qualifier:#04x})"
    return CommandFailed(text, **facts)
