"""A virtual enclosure in a port of QEMU's USB controller: the device's side of usbredir.

QEMU's `usb-redir` connects to `serve`'s socket. Source: the usbredir protocol, version 0.7
(spice-space.org, usb-redirection-protocol.md). What the enclosure does not answer is not answered
here either: it is for the guest's software to give up, as with a cable.
"""

from __future__ import annotations

import enum
import selectors
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ugpu.hcq.errors import BadArgument, DeviceLost, EndpointStalled, TransferTimeout, UgpuError
from ugpu.usbgpu.link.usb import IN, Kind, Recipient, Speed
from ugpu.virtual.usb.device import Transfer, VirtualUsb
from ugpu.virtual.usb.enclosure import Enclosure

END_LIMIT_S = 10
_LOOK_S = 0.001  # between looks at transfers that wait for the card
_STREAMS, _VERSION, _ACK, _SIZES, _WIDE_IDS, _LONG_BULK = (1 << bit for bit in (0, 1, 3, 4, 5, 6))
_ABILITIES = _STREAMS | _VERSION | _ACK | _SIZES | _WIDE_IDS | _LONG_BULK
_MOST_ENDPOINTS = 32
_CONTROL, _BULK, _NO_ENDPOINT = 0, 2, 255
_STREAMS_OF_UAS = 32
_SPEEDS = {Speed.HIGH: 2}  # everything faster: 3


class Message(enum.IntEnum):
    """Types of messages."""

    HELLO = 0
    CONNECT = 1
    DISCONNECT = 2
    RESET = 3
    INTERFACES = 4
    ENDPOINTS = 5
    SET_CONFIGURATION = 6
    GET_CONFIGURATION = 7
    CONFIGURATION = 8
    SET_ALTERNATE = 9
    GET_ALTERNATE = 10
    ALTERNATE = 11
    ALLOCATE_STREAMS = 18
    FREE_STREAMS = 19
    STREAMS = 20
    CANCEL = 21
    CONTROL = 100
    BULK = 101


class Status(enum.IntEnum):
    """How a request ended."""

    SUCCESS = 0
    CANCELLED = 1
    INVALID = 2
    ERROR = 3
    STALL = 4
    BABBLE = 6


