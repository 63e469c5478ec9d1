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

from ugpu.hcq.errors import DeviceLost
from ugpu.hcq.remote.wire import Buffered, Limits, Message, WireError, encode

Result = TypeVar("Result")

# TIMEOUT: a peer that accepts nothing for this long is gone; as for vfio-user (docs/vfio-user.md)
SEND_LIMIT_S = 10.0
# TIMEOUT: from the first byte of a message to its last, 64 MiB at 0.5 MiB/s; our choice
MESSAGE_LIMIT_S = 120.0
SLICE_S = 0.5  # of a wait: the connection may have been replaced by then
_JOINED = 1 << 16  # bytes of data that are sent with the rest in one call


class Disconnected(DeviceLost):
    """The connection to ugpud, or to a client of it, has ended."""


def _watched(connection: socket.socket) -> None:
    """Have the system detect a peer that is gone without closing: tcp(7)."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 5),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 20_000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


class Frame:
    """One message being sent on a connection, and how much of it is sent.

    counts: bytes that each call sent.
    """

    def __init__(self, message: Message, sequence: int = 0, acknowledged: int = 0) -> None:
        self.message = message
        self.sequence = sequence
        head, data = encode(message, sequence, acknowledged)
        body = memoryview(data).cast("B")
        if len(body) <= _JOINED:
            self._pieces = [memoryview(head + body if len(body) else head)]
        else:
            self._pieces = [memoryview(head), body]
        self.counts: list[int] = []

    @property
    def rest(self) -> memoryview:
        """Return the bytes that are not sent yet; empty once all are sent."""
        done = sum(self.counts)
        for piece in self._pieces:
            if done < len(piece):
                return piece[done:]
            done -= len(piece)
        return memoryview(b"")


class Channel:
    """Sends from any thread; receives in one. Owns the socket.

    An OpenSSL connection is used by one thread at a time: the socket is non-blocking, calls are
    made under a lock, and waiting is done outside it.

    Attributes:
        secure: whether it is an OpenSSL connection.
        beside: a descriptor that `receive` does not wait beyond, once it is readable; -1: none.
    """

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._socket = connection
        connection.setblocking(False)
        if connection.family != socket.AF_UNIX:
            _watched(connection)
        self.secure = isinstance(connection, ssl.SSLSocket)
        self._guard = threading.Lock() if self.secure else contextlib.nullcontext()
        self._sending = threading.Lock()
        self._incoming = Buffered(limits)
        self._began: float | None = None  # when the first byte of the present message arrived
        self.received = 0  # bytes, of all messages
        self.sent = 0  # messages
        self.closed = False
        self.beside = -1
        self._unread = memoryview(b"")  # received before the socket's bytes; see `unread`

    @property
    def limits(self) -> Limits:
        """The size limits of the peer's messages; can be set."""
        return self._incoming.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._incoming.limits = limits

    # ---- sending -----------------------------------------------------------------------------

    def send(
        self, message: Message, limit_s: float = SEND_LIMIT_S, *, acknowledged: int = 0
    ) -> None:
        """Send one message that is not numbered, before a session does; Disconnected if the peer is
        gone or accepts nothing for `limit_s`."""
        frame = Frame(message, 0, acknowledged)
        with self._sending:
            while events := self.push(frame):
                self.wait(events, limit_s)

    def push(self, frame: Frame) -> int:
        """Send as much of a frame as possible without waiting. Return 0 once all of it is sent,
        else the events to `wait` for before the next call, which must be for the same frame. Frames
        are pushed by one thread at a time. Disconnected if the peer is gone.

        Except on an OpenSSL connection, `frame` stays consistent whatever exception occurs (such as
        Ctrl-C).
        """
        while rest := frame.rest:
            try:
                if self.secure:
                    with self._guard:
                        frame.counts.append(self._socket.send(rest))
                else:
                    # ORDER: one step of the interpreter, in which no asynchronous exception can
                    # come between sending the bytes and counting them.
                    frame.counts.extend(map(self._socket.send, (rest,)))
            except ssl.SSLWantReadError:
                return select.POLLIN
            except (ssl.SSLWantWriteError, BlockingIOError):
                return select.POLLOUT
            except (OSError, ValueError) as error:  # ValueError: of a socket that was closed
                raise Disconnected(f"the connection broke: {error}") from None
        self.sent += 1
        return 0

    def wait(self, events: int, limit_s: float = SEND_LIMIT_S) -> None:
        """Block until the socket is ready for `push`. Disconnected if it is not ready within
        `limit_s`, or is closed."""
        end = time.monotonic() + limit_s
        while not self._poll(events, min(SLICE_S, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end:
                self.close()
                raise Disconnected("the other side takes no messages", limit_s=limit_s)

    # ---- receiving ---------------------------------------------------------------------------

    def receive(self, limit_s: float | None = None) -> Message | None:
        """Return the next message, None if it has not arrived whole within `limit_s`, or before
        `beside` is readable; the next call continues with what has arrived. WireError for bytes
        that are not a message, or a message that takes longer than MESSAGE_LIMIT_S; Disconnected at
        the end."""
        end = None if limit_s is None else time.monotonic() + limit_s
        message = self._incoming.more()
        while message is None:
            space = self._incoming.space()
            if self._unread:
                count: int | None = min(len(space), len(self._unread))
                space[:count] = self._unread[:count]
                self._unread = self._unread[count:]
            else:
                left = self._left(end)
                count = self._attempt(partial(self._socket.recv_into, space), left)
            if count is None:
                if self._began is not None and self._left(None) == 0:
                    raise WireError("a message did not arrive in time", limit_s=MESSAGE_LIMIT_S)
                return None
            if not count:
                raise Disconnected("the connection was closed by the other side")
            if self._began is None:
                self._began = time.monotonic()
            self.received += count
            message = self._incoming.took(count)
        self._began = time.monotonic() if self._incoming.partial else None
        return message

    @property
    def partial(self) -> bool:
        """Whether bytes have been received that `receive` has not returned as a message yet."""
        return self._incoming.partial or bool(self._unread)

    def unread(self) -> bytes:
        """Return bytes that have been received but not returned as messages, and forget them: for
        `restore` in another process that has the socket too. The thread that receives calls it."""
        unread = self._incoming.unread() + self._unread
        self._unread, self._began = memoryview(b""), None
        return unread

    def restore(self, unread: bytes) -> None:
        """Continue after these bytes; see `unread`."""
        self._unread = memoryview(unread)

    def _left(self, end: float | None) -> float | None:
        """Return the seconds until `end` or until the present message is late; None: no limit."""
        late = None if self._began is None else self._began + MESSAGE_LIMIT_S
        ends = [limit for limit in (end, late) if limit is not None]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def fileno(self) -> int:
        """Return the descriptor, for poll(2); -1 once it is released."""
        return self._socket.fileno()

    def _attempt(self, call: Callable[[], Result], limit_s: float | None) -> Result | None:
        """Make a call that may have to wait; None if it takes longer than `limit_s`."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while True:
            events = select.POLLIN
            try:
                with self._guard:
                    return call()
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            except (ssl.SSLWantReadError, BlockingIOError):
                pass
            except (OSError, ValueError) as error:  # ValueError: of a socket that was closed
                raise Disconnected(f"the connection broke: {error}") from None
            left = None if end is None else max(0.0, end - time.monotonic())
            if left == 0.0 and not self.closed:
                return None
            if self.beside in self._poll(events, left, self.beside):
                return None

    def _poll(self, events: int, limit_s: float | None, beside: int = -1) -> list[int]:
        """Wait; return the descriptors that are ready."""
        if self.closed:
            raise Disconnected("the connection is closed")
        poll = select.poll()
        try:
            poll.register(self._socket, events)
        except (OSError, ValueError) as error:
            raise Disconnected(f"the connection broke: {error}") from None
        if beside >= 0:
            poll.register(beside, select.POLLIN)
        ready = poll.poll(None if limit_s is None else limit_s * 1000)
        return [descriptor for descriptor, _ in ready]

    # ---- the end -----------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection; a thread in `receive` gets Disconnected. Idempotent."""
        self.closed = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def farewell(self, limit_s: float = 1.0) -> None:
        """End the connection after the messages already sent. The peer may still be sending; an
        immediate end would lose our last messages together with its own. Blocks for up to
        `limit_s`."""
        end, room = time.monotonic() + limit_s, bytearray(1 << 16)
        with contextlib.suppress(OSError, Disconnected):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            while (left := end - time.monotonic()) > 0:
                if not self._attempt(partial(socket.socket.recv_into, self._socket, room), left):
                    break
        self.close()

    def release(self) -> None:
        """Close the descriptor, once no thread uses it any more; idempotent."""
        self.closed = True
        self._socket.close()
