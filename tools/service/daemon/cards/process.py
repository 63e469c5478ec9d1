"""ugpud's side of the process of a card (tools.service.daemon.cards.host): starts it, calls it,
watches it, and passes leases' messages to it."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ugpu.hcq.errors import DeviceLost, UgpuError
from ugpu.hcq.remote.address import Address
from ugpu.hcq.remote.channel import Disconnected
from ugpu.hcq.remote.connection import Connection, NoReply
from ugpu.hcq.remote.replies import checked, facts, number, text
from ugpu.hcq.state import threads
from ugpu.hcq.state.config import passed_on
from ugpu.hcq.state.text import lines
from ugpu.tools.base.events import ATTRIBUTE, KINDS, Event
from ugpu.tools.service.daemon.cards import forks
from ugpu.tools.service.daemon.cards.apart import ENDS_S, ended_by
from ugpu.tools.service.daemon.cards.confinement import exhausted
from ugpu.tools.service.daemon.cards.host import RECORD
from ugpu.tools.service.daemon.config import DeviceSettings

log = logging.getLogger(__name__)

PING_S = 5.0  # between two checks whether the process answers; our choice
# TIMEOUT: for the answer, which needs no device, on a host whose processors are taken
ANSWER_S = 60.0
# TIMEOUT: for a call: a self-test after a reset, on a busy host
CALL_S = 300.0
# TIMEOUT: from the end of a connection to that of the process, all its threads included, on a busy
# host; it is over as soon as the process has ended
GONE_S = 60.0
_WHY = "an error in its model or driver, or a kernel's doing"
_KINDS = {kind.name: kind for kind in KINDS}


class CardProcess:
    """One process, from its start to its end; see `close`. Thread-safe.

    on_state: called with the card's state in each reply. on_end: called once in a thread of its
    own, with the reason, when the process has ended but not by `close`.

    Attributes:
        ping_s, answer_s: between two checks whether it answers, and for the answer; can be set.
    """

    def __init__(
        self,
        settings: DeviceSettings,
        name: str,
        messages: int,
        on_state: Callable[[dict[str, Any]], None],
        on_end: Callable[[UgpuError], None],
    ) -> None:
        """messages: see Settings. HostError if the process cannot be started."""
        self.name = name
        self.ping_s, self.answer_s = PING_S, ANSWER_S
        self._on_state = on_state
        self._on_end = on_end
        self._closing = False
        self._killed = ""  # why, if by `kill`
        self._over = threading.Event()  # the process has ended
        self._failure: UgpuError | None = None
        self._guard = threading.Lock()
        told = {
            "device": settings.name, "card": name, "label": settings.label,
            "memory": settings.memory, "options": settings.options, "shares": settings.shares,
            "power_limit_w": settings.power_limit_w,
            "messages": messages, "environment": passed_on(),
            "level": logging.getLogger("ugpu").getEffectiveLevel(),
        }  # fmt: skip
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self.worker = forks.worker(json.dumps(told).encode(), theirs)
        except BaseException:
            self._door.close()
            raise
        try:
            connected = self.connect(["control"])
            address = Address(f"process {self.worker.pid} of {name}", connected=connected)
            self._control = Connection(address)
            self._control.explain = lambda error: self._reason(error)
            self._watcher = threading.Thread(
                target=self._watch, name=f"{name} process", daemon=True
            )
            threads.start(self._watcher)
        except BaseException:
            self.worker.kill()
            self.worker.wait(ENDS_S)
            self._door.close()
            raise

    @property
    def lives(self) -> bool:
        """Return whether the process can be called."""
        return not self._over.is_set() and self._control.failure is None

    def call(self, operation: str, *arguments: object, limit_s: float = CALL_S) -> Any:
        """Call the process (host.OPERATIONS); return the result. DeviceLost if it has ended, or
        does not answer within `limit_s`: then it is ended. Raises the card's errors."""
        try:
            reply = self._control.call(operation, *arguments, limit_s=limit_s)
        except NoReply:
            self.kill(f"it did not answer {operation} within {limit_s:.0f} s")
            raise self.reason() from None
        with checked(operation):
            result, state = reply.arguments[0]
            self._on_state(facts(state))
        return bytes(reply.data) if reply.data else result

    def connect(self, word: list[object]) -> socket.socket:
        """Return a new connection to the process (tools.service.daemon.cards.host)."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.send(word, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        return ours

    def send(self, word: list[object], descriptor: int) -> None:
        """Send a descriptor through the door. Disconnected if the process has ended."""
        try:
            socket.send_fds(self._door, [json.dumps(word).encode()], [descriptor])
        except OSError as error:
            raise Disconnected(f"{self.name}: its process is gone: {error}") from None

    def reason(self) -> UgpuError:
        """Return the reason why the process ended, a new copy for each raise."""
        error = self._reason(Disconnected(f"{self.name}: the connection to its process ended"))
        return type(error)(error.message, **error.facts)

    def kill(self, why: str) -> None:
        """End the process, which does not do what it must; its leases get the reason."""
        log.error("%s: its process is ended: %s", self.name, why)
        self._killed = self._killed or why
        self.worker.kill()

    def close(self) -> None:
        """End the process. Idempotent."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        if self.worker.wait(ENDS_S) is None:
            self.worker.kill()
            self.worker.wait(ENDS_S)
        self._control.close()
        if self._watcher is not threading.current_thread():
            self._watcher.join()
        self._door.close()

    # ---- implementation ----------------------------------------------------------------------

    def _reason(self, error: UgpuError) -> UgpuError:
        if not isinstance(error, Disconnected):
            return error
        with self._guard:
            if self._failure is None:
                self._failure = self._find_reason(error)
            return self._failure

    def _find_reason(self, error: UgpuError) -> UgpuError:
        status = self.worker.wait(GONE_S)
        what = f"{self.name}: its process"
        if self._killed:
            return DeviceLost(f"{what} was ended: {self._killed}")
        if status == exhausted.EXHAUSTED:
            return DeviceLost(f"{what} had no memory left (host_memory in its [[device]])")
        if status is not None and status < 0:
            return ended_by(self.name, self.worker.pid, status, _WHY)
        if status is not None:
            return DeviceLost(f"{what} ended with status {status}; the log has the cause")
        return error

    def _watch(self) -> None:
        """Repeat the process's log records, and ask it now and then whether it answers."""
        next_at = time.monotonic() + self.ping_s
        while True:
            left_s = max(0.0, next_at - time.monotonic())
            if forks.readable(self._door.fileno(), left_s):
                try:
                    sent = self._door.recv(RECORD + 1)
                except OSError:
                    sent = b""
                if not sent:
                    break
                relog(self.name, sent)
            if time.monotonic() >= next_at:
                with contextlib.suppress(UgpuError):
                    self.call("ping", limit_s=self.answer_s)
                next_at = time.monotonic() + self.ping_s
        self._over.set()
        if not self._closing:
            self._on_end(self.reason())


def relog(card: str, sent: bytes) -> None:
    """Log a record of a card's process in ugpud's log. What is not one is logged as such."""
    try:
        name, level, shown, told = json.loads(sent)
        logger = logging.getLogger(text(name) if str(name).startswith("ugpu.") else __name__)
        record = logger.makeRecord(
            logger.name, number(level), __file__, 0, "%s", (lines(text(shown)),), None
        )
        if told is not None:
            kind, title, remedy, fields = told
            fields = {text(key): text(value) for key, value in facts(fields).items()}
            setattr(record, ATTRIBUTE, Event(_KINDS[kind], text(title), text(remedy), fields))
    except (ValueError, TypeError, LookupError) as error:
        log.error("%s: its process sent no record of a log: %s", card, error)
        return
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
