"""Calls of the GSP: a request and its reply, and the events that come among replies.

One call is under way at a time. The firmware answers in order, and repeats a call's sequence number
or states 0. The reply to a call that an exception (Ctrl-C) cut short is dropped when it comes.
The last calls and events are kept with their durations, for reports. Source: open-gpu-kernel-
modules 570.144 rpc.c (_issueRpcAndWait, rpcRecvPoll), kernel_gsp.c (kgspProcessRpcEvent).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ugpu.hcq.bare.stages import or_silent
from ugpu.hcq.errors import FirmwareError, FirmwareSilent
from ugpu.nv.abi import status_name
from ugpu.nv.abi.firmware import FirmwareAbi
from ugpu.nv.gsp.rpc.queue import Indices, MessageQueues
from ugpu.nv.gsp.rpc.records import CONTINUATION, MOST_MESSAGE, MOST_PAYLOAD, BadRecord, Record

log = logging.getLogger(__name__)

# TIMEOUT: as RM's default for a reply (gpuTimeoutDefault of the GSP, 30 s with its debugger off).
REPLY_LIMIT_S = 30.0
_FIRST_EVENT = 0x1000
_KEPT = 128
_MOST_AT_ONCE = 1000  # records in one look, so that a flood of events ends a call's wait

Handler = Callable[[bytes], None]


@dataclass
class Trace:
    """One call or event, for reports. seconds: of a call, None while it is under way."""

    name: str
    at: float
    size: int
    result: str = ""
    seconds: float | None = None

    def __str__(self) -> str:
        took = "" if self.seconds is None else f" {self.seconds * 1e6:.0f} us"
        return f"{self.at:.6f} {self.name} {self.size} bytes{took} {self.result}".rstrip()


@dataclass
class _Message:
    """A message as its records arrive."""

    function: int
    result: int
    payload: bytearray
    sequence: int
    open: bool  # its last record was full, so that a continuation may follow


@dataclass(frozen=True)
class LeftCalls:
    """Where the calls of a firmware are that outlives its process. sequence: of the last call.
    clients: numbers used."""

    indices: Indices
    sequence: int
    clients: int


def require_size(content: bytes, size: int, what: str) -> None:
    """Raise FirmwareError unless the GSP's `what` has at least `size` bytes."""
    if len(content) < size:
        raise FirmwareError(f"the GSP's {what} is cut short", size=len(content), need=size)


