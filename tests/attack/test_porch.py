"""Strangers at the TLS port of ugpud: they have no thread, and others are served beside them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import LIMIT_S, until
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.wire import VERSION, Limits, Message
from ugpu.tools.service.daemon import porch
from ugpu.tools.service.daemon.clients.peers import Peer
from ugpu.tools.service.daemon.clients.places import Crowd
from ugpu.tools.service.daemon.porch import Guest, Porch
from ugpu.tools.service.daemon.ports import server_context

trustme = pytest.importorskip("trustme", reason="trustme (extra dev) makes certificates")


class Reception:
    """A porch, and the connections that it has passed on."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        both = folder / "both.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(both))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.served: list[tuple[Channel, Peer]] = []
        self.porch = Porch([self.listener], server_context(both, both), self._serve)
        self.trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(self.trusting)
        self.porch.start()

    def _serve(self, channel: Channel, peer: Peer) -> None:
        self.served.append((channel, peer))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname()[:2], LIMIT_S)

    def hello(self, connection: socket.socket) -> None:
        """Shake hands, and send a message that must arrive."""
        before = len(self.served)
        with self.trusting.wrap_socket(connection, server_hostname="127.0.0.1") as secure:
            assert len(self.served) == before, "it has said nothing yet"
            client = Channel(secure, Limits())
            client.send(Message("hello", [VERSION, "t", 0], 1))
            until(lambda: len(self.served) > before, "a client")
            channel, peer = self.served[before]
            message = channel.receive(LIMIT_S)
            assert message is not None and message.arguments == [VERSION, "t", 0]
            assert not peer.local and peer.origin == "127.0.0.1"
            assert peer.hello_s is not None and 0 < peer.hello_s <= porch.HELLO_LIMIT_S
            channel.close()
            channel.release()

    @property
    def waiting(self) -> int:
        return len(self.porch._arrived)

    def close(self) -> None:
        self.porch.close()
        self.listener.close()
        for channel, _ in self.served:
            channel.release()


@pytest.fixture
def reception(tmp_path: Path) -> Iterator[Reception]:
    made = Reception(tmp_path)
    yield made
    made.close()


def closed(connection: socket.socket) -> bool:
    """Whether the other side ends the connection, perhaps after an alert."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(4096):
            pass
    return True


HALF = b"\x16\x03\x01\x02\x00\x01"


@pytest.mark.parametrize("sent", [b"", HALF, HALF[:3]], ids=["silent", "half", "less"])
def test_strangers_have_no_thread_and_lose_their_place(
    reception: Reception, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    guests: Crowd[Guest] = Crowd(8)
    monkeypatch.setattr(reception.porch, "_guests", guests)
    before = threading.active_count()
    with contextlib.ExitStack() as undo:
        strangers = [undo.enter_context(reception.connect()) for _ in range(24)]
        for each in strangers:
            with contextlib.suppress(OSError):  # it has lost its place already
                each.sendall(sent)
        assert all(map(closed, strangers[:16])), "the oldest make room"
        until(lambda: reception.waiting == 8, "8 strangers")
        assert threading.active_count() == before
        assert not any(isinstance(guest.connection, ssl.SSLSocket) for guest in guests._origins)
        reception.hello(reception.connect())
    until(lambda: reception.waiting == 0, "no stranger")


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", HALF[:5] + bytes(512)]
)
def test_what_is_no_handshake_ends_the_connection(reception: Reception, sent: bytes) -> None:
    with reception.connect() as stranger:
        stranger.sendall(sent)
        assert closed(stranger)
    reception.hello(reception.connect())


def shake(reception: Reception, send: Callable[[bytes], None], connection: socket.socket) -> None:
    """Shake hands, by sending what OpenSSL wants to."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    secure = reception.trusting.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            secure.do_handshake()
        except ssl.SSLWantReadError:
            send(outgoing.read())
            incoming.write(connection.recv(4096))
            continue
        send(outgoing.read())
        return


def test_a_handshake_byte_by_byte(reception: Reception) -> None:
    with reception.connect() as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send(data: bytes) -> None:
            for each in data:
                slow.sendall(bytes([each]))

        shake(reception, send, slow)
        (guest,) = reception.porch._arrived
        until(lambda: guest.shaken, "the handshake")
        assert not reception.served
        reception.hello(reception.connect())


def test_who_leaves_in_the_middle_is_forgotten(reception: Reception) -> None:
    for sent in (b"", HALF[:2], HALF, HALF + bytes(500)):
        with reception.connect() as stranger:
            stranger.sendall(sent)
    with reception.connect() as shaken:
        shake(reception, shaken.sendall, shaken)
    until(lambda: reception.waiting == 0, "no stranger")
    reception.hello(reception.connect())


def test_the_time_of_a_stranger_is_limited_as_a_whole(
    reception: Reception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(porch, "HELLO_LIMIT_S", 0.5)
    with reception.connect() as silent, reception.connect() as shaken:
        shake(reception, shaken.sendall, shaken)
        assert closed(silent) and closed(shaken)
    assert not reception.waiting


def test_closing_ends_what_waits(reception: Reception) -> None:
    with reception.connect() as silent:
        until(lambda: reception.waiting == 1, "a stranger")
        reception.porch.close()
        assert closed(silent)
    reception.porch.close()
