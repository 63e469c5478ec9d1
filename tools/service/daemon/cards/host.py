"""The process of one card: it has the card's device with its driver, and serves its leases.

ugpud decides; the process carries out. Connections to it are passed through the door, a socket of
whole messages that the process has from its start:

    ["control"]          ugpud's calls (OPERATIONS), each carried out in a thread
    ["lease", number]    one lease: "hold", then the client's requests as they arrive at ugpud

The other way, the door carries records of the log. The process ends when the door is closed. It
opens files and starts processes (code that is kept on disk, assemblers), so it is not confined as
those of `cpu` are: kernels on virtual GPUs have no addresses of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ugpu.hcq.errors import BadArgument, DeviceHang, UgpuError
from ugpu.hcq.remote import failures
from ugpu.hcq.remote.channel import Channel, Disconnected
from ugpu.hcq.remote.request import Grant
from ugpu.hcq.remote.session import Session
from ugpu.hcq.remote.wire import META, REQUESTS, VERSION, Limits, Message, WireError, check
from ugpu.hcq.state.config import config
from ugpu.hcq.state.ladder import Level
from ugpu.nv.code.assemble import assemble_apart
from ugpu.tools.base.events import event_of
from ugpu.tools.service.daemon.cards.owned import Owned
from ugpu.tools.service.daemon.cards.sandbox import be_first_victim
from ugpu.tools.service.daemon.clients.replies import plain, reply_of
from ugpu.tools.service.daemon.clients.service import Answers, Lent, Terms
from ugpu.tools.service.daemon.config import DeviceSettings
from ugpu.tools.service.daemon.outlets.outbox import Outbox

log = logging.getLogger(__name__)

EXHAUSTED = 77  # exit status: no memory is left
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
    "boot": ("number",),  # bytes that the process may use beyond those that it has then -> target
    "check": ("number",),  # 1: reset first
    "works": (),
    "rest": (),
    "wake": (),
    "reset": ("number?",),  # level -> level
    "harsher": ("number",),  # level -> levels
    "prove": (),
    "hand_out": ("text", "text", "number"),  # parent, name, user -> socket, firmware
    "take_back": (),
    "end": ("number", "real"),  # lease, seconds for its work -> why its data may be left
    "info": (),
    "sensors": (),
    "firmware_states": (),  # -> data: JSON
    "telemetry": (),  # -> data: JSON
}
#: the first message of a lease's connection: shared, memory, most bytes of a message, holder
HOLD: Mapping[str, Sequence[str]] = {"hold": ("number", "number", "number", "text")}


def serve(door: socket.socket, facts: dict[str, Any]) -> None:
    """Serve until ugpud closes the door. facts: see `CardProcess`."""
    os.environ.update(facts["environment"])
    config.cache_clear()
    root = logging.getLogger()
    root.handlers[:] = [DoorLog(door)]
    logging.getLogger("ugpu").setLevel(facts["level"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    be_first_victim()
    assemble_apart()
    sys.setswitchinterval(SWITCH_S)
    threading.excepthook = _thread_failed
    settings = DeviceSettings(
        facts["device"], label=facts["label"], memory=facts["memory"], options=facts["options"],
        shares=facts["shares"], apart=False,
    )  # fmt: skip
    Host(Owned(settings, facts["card"]), door).run()


class DoorLog(logging.Handler):
    """Sends records to ugpud, without waiting: those that find no room are counted."""

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


class Host:
    """A card, its leases and its connections to ugpud."""

    def __init__(self, owned: Owned, door: socket.socket) -> None:
        self._owned = owned
        self._door = door
        self._outbox = Outbox()
        self._pool = ThreadPoolExecutor(_THREADS, "card")
        self._leases: dict[int, _Lease] = {}
        owned.exhausted = _exhausted
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
            channel = Channel(connection, Limits())
            run: Callable[[], None] = partial(self._control, channel)
            if word[0] == "lease":
                lease = _Lease(channel, self._owned, self._outbox, word[1])
                self._leases[word[1]] = lease
                run = lease.run
            threading.Thread(target=run, name=word[0], daemon=True).start()
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
                    self._pool.submit(self._carry_out, answers, message)

    def _carry_out(self, answers: Answers, message: Message) -> None:
        try:
            result = self._calls[message.operation](*message.arguments)
        except UgpuError as error:
            answers.post(reply_of(message.call, error))
            return
        except MemoryError:
            _exhausted()
        except Exception:
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
        _limit_memory(spare)
        return plain(Grant(0, self._owned.name, "exclusive", target, hertz).to_map())

    def _hand_out(self, parent: str, name: str, user: int) -> list[str]:
        handout = self._owned.hand_out(Path(parent), name, user)
        return [str(handout.socket), str(handout.firmware)]

    def _end(self, number: int, drain_s: float) -> str:
        lease = self._leases.pop(number, None)
        return "" if lease is None else lease.end(drain_s)


class _Lease:
    """The connection of one lease, and the thread that carries out its requests."""

    def __init__(self, channel: Channel, owned: Owned, outbox: Outbox, number: int) -> None:
        self._channel = channel
        self._owned = owned
        self._outbox = outbox
        self._number = number
        self._service: Lent | None = None
        self._idle = threading.Event()  # the thread carries out no request any more

    def run(self) -> None:
        """Serve until "bye", or the end of the connection."""
        try:
            self._serve(Session(self._channel))
        except Disconnected:
            pass
        except WireError as error:
            log.error("lease %d of %s: %s", self._number, self._owned.name, error)
        finally:
            self._idle.set()

    def _serve(self, session: Session) -> None:
        answers = Answers(session, self._outbox)
        message = session.receive()
        assert message is not None
        check(message, HOLD)
        shared, memory, most, holder = message.arguments
        session.channel.limits = Limits(META, most)
        try:
            terms = Terms(self._number, bool(shared), memory, most, holder)
            self._service = service = self._owned.hold(terms, answers)
        except UgpuError as error:
            answers.reply(message.call, error)
            return
        answers.reply(message.call, service.timelines())
        while True:
            message = session.receive()
            assert message is not None
            check(message, REQUESTS)
            if message.operation == "bye":
                return
            service.take(message)

    def end(self, drain_s: float) -> str:
        """See Owned.end. The client's last request was sent before."""
        if not self._idle.wait(drain_s) and self._service is not None:
            self._owned.interrupt(self._service)
        if not self._idle.wait(REQUEST_S):
            raise DeviceHang("a request of a lease that is over does not end", limit_s=REQUEST_S)
        self._channel.close()
        try:
            return "" if self._service is None else self._owned.end(self._service, drain_s)
        finally:
            self._channel.release()


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


def _exhausted() -> None:
    """End the process: without memory it can neither go on nor recover."""
    os._exit(EXHAUSTED)


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    if isinstance(failure.exc_value, MemoryError):
        _exhausted()
    if failure.exc_value is not None:
        log.error("a thread of a card's process failed", exc_info=failure.exc_value)
