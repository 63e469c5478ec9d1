"""One connection: identifies the client, requests leases, and runs the work of its lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ugpu.hcq.errors import AccessDenied, BadArgument, NotSupported, UgpuError
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.channel import Channel, Disconnected
from ugpu.hcq.remote.request import Grant, LeaseRequest
from ugpu.hcq.remote.session import Session
from ugpu.hcq.remote.wire import (
    IDLE,
    META,
    REQUESTS,
    STRANGER,
    VERSION,
    Bytes,
    Limits,
    Message,
    WireError,
    check,
)
from ugpu.hcq.state import threads
from ugpu.hcq.state.clock import Clock
from ugpu.tools.service.daemon.clients.leases import Lease, Waiter
from ugpu.tools.service.daemon.clients.peers import Peer
from ugpu.tools.service.daemon.clients.replies import lost, plain, reply_of
from ugpu.tools.service.daemon.clients.server import Server
from ugpu.tools.service.daemon.clients.service import Answers, Lent, Terms
from ugpu.tools.service.daemon.clients.tokens import Rights, digest_of

log = logging.getLogger(__name__)

# TIMEOUT: from connecting to the last byte of "hello", the TLS handshake included: a silent
# connection occupies a place. As long may one stay whose token is revoked.
HELLO_LIMIT_S = 10.0
# between two checks of the token of a client that sends nothing: with a lease, and without one
CHECK_S, CHECK_IDLE_S = 1.0, 5.0
# bytes of sent messages that are kept for a client, beyond two of the largest messages
KEPT = 16 << 20
ANSWER_S = 2.0  # TIMEOUT: for the reply to the request under way when a lease ends; our choice
# TIMEOUT: for a client's socket that the process of a card has; it is killed before
# (tools.service.daemon.cards.relay)
BACK_S = 120.0
# of processor time between two pauses of a client without a lease, and the longest one; our choice
PACE_S, MOST_PAUSE_S = 1e-3, 0.05
LOOK_S = 0.05  # between checks whether a process whose connection broke still exists


class Client:
    """The server side of one connection. It runs in a thread of its own, the only one that accesses
    the lease's objects. `Daemon.end_lease` comes from other threads."""

    def __init__(self, daemon: Server[Client], channel: Channel, peer: Peer) -> None:
        self.daemon = daemon
        self.session = Session(channel, most=2 * daemon.settings.message + KEPT)
        self.answers = Answers(self.session, daemon.outbox)
        self._limits = STRANGER
        self._digest = ""  # of the token, if the client has shown one
        self._leave_at: float | None = None  # when a client without rights is disconnected
        self.placed: Rights | None = (
            None  # those that have a place (tools.service.daemon.clients.places)
        )
        self.number = 0  # of the session
        self._resuming = threading.Condition()
        self._next: tuple[Channel, int, Message] | None = None  # a connection that resumes this one
        self._over = False
        self.peer = peer
        self.name = peer.name
        self.rights = peer.rights
        self.holder: Lent | None = None
        self.lease: Lease | None = None
        self._waiter: Waiter | None = None
        self._asked = 0  # the call that the granted lease answers
        self._paced_at = 0.0  # processor time of the thread at the last pause
        self._handling = threading.Lock()  # a request, which may end the client's own lease
        self._calls: dict[str, Callable[[list[Any], Bytes], object]] = {
            "devices": lambda given, data: self.daemon.devices(),
            "leases": lambda given, data: self.daemon.listed(),
            "extend": lambda given, data: self._extend(given[0], given[1]),
            "release": lambda given, data: self._release(given[0]),
            "recover": lambda given, data: self._recover(given[0]),
            "quarantine": lambda given, data: self._quarantine(given[0], given[1]),
            "telemetry": lambda given, data: self._telemetry(given[0]),
            "info": lambda given, data: failures.facts_of(self.daemon.device_of(self).info()),
            "sensors": lambda given, data: self.daemon.device_of(self).sensors(),
        }

    # ---- the connection ----------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the client disconnects, then clean up."""
        handed = False  # another Client takes over the connection
        try:
            if not self._greet():
                handed = True
                return
            while True:
                message = self._receive()
                check(message, REQUESTS)
                if message.operation == "bye":
                    break
                with self._handling:
                    if self._still_known(message.call):
                        self._take(message)
                self._pace()
                if self.session.owes:
                    self.session.send(Message("ack", []))
        except Disconnected as error:
            log.debug("%s: %s", self.name, error)
        except WireError as error:
            log.info("%s lost its connection: %s", self.name, error)
            self.notify("error", error)
            self.channel.farewell()
        except UgpuError as error:
            log.info("%s: %s", self.name, error)
        finally:
            if not handed:
                self.cut()
                self.channel.close()
                self.daemon.gone(self)
            else:
                self.daemon.left(self)

    @property
    def channel(self) -> Channel:
        """The current connection."""
        return self.session.channel

    def _receive(self) -> Message:
        """Return the next message, even if another connection replaces a broken one."""
        while True:
            try:
                message = self.session.receive(self._until_check())
            except Disconnected:
                if not self._resume():
                    raise
                continue
            if message is not None:
                return message
            self._still_known(0)

    def _pace(self) -> None:
        """Pause now and then: all connections of a user that have no lease take half of the time of
        the interpreter at most, and others the rest."""
        assert self.rights is not None
        if self.holder is not None or not self.rights.limited:
            return
        used_s = time.thread_time() - self._paced_at
        if used_s >= PACE_S:
            Clock().sleep(min(used_s * self.daemon.connections(self), MOST_PAUSE_S))
            self._paced_at = time.thread_time()

    def _allow(self, limits: Limits) -> None:
        # ORDER: `_resume` sets a new channel before it reads them, so that either sees the other.
        self._limits = limits
        self.channel.limits = limits

    def _until_check(self) -> float | None:
        if not self._digest:
            return None  # a user of this machine
        if self._leave_at is not None:
            return max(0.0, self._leave_at - time.monotonic())
        return CHECK_S if self.lease is not None or self._waiter is not None else CHECK_IDLE_S

    def _still_known(self, call: int) -> bool:
        """Return whether the client's token is still valid; its rights may have changed. Otherwise
        end what it holds and waits for, and reply to `call`; soon after disconnect it."""
        if not self._digest:
            return True
        try:
            self.rights = self.daemon.tokens.rights_of(self._digest, time.time())
            if self.lease is not None:
                self.rights.check("see", self.lease.card)  # the token's devices may have changed
            return True
        except AccessDenied as error:
            if self._leave_at is None:
                self._leave_at = time.monotonic() + HELLO_LIMIT_S
                log.info("%s: %s", self.name, error)
                self.daemon.dismiss(self, str(error))
            if time.monotonic() >= self._leave_at:
                raise
            if call:
                self._reply(call, error)
        except UgpuError as error:  # the file of tokens cannot be read
            if call:
                self._reply(call, error)
        return False

    def _resume(self) -> bool:
        """Wait for the client to reconnect; return whether it did."""
        if not self.session.keeps:
            return False
        end = time.monotonic() + self.daemon.settings.grace_s
        with self._resuming:
            while self._next is None and not self._over:
                wanted = self.lease is not None or self._waiter is not None
                left = end - time.monotonic()
                if left <= 0 or not wanted or not self.peer.lives:
                    break
                self._resuming.wait(min(left, LOOK_S))
            found, self._next = self._next, None
            if found is None or self._over:
                self._over = True
                self._next = found
                return False
        channel, acknowledged, reply = found
        self.session.replace(channel, acknowledged, reply)
        channel.limits = self._limits
        self.session.flush()
        log.info("%s is connected again", self.name)
        return True

    def adopt(self, channel: Channel, acknowledged: int, reply: Message) -> None:
        """Continue with another connection, whose first message is `reply`. Called from that
        connection's thread. DeviceLost if the session is over."""
        with self._resuming:
            if self._over:
                raise lost()
            former, self._next = self._next, (channel, acknowledged, reply)
            self._resuming.notify_all()
        self.channel.close()  # in case the break has not been noticed
        if former is not None:
            former[0].close()
            former[0].release()

    def cut(self) -> None:
        """End the session so that it cannot be resumed. Idempotent, from any thread."""
        with self._resuming:
            self._over = True
            late, self._next = self._next, None
            self._resuming.notify_all()
        if late is not None:
            late[0].close()
            late[0].release()

    def _greet(self) -> bool:
        """Receive "hello". The client's rights follow from its token, or from its identity. Return
        False if the connection resumes the session of an earlier one."""
        left_s = HELLO_LIMIT_S if self.peer.hello_s is None else self.peer.hello_s
        message = self.channel.receive(left_s)
        if message is None:
            raise WireError("expected a message after connecting", limit_s=HELLO_LIMIT_S)
        check(message, REQUESTS)
        if message.operation != "hello":
            raise WireError(f"expected hello, got {message.operation}")
        version, token, session = message.arguments
        try:
            if version != VERSION:
                raise BadArgument(
                    f"this ugpud uses protocol version {VERSION}, the client {version}"
                )
            if self.rights is None or token is not None:
                self.rights = self.daemon.rights(token)
                self._digest = digest_of(token or "")
                self.name = f"{self.rights.name} ({self.peer.name})"
            if session:
                found = self.daemon.session(session, self.rights)
                reply = Message("reply", [found.welcome()], message.call)
                found.adopt(self.channel, message.acknowledged, reply)
                return False
            self.daemon.known(self, self.rights)
        except UgpuError as error:
            self._reply(message.call, error)
            raise
        self._allow(IDLE)
        self.daemon.remember(self)
        self._reply(message.call, self.welcome())
        self.session.keeps = self.number != 0
        return True

    def welcome(self) -> dict[str, object]:
        """Return the reply to "hello"."""
        assert self.rights is not None
        return {
            "version": VERSION,
            "role": self.rights.role,
            "session": self.number,
            "grace_s": self.daemon.settings.grace_s,
        }

    def _take(self, message: Message) -> None:
        operation = message.operation
        try:
            if operation == "lease":
                self._ask(message.call, message.arguments[0])
                return
            handle = self._calls.get(operation)
            if handle is None:
                self._held().take(message)
                return
            result = handle(message.arguments, message.data)
        except UgpuError as error:
            self._failed(message, error)
            return
        except Exception:
            log.exception("%s: %s failed in the daemon", self.name, operation)
            self._failed(message, UgpuError(f"ugpud failed at {operation}; its log has the cause"))
            return
        if message.call:
            self._reply(message.call, result)

    def _failed(self, message: Message, error: UgpuError) -> None:
        if isinstance(error, Disconnected | WireError):
            raise error  # of the client's connection
        if message.call:
            self._reply(message.call, error)
        elif self.holder is not None:
            self.notify("failed", error)

    def _reply(self, call: int, found: object) -> None:
        self.session.send(reply_of(call, found))

    def notify(self, operation: str, *arguments: object) -> None:
        """Send an event without waiting. If the client is gone, the receiving thread notices it."""
        self.answers.notify(operation, *arguments)

    def part(self) -> None:
        """End the connection after the messages already sent, in a thread of its own."""
        try:
            threads.start(threading.Thread(target=self._part, name=f"{self.name} parts"))
        except UgpuError:
            self.channel.close()

    def _part(self) -> None:
        self.answers.stay()
        away = self.answers.away
        answered = self._handling.acquire(timeout=BACK_S if away else ANSWER_S)
        try:
            if away and not answered:
                raise Disconnected("the process of the card keeps the socket")
            self.session.flush()
            self.channel.farewell()
        except Disconnected:
            self.channel.close()
        finally:
            if answered:
                self._handling.release()

    def _answer(self, found: object) -> None:
        """Reply to the request for a lease, without waiting. In a thread of the daemon."""
        self.answers.post(reply_of(self._asked, found))

    # ---- leases ------------------------------------------------------------------------------

    def _ask(self, call: int, given: dict[str, Any]) -> None:
        if not call:
            raise WireError("a lease must be requested by a call")
        if self.lease is not None or self._waiter is not None:
            raise BadArgument(
                "this connection already has a lease; each lease requires its own connection"
            )
        try:
            request = LeaseRequest.from_map(given)
        except TypeError as error:
            raise BadArgument(f"a property of the lease has the wrong type: {error}") from None
        assert self.rights is not None
        if request.kind == "transport" and self.peer.rights is None:
            raise NotSupported(
                "a vfio-user socket cannot be handed out over TCP: connect to ugpud's UNIX socket, "
                "or lease queues"
            )
        self._asked = call
        waiter = self.daemon.ask(self, request, self.rights)
        if waiter is not None:
            self._waiter = waiter

    def granted(self, lease: Lease) -> None:
        """Set up a granted lease and reply. In a thread of its own."""
        self._waiter = None
        owned = self.daemon.owned_by(lease.card)
        try:
            target, hertz = owned.target()
            socket = firmware = ""
            if lease.request.kind == "transport":
                handout = self.daemon.hand_out(self, owned, lease)
                socket, firmware = str(handout.socket), str(handout.firmware)
            timelines: dict[str, list[int]] = {}
            if lease.request.kind in ("exclusive", "shared"):
                shared, most = lease.request.kind == "shared", self.daemon.settings.message
                direct = not self._digest and not self.channel.secure
                assert self.rights is not None
                who = self.rights.who
                terms = Terms(lease.number, shared, lease.memory, most, self.name, who, direct)
                holder = self.daemon.hold(self, owned, lease, terms)
                if holder is None:
                    return  # the client has disconnected meanwhile
                timelines = holder.timelines()
            cache = self.daemon.settings.cache
            grant = Grant(
                lease.number,
                lease.card.name,
                lease.request.kind,
                target,
                hertz,
                timelines,
                lease.memory,
                lease.ends - self.daemon.now(),
                socket,
                firmware,
                str(cache.kernels) if cache is not None and self.peer.local else "",
            )
            if timelines:
                assert self.rights is not None
                told = self.daemon.unfinished.of(self, self.rights)
                self._allow(Limits(META, self.daemon.settings.message, told))
            self._answer(plain(grant.to_map()))
        except UgpuError as error:
            self.refused(error)
            self.daemon.end(self, str(error))

    def refused(self, error: UgpuError) -> None:
        """Reply with the error of a request that was not granted."""
        self._waiter = None
        self._answer(error)

    def position(self, place: int) -> None:
        """Report a waiter's place in the queue to the client."""
        self.notify("position", place)

    def leave(self) -> Waiter | None:
        """Detach and return this client's waiter in the table, if any."""
        waiter, self._waiter = self._waiter, None
        return waiter

    def _extend(self, number: int | None, limit_s: float) -> float:
        assert self.rights is not None
        return self.daemon.extend(self, number, limit_s, self.rights)

    def _release(self, number: int | None) -> None:
        assert self.rights is not None
        self.daemon.release(self, number, self.rights)
        if self.lease is None:
            self._allow(IDLE)

    def _recover(self, pattern: str) -> list[str]:
        assert self.rights is not None
        return self.daemon.recover(pattern, self.rights)

    def _quarantine(self, pattern: str, reason: str) -> list[str]:
        assert self.rights is not None
        return self.daemon.quarantine(pattern, reason, self.rights)

    def _telemetry(self, name: str) -> bytes:
        assert self.rights is not None
        return self.daemon.telemetry(name, self.rights)

    def _held(self) -> Lent:
        if self.holder is None:
            raise BadArgument("this connection has no lease with queues")
        return self.holder

    def __repr__(self) -> str:
        return f"<Client {self.name}>"
