"""Connections from other machines, until one has shaken hands and begins its first message.

One thread serves all of them, so that those that stay silent, or send half of a TLS handshake, cost
a descriptor each: no thread, and no TLS state before the first record has arrived whole. The client
of a connection then gets a thread (tools.service.daemon.daemon.Daemon.serve).

Sources: RFC 8446, 5.1 (records) and 5.2 (their length); tcp(7), socket(7) (SO_RCVLOWAT).
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import logging
import selectors
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ugpu.hcq.errors import UgpuError
from ugpu.hcq.remote.channel import Channel
from ugpu.hcq.remote.wire import STRANGER
from ugpu.hcq.state import threads
from ugpu.tools.service.daemon.cards.forks import readable
from ugpu.tools.service.daemon.clients.client import HELLO_LIMIT_S
from ugpu.tools.service.daemon.clients.peers import Peer
from ugpu.tools.service.daemon.clients.places import STRANGERS, Crowd, share
from ugpu.tools.service.daemon.ports import PAUSE_S, Spare

log = logging.getLogger(__name__)

_HEAD = struct.Struct(">BHH")  # of a TLS record: its type, version and length
_HANDSHAKE = 22
_LONGEST = (1 << 14) + 256

Serve = Callable[[Channel, Peer], None]


@dataclass(eq=False)
class Guest:
    """One connection. end: when it loses its place. needed: bytes that it must have sent before
    it is looked at again."""

    connection: socket.socket
    peer: Peer
    end: float
    needed: int = 1
    shaken: bool = False

    def has_record(self) -> bool:
        """Return whether its first record has arrived. OSError if it sends no handshake."""
        there = array.array("i", [0])
        fcntl.ioctl(self.connection, termios.FIONREAD, there)
        if not there[0]:
            raise ConnectionResetError("it has left")
        if there[0] < self.needed:
            return True  # the end of the connection, which the handshake meets
        needed = _HEAD.size
        if there[0] >= needed:
            kind, _, length = _HEAD.unpack(self.connection.recv(needed, socket.MSG_PEEK))
            if kind != _HANDSHAKE or length > _LONGEST:
                raise ConnectionAbortedError("it sent no TLS handshake")
            needed += length
        whole = there[0] >= needed
        self.needed = 1 if whole else needed
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self.needed)
        return whole


class Porch:
    """Accepts from `listeners` in a thread from `start` until `close`. serve: takes a connection
    that has shaken hands, without waiting."""

    def __init__(
        self, listeners: Iterable[socket.socket], context: ssl.SSLContext, serve: Serve
    ) -> None:
        self._listeners = tuple(listeners)
        self._context = context
        self._serve = serve
        self._guests: Crowd[Guest] = Crowd(max(1, share(1, 2 * STRANGERS) // 2))
        self._arrived: dict[Guest, None] = {}  # the oldest first
        self._spare = Spare()
        self._selector = selectors.DefaultSelector()
        self._stopping, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="ugpud porch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        threads.start(self._thread)

    def close(self) -> None:
        """End the thread and the connections that it has. Idempotent."""
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if self._thread.ident is not None:
            self._thread.join()
        for guest in list(self._arrived):
            self._dismiss(guest)
        self._selector.close()
        self._spare.close()
        self._stopping.close()
        self._wake.close()

    def _run(self) -> None:
        self._selector.register(self._stopping, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        while True:
            pause = False
            for key, _ in self._selector.select(self._left()):
                if key.data is None:
                    return
                if isinstance(key.data, Guest):
                    self._look(key.data)
                else:
                    pause |= not self._accept(key.data)
            while self._left() == 0.0:
                self._dismiss(next(iter(self._arrived)))
            if pause and readable(self._stopping.fileno(), PAUSE_S):
                return

    def _left(self) -> float | None:
        """Return the seconds until the oldest guest loses its place; None if there is no guest."""
        for guest in self._arrived:
            return max(0.0, guest.end - time.monotonic())
        return None

    def _accept(self, listener: socket.socket) -> bool:
        """Accept one connection. Return False if the system has no descriptor for it."""
        try:
            connection, address = listener.accept()
        except OSError as error:
            return self._spare.refused(listener, error)
        self._spare.accepted()
        connection.setblocking(False)
        host, port = str(address[0]), address[1]
        peer = Peer(f"{host}:{port}", None, origin=host)
        guest = Guest(connection, peer, time.monotonic() + HELLO_LIMIT_S)
        self._arrived[guest] = None
        self._selector.register(connection, selectors.EVENT_READ, guest)
        loser = self._guests.enter(guest, host)
        if loser is not None:
            self._dismiss(loser)
        return True

    def _look(self, guest: Guest) -> None:
        """Go on with a guest that has sent something."""
        if guest not in self._arrived:
            return  # it has lost its place since
        try:
            if guest.shaken:
                self._introduce(guest)
            elif isinstance(guest.connection, ssl.SSLSocket):
                self._shake(guest, guest.connection)
            elif guest.has_record():
                self._selector.unregister(guest.connection)
                guest.connection = self._context.wrap_socket(
                    guest.connection, server_side=True, do_handshake_on_connect=False
                )
                self._selector.register(guest.connection, selectors.EVENT_READ, guest)
                self._shake(guest, guest.connection)
        except (UgpuError, OSError, ValueError) as error:  # ValueError: SSLSocket, of a reset
            log.debug("%s: %s", guest.peer.name, error)
            self._dismiss(guest)

    def _shake(self, guest: Guest, connection: ssl.SSLSocket) -> None:
        events = selectors.EVENT_READ
        try:
            connection.do_handshake()
            guest.shaken = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            events = selectors.EVENT_WRITE
        self._selector.modify(connection, events, guest)

    def _introduce(self, guest: Guest) -> None:
        """Pass a connection on. What is left of its time is that of its client's "hello"."""
        self._forget(guest)
        left_s = max(0.0, guest.end - time.monotonic())
        try:
            peer = replace(guest.peer, hello_s=left_s)
            self._serve(Channel(guest.connection, STRANGER), peer)
        except (UgpuError, OSError) as error:
            log.warning("a connection could not be served: %s", error)
            guest.connection.close()

    def _dismiss(self, guest: Guest) -> None:
        self._forget(guest)
        guest.connection.close()

    def _forget(self, guest: Guest) -> None:
        """Idempotent."""
        if guest in self._arrived:
            del self._arrived[guest]
            self._guests.leave(guest)
            with contextlib.suppress(KeyError, ValueError):  # between two registrations
                self._selector.unregister(guest.connection)
