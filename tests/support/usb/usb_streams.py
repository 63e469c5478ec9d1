"""A USB device with bulk streams that a test answers for, command by command."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.support.usb.usb_script import IDENTITY
from ugpu.hcq.errors import TransferTimeout, TransportError
from ugpu.usbgpu.link.usb import Kind, Recipient, UsbIdentity

COMMAND, STATUS, DATA_IN, DATA_OUT = 0x04, 0x83, 0x81, 0x02


@dataclass
class Answer:
    """How a command ends. None: that transfer never ends."""

    status: bytes | Exception | None
    data: bytes | Exception | None = b""
    order: Exception | None = None  # of the transfer that carries the command


def sense(tag: int, status: int = 0, data: bytes = b"") -> bytes:
    """A sense unit, typed from T10/2095-D, 6.2.3."""
    return bytes((3, 0, 0, tag, 0, 0, status, *bytes(7))) + struct.pack(">H", len(data)) + data


class Waiting:
    """A transfer; `end` tells how it ends, at the latest when it is waited for."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.end: bytes | Exception | None = None
        self.cancelled = False

    def wait(self, limit_s: float) -> bytes:
        assert limit_s > 0
        if self.end is None:
            self.cancelled = True
            raise TransferTimeout(f"{self.place} did not end", limit_s=limit_s)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    def cancel(self) -> None:
        self.cancelled = True
        if self.end is None:
            self.end = TransportError("cancelled")


@dataclass
class StreamUsb:
    """See usbgpu.link.usb.UsbDevice. answer: called with a command's tag, CDB and data. log:
    settings, streams, resets and the commands that arrived."""

    answer: Callable[[int, bytes, bytes], Answer] = lambda tag, cdb, data: Answer(sense(tag))
    identity: UsbIdentity = IDENTITY
    most: int = 31
    streams: int = 0
    log: list[tuple[object, ...]] = field(default_factory=list)
    open: list[Waiting] = field(default_factory=list)
    closed: bool = False
    gone: bool = False
    _statuses: dict[int, Waiting] = field(default_factory=dict)
    _data: dict[int, tuple[Waiting, bytes]] = field(default_factory=dict)

    def control_in(
        self, request: int, value: int, index: int, length: int, *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> bytes:  # fmt: skip
        raise AssertionError("a control request")

    def control_out(
        self, request: int, value: int, index: int, data: bytes = b"", *,
        kind: Kind = Kind.VENDOR, recipient: Recipient = Recipient.DEVICE, limit_s: float = 1.0,
    ) -> None:  # fmt: skip
        raise AssertionError("a control request")

    def _begin(self, place: str) -> Waiting:
        made = Waiting(place)
        self.open.append(made)
        return made

    def submit_out(
        self, endpoint: int, data: bytes | bytearray | memoryview, stream: int = 0
    ) -> Waiting:
        made = self._begin(f"{endpoint:#x}/{stream}")
        if endpoint == DATA_OUT:
            assert 1 <= stream <= self.streams
            self._data[stream] = made, bytes(data)
            return made
        assert (endpoint, stream) == (COMMAND, 0)
        unit = bytes(data)
        assert len(unit) == 32 and unit[:3] == b"\x01\0\0" and unit[4:16] == bytes(12)
        tag, cdb = unit[3], unit[16:]
        self.log.append((tag, cdb.hex()))
        transfer, sent = self._data.pop(tag, (None, b""))
        found = self.answer(tag, cdb, sent)
        made.end = found.order or b""
        status = self._statuses.pop(tag)
        status.end = found.status
        if transfer is not None:
            transfer.end = found.data
        return made

    def submit_in(self, endpoint: int, length: int, stream: int = 0) -> Waiting:
        assert length == 1024 and 1 <= stream <= self.streams
        made = self._begin(f"{endpoint:#x}/{stream}")
        if endpoint == STATUS:
            assert stream not in self._statuses or self._statuses[stream].cancelled
            self._statuses[stream] = made
        else:
            assert endpoint == DATA_IN
            self._data[stream] = made, b""
        return made

    def packet_size(self, endpoint: int) -> int:
        return 1024

    def endpoints(self) -> Sequence[int]:
        return (DATA_IN, DATA_OUT, STATUS, COMMAND)

    def set_alternate(self, setting: int) -> None:
        self.log.append(("setting", setting))

    def allocate_streams(self, count: int, endpoints: Sequence[int]) -> int:
        self.log.append(("streams", count, *sorted(endpoints)))
        self.streams = min(count, self.most)
        return self.streams

    def clear_halt(self, endpoint: int) -> None:
        raise AssertionError("an endpoint is cleared")

    def reset(self) -> None:
        assert all(one.end is not None or one.cancelled for one in self.open), "one is under way"
        self.log.append(("reset",))
        self.streams = 0
        self._data.clear()
        self._statuses.clear()

    def on_departure(self, call: Callable[[], None]) -> None:
        """It stays."""

    def present(self) -> bool:
        return not self.closed and not self.gone

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