class Port:
    """One connection to QEMU. The enclosure stays the caller's; `plug` and `unplug` may be called
    from any thread."""

    def __init__(self, connection: socket.socket, box: Enclosure) -> None:
        self._connection = connection
        self._box = box
        self._lock = threading.RLock()
        self._usb: VirtualUsb | None = None
        self._wide = False
        self._alternate = 0
        self._pending: dict[int, tuple[bytes, Transfer]] = {}
        self._received = bytearray()

    # ---- the wire -----------------------------------------------------------------------------

    def _send(self, kind: Message, number: int, body: bytes) -> None:
        header = struct.pack("<IIQ" if self._wide else "<III", kind, len(body), number)
        with self._lock:
            self._connection.sendall(header + body)

    def _messages(self) -> Iterator[tuple[int, int, bytes]]:
        while True:
            size = 16 if self._wide else 12
            if len(self._received) < size:
                return
            layout = "<IIQ" if self._wide else "<III"
            kind, length, number = struct.unpack_from(layout, self._received)
            if len(self._received) < size + length:
                return
            body = bytes(self._received[size : size + length])
            del self._received[: size + length]
            yield kind, number, body

    def run(self) -> None:
        """Serve until QEMU hangs up."""
        greeting = b"ugpu virtual enclosure".ljust(64, b"\0")
        self._send(Message.HELLO, 0, greeting + struct.pack("<I", _ABILITIES))
        with selectors.DefaultSelector() as selector:
            selector.register(self._connection, selectors.EVENT_READ)
            while True:
                ready = selector.select(_LOOK_S if self._pending else None)
                if ready:
                    data = self._connection.recv(1 << 20)
                    if not data:
                        return
                    self._received += data
                    for kind, number, body in self._messages():
                        self._serve(kind, number, body)
                self._answer_pending()

    # ---- the cable ----------------------------------------------------------------------------

    def plug(self) -> None:
        """Show the device to QEMU."""
        usb = self._box.open()
        with self._lock:
            self._usb, self._alternate = usb, 0
            usb.on_departure(self._departed)
            self._describe()
            identity = usb.identity
            speed = _SPEEDS.get(identity.speed, 3)
            self._send(
                Message.CONNECT,
                0,
                struct.pack(
                    "<BBBBHHH", speed, 0, 0, 0, identity.vendor, identity.product, identity.release
                ),
            )

    def halt(self, endpoint: int) -> None:
        """Have the device answer with STALL."""
        usb = self._usb
        if usb is not None:
            usb.halt(endpoint)

    def _departed(self) -> None:
        with self._lock:
            self._usb = None
            self._pending.clear()
            self._send(Message.DISCONNECT, 0, b"")

    def _describe(self) -> None:
        assert self._usb is not None
        kinds = [_NO_ENDPOINT] * _MOST_ENDPOINTS
        sizes, streams = [0] * _MOST_ENDPOINTS, [0] * _MOST_ENDPOINTS
        for control in (0, 16):
            kinds[control], sizes[control] = _CONTROL, self._box.control_packet
        for endpoint in self._usb.endpoints():
            index = (endpoint & IN) >> 3 | endpoint & 15
            kinds[index], sizes[index] = _BULK, self._usb.packet_size(endpoint)
            if self._alternate == 1 and endpoint != 0x04:
                streams[index] = _STREAMS_OF_UAS
        one = struct.pack("<I", 1) + bytes(32)
        self._send(Message.INTERFACES, 0, one + (b"\xff" + bytes(31)) * 3)
        self._send(
            Message.ENDPOINTS,
            0,
            bytes(kinds) + bytes(64) + struct.pack("<32H", *sizes) + struct.pack("<32I", *streams),
        )

    # ---- requests -----------------------------------------------------------------------------

    def _serve(self, kind: int, number: int, body: bytes) -> None:
        if kind == Message.HELLO:
            self._wide = bool(int.from_bytes(body[64:68], "little") & _WIDE_IDS)
            self.plug()
            return
        usb = self._usb
        try:
            if usb is not None:
                self._serve_device(usb, kind, number, body)
        except DeviceLost:
            return  # QEMU is told by `_departed`

    def _serve_device(self, usb: VirtualUsb, kind: int, number: int, body: bytes) -> None:
        if kind == Message.RESET:
            usb.reset()
            self._alternate = 0
        elif kind == Message.SET_CONFIGURATION:
            usb.control_out(9, body[0], 0, kind=Kind.STANDARD)
            self._describe()
            self._send(Message.CONFIGURATION, number, bytes((Status.SUCCESS, body[0])))
        elif kind == Message.GET_CONFIGURATION:
            self._send(Message.CONFIGURATION, number, bytes((Status.SUCCESS, 1)))
        elif kind == Message.SET_ALTERNATE:
            self._set_alternate(usb, number, body[0], body[1])
        elif kind == Message.GET_ALTERNATE:
            self._send(Message.ALTERNATE, number, bytes((0, body[0], self._alternate)))
        elif kind == Message.ALLOCATE_STREAMS:
            endpoints, count = struct.unpack("<II", body)
            addresses = [
                index & 15 | (IN if index & 16 else 0)
                for index in range(32)
                if endpoints >> index & 1
            ]
            status = Status.SUCCESS
            try:
                usb.allocate_streams(count, addresses)
            except UgpuError:
                status = Status.INVALID
            self._send(Message.STREAMS, number, struct.pack("<IIB", endpoints, count, status))
        elif kind == Message.FREE_STREAMS:
            endpoints = int.from_bytes(body[:4], "little")
            self._send(Message.STREAMS, number, struct.pack("<IIB", endpoints, 0, 0))
        elif kind == Message.CANCEL:
            self._cancel(number)
        elif kind == Message.CONTROL:
            self._control(usb, number, body)
        elif kind == Message.BULK:
            self._bulk(usb, number, body)

    def _set_alternate(self, usb: VirtualUsb, number: int, interface: int, setting: int) -> None:
        status = Status.SUCCESS
        try:
            usb.set_alternate(setting)
            self._alternate = setting
            self._describe()
        except BadArgument:
            status = Status.INVALID
        self._send(Message.ALTERNATE, number, bytes((status, interface, self._alternate)))

    def _control(self, usb: VirtualUsb, number: int, body: bytes) -> None:
        endpoint, request, kinds, _, value, index, length = struct.unpack_from("<BBBBHHH", body)
        kind, recipient = Kind(kinds >> 5 & 3), Recipient(kinds & 31)
        status, answer = Status.SUCCESS, b""
        try:
            if kinds & IN:
                answer = usb.control_in(
                    request, value, index, length, kind=kind, recipient=recipient, limit_s=30
                )
                length = len(answer)
            else:
                usb.control_out(
                    request, value, index, body[10:], kind=kind, recipient=recipient, limit_s=30
                )
        except EndpointStalled:
            status, length = Status.STALL, 0
        except TransferTimeout:
            return
        header = struct.pack("<BBBBHHH", endpoint, request, kinds, status, value, index, length)
        self._send(Message.CONTROL, number, header + answer)

    def _bulk(self, usb: VirtualUsb, number: int, body: bytes) -> None:
        endpoint, _, low, stream, high = struct.unpack_from("<BBHIH", body)
        length = low | high << 16
        if endpoint & IN:
            size = usb.packet_size(endpoint)
            transfer = usb.submit_in(endpoint, max(1, -(-length // size)) * size, stream)
        else:
            transfer = usb.submit_out(endpoint, body[10:], stream)
        self._pending[number] = (body[:10], transfer)

    def _answer_pending(self) -> None:
        for number, (header, transfer) in list(self._pending.items()):
            if not transfer.poll() or self._pending.pop(number, None) is None:
                continue
            status, data = Status.SUCCESS, b""
            endpoint, _, low, stream, high = struct.unpack("<BBHIH", header)
            wanted, length = low | high << 16, transfer.sent
            try:
                data = transfer.wait(0)
                if endpoint & IN:
                    status = Status.BABBLE if len(data) > wanted else status
                    data = data[:wanted]
                    length = len(data)
            except DeviceLost:
                continue
            except EndpointStalled:
                status, length = Status.STALL, 0
            except UgpuError:
                status, length = Status.ERROR, 0
            answer = struct.pack("<BBHIH", endpoint, status, length & 0xFFFF, stream, length >> 16)
            self._send(Message.BULK, number, answer + data)

    def _cancel(self, number: int) -> None:
        found = self._pending.pop(number, None)
        if found is not None:
            header, transfer = found
            transfer.cancel()
            endpoint, _, _, stream, _ = struct.unpack("<BBHIH", header)
            sent = transfer.sent
            answer = struct.pack(
                "<BBHIH", endpoint, Status.CANCELLED, sent & 0xFFFF, stream, sent >> 16
            )
            self._send(Message.BULK, number, answer)


@contextmanager
def serve(path: Path, box: Enclosure) -> Iterator[list[Port]]:
    """Listen at `path`; the port is in the list once QEMU has connected."""
    ports: list[Port] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)

    def run() -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # closed before anybody came
        with connection:
            ports.append(Port(connection, box))
            try:
                ports[0].run()
            except (ConnectionError, BrokenPipeError):
                return

    thread = threading.Thread(target=run, name="usbredir", daemon=True)
    thread.start()
    try:
        yield ports
    finally:
        listener.close()
        thread.join(END_LIMIT_S)
