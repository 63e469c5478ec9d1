"""Frames and messages between a client and ugpud. Both sides use this module; it trusts no input.

A frame is a header of 32 bytes, a msgpack list [operation, call, arguments] and raw bytes ("data"):

    magic "uq01", bytes of the list (u32), bytes of data (u32), CRC-32 of both (u32),
    sequence (u64), acknowledged (u64); little-endian

Each side numbers its frames from 1; `acknowledged` is the last frame of the peer that was received
whole, so that a broken connection is resumed without loss and without repetition
(hcq.remote.session). Frames with sequence 0 are not numbered: those that open a connection, replies
to them, "ack", and all frames of a connection that cannot be resumed.

`call` is 0 for a message without a reply. A reply has the operation "reply" or "error" and the
same number.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from ugpu.hcq.errors import TransportError

VERSION = 1
MAGIC = b"uq01"
HEADER = struct.Struct("<4sIIIQQ")
CHUNK = 1 << 20  # bytes of data in a frame of a large copy
READ_AHEAD = 2048  # bytes; each of a thousand idle clients takes this much memory

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Limits:
    """Size limits of one frame.

    Attributes:
        meta: bytes of its list.
        data: bytes of its data.
        told: called with the memory of the frame that is arriving, in bytes, before it is
            allocated; with 0 once the frame is whole. It may wait, and raise WireError.
    """

    meta: int = 1 << 20
    data: int = 64 << 20
    told: Callable[[int], None] | None = None


#: before a client has shown that it may use the daemon
STRANGER = Limits(meta=16 << 10, data=0)
#: of a client without a lease: none of its requests needs data
IDLE = Limits(meta=64 << 10, data=64 << 10)
#: bytes of a client's list: of requests that take large lists, such as "replay"
META = 256 << 10
_FIRST = CHUNK + (64 << 10)  # bytes allocated for a frame before more of it has arrived


class WireError(TransportError):
    """The peer sent bytes that are not a frame of this protocol; the connection cannot continue."""


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        operation: its name.
        arguments: of the operation's types, see `check`.
        call: the number that its reply carries, 0 without a reply.
        data: bytes that follow the list.
        sequence: the frame's number in its session.
        acknowledged: the last frame that arrived from the peer.
    """

    operation: str
    arguments: list[Any]  # Any: `check` compares them with the operation's signature
    call: int = 0
    data: Bytes = b""
    sequence: int = 0
    acknowledged: int = 0


def encode(message: Message, sequence: int = 0, acknowledged: int = 0) -> tuple[bytes, Bytes]:
    """Return the frame as its header with the list, and its data, which is not copied. sequence,
    acknowledged: used instead of the message's."""
    meta: bytes = msgpack.packb([message.operation, message.call, message.arguments])
    crc = zlib.crc32(message.data, zlib.crc32(meta))
    size = memoryview(message.data).nbytes
    numbers = sequence or message.sequence, acknowledged or message.acknowledged
    header = HEADER.pack(MAGIC, len(meta), size, crc, *numbers)
    return header + meta, message.data


@dataclass(frozen=True)
class Header:
    """The header of a frame whose rest is not read yet.

    Attributes:
        meta: bytes of the list.
        data: bytes of the data.
        crc: of list and data.
        sequence: the frame's number in its session.
        acknowledged: the last frame that arrived from the peer.
    """

    meta: int
    data: int
    crc: int
    sequence: int
    acknowledged: int


def decode_header(head: Bytes, limits: Limits) -> Header:
    """Check a frame's header before memory is allocated for the rest; WireError."""
    magic, *rest = HEADER.unpack(head)
    header = Header(*rest)
    if magic != MAGIC:
        raise WireError(f"expected a frame that starts with {MAGIC!r}, got {magic!r}")
    if not 0 < header.meta <= limits.meta:
        raise WireError(f"expected a message of 1 to {limits.meta} bytes, got {header.meta}")
    if header.data > limits.data:
        raise WireError(f"expected at most {limits.data} bytes of data, got {header.data}")
    return header


