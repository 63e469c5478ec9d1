"""A client's connection to ugpud: calls that wait for their reply, and messages that do not."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from ugpu.hcq.errors import (
    DeviceHang,
    DeviceLost,
    DeviceNotFound,
    LinkError,
    TransportError,
    UgpuError,
)
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.address import Address, connect
from ugpu.hcq.remote.channel import Channel, Disconnected
from ugpu.hcq.remote.session import Session
from ugpu.hcq.remote.wire import (
    EVENTS,
    VERSION,
    Bytes,
    Limits,
    Message,
    WireError,
    check,
    is_number,
)
from ugpu.hcq.state import life, threads
from ugpu.hcq.state.text import lines

# TIMEOUT: how long the server may take for one call, in addition to the call's own wait: loading a
# program on a virtual device translates it
CALL_LIMIT_S = 120.0
AHEAD = 64  # unsent messages, beyond which callers that send more must wait
# TIMEOUT: of a reconnection's "hello", and the pauses between attempts; our choice
HELLO_LIMIT_S = 10.0
PAUSE_S = 0.05
BYE_S = 1.0  # TIMEOUT: for sending the remaining messages in `close`


class NoReply(DeviceHang):
    """A call got no reply in time."""


class Owned:
    """An object that the server holds for this client, by number: memory, a program. If the last
    reference is dropped, or a call is interrupted before there is a reference, it is given back to
    the server.

    Attributes:
        undo: the operation that gives it back; it may be sent twice.
        size: bytes, for statistics.
        number: set by the connection's thread when the reply arrives.
    """

    number: int | None = None  # class attribute, for an object whose construction is interrupted
    freed = False
    size = 0

    def __init__(self, connection: Connection, undo: str) -> None:
        self._connection = connection
        self._undo = undo

    def give_back(self) -> None:
        """Give it back to the server, unless that was done; idempotent."""
        if self.number is not None and not self.freed:
            with contextlib.suppress(LinkError):
                self._connection.post(self._undo, self.number)
            self.freed = True

    def __del__(self) -> None:
        self.give_back()


class _Call:
    """A call that waits for its reply, which sets the number of `owner`."""

    def __init__(self, owner: Owned | None) -> None:
        self.done = threading.Event()
        self.reply: Message | None = None
        self.owner = None if owner is None else weakref.ref(owner)


class Connection:
    """Thread-safe. One thread receives; events of the lease go to `on_event`, in that thread.

    Callers send their messages themselves, as far as possible without waiting. If an exception
    occurs at any point of this (such as Ctrl-C), the next caller sends the rest, or a thread for
    unsent messages does. On an OpenSSL connection that thread sends everything (see Channel.push).

    If the daemon grants a lease a grace period, a broken connection is made again and continues
    with the messages in flight (hcq.remote.session).

    Attributes:
        failure: why the connection ended, None while it is open.
        explain: replaces the reason by a better one, in the connection's thread.
        calls: round trips so far.
        resumed: how many times it was made again.
    """

    def __init__(self, address: Address, token: str | None = None) -> None:
        self.name = str(address)
        self.address = address
        self.failure: UgpuError | None = None
        self.calls = 0
        self.posts = 0
        self.on_event: Callable[[Message | UgpuError], None] = lambda event: None
        self.explain: Callable[[UgpuError], UgpuError] = lambda error: error
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Call] = {}
        self._lock = threading.Lock()
        self.resumed = 0
        self._token = token
        self._closing = threading.Event()
        self._session = Session(Channel(connect(address), Limits()), waits=True)
        self._left = threading.Event()  # there are messages for the sending thread
        self._room = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"ugpud {address}", daemon=True)
            for target in (self._receive, self._send)
        ]
        try:
            for thread in self._threads:
                threads.start(thread)
            life.part_opened(self)
            life.inherits(self)
            self.server = self.call("hello", VERSION, token, 0).arguments[0]
            self._number, self._grace_s = _resumption(self.server)
            self._session.keeps = self._grace_s > 0
        except BaseException:
            self.close()
            raise

    def call(
        self,
        operation: str,
        *arguments: object,
        data: Bytes = b"",
        limit_s: float = CALL_LIMIT_S,
        owner: Owned | None = None,
    ) -> Message:
        """Send a request and return its reply, within `limit_s`; raises the error in the server's
        reply, or Disconnected. owner: gets the number at the start of the reply."""
        return self.finish(self.begin(operation, *arguments, data=data, owner=owner), limit_s)

    def begin(
        self, operation: str, *arguments: object, data: Bytes = b"", owner: Owned | None = None
    ) -> int:
        """Send a request whose reply `finish` returns, so that several can be in flight at a
        time."""
        number, waiting = next(self._numbers) & 0xFFFF_FFFF, _Call(owner)
        with self._lock:
            self._check()
            self._waiting[number] = waiting
            self.calls += 1
        try:
            self._put(Message(operation, list(arguments), number, data))
        except BaseException:
            self._waiting.pop(number, None)
            raise
        return number

    def finish(self, number: int, limit_s: float = CALL_LIMIT_S) -> Message:
        """Return the reply to the request of `begin`."""
        waiting = self._waiting[number]  # the receiving thread looks it up
        if not waiting.done.wait(limit_s):
            raise NoReply(f"{self.name} did not reply within {limit_s} s", limit_s=limit_s)
        self._waiting.pop(number, None)
        reply = waiting.reply
        if reply is None:
            assert self.failure is not None
            raise _again(self.failure)
        if reply.operation == "error":
            raise failures.from_wire(*reply.arguments)
        return reply

    def post(self, operation: str, *arguments: object, data: Bytes = b"") -> None:
        """Send a message without a reply; a failure at the server arrives as the event "failed".
        `data` must not change afterwards."""
        self._check()
        self.posts += 1
        self._put(Message(operation, list(arguments), 0, data))

    def close(self) -> None:
        """End the connection, and with it the lease; idempotent."""
        receiver, sender = self._threads
        if self.failure is None and not self._closing.is_set() and self._session.keeps:
            self._session.queue(Message("bye", []))
        self._closing.set()
        self._left.set()
        if sender.ident is not None and self.failure is None:
            sender.join(BYE_S)
        self._session.channel.close()
        for thread in (receiver, sender):
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join()
        self._session.channel.release()
        life.part_closed(self)
        life.inherits_no_more(self)

    def abandon(self) -> None:
        """See hcq.state.life: the connection belongs to the parent."""
        self.failure = Disconnected(f"{self.name} is the parent process's connection")
        self._session.channel.release()
        self._lock = threading.Lock()

    def _check(self) -> None:
        if self.failure is not None:
            raise _again(self.failure)

    def flush(self) -> None:
        """Send messages whose sending was interrupted by an exception."""
        if self._session.unsent:
            self._left.set()

    def _put(self, message: Message) -> None:
        session = self._session
        while session.unsent > AHEAD and self.failure is None:
            self._room.clear()
            self._left.set()
            if session.unsent > AHEAD:
                self._room.wait(1.0)
        self._tell(message)

    def _tell(self, message: Message) -> None:
        """Send as much as possible without waiting, and leave the rest to the sending thread."""
        session = self._session
        if session.channel.secure:
            session.queue(message)
            self._left.set()
            return
        try:
            if session.post(message):
                self._left.set()
        except Disconnected:
            session.channel.close()  # the receiving thread reports it
        except BaseException:
            self._left.set()
            raise

    def _send(self) -> None:
        session = self._session
        while True:
            self._left.wait()
            self._left.clear()
            ends = self._closing.is_set()
            try:
                while (events := session.push()) and self.failure is None:
                    session.await_peer(events)
                    if session.unsent <= AHEAD // 2:
                        self._room.set()
            except Disconnected:
                session.channel.close()  # the receiving thread reports it
            self._room.set()
            if ends:
                return

    def _receive(self) -> None:
        why: UgpuError | None = None  # the connection is about to end
        try:
            while True:
                try:
                    message = self._session.receive()
                except Disconnected:
                    if why is not None or not self._resume():
                        raise
                    continue
                assert message is not None
                if self._session.owes and not self._session.unsent:
                    self._tell(Message("ack", []))
                check(message, EVENTS)
                if why is not None and message.operation in ("error", "failed"):
                    continue  # of work that the end stopped: its callers are told of the end
                if message.operation == "ended":
                    reason = lines(message.arguments[0])
                    why = DeviceLost(f"the lease of {self.name} is over: {reason}")
                elif message.operation == "error" and not message.call:
                    why = failures.from_wire(*message.arguments)
                if not message.call:
                    self.on_event(message)
                    continue
                waiting = self._waiting.get(message.call)
                if waiting is not None:
                    if waiting.owner is not None and message.operation == "reply":
                        self._give(waiting.owner(), message)
                    waiting.reply = message
                    waiting.done.set()
        except UgpuError as error:
            if why is not None or isinstance(error, Disconnected):
                text = f"the connection to ugpud at {self.name} ended; its lease is lost"
                self._end(why or Disconnected(text))
            else:
                self._end(error)

    def _resume(self) -> bool:
        """Connect again, for as long as the daemon keeps the lease; return whether that worked.
        Raises the daemon's refusal."""
        if not self._session.keeps or self._closing.is_set():
            return False
        self._session.channel.close()
        end, pause_s = time.monotonic() + self._grace_s, 0.0
        while time.monotonic() < end and not self._closing.wait(pause_s):
            pause_s = PAUSE_S
            channel: Channel | None = None
            try:
                channel = Channel(connect(self.address), Limits())
                hello = Message("hello", [VERSION, self._token, self._number], 1)
                channel.send(hello, acknowledged=self._session.received)
                reply = channel.receive(HELLO_LIMIT_S)
                if reply is None or reply.operation != "reply":
                    raise _refusal(reply)
                self._session.replace(channel, reply.acknowledged)
            except BaseException as error:
                if channel is not None:
                    channel.release()
                if isinstance(error, DeviceNotFound) and self.address.path:
                    return False  # nothing listens on this machine: the daemon is gone
                later = isinstance(error, DeviceNotFound | Disconnected | TransportError)
                if not later or isinstance(error, WireError):
                    raise
                continue
            self.resumed += 1
            if self._closing.is_set():
                channel.close()
            self._left.set()
            return True
        return False

    def _give(self, owner: Owned | None, message: Message) -> None:
        """Set an owner's number; if the owner is gone meanwhile, give the object back."""
        numbers = message.arguments[0]
        if not isinstance(numbers, list) or not numbers or not is_number(numbers[0]):
            raise WireError("the daemon replied without a call number")
        if owner is None:
            owner = Owned(self, "unload" if len(numbers) > 2 else "free")
        owner.number = numbers[0]

    def _end(self, error: UgpuError) -> None:
        error = self.explain(error)
        with self._lock:
            self.failure = error
            waiting: Sequence[_Call] = list(self._waiting.values())
        self._session.channel.close()
        self._room.set()
        self._left.set()
        for call in waiting:
            call.done.set()
        with contextlib.suppress(UgpuError):
            self.on_event(error)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection {self.name}, {self.calls} calls>"


def _resumption(server: object) -> tuple[int, float]:
    """Return the session's number and the seconds of grace in a reply to "hello"; 0: none."""
    session = server if isinstance(server, dict) else {}
    number, grace_s = session.get("session", 0), session.get("grace_s", 0.0)
    if not is_number(number) or not isinstance(grace_s, int | float):
        raise WireError("the daemon sent a session id that is not a number")
    return number, float(grace_s) if number else 0.0


def _refusal(reply: Message | None) -> UgpuError:
    """Return the error that prevents a connection from being resumed."""
    if reply is None:
        return Disconnected("no reply to hello")
    check(reply, EVENTS)
    if reply.operation == "error":
        return failures.from_wire(*reply.arguments)
    return WireError(f"expected a reply to hello, got {reply.operation}")


def _again(error: UgpuError) -> UgpuError:
    """Return a new copy of an error for each thread that raises it."""
    return type(error)(error.message, **error.facts)
