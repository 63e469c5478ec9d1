"""Messages of vfio-user: their layouts, and a channel that sends and receives them whole.

Source: QEMU docs/interop/vfio-user.rst, section "Header" and those of the commands. Numbers are in
the host's byte order, which is little-endian on all supported hosts.
"""

from __future__ import annotations

import array
import contextlib
import enum
import errno
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ugpu.hcq.errors import TransportError
from ugpu.hcq.transport.vfio_user.attention import sleep_at_once

HEADER: Final = struct.Struct("<HHIII")  # id, command, size with header, flags, error
VERSION: Final = struct.Struct("<HH")  # major, minor; then JSON and a NUL
DMA_MAP: Final = struct.Struct("<IIQQQ")  # argsz, flags, file offset, address, size
DMA_UNMAP: Final = struct.Struct("<IIQQ")  # argsz, flags, address, size
DEVICE_INFO: Final = struct.Struct("<IIII")  # argsz, flags, regions, interrupt types
REGION_INFO: Final = struct.Struct("<IIIIQQ")  # argsz, flags, index, cap_offset, size, offset
CAPABILITY: Final = struct.Struct("<HHI")  # id, version, next
SPARSE: Final = struct.Struct("<II")  # areas, reserved; then an AREA each
AREA: Final = struct.Struct("<QQ")  # offset, size
IRQ_INFO: Final = struct.Struct("<IIII")  # argsz, flags, index, count
SET_IRQS: Final = struct.Struct("<IIIII")  # argsz, flags, index, start, count; then booleans
REGION_ACCESS: Final = struct.Struct("<QII")  # offset, region, count; then data
DMA_ACCESS: Final = struct.Struct("<QQ")  # address, count; then data
MODEL_WORK: Final = struct.Struct("<I")
WRITE_COUNT: Final = struct.Struct("<Q")
WRITE_ENTRY: Final = struct.Struct("<QIIQ")  # offset, region, count, data
# Whole messages about one register: header, place, and (but for the request to read) its value.
READ_REGISTER: Final = struct.Struct("<HHIIIQII")
REGISTER: Final = {4: struct.Struct("<HHIIIQIII"), 8: struct.Struct("<HHIIIQIIQ")}

REPLY, NO_REPLY, ERROR = 0x1, 0x10, 0x20
TYPE_MASK = 0xF
DMA_READABLE, DMA_WRITEABLE = 1, 2
UNMAP_ALL = 2  # VFIO_DMA_UNMAP_FLAG_ALL of linux/vfio.h; QEMU sends it
DEFAULT_TRANSFER = 1 << 20  # max_data_xfer_size if a peer names none
LARGEST_TRANSFER = 16 << 20  # the most that we agree to, whatever a peer requests
DEFAULT_DESCRIPTORS = 1  # max_msg_fds if a peer names none
LARGEST_DESCRIPTORS = 8  # QEMU refuses a peer that requests more than 16
MAJOR, MINOR = 0, 0
_HEAD = HEADER.size
_ROOM = socket.CMSG_SPACE(4 * LARGEST_DESCRIPTORS)
# Plain numbers: combining members of an enumeration takes as long as a system call.
_CUT = int(socket.MSG_CTRUNC)
_CLOSED_BY_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)
_WHOLE = int(socket.MSG_WAITALL)


class Command(enum.IntEnum):
    """Command numbers, section "Commands"."""

    VERSION = 1
    DMA_MAP = 2
    DMA_UNMAP = 3
    DEVICE_GET_INFO = 4
    DEVICE_GET_REGION_INFO = 5
    DEVICE_GET_REGION_IO_FDS = 6
    DEVICE_GET_IRQ_INFO = 7
    DEVICE_SET_IRQS = 8
    REGION_READ = 9
    REGION_WRITE = 10
    DMA_READ = 11
    DMA_WRITE = 12
    DEVICE_RESET = 13
    REGION_WRITE_MULTI = 15
    DEVICE_FEATURE = 16
    MIG_DATA_READ = 17
    MIG_DATA_WRITE = 18
    # Not in the protocol: the work of the server's model (hcq.state.clock.Work, a MODEL_WORK). Sent
    # only if both sides named the capability "model_work".
    MODEL_WORK = 0xF001


