"""The process of one card: it has the card's device with its driver, and serves its leases.

ugpud decides; the process carries out. Connections to it are passed through the door, a socket of
whole messages that the process has from its start:

    ["control"]          ugpud's calls (OPERATIONS), each carried out in a thread
    ["lease", number]    one lease: "hold", then what ugpud has received from its client
    ["client", number]   the socket of the lease's client

The other way, the door carries records of the log. The process ends when the door is closed. It
opens files and starts processes (code that is kept on disk, assemblers), so it is not confined as
those of `cpu` are: kernels on virtual GPUs have no addresses of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import resource
import select
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ugpu.hcq.errors import BadArgument, HostError, UgpuError
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.channel import Channel, Disconnected
from ugpu.hcq.remote.request import Grant
from ugpu.hcq.remote.session import Session
from ugpu.hcq.remote.wire import META, REQUESTS, VERSION, Bytes, Limits, Message, WireError, check
from ugpu.hcq.state import threads
from ugpu.hcq.state.config import take_over
from ugpu.hcq.state.ladder import Level
from ugpu.nv.code.assemble import assemble_apart
from ugpu.tools.base.events import event_of
from ugpu.tools.service.daemon.cards.confinement import exhausted
from ugpu.tools.service.daemon.cards.confinement.sandbox import be_first_victim
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.clients.places import Unfinished
from ugpu.tools.service.daemon.clients.replies import plain, reply_of
from ugpu.tools.service.daemon.clients.service import Answers, Service, Terms, is_exhausted
from ugpu.tools.service.daemon.clients.tokens import Rights
from ugpu.tools.service.daemon.config import DeviceSettings
from ugpu.tools.service.daemon.outlets.outbox import Outbox

log = logging.getLogger(__name__)

SWITCH_S = 1e-3  # as in ugpud
_THREADS = 8
_WORD = 256  # bytes of a message through the door, to the process
RECORD = 32 << 10  # bytes of a record of the log
_TEXT = 8 << 10  # characters of its text
# TIMEOUT: for a request under way when its lease ends, in addition to the work's own limit; then
# the device is reset, and the request gets as long again
REQUEST_S = 30.0
_CLOSE_S = 5.0  # TIMEOUT: for removing sockets and folders when ugpud is gone

#: ugpud's calls. Each reply is a pair: the result, and the card's state (`_state`).
OPERATIONS: Mapping[str, Sequence[str]] = {
    "hello": ("number", "text?", "number"),  # as on other connections
    "ping": (),
    "boot": ("number",),  # bytes for the process itself, see `host_memory` -> target
    "check": ("number",),  # 1: reset first
    "works": (),
    "rest": (),
    "wake": (),
    "reset": ("number?",),  # level -> level
    "harsher": ("number",),  # level -> levels
    "prove": (),
    "hand_out": ("text", "text", "number"),  # parent, name, user -> socket, firmware
    "take_back": (),
    "interrupt": ("number", "text"),  # lease, reason
    "end": ("number", "real"),  # lease, seconds for its work -> why its data may be left
    "info": (),
    "sensors": (),
    "firmware_states": (),  # -> data: JSON
    "telemetry": (),  # -> data: JSON
}
#: the first message of a lease's connection: shared, memory, most bytes of a message, holder, and
#: whose limits it counts for
HOLD: Mapping[str, Sequence[str]] = {"hold": ("number", "number", "number", "text", "text")}
#: the others. yours: the client's socket has come through the door; data: its session's state.
#: recall: it is wanted back, by "back" with the state.
ORDERS: Mapping[str, Sequence[str]] = {**REQUESTS, "yours": (), "recall": ()}


def serve(door: socket.socket, facts: dict[str, Any]) -> None:
    """Serve until ugpud closes the door. facts: see `CardProcess`."""
    take_over(facts["environment"])
    ours = logging.getLogger("ugpu")
    ours.handlers[:] = [DoorLog(door)]
    ours.setLevel(min(facts["level"], logging.INFO))  # ugpud drops what it does not want
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    be_first_victim()
    assemble_apart()
    sys.setswitchinterval(SWITCH_S)
    threading.excepthook = _thread_failed
    settings = DeviceSettings(
        facts["device"], label=facts["label"], memory=facts["memory"], options=facts["options"],
        shares=facts["shares"], apart=False, power_limit_w=facts["power_limit_w"],
    )  # fmt: skip
    try:
        exhausted.arm()
    except HostError as error:  # ugpud then reports the signal alone
        log.info("%s: %s", facts["card"], error)
    try:
        Host(Owned(settings, facts["card"]), door, facts["messages"]).run()
    except Exception as error:
        if is_exhausted(error):
            exhausted.end()
        raise


def state_bytes(message: int) -> int:
    """Return the most bytes of a session's state (hcq.remote.session). message: of one message."""
    return 4 * message + (64 << 20)  # kept frames, unread bytes; see KEPT in clients.client


