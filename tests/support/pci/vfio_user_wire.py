"""vfio-user messages packed by hand, apart from the product's own packing."""

from __future__ import annotations

import array
import errno
import socket
import struct
from collections.abc import Sequence


def take(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def send(
    connection: socket.socket, command: int, payload: bytes = b"", *, fds: Sequence[int] = (),
    flags: int = 0, number: int = 0x1234, size: int | None = None,
) -> None:  # fmt: skip
    head = struct.pack("<HHIII", number, command, size or 16 + len(payload), flags, 0)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    connection.sendmsg([head + payload], rights)


def receive(connection: socket.socket, command: int, number: int = 0x1234) -> tuple[int, bytes]:
    """(errno or 0, payload) of the next message, which must be the reply to `command`."""
    got_number, got_command, size, flags, error = struct.unpack("<HHIII", take(connection, 16))
    assert (got_number, got_command) == (number, command)
    assert flags in (0x1, 0x21), "a reply, perhaps an error"
    payload = take(connection, size - 16)
    if flags & 0x20:
        assert not payload, "an error reply is a header alone"
        assert error
        return error, b""
    return 0, payload


def exchange(
    connection: socket.socket, command: int, payload: bytes = b"", *, fds: Sequence[int] = ()
) -> bytes:
    send(connection, command, payload, fds=fds)
    error, answer = receive(connection, command)
    assert not error, errno.errorcode[error]
    return answer


def refused(
    connection: socket.socket, command: int, payload: bytes = b"", *, fds: Sequence[int] = ()
) -> int:
    send(connection, command, payload, fds=fds)
    return receive(connection, command)[0]
