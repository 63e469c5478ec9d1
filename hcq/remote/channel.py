"""One connection's socket: whole messages, from several threads, with limits on waiting."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hcq.errors import DeviceLost
from hcq.remote.wire import Buffered, Bytes, Limits, Message, encode

Result = TypeVar("Result")

# TIMEOUT: a peer that takes nothing for so long is gone; as long as vfio-user's (docs/vfio-user.md)
SEND_LIMIT_S = 10.0


class Disconnected(DeviceLost):
    """The connection to ugpud, or to a client of it, has ended."""


def _watched(made: socket.socket) -> None:
    """Have the system notice a peer that is gone without a word: tcp(7)."""
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 5),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 20_000),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)


class Channel:
    """Sends from any thread; receives in one. Owns the socket.

    An OpenSSL connection is used by one thread at a time: the socket does not block, calls are made
    under a lock, and waiting is done outside of it.
    """

    def __init__(self, made: socket.socket, limits: Limits) -> None:
        self._socket = made
        made.setblocking(False)
        if made.family != socket.AF_UNIX:
            _watched(made)
        secure = isinstance(made, ssl.SSLSocket)
        self._guard = threading.Lock() if secure else contextlib.nullcontext()
        self._sending = threading.Lock()
        self._incoming = Buffered(limits)
        self.received = 0  # bytes, of all messages
        self.sent = 0  # messages
        self.closed = False

    @property
    def limits(self) -> Limits:
        """What a message of the peer may hold; can be set."""
        return self._incoming.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._incoming.limits = limits

    def fileno(self) -> int:
        """The descriptor, for those who wait for it to be readable."""
        return self._socket.fileno()

    def send(
        self,
        message: Message,
        limit_s: float = SEND_LIMIT_S,
        *,
        sequence: int = 0,
        acknowledged: int = 0,
    ) -> None:
        """Send one message; Disconnected where the peer is gone or takes nothing for `limit_s`."""
        head, data = encode(message, sequence, acknowledged)
        with self._sending:
            self.sent += 1
            self._send(head, limit_s)
            if len(data):
                self._send(data, limit_s)

    def receive(self, limit_s: float | None = None) -> Message | None:
        """Return the next message, None where there is none within `limit_s`. WireError for bytes
        that are not one, Disconnected at the end."""
        while True:
            space = self._incoming.space()
            count = self._attempt(partial(self._socket.recv_into, space), limit_s, select.POLLIN)
            if count is None:
                return None
            if not count:
                raise Disconnected("the connection was closed by the other side")
            self.received += count
            message = self._incoming.took(count)
            if message is not None:
                return message

    def close(self) -> None:
        """End the connection; a thread in `receive` gets Disconnected. Idempotent."""
        self.closed = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def farewell(self, limit_s: float = 1.0) -> None:
        """End the connection after what was sent: the peer may still be sending, and would lose it
        with its own messages. Blocks for up to `limit_s`."""
        end, room = time.monotonic() + limit_s, bytearray(1 << 16)
        with contextlib.suppress(OSError, Disconnected):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                if not self._attempt(
                    partial(socket.socket.recv_into, self._socket, room), left, select.POLLIN
                ):
                    break
        self.close()

    def release(self) -> None:
        """Close the descriptor, when no thread uses it any more; idempotent."""
        self.closed = True
        self._socket.close()

    def _send(self, data: Bytes, limit_s: float) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            count = self._attempt(partial(self._socket.send, rest), limit_s, select.POLLOUT)
            if count is None:
                self.close()
                raise Disconnected("the other side takes no messages", limit_s=limit_s)
            rest = rest[count:]

    def _attempt(
        self, call: Callable[[], Result], limit_s: float | None, usual: int
    ) -> Result | None:
        """Make a call that may have to wait; None where that takes longer than `limit_s`."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while True:
            events = usual
            try:
                with self._guard:
                    return call()
            except ssl.SSLWantReadError:
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            except BlockingIOError:
                pass
            except (OSError, ValueError) as error:  # ValueError: of a socket that was closed
                raise Disconnected(f"the connection broke: {error}") from None
            left = None if end is None else max(0.0, end - time.monotonic())
            if left == 0.0 or self.closed:
                if self.closed:
                    raise Disconnected("the connection is closed")
                return None
            poll = select.poll()
            try:
                poll.register(self._socket, events)
            except (OSError, ValueError) as error:
                raise Disconnected(f"the connection broke: {error}") from None
            poll.poll(None if left is None else left * 1000)