class Region(enum.IntEnum):
    """Region numbers of a PCI device (linux/vfio.h, VFIO_PCI_*_REGION_INDEX); BARs are 0 to 5."""

    ROM = 6
    CONFIG = 7
    VGA = 8


class Interrupt(enum.IntEnum):
    """Interrupt types of a PCI device (linux/vfio.h, VFIO_PCI_*_IRQ_INDEX)."""

    INTX = 0
    MSI = 1
    MSIX = 2
    ERROR = 3
    REQUEST = 4


REGIONS, INTERRUPTS = 9, 5


class Disconnected(Exception):
    """The peer closed the connection between two messages."""


@dataclass(slots=True)
class Message:
    """One message.

    Attributes:
        number: repeated by its reply.
        command: as in the specification.
        flags: as in the specification.
        error: an errno of a reply; 0.
        payload: what follows the header.
        descriptors: owned by its handler, which removes those that it keeps.
    """

    number: int
    command: int
    flags: int
    error: int
    payload: bytes
    descriptors: list[int] = field(default_factory=list)

    @property
    def is_reply(self) -> bool:
        return self.flags & TYPE_MASK == REPLY

    def close(self) -> None:
        """Close the unclaimed descriptors."""
        if self.descriptors:
            close_all(self.descriptors)
            self.descriptors.clear()