def decode(header: Header, meta: Bytes, data: Bytes) -> Message:
    """Check and decode the rest of a frame; WireError."""
    if zlib.crc32(data, zlib.crc32(meta)) != header.crc:
        raise WireError("the checksum of a frame does not match", sequence=header.sequence)
    try:
        content = msgpack.unpackb(meta, strict_map_key=True, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"a frame does not contain a message: {error}") from None
    except RecursionError:
        raise WireError("the message is nested too deeply") from None
    if not isinstance(content, list) or len(content) != 3:
        raise WireError("expected a message of three parts")
    operation, call, arguments = content
    well = isinstance(operation, str) and len(operation) <= 32 and isinstance(arguments, list)
    if not well or not is_number(call, 1 << 32):
        raise WireError("expected a message [operation, call, arguments]")
    return Message(operation, arguments, call, data, header.sequence, header.acknowledged)


def is_number(value: object, end: int = 1 << 64) -> bool:
    """Return whether the value is an integer from 0 to end - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < end


# Arguments of each operation, in order. "number": an integer from 0 to 2^64 - 1; "numbers": a list
# of them; "map": with text as keys. A "?" after the kind also allows nil.
REQUESTS: Mapping[str, Sequence[str]] = {
    # on a connection
    "hello": ("number", "text?", "number"),  # version, token, session to resume (0: a new one)
    "ack": (),  # the header carries the number
    "bye": (),  # the client ends its session
    "devices": (),  # -> a map for each device
    "leases": (),  # -> a map for each lease and waiter
    "lease": ("map",),  # the request, see LeaseRequest -> grant
    "extend": ("number?", "real"),  # lease (nil: of this connection), seconds from now
    "release": ("number?",),
    "recover": ("text",),  # a pattern of quarantined devices -> names of those that are retried
    "quarantine": ("text", "text"),  # a pattern, why -> names of the devices
    "telemetry": ("text",),  # a device's name -> data: JSON of hcq.state.telemetry
    # with a lease: memory and programs
    "allocate": ("number", "text"),  # size, placement -> number, address
    "free": ("number",),  # number; an unknown one is ignored
    "write": ("number",),  # address; data
    "read": ("number", "number"),  # address, size -> data
    "load": (),  # data: the code object -> number, address, size, kernels
    "unload": ("number",),  # as "free"
    # queues: see hcq.remote.words
    "submit": ("number", "number"),  # queue, value that marks the end; data: words
    "place": ("number", "number", "number"),  # image, queue, words; data: words, then places
    "replay": ("numbers",),  # image, value, image, value...; data: values of the places
    "drop": ("number",),  # image
    "watch": ("number", "number", "real"),  # address, value, seconds -> whether it was reached
    # failures and facts
    "diagnose": ("number", "number"),  # queue, value -> map
    "reset": ("numbers", "number", "number"),  # last values, level (0: any), resets -> report
    "plan": ("number",),  # level (0: any) -> what a reset would do
    "info": (),
    "sensors": (),
}
EVENTS: Mapping[str, Sequence[str]] = {
    "reply": ("any",),
    "ack": (),
    "error": ("text", "text", "map"),  # class, message, facts
    "reached": ("number", "number", "number"),  # queue, value, resets as the client counts
    "failed": ("text", "text", "map"),  # the device's failure, until "reset"
    "position": ("number",),  # of a waiter in the queue, from 1
    "ended": ("text",),  # the lease is over: why
}


def check(message: Message, operations: Mapping[str, Sequence[str]]) -> None:
    """Raise WireError unless the operation is known and has the arguments that it takes."""
    kinds = operations.get(message.operation)
    if kinds is None:
        raise WireError(f"unknown operation {message.operation!r}")
    if len(kinds) != len(message.arguments):
        raise WireError(
            f"{message.operation}: expected {len(kinds)} arguments, got {len(message.arguments)}"
        )
    for position, (kind, value) in enumerate(zip(kinds, message.arguments, strict=True)):
        if not _is(kind, value):
            raise WireError(
                f"{message.operation}: argument {position} must be a {kind}, "
                f"got {type(value).__name__}"
            )


def _is(kind: str, value: object) -> bool:
    if kind.endswith("?"):
        return value is None or _is(kind[:-1], value)
    if kind == "number":
        return is_number(value)
    if kind == "numbers":
        return isinstance(value, list) and all(is_number(number) for number in value)
    if kind == "text":
        return isinstance(value, str)
    if kind == "real":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return 0 <= value < 1e9
    if kind == "map":
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    return kind == "any"


class Buffered:
    """Frames from a stream of bytes, however it is split. For connections and for fuzzing.

    Small frames, with the bytes that follow them, are read by one `space`. Before a header is
    checked at most READ_AHEAD bytes are kept. Memory for a large frame grows with the bytes that
    arrive, to at most twice as many and what `limits` allow: a header alone allocates little.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._ahead = bytearray(READ_AHEAD)
        self._start = self._end = 0  # the part of it that is not taken yet
        self._header: Header | None = None  # of a frame that has its own memory:
        self._frame, self._have = bytearray(), 0

    @property
    def partial(self) -> bool:
        """Return whether a part of a message has arrived."""
        return self._header is not None or self._end > self._start

    def unread(self) -> bytes:
        """Return the bytes of messages that `more` has not returned, and forget them."""
        header, content = self._header, bytes(self._ahead[self._start : self._end])
        if header is not None:
            numbers = header.crc, header.sequence, header.acknowledged
            head = HEADER.pack(MAGIC, header.meta, header.data, *numbers)
            content = head + bytes(self._frame[: self._have])
            self._header, self._frame = None, bytearray()
            self._tell(0)
        self._start = self._end = 0
        return content

    def space(self) -> memoryview:
        """Return the memory for the next bytes; pass how many arrived to `took`. Call only if
        `more` returns None."""
        if self._header is not None:
            if self._have == len(self._frame):
                self._grow(self._header)
            return memoryview(self._frame)[self._have :]
        rest = self._end - self._start
        if self._start:
            self._ahead[:rest] = self._ahead[self._start : self._end]
            self._start, self._end = 0, rest
        return memoryview(self._ahead)[rest:]

    def took(self, count: int) -> Message | None:
        """Return the first message that these bytes complete, if they do; WireError."""
        if self._header is None:
            self._end += count
            return self.more()
        self._have += count
        if self._have < self._header.meta + self._header.data:
            return None
        header, whole = self._header, memoryview(self._frame)
        self._header, self._frame = None, bytearray()
        self._tell(0)
        return decode(header, whole[: header.meta], whole[header.meta :])

    def more(self) -> Message | None:
        """Return the next message of those that have arrived, if there is one; WireError."""
        first = self._start + HEADER.size
        if self._header is not None or first > self._end:
            return None
        view = memoryview(self._ahead)
        header = decode_header(view[self._start : first], self.limits)
        size = header.meta + header.data
        content = bytes(view[first : min(first + size, self._end)])
        self._start = first + len(content)
        if len(content) == size:
            return decode(header, content[: header.meta], memoryview(content)[header.meta :])
        self._tell(min(size, _FIRST))
        self._header, self._have = header, len(content)
        self._frame = bytearray(min(size, _FIRST))
        self._frame[: len(content)] = content
        return None

    def _grow(self, header: Header) -> None:
        # A new object: the memory may still be exported to the last receiver.
        size = min(header.meta + header.data, 2 * len(self._frame))
        self._tell(size)
        frame = bytearray(size)
        frame[: self._have] = self._frame
        self._frame = frame

    def _tell(self, size: int) -> None:
        if self.limits.told is not None:
            self.limits.told(size)