class DoorLog(logging.Handler):
    """Sends records to ugpud, without waiting: those that find no room are counted. After an error
    of a part that had no memory left, the process ends: the part does not work any more."""

    def __init__(self, door: socket.socket) -> None:
        super().__init__()
        self._door = door
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        event = event_of(record)
        text = self.format(record)[:_TEXT]
        if self._lost:
            text += f" ({self._lost} records before this one are lost)"
        told = event and [event.kind.name, event.text[:_TEXT], event.remedy, event.fields]
        sent = json.dumps([record.name, record.levelno, text, told]).encode()
        if len(sent) > RECORD:
            sent = json.dumps([record.name, record.levelno, text[:1000], None]).encode()
        try:
            self._door.send(sent, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            self._lost = 0
        except OSError:
            self._lost += 1
        error = record.exc_info[1] if record.exc_info else None
        if record.levelno < logging.ERROR or error is None:
            return
        if isinstance(error, MemoryError) or is_exhausted(error):
            exhausted.end()


class Host:
    """A card, its leases and its connections to ugpud."""

    def __init__(self, owned: Owned, door: socket.socket, messages: int) -> None:
        self._unfinished: Unfinished[_Lease] = Unfinished(messages, _Lease.crowd_out)
        self._owned = owned
        self._door = door
        self._outbox = Outbox()
        self._pool = ThreadPoolExecutor(_THREADS, "card")
        self._leases: dict[int, _Lease] = {}
        owned.exhausted = exhausted.end
        self._calls: dict[str, Callable[..., object]] = {
            "boot": self._boot,
            "check": lambda repair: owned.check(bool(repair)),
            "works": owned.works,
            "rest": owned.rest,
            "wake": owned.wake,
            "reset": lambda level: int(owned.reset(None if level is None else _level(level))),
            "harsher": lambda than: [int(level) for level in owned.harsher(_level(than))],
            "prove": owned.prove,
            "hand_out": self._hand_out,
            "take_back": owned.take_back,
            "interrupt": self._interrupt,
            "end": self._end,
            "info": lambda: failures.facts_of(owned.info()),
            "sensors": owned.sensors,
            "firmware_states": lambda: json.dumps(owned.firmware_states()).encode(),
            "telemetry": owned.telemetry,
        }

    def run(self) -> None:
        """Take connections until the door is closed."""
        self._outbox.start()
        while True:
            text, descriptors, _, _ = socket.recv_fds(self._door, _WORD, 1)
            if not text:
                break
            word, connection = json.loads(text), socket.socket(fileno=descriptors[0])
            if word[0] == "client":
                self._leases[word[1]].receive_client(connection)  # ugpud ends none that has one
                continue
            channel = Channel(connection, Limits())
            run: Callable[[], None] = partial(self._control, channel)
            if word[0] == "lease":
                lease = _Lease(channel, self._owned, self._outbox, self._unfinished, word[1])
                self._leases[word[1]] = lease
                run = lease.run
            threads.start(threading.Thread(target=run, name=word[0], daemon=True))
        # The process must end, whatever its device does.
        closing = threading.Thread(target=self._owned.close, name="close", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    # ---- ugpud's calls -----------------------------------------------------------------------

    def _control(self, channel: Channel) -> None:
        answers = Answers(Session(channel), self._outbox)
        with contextlib.suppress(Disconnected):  # the door is closed too
            while message := channel.receive():
                check(message, OPERATIONS)
                if message.operation == "hello":
                    hello = {"version": VERSION, "session": 0, "grace_s": 0.0}
                    answers.reply(message.call, hello)
                elif message.operation == "ping":
                    answers.reply(message.call, [None, self._state()])
                else:
                    self._start(partial(self._carry_out, answers, message))

    def _start(self, work: Callable[[], None]) -> None:
        """Do it in a thread of the pool. Without one this process serves ugpud no more."""
        try:
            self._pool.submit(work)
        except RuntimeError as error:
            log.error("%s: %s", self._owned.name, error)
            exhausted.end()

    def _carry_out(self, answers: Answers, message: Message) -> None:
        try:
            result = self._calls[message.operation](*message.arguments)
        except UgpuError as error:
            if is_exhausted(error):
                exhausted.end()
            answers.post(reply_of(message.call, error))
            return
        except Exception as error:
            if is_exhausted(error):
                exhausted.end()
            log.exception("%s: %s failed", self._owned.name, message.operation)
            what = f"{message.operation} failed in the card's process; ugpud's log has the cause"
            answers.post(reply_of(message.call, UgpuError(what)))
            return
        data = result if isinstance(result, bytes) else b""
        value = None if isinstance(result, bytes) else result
        answers.post(Message("reply", [[value, self._state()]], message.call, data))

    def _state(self) -> dict[str, object]:
        """Return the card's state as ugpud keeps it."""
        owned, card = self._owned, self._owned.card
        return {
            "labels": list(card.labels), "memory": card.memory, "transport": card.transport,
            "shares": card.shares, "alone": card.alone, "serial": owned.serial,
            "can_rest": owned.can_rest, "resting": owned.resting, "is_open": owned.is_open,
            "warm": owned.is_open and owned.warm,
        }  # fmt: skip

    def _boot(self, spare: int) -> dict[str, object]:
        self._owned.boot()
        target, hertz = self._owned.target()
        _limit_memory(self._owned.card.memory + spare)  # leases may have memory of the host
        return plain(Grant(0, self._owned.name, "exclusive", target, hertz).to_map())

    def _hand_out(self, parent: str, name: str, user: int) -> list[str]:
        handout = self._owned.hand_out(Path(parent), name, user)
        return [str(handout.socket), str(handout.firmware)]

    def _interrupt(self, number: int, reason: str) -> None:
        lease = self._leases.get(number)
        if lease is not None:
            lease.interrupt(reason)

    def _end(self, number: int, drain_s: float) -> str:
        lease = self._leases.pop(number, None)
        return "" if lease is None else lease.end(drain_s)


class _Lease:
    """The connections of one lease, and the thread that carries out its requests. They come from
    ugpud, or from the client's socket while that is here (tools.service.daemon.cards.relay)."""

    def __init__(
        self,
        channel: Channel,
        owned: Owned,
        outbox: Outbox,
        unfinished: Unfinished[_Lease],
        number: int,
    ) -> None:
        self._unfinished = unfinished
        self._wrong = ""  # for which the client loses its connection
        self._ours = Session(channel)
        self._answers = Answers(self._ours, outbox)
        self._owned = owned
        self._number = number
        self._service: Service | None = None
        self._idle = threading.Event()  # the thread carries out no request any more
        self._sockets: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def receive_client(self, connection: socket.socket) -> None:
        """Take the client's socket, whose session comes from ugpud."""
        self._sockets.put(connection)

    def run(self) -> None:
        """Serve until "bye", or the end of the connection."""
        try:
            self._serve()
        except Disconnected:
            pass
        except WireError as error:
            log.error("lease %d of %s: %s", self._number, self._owned.name, error)
        finally:
            self._idle.set()

    def _serve(self) -> None:
        channel = self._ours.channel
        message = self._next(HOLD)
        shared, memory, most, holder, who = message.arguments
        terms = Terms(self._number, bool(shared), memory, most, holder, who)
        told = self._unfinished.of(self, Rights(holder, "use", user=who))
        try:
            service = self._owned.hold(terms, self._answers)
        except UgpuError as error:
            self._answers.reply(message.call, error)
            return
        assert isinstance(service, Service)
        self._service = service
        channel.limits = Limits(META, state_bytes(most))
        self._answers.reply(message.call, service.timelines())
        while (message := self._next(ORDERS)).operation != "bye":
            if message.operation == "yours":
                self._serve_client(service, message.data, Limits(META, most, told))
            elif message.operation != "recall":
                service.take(message)

    def _next(self, operations: Mapping[str, Sequence[str]]) -> Message:
        message = self._ours.receive()
        assert message is not None
        check(message, operations)
        return message

    def _serve_client(self, service: Service, state: Bytes, limits: Limits) -> None:
        """Serve the client's socket until a request is ugpud's, or ugpud wants the socket back."""
        session = Session(Channel(self._sockets.get(), limits))
        session.unpack(state)
        ours = session.channel.beside = self._ours.channel.fileno()
        self._answers.session = session
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        again: Message | None = None
        try:
            recalled = self._take_first(service)
            while again is None and not recalled:
                if self._ours.channel.partial or poll.poll(0):
                    order = self._ours.receive(0.0)
                    if order is None:
                        continue
                    check(order, ORDERS)
                    if order.operation in ("recall", "bye"):
                        break
                    service.take(order)
                elif (request := session.receive()) is not None:
                    if service.handles(request.operation):
                        check(request, REQUESTS)
                        service.take(request)
                    else:
                        again = request
                if session.owes:
                    session.send(Message("ack", []))
        except Disconnected as error:
            log.debug("lease %d of %s: %s", self._number, self._owned.name, error)
        except WireError as error:
            self._wrong = str(error)
        self._return(session, again)

    def _take_first(self, service: Service) -> bool:
        """Carry out the request that came with the client's socket. It is older than all that the
        socket holds, and may arrive later than these. Return whether ugpud wants the socket back.
        """
        recalled = False
        while True:
            order = self._next(ORDERS)
            if order.operation not in ("recall", "bye"):
                service.take(order)
                return recalled
            recalled = True
            if order.operation == "bye":
                return recalled

    def crowd_out(self) -> None:
        """End the client's connection, which has most of the memory for messages."""
        self._wrong = "the daemon has no memory left for this message"
        with self._answers.lock:
            session = self._answers.session
        if session is not self._ours:
            self._answers.notify("error", WireError(self._wrong))
            session.channel.close()

    def _return(self, session: Session, again: Message | None) -> None:
        """Give the client's socket back. If it is broken, ugpud notices that too."""
        while True:
            with contextlib.suppress(Disconnected):
                session.flush()
            with self._answers.lock:
                if session.push():
                    continue
                self._answers.session = self._ours
                state = session.pack(again)
                break
        session.channel.release()
        self._ours.send(Message("back", [self._wrong], data=state))

    def interrupt(self, reason: str) -> None:
        """See Owned.interrupt. If the client's socket is here, ugpud's message waits for it: the
        client is told here, before its request ends."""
        if self._service is not None:
            if self._answers.session is not self._ours:
                self._answers.notify("ended", reason)
            self._owned.interrupt(self._service, reason)

    def end(self, drain_s: float) -> str:
        """See Owned.end. The client's last request was sent before."""
        if not self._idle.wait(drain_s):
            self.interrupt(f"lease {self._number} is over")
        if not self._idle.wait(REQUEST_S):
            raise HostError("a request of a lease that is over does not end", limit_s=REQUEST_S)
        channel = self._ours.channel
        channel.close()
        try:
            return "" if self._service is None else self._owned.end(self._service, drain_s)
        finally:
            channel.release()
            self._unfinished.forget(self)


def _limit_memory(spare: int) -> None:
    """Let the process have `spare` bytes more than it has."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmData:"):
            limit = (int(line.split()[1]) << 10) + spare
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _level(number: int) -> Level:
    try:
        return Level(number)
    except ValueError:
        raise BadArgument(f"there is no level {number} of a reset") from None


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None:
        if is_exhausted(failure.exc_value):
            exhausted.end()
        log.error("a thread of a card's process failed", exc_info=failure.exc_value)