def close_all(descriptors: Iterable[int]) -> None:
    """Close file descriptors that came with a message; those already closed are ignored."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def unpack(layout: struct.Struct, payload: bytes, *, exact: bool = False) -> tuple[int, ...]:
    """Return the fixed part of a payload; TransportError if it is too short, or longer than
    `exact`."""
    if len(payload) < layout.size or (exact and len(payload) != layout.size):
        raise TransportError(
            "the payload has the wrong size", size=len(payload), needed=layout.size
        )
    return layout.unpack_from(payload)


class Channel:
    """A connected socket that carries messages. Sending and receiving may be in two threads.

    Descriptors belong to the message whose first byte carries them. So the header is received
    separately, and the kernel drops descriptors attached to any later byte.
    """

    def __init__(
        self,
        connection: socket.socket,
        limit_s: float,
        look: Callable[[], None] = sleep_at_once,
    ) -> None:
        """Own `connection`. A message that has begun must be complete within `limit_s` seconds, and
        a peer that reads nothing for that long is given up. `look` is called before waiting for
        each message, see hcq.transport.vfio_user.attention."""
        self.socket = connection
        self._look = look
        self.largest = LARGEST_TRANSFER + 4096  # bytes of a payload
        connection.setblocking(True)
        limit = struct.pack("@ll", int(limit_s), int(limit_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._held = b""  # received with an earlier message, by `answer`
        self._sending = threading.Lock()

    def hung_up(self) -> bool:
        """Return whether the peer has closed its end; also while another thread receives."""
        poll = select.poll()
        try:
            poll.register(self.socket, select.POLLRDHUP)
            return bool(poll.poll(0))
        except (OSError, ValueError):  # closed here meanwhile
            return True

    def send(
        self,
        number: int,
        command: int,
        parts: Sequence[bytes | bytearray | memoryview] = (),
        *,
        flags: int = 0,
        error: int = 0,
        descriptors: Sequence[int] = (),
    ) -> None:
        """Send one message; OSError if the peer is gone, TransportError if it reads nothing."""
        size = HEADER.size + sum(len(part) for part in parts)
        head = HEADER.pack(number, command, size, flags, error)
        try:
            with self._sending:
                self._send(head, parts, size, descriptors)
        except BlockingIOError as stalled:
            raise TransportError("the peer does not read messages") from stalled

    def _send(
        self,
        head: bytes,
        parts: Sequence[bytes | bytearray | memoryview],
        size: int,
        descriptors: Sequence[int],
    ) -> None:
        if descriptors:
            rights = array.array("i", descriptors)
            carried = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
            sent = self.socket.sendmsg([head, *parts], carried, _NO_SIGNAL)
        elif size <= 4096:
            whole = b"".join((head, *parts))
            sent = self.socket.send(whole, _NO_SIGNAL)
        else:
            sent = self.socket.sendmsg([head, *parts], (), _NO_SIGNAL)
        if sent < size:
            self._send_rest(sent, [head, *parts])

    def send_bytes(self, message: bytes) -> None:
        """Send one whole small message, header included; errors as for `send`."""
        try:
            with self._sending:
                sent = self.socket.send(message, _NO_SIGNAL)
                if sent < len(message):
                    self.socket.sendall(message[sent:])
        except BlockingIOError as stalled:
            raise TransportError("the peer does not read messages") from stalled

    def _send_rest(self, sent: int, parts: list[bytes | bytearray | memoryview]) -> None:
        for part in parts:
            if sent < len(part):
                self.socket.sendall(memoryview(part)[sent:])
            sent = max(0, sent - len(part))

    def receive(self, *, patient: bool = True) -> Message:
        """Return the next message. Disconnected at the peer's orderly end, TransportError for an
        end or a stall within a message, and for an invalid header. Waits for its beginning without
        limit, unless not `patient`."""
        head, descriptors = self._head(patient)
        try:
            number, command, size, flags, error = HEADER.unpack(head)
            if not _HEAD <= size <= self.largest + _HEAD:
                raise TransportError("the message has an invalid size", size=size)
            if flags & TYPE_MASK > REPLY:
                raise TransportError("the message is neither a command nor a reply", flags=flags)
            payload = self._rest(b"", size - _HEAD) if size > _HEAD else b""
        except BaseException:
            close_all(descriptors)
            raise
        return Message(number, command, flags, error, payload, descriptors)

    def _head(self, patient: bool) -> tuple[bytes, list[int]]:
        """Return a header and the descriptors that came with it, which the caller owns."""
        if self._held:
            return self._rest(b"", _HEAD), []
        self._look()
        while True:
            try:
                head, carried, flags, _ = self.socket.recvmsg(_HEAD, _ROOM, _CLOSED_BY_EXEC)
                break
            except BlockingIOError as silence:
                if not patient:
                    raise TransportError("the peer does not respond") from silence
        if carried or flags & _CUT:
            descriptors = _descriptors(carried)
            try:
                if flags & _CUT:
                    raise TransportError("the message contains too many descriptors")
                return self._rest(head, _HEAD), descriptors
            except BaseException:
                close_all(descriptors)
                raise
        if not head:
            raise Disconnected
        return head if len(head) == _HEAD else self._rest(head, _HEAD), []

    def _rest(self, begun: bytes, size: int) -> bytes:
        """Return `size` bytes in all, of which `begun` have arrived."""
        if self._held:
            taken = self._held[: size - len(begun)]
            self._held = self._held[len(taken) :]
            begun += taken
        if not begun:
            begun = self._receive_some(size)
        if len(begun) == size:
            return begun
        content = bytearray(size)
        content[: len(begun)] = begun
        self.receive_into(memoryview(content)[len(begun) :])
        return bytes(content)

    def _receive_some(self, size: int) -> bytes:
        """Return up to `size` bytes, nearly always all, without the copy that `receive_into`
        costs."""
        try:
            some = self.socket.recv(size, _WHOLE)
        except BlockingIOError as stalled:
            raise TransportError("the message is incomplete") from stalled
        if not some:
            raise TransportError("the connection ended in the middle of a message")
        return some

    def receive_into(self, room: memoryview) -> None:
        """Fill `room` with bytes of the message that has begun."""
        while room:
            try:
                count = self.socket.recv_into(room, len(room), _WHOLE)
            except BlockingIOError as stalled:
                raise TransportError("the message is incomplete") from stalled
            if not count:
                raise TransportError("the connection ended in the middle of a message")
            room = room[count:]

    def answer(self, size: int) -> bytes:
        """Return at most `size` of the next bytes, for a reply that is expected to have that size
        and to carry no descriptors. If it is not such a reply, give the bytes back by `hold`."""
        if self._held:
            return b""
        self._look()
        return self.socket.recv(size)

    def hold(self, data: bytes) -> None:
        """Give back bytes taken by `answer`; `receive` begins with them."""
        self._held = data + self._held

    def shut(self) -> None:
        """End the connection, waking a thread that waits in `receive`; any thread may call it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; senders have returned before the descriptor is closed."""
        self.shut()
        with self._sending:
            self.socket.close()


def _descriptors(carried: Iterable[tuple[int, int, bytes]]) -> list[int]:
    numbers = array.array("i")
    for level, kind, data in carried:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return numbers.tolist()


def errno_name(number: int) -> str:
    """Return the name of an errno, such as EINVAL, for messages to people."""
    return errno.errorcode.get(number, str(number))
