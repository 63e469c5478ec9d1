"""Blocks read over vfio-user in several messages: what comes back, and what goes wrong halfway."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.pci.vfio_user_wire import take
from ugpu.hcq.errors import BadArgument, Closed, DeviceLost, TransportError
from ugpu.hcq.transport.vfio_user.connection import Connection
from ugpu.hcq.transport.vfio_user.version import Capabilities

REGION, TRANSFER = 2, 64
LIMIT_S = 60.0
ASKED = struct.pack("<HHIII", 9, 11, 32, 0, 0) + struct.pack("<QQ", 0x1000, 8)


class Memory:
    """Of a client; the server may read eight bytes of it."""

    def read(self, address: int, size: int) -> bytes:
        if (address, size) != (0x1000, 8):
            raise BadArgument("no memory is mapped at this address")
        return b"clients."

    def write(self, address: int, data: bytes) -> None:
        raise BadArgument("no memory is mapped at this address")


class Line:
    """A connection whose server's answers lie ready before they are asked for."""

    def __init__(self) -> None:
        ours, self.server = socket.socketpair(socket.AF_UNIX)
        self.connection = Connection(ours, "test", Memory(), 10.0)
        self.connection.peer = Capabilities(transfer=TRANSFER)
        self.answers = 0

    def answer(self, data: bytes, *, flags: int = 1, error: int = 0) -> None:
        self.answers += 1
        payload = b"" if error else struct.pack("<QII", 0, REGION, len(data)) + data
        head = struct.pack("<HHIII", self.answers, 9, 16 + len(payload), flags, error)
        self.server.sendall(head + payload)

    def refuse(self, number: int) -> None:
        self.answer(b"", flags=0x21, error=number)

    def asked(self, count: int) -> list[tuple[int, int]]:
        """(offset, bytes) of the next `count` requests."""
        places = []
        for _ in range(count):
            _, command, size, flags, _ = struct.unpack("<HHIII", take(self.server, 16))
            assert (command, size, flags) == (9, 32, 0)
            offset, region, length = struct.unpack("<QII", take(self.server, 16))
            assert region == REGION
            places.append((offset, length))
        return places

    def still_in_step(self) -> None:
        """The stream goes on with the answer to the next request."""
        self.answer(struct.pack("<I", 0xC0FFEE))
        assert self.connection.read_register(REGION, 0, 4) == 0xC0FFEE

    def close(self) -> None:
        self.connection.close()
        self.server.close()


@pytest.fixture
def line() -> Iterator[Line]:
    one = Line()
    yield one
    one.close()


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9 * TRANSFER))
def test_any_size_comes_whole(size: int) -> None:
    line = Line()
    data = os.urandom(size)
    expected = [(0x100 + start, min(TRANSFER, size - start)) for start in range(0, size, TRANSFER)]
    for offset, count in expected:
        line.answer(data[offset - 0x100 :][:count])
    found = line.connection.read_many(REGION, 0x100, size)
    assert type(found) is bytes and found == data
    assert line.asked(len(expected)) == expected
    line.still_in_step()
    line.close()


@pytest.mark.parametrize("place", range(6))
def test_a_piece_that_is_refused(line: Line, place: int) -> None:
    for piece in range(6):
        if piece == place:
            line.refuse(errno.ENODEV)
        elif piece < place + 3:  # no more is asked for after the refusal
            line.answer(bytes(TRANSFER))
    with pytest.raises(DeviceLost):
        line.connection.read_many(REGION, 0, 6 * TRANSFER)
    line.still_in_step()


@pytest.mark.parametrize("size", [0, 4, TRANSFER - 4, TRANSFER + 4])
def test_a_piece_of_another_size(line: Line, size: int) -> None:
    for count in (TRANSFER, size, TRANSFER, TRANSFER):
        line.answer(bytes(count))
    with pytest.raises(TransportError):
        line.connection.read_many(REGION, 0, 8 * TRANSFER)
    line.still_in_step()


@pytest.mark.parametrize("place", range(4))
def test_a_command_of_the_server_between_pieces(line: Line, place: int) -> None:
    data = os.urandom(4 * TRANSFER)
    for piece in range(4):
        if piece == place:
            line.server.sendall(ASKED)
        line.answer(data[piece * TRANSFER :][:TRANSFER])
    assert line.connection.read_many(REGION, 0, len(data)) == data
    line.still_in_step()


def test_the_end_amid_a_piece(line: Line) -> None:
    line.answer(bytes(TRANSFER))
    line.server.sendall(struct.pack("<HHIII", 2, 9, 32 + TRANSFER, 1, 0) + bytes(16 + 7))
    line.server.shutdown(socket.SHUT_WR)
    with pytest.raises((TransportError, DeviceLost)):
        line.connection.read_many(REGION, 0, 2 * TRANSFER)


@pytest.mark.parametrize("kept", [0, 7, 16, 32, 39], ids=lambda kept: f"{kept} bytes")
def test_closing_while_a_block_is_awaited(line: Line, kept: int) -> None:
    ends: list[BaseException] = []

    def read() -> None:
        try:
            line.connection.read_many(REGION, 0, 2 * TRANSFER)
        except Exception as error:
            ends.append(error)

    head = struct.pack("<HHIIIQII", 1, 9, 32 + TRANSFER, 1, 0, 0, REGION, TRANSFER)
    line.server.sendall((head + bytes(TRANSFER))[:kept])
    thread = threading.Thread(target=read)
    thread.start()
    assert line.asked(2) == [(0, TRANSFER), (TRANSFER, TRANSFER)]
    line.connection.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert [type(error) for error in ends] == [Closed]
    with pytest.raises(Closed):
        line.connection.read_register(REGION, 0, 4)


def test_a_stall_amid_a_piece_ends_the_connection(line: Line) -> None:
    """What comes after it cannot be told from the piece's rest."""
    seconds = struct.pack("@ll", 0, 1000)
    line.connection.close()
    ours, line.server = socket.socketpair(socket.AF_UNIX)
    line.connection = Connection(ours, "test", Memory(), 10.0)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds)
    line.server.sendall(struct.pack("<HHIII", 1, 9, 32 + TRANSFER, 1, 0) + bytes(16 + 7))
    with pytest.raises(TransportError):
        line.connection.read_many(REGION, 0, TRANSFER)
    with pytest.raises(DeviceLost):
        line.connection.read_register(REGION, 0, 4)