class Calls:
    """See the module. Any thread may call.

    history: the last calls and events. on_event: functions by number, called with the payload of
    each event, in the thread that looks. check: raises if the chip is gone or the GSP stopped;
    called while waiting. state: facts for the error of a call that is not answered.
    """

    def __init__(
        self,
        queues: MessageQueues,
        abi: FirmwareAbi,
        *,
        check: Callable[[], None],
        state: Callable[[], dict[str, object]],
    ) -> None:
        self._queues = queues
        self._clock = queues.clock
        self._check = check
        self._state = state
        self._lock = threading.RLock()
        self._sequence = 0
        self._owed: list[int] = []  # functions of calls that were cut short before their reply
        self._message: _Message | None = None
        self._failure: FirmwareError | None = None
        self._clients = 0
        self._handled: set[int] = set()  # events that came
        self.abi = abi
        self.on_event: dict[int, Handler] = {}
        self.history: deque[Trace] = deque(maxlen=_KEPT)
        number = abi.constants.values()
        self._names = {
            value: name.removeprefix("NV_VGPU_MSG_").removeprefix("FUNCTION_")
            for name, value in number.items()
            if name.startswith(("NV_VGPU_MSG_FUNCTION_", "NV_VGPU_MSG_EVENT_"))
            and not name.endswith(("_NUM_FUNCTIONS", "_NUM_EVENTS", "_FIRST_EVENT"))
        }

    def name_of(self, function: int) -> str:
        """Return the header's name of a function or event."""
        return self._names.get(function, f"function {function:#x}")

    @property
    def works(self) -> bool:
        """Return whether no call has remained without an answer."""
        return self._failure is None

    def end(self, reason: FirmwareError) -> None:
        """Send nothing any more: the firmware no longer runs, or is to be reset."""
        with self._lock:
            self._failure = self._failure or reason

    def begin_again(self) -> None:
        """Send again: firmware that was suspended goes on, with the numbers of its messages."""
        with self._lock:
            self._failure = None

    def next_client(self) -> int:
        """Return a number for a client that this run of the firmware has not had, from 1 on."""
        with self._lock:
            self._clients += 1
            return self._clients

    def left(self) -> LeftCalls | None:
        """Return what another process needs to go on with the firmware; None while messages are
        under way, or after a call that was not answered."""
        with self._lock:
            indices = self._queues.indices()
            if indices is None or self._failure is not None or self._message is not None:
                return None
            return LeftCalls(indices, self._sequence, self._clients)

    def go_on(self, left: LeftCalls) -> None:
        """Number calls and clients as the process before this one would have."""
        self._sequence, self._clients = left.sequence, left.clients

    def send(self, function: int, payload: bytes) -> None:
        """Send a message that has no reply. The GSP may not run yet."""
        with self._lock:
            self._queues.send(function, payload, 0)
            self._note(self.name_of(function), len(payload))

    def call(
        self, function: int, payload: bytes, *, what: str = "", limit_s: float = REPLY_LIMIT_S
    ) -> bytes:
        """Send a message and return the payload of its reply.

        what: the request, for reports and errors. FirmwareError if the GSP refuses the call itself,
        FirmwareSilent if it does not answer; then later calls fail too.
        """
        with self._lock:
            if self._failure is not None:
                raise FirmwareSilent(
                    f"{what or self.name_of(function)} was not sent: an earlier call failed",
                    earlier=self._failure.message,
                )
            name = what or self.name_of(function)
            self._sequence += 1
            trace = self._note(name, len(payload))
            written = self._queues.written
            try:
                self._queues.send(function, payload, self._sequence)
                reply = self._await(function, len(payload), name, limit_s)
            except (FirmwareSilent, BadRecord) as error:
                self._failure = error
                raise
            except FirmwareError as error:
                if error.facts.get("event") is None:  # the firmware has crashed
                    self._failure = error
                    error.add_facts(request=name, **self._state())
                raise
            except BaseException:
                if self._queues.written != written:
                    self._owed.append(function)
                raise
            trace.seconds = self._clock.now() - trace.at
            if reply.result:
                trace.result = status_name(reply.result)
                raise FirmwareError(
                    f"the GSP answers {trace.result} to {name}", status=trace.result, request=name
                )
            return bytes(reply.payload)

    def _await(self, function: int, size: int, name: str, limit_s: float) -> _Message:
        def probe() -> _Message | None:
            self._check()
            return self._look(function, size)

        text = f"the GSP does not answer {name} within {limit_s} s"
        with or_silent(text, self._silence, request=name):
            return self._clock.wait_until(
                probe, unit="GSP", waiting_for=f"reply to {name}", limit_s=limit_s
            )

    def _note(self, name: str, size: int, result: str = "") -> Trace:
        trace = Trace(name, self._clock.now(), size, result)
        self.history.append(trace)
        return trace

    def _silence(self) -> dict[str, object]:
        return {**self._state(), "history": [str(trace) for trace in tuple(self.history)[-8:]]}

    def await_event(self, function: int, limit_s: float) -> None:
        """Wait until an event has been handled. The handler raises if it reports a failure."""
        name = self.name_of(function)

        def probe() -> bool:
            self._check()
            self._look()
            return function in self._handled

        with self._lock:
            self._handled.discard(function)
            with or_silent(f"the GSP does not report {name} within {limit_s} s", self._silence):
                self._clock.wait_until(probe, unit="GSP", waiting_for=name, limit_s=limit_s)

    def drain(self) -> None:
        """Handle the events that have arrived; does nothing while another thread calls."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._failure is None:
                self._look()
        finally:
            self._lock.release()

    def _look(self, function: int | None = None, size: int = 0) -> _Message | None:
        """Take records until the reply to `function` is complete, and return it, or none is
        left."""
        for _ in range(_MOST_AT_ONCE):
            record = self._queues.receive() if self._queues.linked() else None
            if record is None:
                self._finish_event()
                return None
            self._add(record)
            message = self._message
            if message is None or message.function >= _FIRST_EVENT:
                continue
            if message.open and len(message.payload) < size:
                continue
            self._message = None
            if message.function == function and not self._is_late(message):
                return message
            if message.function in self._owed:
                self._owed.remove(message.function)
                continue
            log.warning("the GSP sent a reply to %s unasked", self.name_of(message.function))
        return None

    def _is_late(self, message: _Message) -> bool:
        """Return whether a reply belongs to a call that was cut short."""
        if message.sequence:
            return message.sequence != self._sequence
        return message.function in self._owed

    def _add(self, record: Record) -> None:
        """Add a record to the message it belongs to."""
        full = len(record.payload) == MOST_PAYLOAD
        message = self._message
        if record.function == CONTINUATION:
            if message is None or not message.open:
                raise BadRecord("the GSP continues a message that it did not begin")
            if len(message.payload) + len(record.payload) > MOST_MESSAGE:
                raise BadRecord("the GSP's message is too long", most=MOST_MESSAGE)
            message.payload += record.payload
            message.open = full
            return
        self._finish_event()
        self._message = _Message(
            record.function, record.result, bytearray(record.payload), record.sequence, full
        )
        if record.function >= _FIRST_EVENT and not full:
            self._finish_event()

    def _finish_event(self) -> None:
        """Handle the event that has arrived completely, if any."""
        message = self._message
        if message is None or message.function < _FIRST_EVENT:
            return
        self._message = None
        result = status_name(message.result) if message.result else ""
        name, size = self.name_of(message.function), len(message.payload)
        trace = self._note(name, size, result)
        handler = self.on_event.get(message.function)
        if message.result:
            text = f"the GSP reports {trace.name} with {trace.result}"
            raise FirmwareError(text, status=trace.result, event=trace.name)
        if handler is not None:
            handler(bytes(message.payload))
        self._handled.add(message.function)
